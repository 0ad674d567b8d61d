use testkit::{
    redis_server::RedisServer,
    scripts::{ADJUST, Cost, ScriptCaller},
};
use tidegate::limit::{Algorithm, Millis, Quota};

const NOW: u64 = crate::support::NOW.as_unix_ms();

/// The quota, which is also the number of entries of a full log.
const QUOTA: u64 = 100_000;

/// Maximum duration of a call, in us of Redis' CPU time.
const MAX_MICROS: u64 = 1_000;

/// Number of measurements of each kind of call. The shortest counts, because a busy machine only
/// adds time.
const MEASUREMENTS: usize = 7;

/// Number of charges per measurement while the log is filled.
const FILLING_CHARGES: usize = 1_000;

/// Asserts that the shortest of [`MEASUREMENTS`] takes less than [`MAX_MICROS`] per call.
fn assert_cheap(what: &str, measure: impl FnMut(usize) -> Cost) {
    assert_cheaper(MAX_MICROS, what, measure);
}

/// Like [`assert_cheap`], with another maximum, in us.
fn assert_cheaper(max_micros: u64, what: &str, measure: impl FnMut(usize) -> Cost) {
    let costs = (0..MEASUREMENTS).map(measure);
    let micros =
        costs.map(|cost| cost.micros / cost.calls.max(1)).min().expect("some measurements");
    assert!(micros < max_micros, "{what}: {micros} us of Redis' time");
}

#[test]
fn a_full_log_of_100_000_never_blocks_redis() {
    let redis = RedisServer::start();
    let mut script_caller = ScriptCaller::for_charges(&redis.url());
    let caller = &mut script_caller;
    let quota = Quota::new(QUOTA, Millis::from_secs(200), Algorithm::SlidingLog);
    // One charge per ms: the largest number of entries.
    let times: Vec<_> = (0..QUOTA).map(|ms| (NOW + ms, 1)).collect();
    let (first, last) = times.split_at(times.len() - MEASUREMENTS * FILLING_CHARGES);
    let filled = caller.cost_of(|caller| {
        assert_eq!(caller.charge("log", &quota, first), first.len() as u64);
    });
    // The mean of many charges.
    assert!(filled.micros / filled.calls < MAX_MICROS, "{filled:?}");
    assert_cheaper(MAX_MICROS / 4, "a charge of an almost full log", |n| {
        let some = &last[n * FILLING_CHARGES..][..FILLING_CHARGES];
        caller.cost_of(|caller| {
            assert_eq!(caller.charge("log", &quota, some), FILLING_CHARGES as u64);
        })
    });
    let memory = caller.memory_usage("log");
    assert!(memory < QUOTA * 9, "{memory} bytes for {QUOTA} entries");

    let end = NOW + QUOTA;
    assert_cheap("a refusal", |_| {
        caller.cost_of(|caller| {
            assert_eq!(caller.charge("log", &quota, &[(end, 1); 200]), 0);
        })
    });
    assert_cheap("a refusal of a large cost", |n| {
        caller.cost_of(|caller| {
            assert_eq!(caller.charge("log", &quota, &[(end, 50_000 + n as u64)]), 0);
        })
    });
    // All but the last thousand entries expire at once.
    let later = end + quota.window.as_ms() - 1_000;
    assert_cheap("a charge when almost all has expired", |n| {
        let copy = format!("copy-{n}");
        let _: u64 = redis.command(&["COPY", "log", &copy]);
        caller.cost_of(|caller| {
            assert_eq!(caller.charge(&copy, &quota, &[(later, 1)]), 1);
        })
    });
    assert!(caller.memory_usage("copy-0") < 12_000, "expired entries take no memory");
    assert_cheap("a charge when all has expired", |n| {
        let copy = format!("other-{n}");
        let _: u64 = redis.command(&["COPY", "log", &copy]);
        caller.cost_of(|caller| {
            assert_eq!(caller.charge(&copy, &quota, &[(end + quota.window.as_ms(), 1)]), 1);
        })
    });
    assert_cheap("a charge of 0 when almost all has expired", |_| {
        caller.cost_of(|caller| {
            assert_eq!(caller.charge("log", &quota, &[(later, 0)]), 1);
        })
    });
}

#[test]
fn refunds_leave_no_entries_of_a_log_behind() {
    let redis = RedisServer::start();
    let mut charges = ScriptCaller::for_charges(&redis.url());
    let mut refunds = ScriptCaller::new(&redis.url(), ADJUST);
    let quota = Quota::new(1_000, Millis::from_secs(60), Algorithm::SlidingLog);
    // One charge per ms, each refunded while later ones are in flight: more than fit into a block
    // of the record.
    for in_flight in [0, 1, 300] {
        let key = format!("log-{in_flight}");
        for now in NOW..NOW + 3_000 {
            assert_eq!(charges.charge(&key, &quota, &[(now, 1)]), 1);
            refunds.refund(&key, &quota, now, &[(now - in_flight, 1)]);
        }
        let memory = charges.memory_usage(&key);
        assert!(memory < 500 + in_flight * 9, "{memory} bytes for {in_flight} entries");
    }
}

/// Number of charges, and of refunds, per measurement.
const SLOT_CHARGES: usize = 500;

#[test]
fn the_cost_of_a_slot_is_independent_of_the_slots_held() {
    let redis = RedisServer::start();
    let mut charges = ScriptCaller::for_charges(&redis.url());
    let mut refunds = ScriptCaller::new(&redis.url(), ADJUST);
    let quota = Quota::new(QUOTA, Millis::from_secs(30), Algorithm::Concurrency);
    let mut cost_with_slots_held = |key: &str, held: u64| {
        let taken: Vec<_> = (0..held).map(|n| (NOW + n, 1)).collect();
        assert_eq!(charges.charge(key, &quota, &taken), held);
        let (mut now, mut shortest) = (NOW + held, u64::MAX);
        for _ in 0..MEASUREMENTS {
            let batch: Vec<_> = (0..SLOT_CHARGES as u64).map(|n| (now + n, 1)).collect();
            now += SLOT_CHARGES as u64;
            let charge = charges.cost_of(|caller| {
                assert_eq!(caller.charge(key, &quota, &batch), SLOT_CHARGES as u64);
            });
            let refund = refunds.cost_of(|caller| caller.refund(key, &quota, now, &batch));
            shortest = shortest.min(charge.micros + refund.micros);
        }
        (shortest, charges.memory_usage(key))
    };
    let (alone, _) = cost_with_slots_held("alone", 0);
    let (with_slots_held, bytes) = cost_with_slots_held("held", 10_000);
    assert!(with_slots_held < alone * 4, "{alone} us alone, {with_slots_held} us with 10,000 held");
    assert!(bytes < 1_024, "{bytes} bytes for 10,000 slots");
}
