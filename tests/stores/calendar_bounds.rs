//! Windows of a calendar whose bounds come from a gateway whose clock differs from that of Redis.

use testkit::{
    redis_server::RedisServer,
    scripts::{ADJUST, CHARGE, ScriptCaller},
};
use tidegate::clock::ms;
use tidegate::{
    clock::StoreTime,
    limit::{Calendar, CalendarPeriod},
};

const HOUR: u64 = 3_600_000;
const DAY: u64 = 24 * HOUR;

/// 2026-01-31 12:00 UTC, in a month of 31 days before one of 28.
const GATEWAY: StoreTime = StoreTime::from_unix_ms(1_769_860_800_000);

/// One caller's record under a quota of 5 in each window of `calendar`.
struct Record<'r> {
    redis: &'r RedisServer,
    calendar: Calendar,
    key: String,
}

impl Record<'_> {
    /// Calls `script` at `now`, by the clock of Redis, with the bounds that a gateway at
    /// [`GATEWAY`] sends. Returns admitted, remaining, used, the reset and the retry time.
    fn call(&self, script: &str, now: StoreTime, cost: u64, rest: &[u64]) -> Vec<i64> {
        let window = self.calendar.window_at(GATEWAY);
        let next = self.calendar.window_at(window.end);
        let mut caller = ScriptCaller::new(&self.redis.url(), script);
        let mut command = caller.command();
        command.arg(1).arg(&self.key).arg(now.as_unix_ms()).arg("fixed_window").arg(cost).arg(5);
        command
            .arg(window.length().as_ms())
            .arg(next.length().as_ms())
            .arg(window.end.as_unix_ms())
            .arg(rest);
        let reply: Vec<i64> = command.query(&mut caller.connection).expect("a reply");
        reply[1..6].to_vec()
    }
}

#[test]
fn the_clock_of_redis_decides_in_which_window_a_charge_is() {
    let redis = RedisServer::start();
    let of = |period| Calendar::new(period, "UTC").expect("a zone");
    let (hour, month) = (of(CalendarPeriod::Hour), of(CalendarPeriod::Month { starts: 1 }));
    let cases = [
        // Hours have one length, so any clock gets the right one.
        (hour, GATEWAY + ms(1)),
        (hour, GATEWAY + ms(26 * HOUR) + ms(59 * 60_000)),
        (hour, GATEWAY.before(ms(50 * HOUR + 1))),
        (hour, GATEWAY + ms(HOUR)),
        (hour, GATEWAY.before(ms(1))),
        // A month ahead or behind.
        (month, GATEWAY + ms(1)),
        (month, GATEWAY + ms(DAY)),
        (month, GATEWAY + ms(28 * DAY)),
        (month, GATEWAY.before(ms(31 * DAY))),
    ];
    for (number, (calendar, now)) in cases.into_iter().enumerate() {
        let record = Record { redis: &redis, calendar, key: number.to_string() };
        let window = calendar.window_at(now);
        let end = window.end.as_unix_ms().cast_signed();
        let label = format!("{calendar} {now:?}");
        assert_eq!(record.call(CHARGE, now, 5, &[]), [1, 0, 5, end, -1], "{label}");
        assert_eq!(record.call(CHARGE, now, 1, &[]), [0, 0, 5, end, end], "{label}");
        // A charge before the window is not refunded; one in it is.
        let refund =
            |charged_at: StoreTime| record.call(ADJUST, now, 2, &[charged_at.as_unix_ms()]);
        assert_eq!(refund(window.start.before(ms(1))), [1, 0, 5, end, -1], "{label}");
        assert_eq!(refund(window.start), [1, 2, 3, end, -1], "{label}");
        // The next window is another.
        assert_eq!(record.call(CHARGE, window.end, 5, &[])[..3], [1, 0, 5], "{label}");
    }
}

#[test]
fn a_clock_that_steps_back_into_a_longer_month_refunds_the_begun_one_only() {
    let redis = RedisServer::start();
    let calendar = Calendar::new(CalendarPeriod::Month { starts: 1 }, "UTC").expect("a zone");
    let record = Record { redis: &redis, calendar, key: "stepped".to_owned() };
    let february = calendar.window_at(GATEWAY).end;
    let end = calendar.window_at(february).end.as_unix_ms().cast_signed();
    assert_eq!(record.call(CHARGE, february + ms(1_000), 5, &[]), [1, 0, 5, end, -1]);
    let stepped_back = february.before(ms(2_000));
    let refund =
        |charged_at: StoreTime| record.call(ADJUST, stepped_back, 2, &[charged_at.as_unix_ms()]);
    assert_eq!(refund(GATEWAY), [1, 0, 5, end, -1], "a charge of January");
    assert_eq!(refund(february), [1, 2, 3, end, -1], "a charge of February");
}
