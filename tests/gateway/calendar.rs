//! Windows of a calendar: what clients are told, and when they are admitted again.

use std::time::Duration;

use testkit::backend::{MEMORY_AND_TOPOLOGIES, on_all_at_once};
use tidegate::clock::{Clock, StoreTime};

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
            assert_eq!(reset, clock.now() / 1_000 + expected, "{}", response.head);
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
