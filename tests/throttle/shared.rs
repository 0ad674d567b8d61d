use tidegate::{
    clock::Clock,
    counter::Counter,
    throttle::{
        Filter,
        sync::{CALLS_A_TICK, Report, Sync},
    },
};

use crate::{
    redis_server::RedisServer,
    support::{Gateway, MINUTE, NOW, SEED_KEY, geometry, key, other_seed, seed},
};

/// How often Redis was asked to run a script.
fn scripts_run(redis: &RedisServer) -> u64 {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let runs = stats.lines().filter_map(|line| {
        let rest = line.strip_prefix("cmdstat_eval")?;
        rest.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()
    });
    runs.sum()
}

fn ts(redis: &RedisServer, index: u64) -> u64 {
    redis.command(&["HGET", &key(index), "ts"])
}

#[tokio::test]
async fn three_gateways_know_what_any_of_them_saw() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = Gateway::loaded(&redis, &clock).await;
    let mut b = Gateway::loaded(&redis, &clock).await;
    let mut c = Gateway::loaded(&redis, &clock).await;
    let mut next = 0;
    while a.stats.conflicts.get() + b.stats.conflicts.get() + c.stats.conflicts.get() < 10 {
        a.record(next..next + 3);
        b.record(next + 3..next + 6);
        c.record(next + 6..next + 9);
        next += 9;
        clock.set(clock.now() + 1_000);
        // All at once: who reads before another has written comes too late.
        let (first, second, third) = tokio::join!(a.tick(), b.tick(), c.tick());
        assert!(first.is_ok() && second.is_ok() && third.is_ok());
        assert!(next < 9_000, "nothing collides");
    }
    for gateway in [&mut a, &mut b, &mut c] {
        gateway.ticks(1).await;
    }
    for gateway in [&mut a, &mut b, &mut c] {
        gateway.ticks(1).await;
        assert_eq!(gateway.pending().await, 0);
        assert!(gateway.complete() && !gateway.sync.is_behind());
        assert_eq!(gateway.unknown(0..next), [0; 0]);
    }
    for key in redis.command::<Vec<String>>(&["KEYS", "tidegate:{*"]) {
        let left: i64 = redis.command(&["TTL", &key]);
        let promised = if key == SEED_KEY { 30 * 24 * 3_600 } else { 31 * 60 + 600 };
        assert!(left > promised - 60 && left <= promised, "{key}: {left} s");
    }
}

#[tokio::test]
async fn who_comes_later_loads_all_of_memory() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = Gateway::loaded(&redis, &clock).await;
    for minute in 0..40 {
        clock.set(NOW + minute * MINUTE);
        a.filter.turn(clock.now());
        a.record([minute]);
        a.ticks(1).await;
    }
    a.ticks(3).await;
    let b = Gateway::loaded(&redis, &clock).await;
    assert!(b.complete());
    assert_eq!(b.unknown(9..40), [0; 0], "30 minutes and the current one");
    assert_eq!(b.unknown(0..9).len(), 9, "and none before");
    assert_eq!(b.stats.calls.get(), 1 + 31, "the seed, and each minute");
}

#[tokio::test]
async fn the_time_stamp_grows_whatever_the_clocks_say() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = Gateway::loaded(&redis, &clock).await;
    let index = a.current();
    let mut last = 0;
    for (token, now) in [(1, NOW + 500), (2, NOW + 500), (3, NOW + 100), (4, NOW + 90_000)] {
        clock.set(now);
        a.record([token]);
        assert_eq!(a.pending().await, 0);
        let ts = ts(&redis, index);
        assert!(ts > last && ts >= now.min(NOW + 500), "{ts} after {last} at {now}");
        last = ts;
    }
    // Far ahead, as a clock that was wrong for a while leaves it.
    let mut b = Gateway::loaded(&redis, &clock).await;
    let index = b.current();
    let ahead = 9_007_199_254_740_000_u64;
    a.record([5]);
    assert_eq!(a.pending().await, 0);
    let _: u64 = redis.command(&["HSET", &key(index), "ts", &ahead.to_string()]);
    for step in 1..5 {
        b.record([10 + step]);
        assert_eq!(b.pending().await, 0);
        assert_eq!(ts(&redis, index), ahead + step);
    }
    assert_eq!(b.stats.refused(tidegate::throttle::payload::Refusal::Type), 0);
}

#[tokio::test]
async fn redis_own_clock_is_told_and_used() {
    let (redis, clock) = (RedisServer::start(), Clock::system());
    let mut a = Gateway::loaded(&redis, &clock).await;
    let before = clock.now();
    a.record([1]);
    // A new minute may begin before the tick.
    let index = a.current();
    let Ok(Report::Synced { now, ahead, pending: 0 }) = a.tick().await else { panic!("a tick") };
    assert!(now >= before && now <= clock.now(), "one machine, one clock");
    assert!(ahead.abs() < 1_000, "{ahead} ms ahead");
    assert!((before..=clock.now()).contains(&ts(&redis, index)));
    assert!((before..=clock.now()).contains(&a.stats.last_success()));
}

/// Ticks with the same tokens, each recorded so many times: the calls, and the bytes both ways.
async fn cost(times: usize) -> (u64, u64) {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = Gateway::loaded(&redis, &clock).await;
    let mut b = Gateway::loaded(&redis, &clock).await;
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
        assert!(scripts_run(&redis) - before <= CALLS_A_TICK as u64);
        b.ticks(1).await;
    }
    let bytes =
        |gateway: &Gateway| gateway.stats.bytes_read.get() + gateway.stats.bytes_written.get();
    (scripts_run(&redis), bytes(&a) + bytes(&b))
}

#[tokio::test]
async fn a_hundred_times_the_traffic_costs_redis_the_same() {
    let (once, often) = (cost(1).await, cost(100).await);
    assert_eq!(once.0, often.0, "calls");
    assert!(once.1.abs_diff(often.1) * 100 <= once.1, "{} and {} bytes", once.1, often.1);
    assert!(
        once.0 <= 2 * 90 * 6,
        "{} calls: agree, two minutes, a scrub and up to two commits",
        once.0
    );
}

#[tokio::test]
async fn a_tick_with_nothing_new_downloads_and_writes_nothing() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = Gateway::loaded(&redis, &clock).await;
    a.record(0..100);
    a.ticks(10).await;
    let before = [&a.stats.bytes_read, &a.stats.bytes_written].map(Counter::get);
    let (calls, commits) = (a.stats.calls.get(), a.stats.commits.get());
    a.record(0..100);
    a.ticks(10).await;
    assert_eq!([&a.stats.bytes_read, &a.stats.bytes_written].map(Counter::get), before);
    assert_eq!(a.stats.calls.get() - calls, 10 * 4);
    assert_eq!(a.stats.commits.get(), commits);
}

#[tokio::test]
async fn a_minute_that_redis_threw_out_comes_back() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = Gateway::loaded(&redis, &clock).await;
    for minute in 0..20 {
        clock.set(NOW + minute * MINUTE);
        a.filter.turn(clock.now());
        a.record([minute]);
        a.ticks(1).await;
    }
    let first = a.current() - 19;
    a.ticks(31).await;
    let _: u64 = redis.command(&["DEL", &key(first + 3)]);
    let _: u64 = redis.command(&["DEL", &key(first + 12)]);
    a.ticks(31).await;
    let b = Gateway::loaded(&redis, &clock).await;
    assert_eq!(b.unknown(0..20), [0; 0]);
}

#[tokio::test]
async fn the_first_seed_is_that_of_all() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = Gateway::new(&redis, &clock);
    let alone = a.sync.load(&a.filter, &mut a.link, false).await;
    assert_eq!(alone, Ok(Report::Alone));
    assert_eq!(redis.command::<u64>(&["EXISTS", SEED_KEY]), 0, "nothing was offered");
    assert!(!a.complete());
    assert!(matches!(a.load().await, Ok(Report::Synced { .. })));
    assert!(a.complete());
    let mut b = Gateway::with(&redis, &clock, geometry(1_000, 30), other_seed());
    assert_eq!(b.load().await, Ok(Report::Reseed(seed())));
    assert!(!b.complete());
    b.filter = Filter::new(geometry(1_000, 30), seed(), clock.now());
    assert!(matches!(b.load().await, Ok(Report::Synced { .. })));
    assert!(b.complete());
}

#[tokio::test]
async fn knowledge_is_partial_until_what_a_lost_seed_recorded_is_out_of_memory() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = Gateway::loaded(&redis, &clock).await;
    a.record([1]);
    a.ticks(1).await;
    let _: String = redis.command(&["SET", SEED_KEY, &other_seed().to_text()]);
    assert_eq!(a.tick().await, Ok(Report::Reseed(other_seed())));
    a.sync = Sync::reseeded(a.stats.clone(), a.current());
    a.filter = Filter::new(geometry(1_000, 30), other_seed(), clock.now());
    assert!(matches!(a.load().await, Ok(Report::Synced { .. })));
    for minute in 1..=30 {
        clock.set(NOW + minute * MINUTE);
        a.ticks(1).await;
        assert!(!a.complete(), "in the minute {minute}");
    }
    clock.set(NOW + 31 * MINUTE);
    a.ticks(3).await;
    assert!(a.complete());
    let left: i64 = redis.command(&["TTL", SEED_KEY]);
    assert!(left > 0, "a seed without an end got one");
}
