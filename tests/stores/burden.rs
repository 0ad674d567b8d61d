use tidegate::limit::{Algorithm, Quota};

use crate::{
    redis_server::RedisServer,
    scripts::{Caller, Cost, SETTLE},
    support::NOW,
};

const LIMIT: u32 = 100_000;

/// The most that one call may take of Redis' time, in microseconds.
const MOST: u64 = 1_000;

/// How often each kind of call is measured. The quickest counts: a busy machine only adds to it.
const TIMES: usize = 7;

/// Charges in each measurement of what one costs while the log is filled.
const AT_ONCE: usize = 1_000;

/// Holds the quickest of some measurements, of one call or of the mean of many, against the most.
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
fn a_full_log_of_100_000_never_holds_redis_up() {
    let redis = RedisServer::start();
    let mut redis_calls = Caller::new(&redis.url());
    let caller = &mut redis_calls;
    let (log, quota) = (Algorithm::SlidingLog, Quota::new(LIMIT, 200_000, 1));
    // A charge each ms: as many entries as there can be.
    let filling: Vec<_> = (0..u64::from(LIMIT)).map(|ms| (NOW + ms, 1)).collect();
    let (most, last) = filling.split_at(filling.len() - TIMES * AT_ONCE);
    let filled = caller.cost_of(|caller| {
        assert_eq!(caller.charge("log", log, &quota, most), most.len() as u64);
    });
    // The mean of so many is no quicker than the machine.
    assert!(filled.micros / filled.calls < MOST, "{filled:?}");
    quickest_within(MOST / 4, "a charge of an almost full log", |n| {
        let some = &last[n * AT_ONCE..][..AT_ONCE];
        caller.cost_of(|caller| {
            assert_eq!(caller.charge("log", log, &quota, some), AT_ONCE as u64);
        })
    });
    let memory = caller.memory("log");
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
    // All but the last thousand expire at once.
    let later = end + quota.window - 1_000;
    quickest("a charge when almost all has expired", |n| {
        let copy = format!("copy-{n}");
        let _: u64 = redis.command(&["COPY", "log", &copy]);
        caller.cost_of(|caller| {
            assert_eq!(caller.charge(&copy, log, &quota, &[(later, 1)]), 1);
        })
    });
    assert!(caller.memory("copy-0") < 12_000, "what has expired takes no memory");
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

/// How many calls are measured together.
const CROWD: usize = 500;

#[test]
fn a_slot_in_flight_costs_as_much_whoever_else_holds_some() {
    let redis = RedisServer::start();
    let mut charges = Caller::new(&redis.url());
    let mut refunds = Caller::of(&redis.url(), SETTLE);
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
        (quickest, charges.memory(key))
    };
    let (alone, _) = cost_beside("alone", 0);
    let (beside, bytes) = cost_beside("crowd", 10_000);
    assert!(beside < alone * 4, "{alone} us alone, {beside} us beside 10,000");
    assert!(bytes < 1_024, "{bytes} bytes for 10,000 slots");
}
