use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use testkit::redis_server::RedisServer;
use tidegate::clock::ms;
use tidegate::{
    clock::Clock,
    throttle::{
        Geometry, HashKeys,
        payload::{self, PayloadError},
    },
};

use crate::support::{FilterGateway, MINUTE, NOW, geometry, hash_keys, key, other_hash_keys};

/// The corruption of the value under a minute's key.
enum Corruption {
    /// Only the value is changed.
    Value(Vec<u8>),
    /// The value and the timestamp are changed.
    ValueAndTimestamp(String, Vec<u8>),
    /// Commands, with the placeholder `KEY` for the key.
    Commands(Vec<Vec<String>>),
}

struct Case {
    name: &'static str,
    corruption: Corruption,
    error: PayloadError,
}

/// A geometry of few minutes, so that all of them are soon checked.
fn short_geometry() -> Geometry {
    geometry(1_000, 8)
}

async fn loaded(redis: &RedisServer, clock: &Clock) -> FilterGateway {
    let mut gateway = FilterGateway::with(redis, clock, short_geometry(), hash_keys());
    assert!(gateway.load().await.is_ok());
    gateway
}

fn valid_payload() -> Vec<u8> {
    payload::encode(&short_geometry(), &hash_keys(), &vec![0; short_geometry().bits / 8])
}

fn compressed(bytes: usize) -> Vec<u8> {
    let mut compressed = GzEncoder::new(vec![1], Compression::best());
    compressed.write_all(&plain(&[])[1..]).expect("memory");
    compressed.write_all(&vec![0; bytes]).expect("memory");
    compressed.finish().expect("memory")
}

/// A plain payload of the tests' geometry with these bits.
fn plain(bits: &[u8]) -> Vec<u8> {
    let full =
        payload::encode(&short_geometry(), &hash_keys(), &vec![0x55; short_geometry().bits / 8]);
    let header = full.len() - short_geometry().bits / 8;
    [&full[..header], bits].concat()
}

fn foreign(capacity: u64, hash_keys: &HashKeys) -> Vec<u8> {
    let geometry = geometry(capacity, 8);
    payload::encode(&geometry, hash_keys, &vec![0x11; geometry.bits / 8])
}

fn commands(lines: &[&str]) -> Corruption {
    let split = |line: &&str| line.split(' ').map(str::to_owned).collect();
    Corruption::Commands(lines.iter().map(split).collect())
}

fn cases() -> Vec<Case> {
    use PayloadError::{Malformed, Saturated, TooLong, WrongType};
    let bytes = short_geometry().bits / 8;
    let case = |name, corruption, error| Case { name, corruption, error };
    let value = |name, value, error| case(name, Corruption::Value(value), error);
    let bad_timestamp = |name, ts: &str| {
        case(name, Corruption::ValueAndTimestamp(ts.to_owned(), valid_payload()), WrongType)
    };
    let bomb = compressed(1 << 20);
    assert!(bomb.len() < payload::max_len(&short_geometry()));
    vec![
        value("cut off", valid_payload()[..valid_payload().len() / 2].to_vec(), Malformed),
        value("cut off, plain", plain(&vec![1; bytes - 1]), Malformed),
        value("empty", Vec::new(), Malformed),
        value("no flag", vec![9; 100], Malformed),
        value("a compression bomb", bomb, TooLong),
        value("a byte too long", plain(&vec![1; bytes + 1]), TooLong),
        value("64 MB", vec![1; 64 << 20], TooLong),
        value("all ones", plain(&vec![0xff; bytes]), Saturated),
        value("other sizes", foreign(500, &hash_keys()), PayloadError::Geometry),
        value("another seed", foreign(1_000, &other_hash_keys()), PayloadError::Seed),
        case("a string", commands(&["DEL KEY", "SET KEY x"]), WrongType),
        case("a list", commands(&["DEL KEY", "RPUSH KEY x"]), WrongType),
        case("no value", commands(&["HDEL KEY value"]), WrongType),
        case("no timestamp", commands(&["HDEL KEY ts"]), WrongType),
        case("other fields", commands(&["DEL KEY", "HSET KEY a b"]), WrongType),
        bad_timestamp("text", "soon"),
        bad_timestamp("a negative number", "-1"),
        bad_timestamp("zero", "0"),
        bad_timestamp("a fraction", "1.5"),
        bad_timestamp("an exponent", "1e12"),
        bad_timestamp("hexadecimal", "0x10"),
        bad_timestamp("infinite", "inf"),
        bad_timestamp("2^53 - 1", "9007199254740991"),
        bad_timestamp("twenty digits", "99999999999999999999"),
        bad_timestamp("with a space", "1 "),
        bad_timestamp("empty timestamp", ""),
    ]
}

fn corrupt(redis: &RedisServer, index: u64, corruption: &Corruption) {
    let client = redis::Client::open(redis.url()).expect("its URL");
    let mut connection = client.get_connection().expect("the test's Redis");
    let mut pipe = redis::pipe();
    let key = key(index);
    match corruption {
        Corruption::Value(value) => {
            pipe.cmd("HSET").arg(&key).arg("value").arg(value);
        }
        Corruption::ValueAndTimestamp(ts, value) => {
            pipe.cmd("HSET").arg(&key).arg("value").arg(value).arg("ts").arg(ts);
        }
        Corruption::Commands(commands) => {
            for command in commands {
                pipe.cmd(&command[0]);
                for word in &command[1..] {
                    pipe.arg(if word == "KEY" { &key } else { word });
                }
            }
        }
    }
    pipe.exec(&mut connection).expect("a reply of the test's Redis");
}

fn dump(redis: &RedisServer, index: u64) -> Vec<u8> {
    redis.command(&["DUMP", &key(index)])
}

fn is_foreign(error: PayloadError) -> bool {
    matches!(error, PayloadError::Geometry | PayloadError::Seed)
}

fn unusable(gateway: &FilterGateway) -> Vec<(PayloadError, u64)> {
    let counts = PayloadError::ALL.map(|error| (error, gateway.stats.unusable(error)));
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// A gateway that has written four minutes, and the index of the first.
async fn writer(redis: &RedisServer, clock: &Clock) -> (FilterGateway, u64) {
    clock.set(NOW);
    let mut gateway = loaded(redis, clock).await;
    let first = gateway.current();
    for minute in 0..4 {
        clock.set(NOW + ms(minute * MINUTE));
        gateway.filter.rotate(clock.store_time());
        gateway.record(minute * 10..minute * 10 + 10);
        gateway.ticks(1).await;
    }
    (gateway, first)
}

/// At the start, a corrupt minute is rejected and the rest is loaded; the filter is incomplete
/// until gateways that have the minute have rewritten it.
#[tokio::test]
async fn a_corrupt_payload_at_load_is_rejected_and_repaired() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    for Case { name, corruption, error } in cases() {
        let _: String = redis.command(&["FLUSHALL"]);
        let (mut old, first) = writer(&redis, &clock).await;
        corrupt(&redis, first + 1, &corruption);
        let before = dump(&redis, first + 1);
        let mut fresh = loaded(&redis, &clock).await;
        assert_eq!(unusable(&fresh), [(error, 1)], "{name}");
        assert!(!fresh.is_complete(), "{name}");
        assert_eq!(
            fresh.missing(0..40),
            (10..20).collect::<Vec<_>>(),
            "{name}: the rest is loaded"
        );
        assert!(fresh.stats.bytes_read.get() < 100_000, "{name}");
        for _ in 0..33 {
            fresh.ticks(1).await;
            old.ticks(1).await;
        }
        fresh.ticks(33).await;
        assert_eq!(old.missing(0..40), [0; 0], "{name}");
        if is_foreign(error) {
            assert_eq!(
                dump(&redis, first + 1),
                before,
                "{name}: a foreign minute is not overwritten"
            );
            assert!(!fresh.is_complete(), "{name}");
            assert_eq!(unusable(&fresh), [(error, 1)], "{name}: counted once per version");
            clock.set(NOW + ms(12 * MINUTE));
            fresh.ticks(3).await;
            assert!(fresh.is_complete(), "{name}: the minute has expired");
        } else {
            assert!(fresh.is_complete(), "{name}");
            assert_eq!(fresh.missing(0..40), [0; 0], "{name}");
        }
    }
}

/// Corruption under running gateways: their filters stay intact, and they rewrite the minute even
/// if they have nothing to add.
#[tokio::test]
async fn a_corrupt_payload_while_running_is_rejected_and_repaired() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    for Case { name, corruption, error } in cases() {
        for minute in [1, 3] {
            let _: String = redis.command(&["FLUSHALL"]);
            let (mut old, first) = writer(&redis, &clock).await;
            let index = first + minute;
            corrupt(&redis, index, &corruption);
            let before = dump(&redis, index);
            old.ticks(33).await;
            assert_eq!(unusable(&old), [(error, 1)], "{name}");
            assert_eq!(old.missing(0..40), [0; 0], "{name}");
            assert!(old.is_complete(), "{name}: it was complete before");
            let fresh = loaded(&redis, &clock).await;
            if is_foreign(error) {
                assert_eq!(
                    dump(&redis, index),
                    before,
                    "{name}: a foreign minute is not overwritten"
                );
            } else {
                assert_eq!(unusable(&fresh), [], "{name}");
                assert_eq!(fresh.missing(0..40), [0; 0], "{name}");
                let left: i64 = redis.command(&["TTL", &key(index)]);
                assert!(left > 0, "{name}");
            }
        }
    }
}

/// A minute of gateways with another configuration is not written; tokens recorded meanwhile
/// are known locally, and are written when the foreign minute is gone.
#[tokio::test]
async fn a_foreign_minute_is_left_alone_and_ours_stays_pending() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (mut gateway, first) = writer(&redis, &clock).await;
    corrupt(
        &redis,
        first + 3,
        &Corruption::ValueAndTimestamp("5".to_owned(), foreign(500, &hash_keys())),
    );
    let before = dump(&redis, first + 3);
    gateway.record(100..110);
    gateway.ticks(5).await;
    assert_eq!(dump(&redis, first + 3), before);
    assert_eq!(gateway.tick_pending().await, 1, "the replaced minute stays pending");
    assert_eq!(gateway.missing(100..110), [0; 0]);
    let _: u64 = redis.command(&["DEL", &key(first + 3)]);
    gateway.ticks(1).await;
    assert_eq!(gateway.tick_pending().await, 0);
    let fresh = loaded(&redis, &clock).await;
    assert_eq!(fresh.missing((0..40).chain(100..110)), [0; 0]);
}

/// Gateways that have the minute do not detect damage that keeps the timestamp and the length. A
/// new gateway detects it, and its rewrite makes the others check.
#[tokio::test]
async fn a_new_gateway_makes_the_others_repair_damage() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (mut old, first) = writer(&redis, &clock).await;
    let length: usize = redis.command(&["HSTRLEN", &key(first), "value"]);
    corrupt(&redis, first, &Corruption::Value(vec![9; length]));
    old.ticks(33).await;
    assert_eq!(unusable(&old), []);
    let mut fresh = loaded(&redis, &clock).await;
    assert!(!fresh.is_complete());
    fresh.ticks(33).await;
    assert!(!fresh.is_complete(), "its own write does not complete the filter");
    old.ticks(33).await;
    fresh.ticks(33).await;
    assert!(fresh.is_complete());
    assert_eq!(fresh.missing(0..40), [0; 0]);
}

/// With many more tokens than the filter's capacity, a saturated minute is not written. Otherwise
/// gateways would endlessly reject and rewrite each other's payloads.
#[tokio::test]
async fn a_saturated_minute_is_not_rewritten() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (mut a, first) = writer(&redis, &clock).await;
    let mut b = loaded(&redis, &clock).await;
    for gateway in [&a, &b] {
        gateway.record(1_000..31_000);
    }
    let ones = plain(&vec![0xff; short_geometry().bits / 8]);
    corrupt(&redis, first + 3, &Corruption::ValueAndTimestamp("5".to_owned(), ones));
    let before = dump(&redis, first + 3);
    for _ in 0..10 {
        a.ticks(1).await;
        b.ticks(1).await;
    }
    for gateway in [&mut a, &mut b] {
        assert_eq!(unusable(gateway), [(PayloadError::Saturated, 1)]);
        assert_eq!(gateway.tick_pending().await, 0);
    }
    assert_eq!(dump(&redis, first + 3), before);
    // A gateway whose minute is not saturated writes it.
    let mut fresh = loaded(&redis, &clock).await;
    fresh.record([7_000_000]);
    fresh.ticks(1).await;
    assert_ne!(dump(&redis, first + 3), before);
    a.ticks(2).await;
    assert_eq!(a.stats.commits.get(), 4, "one for each minute of the writer");
}
