//! Client certificates that name a consumer.

use std::sync::Arc;

use testkit::{
    gateway::Gateway,
    tls::{Authority, connect},
    upstream::Upstream,
    yaml::fill,
};

const RULES: &str = "
listen:
  - address: 127.0.0.1:0
    tls: {certificates: [{cert: '{files}/own.pem', key: '{files}/own.key', client_ca: '{files}/partners.pem'}]}
auth: {partner: {certificate: {consumer: san_dns}}}
consumers:
  entries:
    - {name: acme.test, plan: gold}
    - {name: off.test, disabled: true}
plans: {gold: {each: 5}}
upstreams: {app: {targets: ['{target}']}}
limits: {each: {quota: 2, window: 1h, key: [consumer]}}
routes: [{name: all, upstream: app, auth: [partner], limits: [each]}]
";

#[test]
fn the_name_in_a_verified_certificate_is_the_consumer() {
    let files = tempfile::tempdir().expect("a directory");
    let (own, partners) = (Authority::new("own"), Authority::new("partners"));
    own.issue(&["a.test", "gateway.test"]).write(files.path(), "own");
    partners.write(files.path(), "partners.pem");
    let upstream = Upstream::hello();
    let (folder, target) = (files.path().display().to_string(), upstream.target());
    let gateway = Gateway::start(&fill(RULES, [("files", &*folder), ("target", &target)]));
    for (names, status, quota) in [
        (&["acme.test"][..], 200, 5),
        (&["new.test"], 200, 2),
        (&["off.test"], 401, 0),
        (&["acme.test", "other.test"], 401, 0),
    ] {
        let identity = partners.issue(names);
        let config = Arc::new(own.client(Some(&identity), &[]));
        let mut client = connect(gateway.address(), "a.test", &config).expect("a handshake");
        let response = client.get("/", "");
        assert_eq!(response.status, status, "{names:?}: {}", response.head);
        if status == 200 {
            assert_eq!(response.number("x-ratelimit-limit"), quota, "{names:?}");
            let text = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
            assert!(text.contains(&format!("x-consumer-name: {}\r\n", names[0])), "{text}");
        } else {
            assert_eq!(response.header("www-authenticate"), Some("Certificate realm=\"partner\""));
        }
    }
}
