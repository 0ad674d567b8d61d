use std::thread;

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    wait::eventually,
};
use tidegate::clock::{Clock, StoreTime, ms};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);
const CALLERS: usize = 10_000;

/// The value of a metric without labels.
pub(crate) fn metric(gateway: &Gateway, name: &str) -> u64 {
    let text = get(gateway.admin(), "/metrics", "").text();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = lines.next().unwrap_or_else(|| panic!("no {name} in:\n{text}"));
    value.parse().expect("a whole number")
}

#[test]
fn memory_of_ten_thousand_callers_is_released() {
    let clock = Clock::manual(NOW);
    let gateway = Gateway::start_at(
        "upstreams: {hello: {respond: {body: hello}}}
limits: {small: {quota: 5, window: 1m, key: [token]}}
routes: [{name: a, match: {path: /a}, upstream: hello, limits: [small]}]
",
        clock.clone(),
    );
    thread::scope(|scope| {
        for part in 0..4 {
            let address = gateway.address();
            scope.spawn(move || {
                let mut client = Client::connect(address);
                for number in 0..CALLERS / 4 {
                    let token = format!("Authorization: {part}-{number}\r\n");
                    assert_eq!(client.get("/a", &token).status, 200);
                }
            });
        }
    });
    assert_eq!(metric(&gateway, "tidegate_store_keys"), CALLERS as u64);
    assert_eq!(metric(&gateway, "tidegate_store_evictions_total"), 0);
    // Halfway through the window, every charge counts.
    clock.set(NOW + ms(50_000));
    let response = get(gateway.address(), "/a", "Authorization: 0-0\r\n");
    assert_eq!(response.number("X-RateLimit-Used"), 2);
    // After the window and a sub-window, with the expiry rounded up to whole seconds.
    clock.set(NOW + ms(50_000) + ms(72_000));
    eventually("every counter is removed", || metric(&gateway, "tidegate_store_keys") == 0);
    let response = get(gateway.address(), "/a", "Authorization: 0-0\r\n");
    assert_eq!(response.number("X-RateLimit-Used"), 1);
}
