use testkit::{
    redis_server::RedisServer,
    scripts::{ADJUST, Cost, ScriptCaller},
};
use tidegate::limit::{Algorithm, Quota};

use crate::support::NOW;

const LIMIT: u32 = 100_000;

/// The longest permitted call, in us of Redis' time.
const MOST: u64 = 1_000;

/// Measurements of each kind of call. The quickest counts: a busy machine only adds to it.
const TIMES: usize = 7;

/// Charges per measurement while the log is filled.
const AT_ONCE: usize = 1_000;

/// Asserts that the quickest of some measurements is at most `most`.
fn quickest(what: &str, measure: impl FnMut(usize) -> Cost) {
    quickest_within(MOST, what, measure);
}

fn quickest_within(most: u64, what: &str, measure: impl FnMut(usize) -> Cost) {
    let costs = (0..TIMES).map(measure);
    let micros =
        costs.map(|cost| cost.micros / cost.calls.max(1)).min().expect("some measurements");
    assert!(micros < most, "{what}: {micros} us of Redis' time");
}

#[test]
fn a_full_log_of_100_000_never_blocks_redis() {
    let redis = RedisServer::start();
    let mut redis_calls = ScriptCaller::new(&redis.url());
    let caller = &mut redis_calls;
    let (log, quota) = (Algorithm::SlidingLog, Quota::new(LIMIT, 200_000, 1));
    // One charge per ms: the largest number of entries.
    let filling: Vec<_> = (0..u64::from(LIMIT)).map(|ms| (NOW + ms, 1)).collect();
    let (most, last) = filling.split_at(filling.len() - TIMES * AT_ONCE);
    let filled = caller.cost_of(|caller| {
        assert_eq!(caller.charge("log", log, &quota, most), most.len() as u64);
    });
    // The mean of many charges.
    assert!(filled.micros / filled.calls < MOST, "{filled:?}");
    quickest_within(MOST / 4, "a charge of an almost full log", |n| {
        let some = &last[n * AT_ONCE..][..AT_ONCE];
        caller.cost_of(|caller| {
            assert_eq!(caller.charge("log", log, &quota, some), AT_ONCE as u64);
        })
    });
    let memory = caller.memory_usage("log");
    assert!(memory < u64::from(LIMIT) * 9, "{memory} bytes for {LIMIT} entries");

    let end = NOW + u64::from(LIMIT);
    quickest("a refusal", |_| {
        caller.cost_of(|caller| {
            assert_eq!(caller.charge("log", log, &quota, &[(end, 1); 200]), 0);
        })
    });
    quickest("a refusal of a large cost", |n| {
        caller.cost_of(|caller| {
            assert_eq!(caller.charge("log", log, &quota, &[(end, 50_000 + n as u32)]), 0);
        })
    });
    // All but the last thousand entries expire at once.
    let later = end + quota.window - 1_000;
    quickest("a charge when almost all has expired", |n| {
        let copy = format!("copy-{n}");
        let _: u64 = redis.command(&["COPY", "log", &copy]);
        caller.cost_of(|caller| {
            assert_eq!(caller.charge(&copy, log, &quota, &[(later, 1)]), 1);
        })
    });
    assert!(caller.memory_usage("copy-0") < 12_000, "what has expired takes no memory");
    quickest("a charge when all has expired", |n| {
        let copy = format!("other-{n}");
        let _: u64 = redis.command(&["COPY", "log", &copy]);
        caller.cost_of(|caller| {
            assert_eq!(caller.charge(&copy, log, &quota, &[(end + quota.window, 1)]), 1);
        })
    });
    quickest("a look at what has expired", |_| {
        caller.cost_of(|caller| {
            assert_eq!(caller.charge("log", log, &quota, &[(later, 0)]), 1);
        })
    });
}

/// Calls per measurement.
const CROWD: usize = 500;

#[test]
fn the_cost_of_a_slot_is_independent_of_the_slots_held() {
    let redis = RedisServer::start();
    let mut charges = ScriptCaller::new(&redis.url());
    let mut refunds = ScriptCaller::of(&redis.url(), ADJUST);
    let (slots, quota) = (Algorithm::Concurrency, Quota::new(LIMIT, 30_000, 1));
    let mut cost_beside = |key: &str, held: u64| {
        let taken: Vec<_> = (0..held).map(|n| (NOW + n, 1)).collect();
        assert_eq!(charges.charge(key, slots, &quota, &taken), held);
        let (mut now, mut quickest) = (NOW + held, u64::MAX);
        for _ in 0..TIMES {
            let crowd: Vec<_> = (0..CROWD as u64).map(|n| (now + n, 1)).collect();
            now += CROWD as u64;
            let charge = charges.cost_of(|caller| {
                assert_eq!(caller.charge(key, slots, &quota, &crowd), CROWD as u64);
            });
            let refund = refunds.cost_of(|caller| caller.refund(key, slots, &quota, now, &crowd));
            quickest = quickest.min(charge.micros + refund.micros);
        }
        (quickest, charges.memory_usage(key))
    };
    let (alone, _) = cost_beside("alone", 0);
    let (beside, bytes) = cost_beside("crowd", 10_000);
    assert!(beside < alone * 4, "{alone} us alone, {beside} us beside 10,000");
    assert!(bytes < 1_024, "{bytes} bytes for 10,000 slots");
}
