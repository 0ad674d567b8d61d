//! Windows of a calendar: the headers of responses, and the time of the next admission.

use std::time::Duration;

use testkit::backend::{MEMORY_AND_REDIS, MEMORY_AND_TOPOLOGIES, on_all_at_once};
use tidegate::{
    auth::KeyHash,
    clock::{Clock, StoreTime},
};

/// 2026-03-28 23:00 in Berlin, an hour before the day on which clocks are put forward.
const BEFORE: StoreTime = StoreTime::from_unix_ms(1_774_735_200_000);

const RULES: &str = "
upstreams: {hello: {respond: {body: hello}}}
limits:
  daily: {algorithm: fixed_window, quota: 3, window: day, time_zone: Europe/Berlin, key: []}
  monthly: {algorithm: fixed_window, quota: 5, window: month, time_zone: Europe/Berlin, starts: 31, key: []}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [daily, monthly]}]
";

#[test]
fn clients_are_admitted_again_when_the_day_or_month_has_ended() {
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        let clock = Clock::manual(BEFORE);
        let fleet = backend.start(RULES, &clock);
        let reset_after = |expected: u64| {
            let response = fleet.get_in_order("/", "");
            assert_eq!(response.status, 429, "{}", response.head);
            let reset: u64 =
                response.header("x-ratelimit-reset").expect("a reset").parse().expect("a time");
            assert_eq!(response.header("retry-after"), Some(expected.to_string().as_str()));
            assert_eq!(
                reset,
                clock.store_time().as_unix_ms() / 1_000 + expected,
                "{}",
                response.head
            );
        };
        let admit = |count: u64| {
            for _ in 0..count {
                assert_eq!(fleet.get_in_order("/", "").status, 200);
            }
        };
        admit(3);
        reset_after(3_600);
        clock.advance(Duration::from_millis(3_599_999));
        reset_after(1);
        clock.advance(Duration::from_millis(1));
        // Sunday has 23 hours, and the month ends at midnight of the 31st.
        admit(2);
        reset_after((23 + 24) * 3_600);
        clock.advance(Duration::from_secs(47 * 3_600 - 1));
        reset_after(1);
        clock.advance(Duration::from_secs(1));
        admit(3);
    });
}

/// The rules of a limit by consumer and month, whose consumers are `acme` with billing day 31,
/// `bread` with a plan and billing day 15, and `corner` without.
fn rules_with_consumers() -> String {
    let [acme, bread, corner] =
        ["acme-key", "bread-key", "corner-key"].map(|key| KeyHash::of(key.as_bytes()));
    format!(
        "
upstreams: {{hello: {{respond: {{body: hello}}}}}}
auth: {{keys: {{api_key: {{}}}}}}
consumers:
  entries:
    - {{name: acme, billing_day: 31, keys: [{{sha256: {acme}}}]}}
    - {{name: bread, plan: gold, billing_day: 15, keys: [{{sha256: {bread}}}]}}
    - {{name: corner, keys: [{{sha256: {corner}}}]}}
plans: {{gold: {{monthly: 7/month}}}}
limits:
  monthly: {{algorithm: fixed_window, quota: 5, window: month, time_zone: Europe/Berlin, key: [consumer]}}
  by_address: {{algorithm: fixed_window, quota: 99, window: month, time_zone: Europe/Berlin}}
routes:
  - {{name: address, match: {{path: /address}}, upstream: hello, auth: [keys], limits: [by_address]}}
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: hello, auth: [keys], limits: [monthly]}}
"
    )
}

#[test]
fn the_months_of_a_consumer_start_at_its_billing_day() {
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&rules_with_consumers(), &Clock::manual(BEFORE));
        let get = |name: &str, path: &str| fleet.get(path, &format!("X-Api-Key: {name}-key\r\n"));
        for (name, quota, reset) in [
            // Midnight of 31 March, of 15 April and of 1 April in Berlin, in summer time.
            ("acme", 5, 1_774_908_000),
            ("bread", 7, 1_776_204_000),
            ("corner", 5, 1_774_994_400),
        ] {
            let response = get(name, "/");
            let shown = ["x-ratelimit-limit", "x-ratelimit-used", "x-ratelimit-reset"]
                .map(|header| response.number(header));
            assert_eq!(shown, [quota, 1, reset], "{name}: {}", response.head);
            // A counter that is not the consumer's own has the same months for all.
            assert_eq!(get(name, "/address").number("x-ratelimit-reset"), 1_774_994_400, "{name}");
        }
    });
}
