use std::time::Duration;

use testkit::{
    redis_server::RedisServer, stalling_proxy::StallingProxy, wait::while_clock_advances,
};
use tidegate::clock::ms;
use tidegate::{clock::Clock, redis::RedisFailure};

use crate::support::{FilterGateway, MINUTE, NOW, geometry, hash_keys};

/// A gateway that has recorded one token in each of `minutes` minutes. The token is the minute's
/// number.
async fn writer(redis: &RedisServer, clock: &Clock, minutes: u64) -> FilterGateway {
    let mut gateway = FilterGateway::loaded(redis, clock).await;
    for minute in 0..minutes {
        clock.set(NOW + ms(minute * MINUTE));
        gateway.filter.rotate(clock.store_time());
        gateway.record([minute]);
        gateway.ticks(1).await;
    }
    gateway
}

/// Ticks until nothing is pending. Returns the number of ticks.
async fn tick_until_written(gateway: &mut FilterGateway) -> usize {
    for tick in 1..40 {
        gateway.clock.set(gateway.clock.store_time() + ms(1_000));
        let commits = gateway.stats.commits.get();
        let report = gateway.tick().await;
        assert!(gateway.stats.commits.get() - commits <= 4, "too many commits in a tick");
        if report.is_ok_and(|synced| synced.pending == 0) {
            return tick;
        }
    }
    panic!("something is still pending");
}

/// Ticks until nothing is pending and, after a detected loss, all live minutes have been checked.
async fn tick_until_all_checked(gateway: &mut FilterGateway) {
    let mut took = tick_until_written(gateway).await;
    while gateway.sync.has_unread_generations() {
        took += tick_until_written(gateway).await;
    }
    assert!(took <= 24, "{took} ticks");
}

#[tokio::test]
async fn an_emptied_redis_is_refilled() {
    let (mut redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = writer(&redis, &clock, 25).await;
    let mut b = FilterGateway::loaded(&redis, &clock).await;
    redis.kill();
    for minute in 25..30 {
        clock.set(NOW + ms(minute * MINUTE));
        for gateway in [&mut a, &mut b] {
            assert_eq!(gateway.tick().await, Err(RedisFailure::Io));
            assert!(gateway.sync.has_unread_generations());
        }
        a.record([minute]);
        b.record([100 + minute]);
    }
    assert_eq!(a.stats.failures(RedisFailure::Io), 5);
    redis.restart();
    tick_until_all_checked(&mut a).await;
    tick_until_all_checked(&mut b).await;
    tick_until_written(&mut a).await;
    let c = FilterGateway::loaded(&redis, &clock).await;
    assert_eq!(c.missing((0..30).chain(125..130)), [0; 0]);
    assert!(c.is_complete());
    a.ticks(35).await;
    b.ticks(35).await;
    for gateway in [&a, &b] {
        assert!(!gateway.sync.has_unread_generations() && gateway.is_complete());
        assert_eq!(gateway.missing((0..30).chain(125..130)), [0; 0]);
    }
}

#[tokio::test]
async fn a_gateway_loads_when_redis_becomes_reachable() {
    let (mut redis, clock) = (RedisServer::not_started(), Clock::simulated(NOW));
    let mut gateway = FilterGateway::new(&redis, &clock);
    gateway.store = gateway.store.with_timeout(Duration::from_mins(1));
    // Each waits for a probe.
    for _ in 0..2 {
        let (loaded, _) = while_clock_advances(&clock, gateway.load()).await;
        assert_eq!(loaded, Err(RedisFailure::Io));
    }
    gateway.record([1]);
    assert!(!gateway.is_complete());
    redis.restart();
    assert!(while_clock_advances(&clock, gateway.load()).await.0.is_ok());
    assert!(gateway.is_complete());
    tick_until_written(&mut gateway).await;
    let fresh = FilterGateway::loaded(&redis, &clock).await;
    assert_eq!(fresh.missing([1]), [0; 0], "what it recorded meanwhile is shared");
}

#[tokio::test]
async fn flushed_scripts_are_reloaded() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut gateway = writer(&redis, &clock, 2).await;
    for token in 10..13 {
        let _: String = redis.command(&["SCRIPT", "FLUSH"]);
        gateway.record([token]);
        gateway.ticks(1).await;
        assert_eq!(gateway.tick_pending().await, 0);
    }
    assert_eq!(RedisFailure::ALL.map(|failure| gateway.stats.failures(failure)), [0; 5]);
}

#[tokio::test]
async fn a_pause_is_waited_out_and_a_hang_times_out() {
    let (redis, clock) = (RedisServer::start(), Clock::simulated(NOW));
    let mut gateway = writer(&redis, &clock, 2).await;
    gateway.record([10]);
    let _: String = redis.command(&["CLIENT", "PAUSE", "200", "ALL"]);
    gateway.ticks(1).await;

    gateway.record([11]);
    redis.suspend();
    // The second tick reconnects and times out as well.
    for _ in 0..2 {
        let (ticked, _) = while_clock_advances(&clock, gateway.tick()).await;
        assert_eq!(ticked, Err(RedisFailure::Timeout));
    }
    redis.resume();
    tick_until_written(&mut gateway).await;
    assert_eq!(gateway.stats.failures(RedisFailure::Timeout), 2);
    let fresh = FilterGateway::loaded(&redis, &clock).await;
    assert_eq!(fresh.missing([0, 1, 10, 11]), [0; 0]);
}

/// As after a partition that no request and no ping has noticed.
#[tokio::test]
async fn a_tick_asks_over_a_new_connection_if_the_old_one_is_silent() {
    let (redis, clock) = (RedisServer::start(), Clock::simulated(NOW));
    let proxy = StallingProxy::start(redis.port());
    let mut gateway = FilterGateway::at(&proxy.url(), &clock, geometry(1_000, 30), hash_keys());
    assert!(gateway.load().await.is_ok());
    gateway.record([1]);
    proxy.stall();
    let (ticked, took) = while_clock_advances(&clock, gateway.tick()).await;
    assert!(ticked.is_ok() && took >= Duration::from_millis(500), "{ticked:?} after {took:?}");
    let fresh = FilterGateway::loaded(&redis, &clock).await;
    assert_eq!(fresh.missing([1]), [0; 0]);
}

#[tokio::test]
async fn a_read_only_redis_is_still_read() {
    for (break_command, repair_command) in [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
        (
            ["CONFIG", "SET", "min-replicas-to-write", "1"],
            ["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
    ] {
        let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
        let clock = Clock::manual(NOW);
        let mut a = writer(&redis, &clock, 3).await;
        let mut b = FilterGateway::loaded(&redis, &clock).await;
        a.record([10]);
        a.ticks(1).await;
        let _: String = redis.command(&break_command);
        // The failing write of a tick precedes its reads.
        clock.set(NOW + ms(3 * MINUTE));
        a.filter.rotate(clock.store_time());
        b.filter.rotate(clock.store_time());
        a.record([11]);
        b.record([12]);
        assert_eq!(a.tick().await, Err(RedisFailure::Server), "{break_command:?}");
        assert_eq!(b.tick().await, Err(RedisFailure::Server), "{break_command:?}");
        assert_eq!(b.missing([10]), [0; 0], "Redis is still read");
        let c = FilterGateway::loaded(&redis, &clock).await;
        assert_eq!(c.missing([0, 1, 2, 10]), [0; 0], "Redis is still loaded from");
        let _: String = redis.command(&repair_command);
        tick_until_written(&mut a).await;
        tick_until_written(&mut b).await;
        let c = FilterGateway::loaded(&redis, &clock).await;
        assert_eq!(c.missing([0, 1, 2, 10, 11, 12]), [0; 0]);
    }
}

#[tokio::test]
async fn a_broken_connection_costs_one_tick() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut gateway = writer(&redis, &clock, 2).await;
    gateway.record([10]);
    let _: u64 = redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(gateway.tick().await, Err(RedisFailure::Io));
    assert_eq!(tick_until_written(&mut gateway).await, 1);
}

#[tokio::test]
async fn a_cancelled_tick_loses_nothing() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut gateway = writer(&redis, &clock, 2).await;
    for micros in (0..3_000).step_by(100) {
        gateway.record([1_000 + micros]);
        clock.set(clock.store_time() + ms(100));
        let cancel_after = Duration::from_micros(micros);
        // Cancelled at any await point.
        let _ = tokio::time::timeout(cancel_after, gateway.tick()).await;
    }
    tick_until_written(&mut gateway).await;
    let fresh = FilterGateway::loaded(&redis, &clock).await;
    assert_eq!(fresh.missing((0..3_000).step_by(100).map(|micros| 1_000 + micros)), [0; 0]);
}
