use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use testkit::redis_server::RedisServer;
use tidegate::{
    clock::Clock,
    throttle::{
        Geometry,
        payload::{self, PayloadError},
    },
};

use crate::support::{Gateway, MINUTE, NOW, geometry, key, other_seed, seed};

/// A corrupt value in a minute's key.
enum Corruption {
    /// Only the value is changed.
    Value(Vec<u8>),
    /// The value and the timestamp are changed.
    Both(String, Vec<u8>),
    /// Commands, with `KEY` for the key.
    Commands(Vec<Vec<String>>),
}

struct Case {
    name: &'static str,
    corruption: Corruption,
    refusal: PayloadError,
}

/// A short memory, so that the rotation completes soon.
fn sizes() -> Geometry {
    geometry(1_000, 8)
}

async fn loaded(redis: &RedisServer, clock: &Clock) -> Gateway {
    let mut gateway = Gateway::with(redis, clock, sizes(), seed());
    assert!(gateway.load().await.is_ok());
    gateway
}

fn sane() -> Vec<u8> {
    payload::encode(&sizes(), &seed(), &vec![0; sizes().bits / 8])
}

fn packed(bytes: usize) -> Vec<u8> {
    let mut packed = GzEncoder::new(vec![1], Compression::best());
    packed.write_all(&plain(&[])[1..]).expect("memory");
    packed.write_all(&vec![0; bytes]).expect("memory");
    packed.finish().expect("memory")
}

/// A plain payload of the tests' geometry with these bits.
fn plain(bits: &[u8]) -> Vec<u8> {
    let full = payload::encode(&sizes(), &seed(), &vec![0x55; sizes().bits / 8]);
    let header = full.len() - sizes().bits / 8;
    [&full[..header], bits].concat()
}

fn foreign(capacity: u64, other: bool) -> Vec<u8> {
    let geometry = geometry(capacity, 8);
    let seed = if other { other_seed() } else { seed() };
    payload::encode(&geometry, &seed, &vec![0x11; geometry.bits / 8])
}

fn commands(lines: &[&str]) -> Corruption {
    let split = |line: &&str| line.split(' ').map(str::to_owned).collect();
    Corruption::Commands(lines.iter().map(split).collect())
}

fn cases() -> Vec<Case> {
    use PayloadError::{Malformed, Saturated, TooLong, Type};
    let bytes = sizes().bits / 8;
    let case = |name, corruption, refusal| Case { name, corruption, refusal };
    let value = |name, value, refusal| case(name, Corruption::Value(value), refusal);
    let hostile = |name, ts: &str| case(name, Corruption::Both(ts.to_owned(), sane()), Type);
    let bomb = packed(1 << 20);
    assert!(bomb.len() < payload::max_len(&sizes()));
    vec![
        value("cut off", sane()[..sane().len() / 2].to_vec(), Malformed),
        value("cut off, plain", plain(&vec![1; bytes - 1]), Malformed),
        value("empty", Vec::new(), Malformed),
        value("no flag", vec![9; 100], Malformed),
        value("a bomb", bomb, TooLong),
        value("a byte too long", plain(&vec![1; bytes + 1]), TooLong),
        value("64 MB", vec![1; 64 << 20], TooLong),
        value("all ones", plain(&vec![0xff; bytes]), Saturated),
        value("other sizes", foreign(500, false), PayloadError::Geometry),
        value("another seed", foreign(1_000, true), PayloadError::Seed),
        case("a string", commands(&["DEL KEY", "SET KEY x"]), Type),
        case("a list", commands(&["DEL KEY", "RPUSH KEY x"]), Type),
        case("no value", commands(&["HDEL KEY value"]), Type),
        case("no time stamp", commands(&["HDEL KEY ts"]), Type),
        case("other fields", commands(&["DEL KEY", "HSET KEY a b"]), Type),
        hostile("a text", "soon"),
        hostile("a negative number", "-1"),
        hostile("zero", "0"),
        hostile("a fraction", "1.5"),
        hostile("an exponent", "1e12"),
        hostile("hexadecimal", "0x10"),
        hostile("infinite", "inf"),
        hostile("2^53 - 1", "9007199254740991"),
        hostile("twenty digits", "99999999999999999999"),
        hostile("with a space", "1 "),
        hostile("empty time stamp", ""),
    ]
}

fn put(redis: &RedisServer, index: u64, corruption: &Corruption) {
    let client = redis::Client::open(redis.url()).expect("its URL");
    let mut connection = client.get_connection().expect("the test's Redis");
    let mut pipe = redis::pipe();
    let key = key(index);
    match corruption {
        Corruption::Value(value) => {
            pipe.cmd("HSET").arg(&key).arg("value").arg(value);
        }
        Corruption::Both(ts, value) => {
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
    pipe.exec(&mut connection).expect("an answer of the test's Redis");
}

fn dump(redis: &RedisServer, index: u64) -> Vec<u8> {
    redis.command(&["DUMP", &key(index)])
}

fn is_foreign(refusal: PayloadError) -> bool {
    matches!(refusal, PayloadError::Geometry | PayloadError::Seed)
}

fn refused(gateway: &Gateway) -> Vec<(PayloadError, u64)> {
    let counts = PayloadError::ALL.map(|error| (error, gateway.stats.unusable(error)));
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

/// A gateway that has written four minutes, and the index of the first.
async fn writer(redis: &RedisServer, clock: &Clock) -> (Gateway, u64) {
    clock.set(NOW);
    let mut gateway = loaded(redis, clock).await;
    let first = gateway.current();
    for minute in 0..4 {
        clock.set(NOW + minute * MINUTE);
        gateway.filter.rotate(clock.now());
        gateway.record(minute * 10..minute * 10 + 10);
        gateway.ticks(1).await;
    }
    (gateway, first)
}

/// At the start, a corrupt minute is rejected and the rest is loaded; the filter is incomplete until
/// gateways that know the minute have rewritten it.
#[tokio::test]
async fn a_corrupt_payload_at_load_is_rejected_and_repaired() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    for Case { name, corruption, refusal } in cases() {
        let _: String = redis.command(&["FLUSHALL"]);
        let (mut knows, first) = writer(&redis, &clock).await;
        put(&redis, first + 1, &corruption);
        let before = dump(&redis, first + 1);
        let mut fresh = loaded(&redis, &clock).await;
        assert_eq!(refused(&fresh), [(refusal, 1)], "{name}");
        assert!(!fresh.complete(), "{name}");
        assert_eq!(
            fresh.unknown(0..40),
            (10..20).collect::<Vec<_>>(),
            "{name}: the rest was taken in"
        );
        assert!(fresh.stats.bytes_read.get() < 100_000, "{name}");
        for _ in 0..9 {
            fresh.ticks(1).await;
            knows.ticks(1).await;
        }
        fresh.ticks(9).await;
        assert_eq!(knows.unknown(0..40), [0; 0], "{name}");
        if is_foreign(refusal) {
            assert_eq!(dump(&redis, first + 1), before, "{name}: it is not ours");
            assert!(!fresh.complete(), "{name}");
            assert_eq!(refused(&fresh), [(refusal, 1)], "{name}: once a version");
            clock.set(NOW + 12 * MINUTE);
            fresh.ticks(3).await;
            assert!(fresh.complete(), "{name}: out of memory");
        } else {
            assert!(fresh.complete(), "{name}");
            assert_eq!(fresh.unknown(0..40), [0; 0], "{name}");
        }
    }
}

/// Corruption under running gateways: their filters stay intact and they rewrite the minute, by rotation
/// if they have nothing to add.
#[tokio::test]
async fn a_corrupt_payload_while_running_is_rejected_and_repaired() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    for Case { name, corruption, refusal } in cases() {
        for (minute, ticks) in [(1, 9), (3, 1)] {
            let _: String = redis.command(&["FLUSHALL"]);
            let (mut knows, first) = writer(&redis, &clock).await;
            let index = first + minute;
            put(&redis, index, &corruption);
            let before = dump(&redis, index);
            knows.ticks(ticks).await;
            assert_eq!(refused(&knows), [(refusal, 1)], "{name}");
            assert_eq!(knows.unknown(0..40), [0; 0], "{name}");
            assert!(knows.complete(), "{name}: it knew before");
            let fresh = loaded(&redis, &clock).await;
            if is_foreign(refusal) {
                assert_eq!(dump(&redis, index), before, "{name}: it is not ours");
            } else {
                assert_eq!(refused(&fresh), [], "{name}");
                assert_eq!(fresh.unknown(0..40), [0; 0], "{name}");
                let left: i64 = redis.command(&["TTL", &key(index)]);
                assert!(left > 0, "{name}");
            }
        }
    }
}

/// A minute of gateways with another configuration is not written; tokens recorded meanwhile
/// are known locally, and written if those gateways leave.
#[tokio::test]
async fn a_foreign_minute_is_left_alone_and_ours_stays_pending() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (mut gateway, first) = writer(&redis, &clock).await;
    put(&redis, first + 3, &Corruption::Both("5".to_owned(), foreign(500, false)));
    let before = dump(&redis, first + 3);
    gateway.record(100..110);
    gateway.ticks(5).await;
    assert_eq!(dump(&redis, first + 3), before);
    assert_eq!(gateway.pending().await, 1, "what theirs replaced is not there either");
    assert_eq!(gateway.unknown(100..110), [0; 0]);
    let _: u64 = redis.command(&["DEL", &key(first + 3)]);
    gateway.ticks(1).await;
    assert_eq!(gateway.pending().await, 0);
    let fresh = loaded(&redis, &clock).await;
    assert_eq!(fresh.unknown((0..40).chain(100..110)), [0; 0]);
}

/// Damage without a new timestamp and with the same length is not detected by gateways that
/// know the minute; but a new gateway detects it, and its rewrite makes the others check.
#[tokio::test]
async fn an_empty_new_gateway_makes_the_others_repair() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (mut knows, first) = writer(&redis, &clock).await;
    let length: usize = redis.command(&["HSTRLEN", &key(first), "value"]);
    put(&redis, first, &Corruption::Value(vec![9; length]));
    knows.ticks(9).await;
    assert_eq!(refused(&knows), []);
    let mut fresh = loaded(&redis, &clock).await;
    assert!(!fresh.complete());
    fresh.ticks(4).await;
    assert!(!fresh.complete(), "its own write proves nothing");
    knows.ticks(9).await;
    fresh.ticks(9).await;
    assert!(fresh.complete());
    assert_eq!(fresh.unknown(0..40), [0; 0]);
}

/// Many more tokens than the filter's capacity: a saturated minute is not written, or
/// gateways would reject each other's and rewrite it for ever.
#[tokio::test]
async fn a_saturated_minute_is_not_rewritten() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let (mut a, first) = writer(&redis, &clock).await;
    let mut b = loaded(&redis, &clock).await;
    for gateway in [&a, &b] {
        gateway.record(1_000..31_000);
    }
    let ones = plain(&vec![0xff; sizes().bits / 8]);
    put(&redis, first + 3, &Corruption::Both("5".to_owned(), ones));
    let before = dump(&redis, first + 3);
    for _ in 0..10 {
        a.ticks(1).await;
        b.ticks(1).await;
    }
    for gateway in [&mut a, &mut b] {
        assert_eq!(refused(gateway), [(PayloadError::Saturated, 1)]);
        assert_eq!(gateway.pending().await, 0);
    }
    assert_eq!(dump(&redis, first + 3), before);
    // The gateway with fewer tokens writes them.
    let mut fresh = loaded(&redis, &clock).await;
    fresh.record([7_000_000]);
    fresh.ticks(1).await;
    assert_ne!(dump(&redis, first + 3), before);
    a.ticks(2).await;
    assert_eq!(a.stats.commits.get(), 4, "one for each minute of the start");
}
