//! What an authority does wrong harms no client.

use std::{fs, net::TcpListener, path::Path, time::Duration};

use testkit::{
    gateway::Gateway,
    process::{Process, gateway_command, with_small_files},
    tls::Authority,
    wait::eventually,
};

use tidegate::clock::Clock;

use super::{
    A, B, FAILED, ISSUED, Setting,
    false_authority::{Answers, FalseAuthority},
    names_and_issuer, post, state,
};

/// A gateway with a good certificate from this authority.
fn issued(authority: &FalseAuthority, storage: &tempfile::TempDir) -> Gateway {
    let gateway = Gateway::start(&authority.yaml(storage));
    gateway.wait_for_metric(ISSUED, 1);
    gateway
}

#[test]
fn a_certificate_that_clients_refuse_replaces_no_good_one() {
    let good = Answers::default;
    let broken = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
    let cases = [
        ("has expired", Answers { days: [(2020, 1, 1), (2021, 1, 1)], ..good() }),
        ("is not valid yet", Answers { days: [(2080, 1, 1), (2081, 1, 1)], ..good() }),
        ("lacks the name a.test", Answers { names: vec![B], ..good() }),
        ("cannot be used", Answers { rest_of_chain: broken, ..good() }),
    ];
    let storage = tempfile::tempdir().expect("a directory");
    let authority = FalseAuthority::start(Answers::default());
    let gateway = issued(&authority, &storage);
    let before = state(&gateway);
    for (failures, (problem, answers)) in (1..).zip(cases) {
        *authority.answers() = answers;
        post(&gateway, "/api/acme/renew");
        gateway.wait_for_metric(FAILED, failures);
        let state = state(&gateway);
        let error = state["last_error"].to_string();
        assert!(error.contains("the issued certificate") && error.contains(problem), "{error}");
        assert_eq!(state["expires_at"], before["expires_at"]);
    }
    *authority.answers() = Answers::default();
    post(&gateway, "/api/acme/renew");
    gateway.wait_for_metric(ISSUED, 2);
}

#[test]
fn an_endless_pause_ends_an_order_and_not_the_gateways_care() {
    let storage = tempfile::tempdir().expect("a directory");
    let authority = FalseAuthority::start(Answers::default());
    let gateway = issued(&authority, &storage);
    for (failures, pause) in (1..).zip(["18446744073709551615", "+18446744073709551615"]) {
        let endless = Answers { order: "processing", retry_after: pause, ..Answers::default() };
        *authority.answers() = endless;
        post(&gateway, "/api/acme/renew");
        gateway.wait_for_metric(FAILED, failures);
    }
    *authority.answers() = Answers::default();
    post(&gateway, "/api/acme/renew");
    gateway.wait_for_metric(ISSUED, 2);
}

#[test]
fn an_authority_that_limits_orders_is_not_asked_before_its_time() {
    let storage = tempfile::tempdir().expect("a directory");
    let busy = Answers {
        order_status: "429 Too Many Requests",
        retry_after: "20000",
        ..Answers::default()
    };
    let authority = FalseAuthority::start(busy);
    let clock = Clock::simulated(Clock::system().store_time());
    let gateway = Gateway::start_at(&authority.yaml(&storage), clock);
    gateway.wait_for_metric(FAILED, 1);
    let failed = state(&gateway);
    let pause = failed["retry_at"].as_u64().expect("a time")
        - gateway.clock.store_time().as_unix_ms() / 1000;
    assert!((20_000..=25_000).contains(&pause), "{failed}");
    let error = failed["last_error"].as_str().expect("a text");
    assert!(error.contains("refuses requests for 20000 s: too many orders"), "{error}");
    assert!(error.len() <= 500, "an authority's text may be of any length");
    *authority.answers() = Answers::default();
    gateway.clock.advance(Duration::from_secs(19_990));
    assert_eq!(gateway.metric(ISSUED), 0);
    gateway.clock.advance(Duration::from_mins(100));
    gateway.wait_for_metric(ISSUED, 1);
}

#[test]
fn an_authority_that_names_no_time_is_asked_again_after_a_minute() {
    let storage = tempfile::tempdir().expect("a directory");
    let directory_status = "503 Service Unavailable";
    let authority = FalseAuthority::start(Answers { directory_status, ..Answers::default() });
    let clock = Clock::simulated(Clock::system().store_time());
    let gateway = Gateway::start_at(&authority.yaml(&storage), clock);
    gateway.wait_for_metric(FAILED, 1);
    let failed = state(&gateway);
    let pause = failed["retry_at"].as_u64().expect("a time")
        - gateway.clock.store_time().as_unix_ms() / 1000;
    assert!((60..=75).contains(&pause), "{failed}");
}

#[test]
fn an_authority_that_does_not_answer_delays_no_other_one() {
    let setting = Setting::new();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let silent = format!("https://{}/dir", silent.local_addr().expect("a bound address"));
    let yaml = setting.yaml(A, "tls-alpn-01");
    let own = yaml.split("listen:").nth(1).and_then(|rest| rest.split("  - {address").next());
    let other = own.expect("a listener").replace(&setting.pebble.url(), &silent);
    let other = other.replace(&format!("127.0.0.1:{}", setting.ports.tls), "127.0.0.1:0");
    // Its order comes first.
    let both = yaml.replacen("listen:", &format!("listen:{}", other.trim_end()), 1);
    let gateway = Gateway::start(&both);
    gateway.wait_for_metric(ISSUED, 1);
    assert_eq!(gateway.metric(FAILED), 0, "the other order still waits");
}

#[test]
fn a_stored_certificate_of_other_names_is_ordered_again() {
    let setting = Setting::new();
    drop(setting.issued());
    let [file] = setting.files(".pem").try_into().expect("one certificate");
    let other = Authority::new("another").issue(&[B]);
    fs::write(file, other.cert + &other.key).expect("a file");
    let gateway = setting.issued();
    let (names, issuer) = names_and_issuer(&setting.shown(&gateway));
    assert_eq!(names, [A]);
    assert!(issuer.contains("Pebble"), "{issuer}");
}

#[test]
fn on_a_full_disk_nothing_is_ordered() {
    let setting = Setting::new();
    let folder = tempfile::tempdir().expect("a directory");
    let yaml = setting.yaml(A, "tls-alpn-01");
    let one_listener = yaml.lines().filter(|line| !line.contains("redirect_https"));
    let admin = "admin: {address: '127.0.0.1:0'}\n".lines();
    let yaml: Vec<&str> = one_listener.chain(admin).collect();
    fs::write(folder.path().join("tidegate.yaml"), yaml.join("\n")).expect("a file");
    let arguments = ["serve", "--config", "tidegate.yaml"];
    let command = gateway_command(env!("CARGO_BIN_EXE_tidegate"), folder.path(), &arguments);
    let gateway = Process::start(with_small_files(&command));
    eventually("a failed order", || gateway.log_line("no certificate was issued").is_some());
    let line = gateway.log_line("no certificate was issued").expect("logged above");
    assert!(line.contains("cannot write") && line.contains("File too large"), "{line}");
    assert_eq!(setting.pebble.orders(), 0);
    assert!(is_empty(setting.storage.path()), "nothing is left behind");
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("a folder").next().is_none()
}
