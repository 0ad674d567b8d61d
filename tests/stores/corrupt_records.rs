use proptest::prelude::*;
use redis::{Connection, RedisResult};
use testkit::{
    redis_server::RedisServer,
    scripts::{ACQUIRE, ADJUST, CHARGE, PEEK, ScriptCaller},
};
use tidegate::limit::{Algorithm, MAX_LEASED_UNITS, MAX_UNITS, Millis};

const NOW: u64 = crate::support::NOW.as_unix_ms();

/// The largest number in a reply: larger ones are not exact in Lua.
const MAX_NUMBER: i64 = 1 << 53;

/// Quotas for a window of 60 s: a small one, the largest of every algorithm, and the largest of
/// windows.
const QUOTAS: [u64; 3] = [100, u32::MAX as u64, MAX_UNITS];

/// A value that is not a record.
#[derive(Clone, Debug)]
enum ForeignValue {
    Text(Vec<u8>),
    List(Vec<Vec<u8>>),
    Hash,
}

/// A time near the present, or any.
fn any_time() -> impl Strategy<Value = u64> {
    prop_oneof![1 => any::<u64>(), 3 => NOW - 90_000..NOW + 90_000]
}

/// Bytes, often as long as a record, with times and numbers in place of its fields.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![
        Just(10),
        Just(13),
        Just(26),
        Just(40),
        Just(30),
        Just(32),
        Just(61),
        0_usize..80
    ];
    let random = prop::collection::vec(any::<u8>(), 80);
    let number = prop_oneof![Just(0), Just(100), Just(u32::MAX), any::<u32>()];
    (random, length, prop::collection::vec(any_time(), 3), number, 0_u8..4).prop_map(
        |(mut bytes, length, times, number, shape)| {
            let mut put = |at: usize, value: &[u8]| {
                bytes[at..at + value.len()].copy_from_slice(value);
            };
            let times: Vec<[u8; 8]> = times.iter().map(|time| time.to_le_bytes()).collect();
            match shape {
                0 => {}
                // Concurrency leases: the reset, the end of the renewed ones, the number of slots,
                // the end of the first.
                1 => {
                    put(0, &times[0][..6]);
                    put(6, &times[2][..6]);
                    put(12, &number.to_le_bytes());
                    put(16, &times[1][..6]);
                }
                // Buckets: the last request, the reset, the time when full, a fraction, the rate;
                // then the start of the free slots, a fraction, and their number.
                _ => {
                    put(26, &times[0][..6]);
                    put(32, &[0; 4]);
                    put(38, &[0; 2]);
                    for (nth, time) in times.iter().enumerate() {
                        put(6 * nth, &time[..6]);
                    }
                    put(22, &number.to_le_bytes());
                }
            }
            bytes.truncate(length);
            bytes
        },
    )
}

/// A log whose last element claims a number of preceding elements, right or wrong.
fn any_log() -> impl Strategy<Value = ForeignValue> {
    let entries = prop::collection::vec(any::<(u32, u32)>(), 0..40);
    let blocks =
        prop::collection::vec((any::<u8>(), prop_oneof![Just(2_036), 0_usize..2_100]), 0..4);
    (entries, blocks, 0_u32..5, NOW - 70_000..NOW + 9_000, any::<u32>()).prop_map(
        |(entries, blocks, claimed, seen, total)| {
            let mut last = seen.to_le_bytes()[..6].to_vec();
            last.extend(&(seen + 60_000).to_le_bytes()[..6]);
            last.extend(total.to_le_bytes());
            last.extend(claimed.to_le_bytes());
            last.extend(7_u32.to_le_bytes());
            for (time, before) in entries {
                last.extend((NOW as u32).wrapping_sub(time % 90_000).to_le_bytes());
                last.extend(before.to_le_bytes());
            }
            let mut list: Vec<Vec<u8>> =
                blocks.into_iter().map(|(byte, length)| vec![byte; length]).collect();
            list.push(last);
            ForeignValue::List(list)
        },
    )
}

fn any_foreign_value() -> impl Strategy<Value = ForeignValue> {
    prop_oneof![
        5 => any_bytes().prop_map(ForeignValue::Text),
        2 => prop::collection::vec(any_bytes(), 1..4).prop_map(ForeignValue::List),
        3 => any_log(),
        1 => Just(ForeignValue::Hash),
    ]
}

/// Writes a foreign value under `key`.
fn plant(connection: &mut Connection, key: &str, foreign: &ForeignValue) {
    let command = |name: &str| {
        let mut command = redis::cmd(name);
        command.arg(key);
        command
    };
    let planted: RedisResult<()> = match foreign {
        ForeignValue::Text(text) => command("SET").arg(text).query(connection),
        ForeignValue::List(list) => command("RPUSH").arg(list).query(connection),
        ForeignValue::Hash => command("HSET").arg("a").arg("b").query(connection),
    };
    planted.expect("a free key");
}

/// The four scripts that read records, and their arguments besides the limit.
struct Scripts {
    charge: ScriptCaller,
    peek: ScriptCaller,
    adjust: ScriptCaller,
    acquire: ScriptCaller,
}

/// One call: the script, the cost, and the time of an adjusted charge.
#[derive(Clone, Debug)]
enum ScriptCall {
    Charge(u64),
    Peek(u64),
    Adjust(u64, i64),
    Acquire(u64),
}

fn any_calls() -> impl Strategy<Value = Vec<ScriptCall>> {
    let at = prop_oneof![
        Just(-1_i64),
        (NOW - 70_000..NOW + 70_000).prop_map(u64::cast_signed),
        (NOW - 70_000..NOW + 70_000).prop_map(|at| -2 - at.cast_signed()),
    ];
    let cost =
        || prop_oneof![4 => 1_u64..9, 1 => any::<u32>().prop_map(u64::from), 1 => 1..=MAX_UNITS];
    let call = prop_oneof![
        cost().prop_map(ScriptCall::Charge),
        cost().prop_map(ScriptCall::Peek),
        (cost(), at).prop_map(|(cost, at)| ScriptCall::Adjust(cost, at)),
        (1..MAX_LEASED_UNITS).prop_map(ScriptCall::Acquire),
    ];
    prop::collection::vec(call, 1..6)
}

impl Scripts {
    fn new(redis: &RedisServer) -> Self {
        let [charge, peek, adjust, acquire] =
            [CHARGE, PEEK, ADJUST, ACQUIRE].map(|script| ScriptCaller::new(&redis.url(), script));
        Self { charge, peek, adjust, acquire }
    }

    /// `None` if units of this algorithm cannot be leased.
    fn call(
        &mut self,
        key: &str,
        (algorithm, quota): (Algorithm, u64),
        now: u64,
        call: &ScriptCall,
    ) -> Option<RedisResult<Vec<i64>>> {
        let (caller, cost, arguments) = match *call {
            ScriptCall::Charge(cost) => (&mut self.charge, cost, vec![]),
            ScriptCall::Peek(cost) => (&mut self.peek, cost, vec![]),
            ScriptCall::Adjust(cost, at) => (&mut self.adjust, cost, vec![at]),
            ScriptCall::Acquire(_) if !algorithm.can_lease() => return None,
            ScriptCall::Acquire(extra) => {
                (&mut self.acquire, 1, vec![1, extra.cast_signed(), 4, 0, 0])
            }
        };
        let mut command = caller.command();
        command.arg(1).arg(key).arg(now).arg(algorithm.tag()).arg(cost);
        command
            .arg(quota)
            .arg(60_000)
            .arg(algorithm.resolution())
            .arg(algorithm.max_wait().as_ms());
        command.arg(arguments);
        Some(command.query(&mut caller.connection))
    }
}

#[test]
fn scripts_return_valid_replies_for_corrupt_records() {
    let redis = RedisServer::start();
    let scripts = std::cell::RefCell::new(Scripts::new(&redis));
    let number = std::cell::Cell::new(0);
    let algorithms = prop::sample::select(Algorithm::all(6, Millis::from_secs(5)).to_vec());
    let quotas = prop::sample::select(&QUOTAS[..]);
    let config = ProptestConfig { cases: 3_000, ..ProptestConfig::default() };
    proptest!(config, |(foreign in any_foreign_value(), calls in any_calls(), algorithm in algorithms, quota in quotas)| {
        let mut scripts = scripts.borrow_mut();
        let quota = quota.min(algorithm.max_units());
        number.set(number.get() + 1);
        let key = number.get().to_string();
        plant(&mut scripts.charge.connection, &key, &foreign);
        let (mut now, mut failed) = (NOW, false);
        for call in &calls {
            let Some(reply) = scripts.call(&key, (algorithm, quota), now, call) else { continue };
            match reply {
                Ok(reply) => {
                    let is_retry_at = |at: usize| at % 6 == 5;
                    for (at, &value) in reply.iter().enumerate() {
                        let least = if is_retry_at(at) { -1 } else { 0 };
                        prop_assert!((least..=MAX_NUMBER).contains(&value), "{call:?}: {reply:?}");
                    }
                }
                // A log with invalid blocks is removed once.
                Err(error) => {
                    let is_adjustment = matches!(call, ScriptCall::Adjust(..));
                    let removed = algorithm == Algorithm::SlidingLog && !is_adjustment && !failed;
                    prop_assert!(removed, "{call:?}: {error}");
                    failed = true;
                }
            }
            now += 700;
        }
    });
}
