//! When a certificate is renewed, and when a failed order is repeated.

use std::{io::Write, time::Duration};

use testkit::{
    gateway::Gateway,
    tls::TlsUpstream,
    wait::{eventually, sleep},
};
use tidegate::clock::Clock;

use super::{A, FAILED, ISSUED, Setting, state};

/// The time that the gateway's state has for `key`.
fn time(gateway: &Gateway, key: &str) -> u64 {
    state(gateway)[key].as_u64().unwrap_or_else(|| panic!("{key}: {}", state(gateway)))
}

/// Moves the clock to `at`, in seconds since the epoch.
fn advance_to(gateway: &Gateway, at: u64) {
    gateway.clock.advance(Duration::from_millis(at * 1000 - gateway.clock.now()));
}

#[test]
fn a_certificate_is_renewed_when_a_third_of_its_lifetime_is_left() {
    let setting = Setting::new();
    let clock = Clock::simulated(Clock::system().store_time());
    let gateway = Gateway::start_at(&setting.yaml(A, "tls-alpn-01"), clock);
    gateway.wait_for_metric(ISSUED, 1);
    let first = setting.shown(&gateway);
    let (start, expiry) = (gateway.clock.now() / 1000, time(&gateway, "expires_at"));
    let renewal = time(&gateway, "renewal_at");
    let left = (expiry - renewal) as f64 / (expiry - start) as f64;
    assert!((left - 1.0 / 3.0).abs() < 0.001, "{left}");
    advance_to(&gateway, renewal - 10);
    // Real time, in which an early order would be made.
    sleep(Duration::from_millis(300));
    assert_eq!(gateway.metric(ISSUED), 1);
    advance_to(&gateway, renewal);
    gateway.wait_for_metric(ISSUED, 2);
    assert_ne!(setting.shown(&gateway), first);
}

#[test]
fn a_failed_order_is_repeated_after_a_minute() {
    let setting = Setting::new();
    setting.pebble.dns.set_addresses(A, &["127.0.0.9"]);
    let clock = Clock::simulated(Clock::system().store_time());
    let gateway = Gateway::start_at(&setting.yaml(A, "http-01"), clock);
    gateway.wait_for_metric(FAILED, 1);
    let pause = time(&gateway, "retry_at") - gateway.clock.now() / 1000;
    assert!((60..=75).contains(&pause), "{pause}");
    gateway.clock.advance(Duration::from_secs(pause + 1));
    gateway.wait_for_metric(FAILED, 2);
    let pause = time(&gateway, "retry_at") - gateway.clock.now() / 1000;
    assert!((120..=150).contains(&pause), "{pause}");
    setting.pebble.dns.set_addresses(A, &["127.0.0.1"]);
    gateway.clock.advance(Duration::from_secs(pause + 1));
    gateway.wait_for_metric(ISSUED, 1);
}

/// Pebble of Debian makes no suggestions, so that another server has its place.
#[test]
fn an_authority_suggests_the_time_of_a_renewal() {
    let mut setting = Setting::new();
    drop(setting.issued());
    setting.pebble.stop();
    let now = Clock::system().now() / 1000;
    let base = format!("https://{}", setting.pebble.address);
    let window = |gateway: &Gateway, start: u64, end: u64| {
        eventually("a suggestion", || {
            let renewal = state(gateway)["renewal_at"].as_u64();
            renewal.is_some_and(|renewal| (start..=end).contains(&renewal))
        });
    };
    let (start, end) = (now + 3600, now + 7200);
    let suggestion = format!(
        r#"{{"suggestedWindow": {{"start": "{}", "end": "{}"}}}}"#,
        rfc3339(start),
        rfc3339(end)
    );
    let server = setting.pebble.identity.server();
    let authority = TlsUpstream::start_on(setting.pebble.address, server, move |head, stream| {
        let body = if head.starts_with("GET /dir ") {
            format!(
                r#"{{"newNonce": "{base}/n", "newAccount": "{base}/a", "newOrder": "{base}/o",
                    "revokeCert": "{base}/r", "keyChange": "{base}/k", "renewalInfo": "{base}/ari"}}"#
            )
        } else {
            suggestion.clone()
        };
        let length = body.len();
        let head =
            format!("HTTP/1.1 200 OK\r\nRetry-After: 60\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + &body).as_bytes()).is_ok() && stream.flush().is_ok()
    });
    let clock = Clock::simulated(Clock::system().store_time());
    let gateway = Gateway::start_at(&setting.yaml(A, "tls-alpn-01"), clock);
    window(&gateway, start, end);
    assert!(authority.requests().iter().any(|head| head.starts_with("GET /ari/")));
    assert_eq!(gateway.metric("tidegate_acme_orders_total"), 0);
    advance_to(&gateway, end);
    gateway.wait_for_metric(FAILED, 1);
    assert!(authority.requests().iter().any(|head| head.starts_with("HEAD /n ")), "an order");
}

fn rfc3339(seconds: u64) -> String {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(time).to_string()
}
