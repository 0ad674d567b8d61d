//! Names and passwords.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    protocol::on_every_protocol,
    upstream::Upstream,
    wait::sleep,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_050_000);

/// The passwords are `open sesame`: by `argon2 -id -t 1 -k 64 -p 1`, and by `htpasswd -B -C 4`.
const RULES: &str = "
auth: {staff: {basic: {}, max_failures: {failures}}}
consumers:
  entries:
    - name: acme
      plan: gold
      password: $argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$ixpwwKn9ahZABsFdSCp89Bjv1gR+y5qCxswm94TuOzs
    - {name: bread, password: $2y$04$ZTWSX.0UDtfHZJGRcCTlB.dkC9j.jI8zkjfa/2ndeFU.GgjBofqQG}
    - {name: off, password: $2y$04$ZTWSX.0UDtfHZJGRcCTlB.dkC9j.jI8zkjfa/2ndeFU.GgjBofqQG, disabled: true}
    - {name: bare}
plans: {gold: {each: 3}}
limits: {each: {quota: 100, window: 1h, key: [consumer]}}
upstreams: {app: {targets: ['{target}']}}
routes:
  - {name: all, match: {path: /}, upstream: app, auth: [staff], limits: [each]}
  - {name: gold, match: {path: /gold}, upstream: app, auth: [staff], consumers: {plans: [gold]}}
";

fn rules(upstream: &Upstream, failures: &str) -> String {
    fill(RULES, [("target", upstream.target()), ("failures", failures.to_owned())])
}

fn basic(name: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{name}:{password}")))
}

#[test]
fn a_password_admits_its_consumer() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = Gateway::for_every_protocol(&rules(&upstream, "off"));
        let get = |path: &str, headers: &str| protocol.get(&gateway, path, headers);
        // The second time from what is known of the first.
        for _ in 0..2 {
            let admitted = get("/", &basic("acme", "open sesame"));
            assert_eq!((admitted.status, admitted.number("x-ratelimit-limit")), (200, 3));
        }
        let head = upstream.request_texts().pop().unwrap().to_ascii_lowercase();
        assert!(head.contains("x-consumer-name: acme") && !head.contains("basic"), "{head}");
        assert_eq!(get("/", &basic("bread", "open sesame")).number("x-ratelimit-limit"), 100);
        assert_eq!(get("/gold", &basic("bread", "open sesame")).status, 403);
        let forwarded = upstream.request_count();
        for (name, password) in [
            ("acme", "open"),
            ("acme", ""),
            ("Acme", "open sesame"),
            ("off", "open sesame"),
            ("bare", "open sesame"),
            ("other", "open sesame"),
            ("", ""),
        ] {
            let refused = get("/", &basic(name, password));
            assert_eq!(refused.status, 401, "{name}");
            assert_eq!(refused.json()["detail"], "the credentials are not valid", "{name}");
            let challenge = Some("Basic realm=\"staff\", charset=\"UTF-8\"");
            assert_eq!(refused.header("www-authenticate"), challenge);
        }
        // A browser asks for a name and a password.
        let page = get("/", "Accept: text/html\r\n");
        assert_eq!(
            (page.status, page.header("content-type")),
            (401, Some("text/html; charset=utf-8"))
        );
        assert!(page.header("www-authenticate").is_some(), "{}", page.head);
        assert_eq!(upstream.request_count(), forwarded);
        let after_tab = basic("acme", "open sesame").replace("Basic ", "Basic\t");
        assert_eq!(get("/", &after_tab).status, 200);
        let head = upstream.request_texts().pop().unwrap().to_ascii_lowercase();
        assert!(!head.contains("authorization"), "{head}");
        let forwarded = upstream.request_count();
        for malformed in ["Basic", "Basic !", "Basic YWJj"] {
            assert_eq!(get("/", &format!("Authorization: {malformed}\r\n")).status, 401);
        }
        let missing = get("/", "");
        let detail = "the request has no credentials; expected a name and a password";
        assert_eq!((missing.status, &missing.json()["detail"]), (401, &detail.into()));
        assert_eq!(upstream.request_count(), forwarded);
    });
}

#[test]
fn guesses_of_passwords_are_bounded() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start_at(&rules(&upstream, "2/1m"), Clock::manual(START));
    let status = |password: &str| get(gateway.address(), "/gold", &basic("acme", password)).status;
    assert_eq!((status("a"), status("b"), status("open sesame")), (401, 401, 429));
}

#[test]
fn a_new_password_ends_the_old_one_at_once() {
    let upstream = Upstream::hello();
    let yaml = rules(&upstream, "off");
    let gateway = Gateway::start(&yaml);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/gold", &basic("acme", "open sesame")).status, 200);
    // The hash of another password.
    let other = yaml.replace("ixpwwKn9", "ixpwwKn8");
    gateway.reload(&other).expect("valid rules");
    assert_eq!(client.get("/gold", &basic("acme", "open sesame")).status, 401);
    gateway.reload(&yaml).expect("valid rules");
    assert_eq!(client.get("/gold", &basic("acme", "open sesame")).status, 200);
    let disabled = yaml.replace("      plan: gold\n", "      plan: gold\n      disabled: true\n");
    gateway.reload(&disabled).expect("valid rules");
    assert_eq!(client.get("/gold", &basic("acme", "open sesame")).status, 401);
}

#[test]
fn slow_passwords_hold_up_no_other_request() {
    let upstream = Upstream::hello();
    // Tens of ms a password, more without optimization; another route has none.
    let slow = rules(&upstream, "off").replace("m=64,t=1", "m=2048,t=2")
        + "  - {name: open, match: {path: /open}, upstream: app}\n";
    let gateway = Gateway::start(&("workers: 1\n".to_owned() + &slow));
    let address = gateway.address();
    let guesses: Vec<_> = (0..24)
        .map(|index| {
            std::thread::spawn(move || {
                get(address, "/gold", &basic("acme", &format!("guess {index}"))).status
            })
        })
        .collect();
    let mut client = Client::connect(address);
    let mut answered = 0;
    while !guesses.iter().all(std::thread::JoinHandle::is_finished) {
        assert_eq!(client.get("/open", "").status, 200);
        answered += 1;
        sleep(Duration::from_millis(1));
    }
    let statuses: Vec<u16> = guesses.into_iter().map(|guess| guess.join().unwrap()).collect();
    assert!(statuses.iter().all(|status| matches!(status, 401 | 503)), "{statuses:?}");
    assert!(statuses.contains(&503), "an address has a bounded number of passwords that wait");
    assert!(answered > 0, "answers meanwhile");
}

#[test]
fn requests_with_one_password_wait_for_one_verification() {
    let upstream = Upstream::hello();
    let slow = rules(&upstream, "off").replace("m=64,t=1", "m=2048,t=2");
    let gateway = Gateway::start(&slow);
    let address = gateway.address();
    // The hash is another password's now, so each of them is wrong, and none is known from another
    // one.
    let requests = (0..40).map(|_| {
        std::thread::spawn(move || get(address, "/gold", &basic("acme", "open sesame")).status)
    });
    let requests: Vec<_> = requests.collect();
    let statuses: Vec<u16> = requests.into_iter().map(|one| one.join().unwrap()).collect();
    assert_eq!(statuses, [401; 40], "no address has 40 places");
}
