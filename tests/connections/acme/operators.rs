//! The admin API and the commands.

use std::fs;

use testkit::{client::get, gateway::Gateway, port::free_port, wait::eventually};
use tidegate::cli::{self, Exit};

use super::{A, FAILED, Setting, nowhere, post};

#[test]
fn the_admin_api_lists_and_renews_certificates() {
    let setting = Setting::new();
    let directory = nowhere();
    let yaml = setting.yaml("b.test, a.test", "http-01").replace(&setting.pebble.url(), &directory);
    let gateway = Gateway::start(&yaml);
    gateway.wait_for_metric(FAILED, 1);
    let listed = get(gateway.admin(), "/api/acme", "").json();
    let own = &listed["certificates"][0];
    assert_eq!(own["domains"][0], A);
    assert_eq!((&own["challenge"], &own["directory"]), (&"http-01".into(), &directory.into()));
    assert!(own["expires_at"].is_null() && own["renewal_at"].is_null(), "{own}");
    for (path, status) in [
        ("/api/acme/renew?domain=B.test", 202),
        ("/api/acme/renew", 202),
        ("/api/acme/renew?domain=c.test", 404),
        ("/api/acme/renew?name=a.test", 400),
        ("/api/acme/renew?domain=a.test&domain=b.test", 400),
    ] {
        assert_eq!(post(&gateway, path).status, status, "{path}");
    }
    let without = Gateway::start(
        "upstreams: {a: {respond: {}}}\nroutes: [{name: all, match: {path: '/{*rest}'}, upstream: a}]\n",
    );
    assert_eq!(get(without.admin(), "/api/acme", "").json()["certificates"], serde_json::json!([]));
    assert_eq!(post(&without, "/api/acme/renew").status, 404);
}

#[test]
fn commands_show_and_renew_certificates() {
    let setting = Setting::new();
    let path = |name: &str| setting.storage.path().join(name).display().to_string();
    let (token, file) = (path("token"), path("tidegate.yaml"));
    fs::write(&token, "0123456789abcdef\n").expect("a file");
    let admin = format!("127.0.0.1:{}", free_port());
    let yaml = setting.yaml(A, "http-01");
    let yaml = format!("{yaml}admin: {{address: '{admin}', token: 'file:{token}'}}\n");
    fs::write(&file, &yaml).expect("a file");
    let run = |arguments: &[&str]| {
        let mut out = Vec::new();
        let own = ["--config", file.as_str()];
        let all = ["tidegate", "acme"].iter().chain(arguments).chain(&own);
        let exit = cli::run(all.copied(), &mut out);
        (exit, String::from_utf8(out).expect("UTF-8"))
    };
    let gateway = Gateway::start(&yaml);
    eventually("a certificate", || run(&["status"]).1.contains("renewal: 20"));
    let (exit, shown) = run(&["status"]);
    assert!(exit == Exit::Ok && shown.starts_with("a.test\n  expires: 20"), "{shown}");
    let renewed = "1 certificate is ordered; see `tidegate acme status`\n".to_owned();
    for arguments in [&["renew"][..], &["renew", "--domain", "A.test"]] {
        assert_eq!(run(arguments), (Exit::Ok, renewed.clone()));
    }
    assert_eq!(run(&["renew", "--domain", "c&d.test"]), (Exit::NotReady, String::new()));
    drop(gateway);
    let (exit, stored) = run(&["status"]);
    assert!(exit == Exit::NotReady && stored.starts_with("a.test\n  expires: 20"), "{stored}");
    assert!(!stored.contains("renewal"), "{stored}");
    assert_eq!(run(&["renew"]).0, Exit::NotReady);
}
