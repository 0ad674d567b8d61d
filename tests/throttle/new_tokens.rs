use testkit::{random::SplitMix64, redis_server::RedisServer};
use tidegate::clock::ms;
use tidegate::{
    clock::Clock,
    throttle::{
        geometry::UnixMinute,
        payload::PayloadError,
        sync::{
            AppendOutcome, FilterStore, LogId, LogOffset, LogPart, SyncStats, max_log_len,
            max_log_part,
        },
    },
};

use crate::{
    simulation::fake_link::FakeLog,
    support::{FilterGateway, MINUTE, NOW, geometry, hash_keys, key, other_hash_keys},
};

/// The keys of the logs of a minute.
fn logs(redis: &RedisServer, index: u64) -> Vec<String> {
    redis.command(&["KEYS", &format!("{}:log:*", key(index))])
}

/// Bytes of filters and logs that a gateway has read.
fn bytes_read(stats: &SyncStats) -> u64 {
    stats.bytes_read.get()
}

#[tokio::test]
async fn a_new_token_is_known_elsewhere_without_its_minute() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let mut b = FilterGateway::loaded(&redis, &clock).await;
    // Its first tick checks the current minute, the next ones older minutes.
    assert_eq!(b.tick_pending().await, 0);
    a.record(0..500);
    assert_eq!((a.tick_pending().await, b.missing(0..500).len()), (0, 500));
    assert_eq!(b.tick_pending().await, 0);
    assert_eq!(b.missing(0..500), [0; 0]);
    assert_eq!(bytes_read(&b.stats), 500 * 8, "the tokens alone");
    // What both recorded meanwhile is sent once.
    a.record(500..600);
    b.record(550..650);
    assert_eq!((a.tick_pending().await, b.tick_pending().await), (0, 0));
    let [log] = &logs(&redis, a.current())[..] else { panic!("one log") };
    assert_eq!(redis.command::<usize>(&["STRLEN", log]), 650 * 8);
    let left: i64 = redis.command(&["TTL", log]);
    assert!((120..=130).contains(&left), "{left} s");
}

/// Users who stay active are in the filters of all minutes. Only a gateway that has not seen a
/// token for a quarter of an hour sends it again.
#[tokio::test]
async fn the_activity_of_known_tokens_is_not_in_the_logs() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let first = a.current();
    for (minute, sent) in [(0, true), (1, false), (16, false), (31, false), (47, true)] {
        clock.set(NOW + ms(minute * MINUTE));
        a.filter.rotate(clock.store_time());
        a.record([1]);
        assert_eq!(a.tick_pending().await, 0);
        assert_eq!(logs(&redis, first + minute).len(), usize::from(sent), "{minute}");
    }
}

/// A token is sent after the end of its minute, and belongs to it everywhere.
#[tokio::test]
async fn a_token_of_the_last_second_keeps_its_minute() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW + ms(59_900)));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let mut b = FilterGateway::loaded(&redis, &clock).await;
    let minute = a.current();
    a.record([1]);
    for gateway in [&mut a, &mut b] {
        gateway.ticks(1).await;
        assert_eq!((gateway.current(), gateway.missing([1]).len()), (minute + 1, 0));
    }
    assert_eq!(a.filter.export(minute), b.filter.export(minute));
    assert_eq!(a.filter.export(minute + 1), b.filter.export(minute + 1));
}

/// A gateway dies before it has written its minute: the others write what was in its log.
#[tokio::test]
async fn the_tokens_of_a_dead_gateway_reach_the_minute() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let mut b = FilterGateway::loaded(&redis, &clock).await;
    let minute = a.current();
    a.record([1]);
    a.ticks(1).await;
    b.ticks(1).await;
    drop(a);
    let _: u64 = redis.command(&["DEL", &key(minute)]);
    clock.set(NOW + ms(5 * MINUTE));
    b.ticks(35).await;
    clock.set(NOW + ms(15 * MINUTE));
    let fresh = FilterGateway::loaded(&redis, &clock).await;
    assert_eq!(fresh.missing([1]), [0; 0]);
}

#[tokio::test]
async fn a_gateway_that_starts_reads_the_logs() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    for second in 0..70 {
        a.record(second * 100..second * 100 + 100);
        a.ticks(1).await;
    }
    for index in [a.current() - 1, a.current()] {
        let _: u64 = redis.command(&["DEL", &key(index)]);
    }
    let fresh = FilterGateway::loaded(&redis, &clock).await;
    assert_eq!(fresh.missing(0..7_000), [0; 0]);
}

/// Gateways with another secret or of another configured size have logs of their own.
#[tokio::test]
async fn the_logs_of_other_gateways_are_not_read() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    a.record([1]);
    a.ticks(1).await;
    for (capacity, hash_keys) in [(1_000, other_hash_keys()), (500, hash_keys())] {
        let mut other = FilterGateway::with(&redis, &clock, geometry(capacity, 30), hash_keys);
        assert!(other.load().await.is_ok());
        other.ticks(1).await;
        assert_eq!(other.missing([1]), [1]);
    }
}

/// What is in Redis costs a bounded number of bytes and fails no tick; gateways replace it.
#[tokio::test]
async fn a_log_that_gateways_did_not_write_is_bounded() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let mut b = FilterGateway::loaded(&redis, &clock).await;
    let most = max_log_part(&geometry(1_000, 30)) as u64;
    a.record([1]);
    a.ticks(1).await;
    b.ticks(1).await;
    let [log] = &logs(&redis, a.current())[..] else { panic!("one log") };
    let (zeros, long) = ("0".repeat(9), "\u{7f}".repeat(32 << 20));
    let commands: [&[&str]; 5] = [
        &["DEL", log],
        &["SET", log, &zeros],
        &["SET", log, &long],
        &["RPUSH", log, "x"],
        &["HSET", log, "a", "b"],
    ];
    for command in commands {
        let _: u64 = redis.command(&["DEL", log]);
        let _: redis::Value = redis.command(command);
        let before = bytes_read(&b.stats);
        b.ticks(1).await;
        assert!(bytes_read(&b.stats) - before <= most, "{}", command[0]);
        a.record([10]);
        a.ticks(1).await;
    }
    let unusable = PayloadError::ALL.map(|error| b.stats.unusable(error));
    assert_eq!(unusable, [0; 6]);
    clock.set(NOW + ms(MINUTE));
    a.record([2]);
    a.ticks(2).await;
    b.ticks(1).await;
    assert_eq!(b.missing([2]), [0; 0]);
}

/// The scripts and the simulation's log, in random sequences of appends, reads, foreign writes and
/// losses.
#[tokio::test]
async fn the_scripts_equal_the_simulated_log() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let mut a = FilterGateway::loaded(&redis, &clock).await;
    let minute = UnixMinute::from_minutes;
    let log = LogId { minute: minute(1), sent: minute(2), group: 3 };
    let key = "tidegate:{active}:1:log:2:0000000000000003";
    let (mut rng, mut model) = (SplitMix64(9), FakeLog::default());
    let max_len = 400;
    for _ in 0..2_000 {
        let offset = rng.below(60) * 8;
        match rng.below(8) {
            0 => {
                let _: u64 = redis.command(&["DEL", key]);
                model = FakeLog::default();
            }
            1 => {
                // Not of whole tokens.
                let _: u64 = redis.command(&["APPEND", key, "xyz"]);
                model.bytes.extend(b"xyz");
            }
            2..=4 => {
                let tokens = vec![rng.next_u64() as u8; rng.below(20) as usize * 8 + 8];
                let outcome = a.store.append_log(log, &tokens, max_len).await;
                assert_eq!(outcome, Ok(model.append(&tokens, max_len)));
            }
            _ => {
                let most = (rng.below(20) * 8) as usize;
                let parts = a.store.read_logs(&[LogOffset { log, offset }; 2], most).await;
                let part = model.read(offset, most);
                assert_eq!(parts, Ok(vec![part.clone(), part]));
            }
        }
    }
    let full = a.store.append_log(log, &[0; 408], max_len).await;
    assert_eq!(full, Ok(AppendOutcome::Full));
    let none = a
        .store
        .read_logs(&[LogOffset { log: LogId { sent: minute(9), ..log }, offset: 8 }], 8)
        .await;
    assert_eq!(none, Ok(vec![LogPart::default()]));
}

/// More tokens in a second than a gateway sends: the logs are bounded, and the minute has them all.
#[tokio::test]
async fn a_flood_of_new_tokens_comes_with_the_minute() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let sizes = geometry(1_000, 8);
    let start = || FilterGateway::with(&redis, &clock, sizes, hash_keys());
    let (mut a, mut b) = (start(), start());
    assert!(a.load().await.is_ok() && b.load().await.is_ok());
    let (most, before) = (max_log_part(&sizes) as u64, bytes_read(&b.stats));
    a.record(0..4_000);
    a.ticks(1).await;
    b.ticks(1).await;
    assert!(bytes_read(&b.stats) - before <= most + 30_000, "a part of a log and a minute");
    for _ in 0..40 {
        a.ticks(1).await;
        b.ticks(1).await;
    }
    assert_eq!(b.missing(0..4_000), [0; 0]);
    let [log] = &logs(&redis, a.current() - 1)[..] else { panic!("one log") };
    assert!(redis.command::<usize>(&["STRLEN", log]) <= max_log_len(&sizes));
}
