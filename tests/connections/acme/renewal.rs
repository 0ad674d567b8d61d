//! When a certificate is renewed, and when a failed order is repeated.

use std::time::Duration;

use testkit::{
    gateway::Gateway,
    wait::{eventually, sleep},
};
use tidegate::clock::Clock;

use super::{
    A, FAILED, ISSUED, Setting,
    false_authority::{Answers, FalseAuthority},
    state,
};

/// The time that the gateway's state has for `key`.
fn time(gateway: &Gateway, key: &str) -> u64 {
    state(gateway)[key].as_u64().unwrap_or_else(|| panic!("{key}: {}", state(gateway)))
}

/// Moves the clock to `at`, in seconds since the epoch.
fn advance_to(gateway: &Gateway, at: u64) {
    gateway
        .clock
        .advance(Duration::from_millis(at * 1000 - gateway.clock.store_time().as_unix_ms()));
}

#[test]
fn a_certificate_is_renewed_when_a_third_of_its_lifetime_is_left() {
    let setting = Setting::new();
    let clock = Clock::simulated(Clock::system().store_time());
    let gateway = Gateway::start_at(&setting.yaml(A, "tls-alpn-01"), clock);
    gateway.wait_for_metric(ISSUED, 1);
    let first = setting.shown(&gateway);
    let (start, expiry) =
        (gateway.clock.store_time().as_unix_ms() / 1000, time(&gateway, "expires_at"));
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
    let pause = time(&gateway, "retry_at") - gateway.clock.store_time().as_unix_ms() / 1000;
    assert!((60..=75).contains(&pause), "{pause}");
    gateway.clock.advance(Duration::from_secs(pause + 1));
    gateway.wait_for_metric(FAILED, 2);
    let pause = time(&gateway, "retry_at") - gateway.clock.store_time().as_unix_ms() / 1000;
    assert!((120..=150).contains(&pause), "{pause}");
    setting.pebble.dns.set_addresses(A, &["127.0.0.1"]);
    gateway.clock.advance(Duration::from_secs(pause + 1));
    gateway.wait_for_metric(ISSUED, 1);
}

#[test]
fn an_authority_suggests_the_time_of_a_renewal() {
    // The second one does not say when it wants to be asked again.
    for retry_after in ["60", ""] {
        let now = Clock::system().store_time().as_unix_ms() / 1000;
        let (start, end) = (now + 3600, now + 7200);
        let window = [rfc3339(start), rfc3339(end)];
        let answers = Answers { retry_after, window, ..Answers::default() };
        let authority = FalseAuthority::start(answers);
        let storage = tempfile::tempdir().expect("a directory");
        let clock = Clock::simulated(Clock::system().store_time());
        let gateway = Gateway::start_at(&authority.yaml(&storage), clock);
        gateway.wait_for_metric(ISSUED, 1);
        eventually("a suggestion", || {
            let renewal = state(&gateway)["renewal_at"].as_u64();
            renewal.is_some_and(|renewal| (start..=end).contains(&renewal))
        });
        assert!(authority.requests().iter().any(|head| head.starts_with("GET /window/")));
        assert_eq!(gateway.metric(ISSUED), 1);
        advance_to(&gateway, end);
        gateway.wait_for_metric(ISSUED, 2);
    }
}

fn rfc3339(seconds: u64) -> String {
    let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    humantime::format_rfc3339_seconds(time).to_string()
}
