use testkit::redis_server::RedisServer;
use tidegate::clock::ms;
use tidegate::{
    clock::{Clock, StoreTime},
    counter::Counter,
    throttle::{
        payload::PayloadError,
        sync::{MAX_CALLS_PER_TICK, SyncReport},
    },
    time::Millis,
};
use tokio::task::LocalSet;

use crate::{
    running_throttle::{RunningThrottle, tick},
    support::{FilterGateway, MINUTE, NOW, geometry, key, other_hash_keys},
};

/// The number of script calls at Redis.
fn scripts_run(redis: &RedisServer) -> u64 {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let runs = stats.lines().filter_map(|line| {
        let rest = line.strip_prefix("cmdstat_eval")?;
        rest.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()
    });
    runs.sum()
}

fn timestamp(redis: &RedisServer, index: u64) -> u64 {
    redis.command(&["HGET", &key(index), "ts"])
}

#[tokio::test]
async fn activity_reaches_all_three_gateways() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let mut b = FilterGateway::loaded(&redis, &clock).await;
    let mut c = FilterGateway::loaded(&redis, &clock).await;
    let mut next = 0;
    while a.stats.conflicts.get() + b.stats.conflicts.get() + c.stats.conflicts.get() < 10 {
        a.record(next..next + 3);
        b.record(next + 3..next + 6);
        c.record(next + 6..next + 9);
        next += 9;
        clock.set(clock.store_time() + ms(1_000));
        // Concurrent: the commit of a gateway that reads before another's commit conflicts.
        let (first, second, third) = tokio::join!(a.tick(), b.tick(), c.tick());
        assert!(first.is_ok() && second.is_ok() && third.is_ok());
        assert!(next < 9_000, "no commit conflicts");
    }
    // Conflicts have reduced the pace of writes.
    for _ in 0..60 {
        for gateway in [&mut a, &mut b, &mut c] {
            gateway.ticks(1).await;
        }
    }
    for gateway in [&mut a, &mut b, &mut c] {
        assert_eq!(gateway.tick_pending().await, 0);
        assert!(gateway.is_complete() && !gateway.sync.has_unread_generations());
        assert_eq!(gateway.missing(0..next), [0; 0]);
    }
    for key in redis.command::<Vec<String>>(&["KEYS", "tidegate:{*"]) {
        let remaining: i64 = redis.command(&["TTL", &key]);
        let ttl = if key.contains(":log:") { 130 } else { 31 * 60 + 600 };
        assert!(remaining > ttl - 60 && remaining <= ttl, "{key}: {remaining} s");
    }
}

#[tokio::test]
async fn a_later_gateway_loads_the_whole_memory() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    for minute in 0..40 {
        clock.set(NOW + ms(minute * MINUTE));
        a.filter.rotate(clock.store_time());
        a.record([minute]);
        a.ticks(1).await;
    }
    a.ticks(3).await;
    let b = FilterGateway::loaded(&redis, &clock).await;
    assert!(b.is_complete());
    assert_eq!(b.missing(9..40), [0; 0], "30 minutes and the current one");
    assert_eq!(b.missing(0..9).len(), 9, "and no earlier one");
    assert_eq!(b.stats.calls.get(), 1 + 31 + 1, "the time, each minute, and the logs");
}

#[tokio::test]
async fn the_timestamp_grows_whatever_the_clocks_do() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let index = a.current();
    let mut last = 0;
    for (token, now) in
        [(1, NOW + ms(500)), (2, NOW + ms(500)), (3, NOW + ms(100)), (4, NOW + ms(90_000))]
    {
        clock.set(now);
        a.record([token]);
        assert_eq!(a.tick_pending().await, 0);
        let ts = timestamp(&redis, index);
        assert!(
            ts > last && ts >= now.min(NOW + ms(500)).as_unix_ms(),
            "{ts} after {last} at {now:?}"
        );
        last = ts;
    }
    // Far in the future, as a wrong clock may leave it.
    let mut b = FilterGateway::loaded(&redis, &clock).await;
    let index = b.current();
    let future = 9_007_199_254_740_000_u64;
    a.record([5]);
    assert_eq!(a.tick_pending().await, 0);
    let _: u64 = redis.command(&["HSET", &key(index), "ts", &future.to_string()]);
    for step in 1..5 {
        b.record([10 + step]);
        assert_eq!(b.tick_pending().await, 0);
        assert_eq!(timestamp(&redis, index), future + step);
    }
    assert_eq!(b.stats.unusable(PayloadError::WrongType), 0);
}

#[tokio::test]
async fn the_clock_of_redis_is_used() {
    let (redis, clock) = (RedisServer::start(), Clock::system());
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let before = clock.store_time();
    a.record([1]);
    // A new minute may begin before the tick.
    let index = a.current();
    let SyncReport { now, clock_offset, pending } = a.tick().await.expect("a tick");
    assert_eq!(pending, 0);
    assert!(now >= before && now <= clock.store_time(), "one machine, one clock");
    assert!(clock_offset.length() < Millis::from_secs(1), "{clock_offset:?}");
    assert!(
        (before..=clock.store_time()).contains(&StoreTime::from_unix_ms(timestamp(&redis, index)))
    );
    assert!((before..=clock.store_time()).contains(&a.stats.last_success().unwrap()));
}

/// Ticks with the same tokens, each recorded `times` times. Returns the calls, and the bytes in
/// both directions.
async fn cost(times: usize) -> (u64, u64) {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let mut b = FilterGateway::loaded(&redis, &clock).await;
    a.ticks(2).await;
    b.ticks(2).await;
    let _: String = redis.command(&["CONFIG", "RESETSTAT"]);
    for second in 0..90 {
        for _ in 0..times {
            a.record(second * 20..second * 20 + 10);
            b.record(second * 20 + 5..second * 20 + 15);
        }
        let before = scripts_run(&redis);
        a.ticks(1).await;
        assert!(scripts_run(&redis) - before <= MAX_CALLS_PER_TICK as u64);
        b.ticks(1).await;
    }
    let bytes = |gateway: &FilterGateway| {
        gateway.stats.bytes_read.get() + gateway.stats.bytes_written.get()
    };
    (scripts_run(&redis), bytes(&a) + bytes(&b))
}

#[tokio::test]
async fn a_hundred_times_the_traffic_costs_redis_the_same() {
    let (once, often) = (cost(1).await, cost(100).await);
    assert_eq!(once.0, often.0, "calls");
    assert!(once.1.abs_diff(often.1) * 100 <= once.1, "{} and {} bytes", once.1, often.1);
    assert!(
        once.0 <= 2 * 90 * 7,
        "{} calls: the logs read and appended, a minute read, and up to two read and written",
        once.0
    );
}

#[tokio::test]
async fn a_tick_with_nothing_new_downloads_and_writes_nothing() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    a.record(0..100);
    a.ticks(10).await;
    let before = [&a.stats.bytes_read, &a.stats.bytes_written].map(Counter::get);
    let (calls, commits) = (a.stats.calls.get(), a.stats.commits.get());
    a.record(0..100);
    a.ticks(10).await;
    assert_eq!([&a.stats.bytes_read, &a.stats.bytes_written].map(Counter::get), before);
    assert_eq!(a.stats.calls.get() - calls, 10 * 3);
    assert_eq!(a.stats.commits.get(), commits);
}

#[tokio::test]
async fn an_evicted_minute_is_restored() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    for minute in 0..20 {
        clock.set(NOW + ms(minute * MINUTE));
        a.filter.rotate(clock.store_time());
        a.record([minute]);
        a.ticks(1).await;
    }
    let first = a.current() - 19;
    a.ticks(31).await;
    let _: u64 = redis.command(&["DEL", &key(first + 3)]);
    let _: u64 = redis.command(&["DEL", &key(first + 12)]);
    a.ticks(45).await;
    let b = FilterGateway::loaded(&redis, &clock).await;
    assert_eq!(b.missing(0..20), [0; 0]);
}

#[tokio::test]
async fn a_gateway_that_loads_from_an_emptied_redis_catches_up() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    for minute in 0..30 {
        clock.set(NOW + ms(minute * MINUTE));
        a.filter.rotate(clock.store_time());
        a.record([minute]);
        a.ticks(1).await;
    }
    let _: String = redis.command(&["FLUSHALL"]);
    let mut b = FilterGateway::loaded(&redis, &clock).await;
    assert_eq!(b.missing(0..30).len(), 30);
    a.ticks(22).await;
    assert!(!a.sync.has_unread_generations(), "it has checked every minute");
    b.ticks(33).await;
    assert_eq!(b.missing(1..30), [0; 0], "all minutes that have not expired");
}

/// Each gateway leaves the other's minutes alone and counts them.
#[tokio::test]
async fn filters_under_another_secret_are_left_alone() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    a.record([1]);
    a.ticks(1).await;
    let index = a.current();
    let before: Vec<u8> = redis.command(&["HGET", &key(index), "value"]);
    let mut b = FilterGateway::with(&redis, &clock, geometry(1_000, 30), other_hash_keys());
    assert!(b.load().await.is_ok());
    assert!(!b.is_complete(), "the other's minutes may contain tokens");
    b.record([2]);
    b.ticks(3).await;
    assert_eq!(b.stats.unusable(PayloadError::Seed), 1);
    assert_eq!(redis.command::<Vec<u8>>(&["HGET", &key(index), "value"]), before);
    // In the next minute, `b` writes first.
    clock.set(NOW + ms(MINUTE));
    b.filter.rotate(clock.store_time());
    b.record([3]);
    b.ticks(1).await;
    a.ticks(33).await;
    assert_eq!(a.stats.unusable(PayloadError::Seed), 1);
    for minute in 2..=31 {
        clock.set(NOW + ms(minute * MINUTE));
        b.ticks(3).await;
    }
    assert!(b.is_complete(), "the unreadable minutes have expired");
}

/// One gateway has three times the tokens that the filters are sized for. Either may be the one
/// that may not grow.
#[tokio::test]
async fn gateways_whose_filters_have_different_sizes_share_them() {
    let all_active = |gateway: &RunningThrottle| {
        let mut tokens = (0..3_100).chain(1 << 20..(1 << 20) + 200);
        tokens.all(|token| gateway.is_active(token))
    };
    LocalSet::new()
        .run_until(async {
            for [first, second] in [[8, 8], [8, 1], [1, 8]] {
                let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
                let start = |max_growth| RunningThrottle::start(&redis, &clock, max_growth);
                let gateways = [start(first).await, start(second).await];
                gateways[0].record(0..3_000);
                gateways[1].record(1 << 20..(1 << 20) + 100);
                // A gateway that seldom writes reads the minute when it has ended.
                for number in 0..75 {
                    tick(&clock, &gateways).await;
                    if number == 10 {
                        // In filters of different sizes.
                        gateways[0].record(3_000..3_100);
                        gateways[1].record((1 << 20) + 100..(1 << 20) + 200);
                    }
                }
                for (gateway, may_grow) in gateways.iter().zip([first > 1, second > 1]) {
                    assert_eq!(gateway.growth() > 1, may_grow, "{first} {second}");
                    assert!(all_active(gateway), "{first} {second}");
                }
                let late = start(1).await;
                assert!(all_active(&late), "{first} {second}, a later gateway");
                for gateway in gateways.iter().chain([&late]) {
                    let stats = &gateway.throttle.stats;
                    let unusable = PayloadError::ALL.map(|error| stats.unusable(error));
                    assert_eq!(unusable, [0; 6], "{first} {second}");
                    assert!(gateway.throttle.status().complete);
                }
            }
        })
        .await;
}
