use tidegate::limit::{Algorithm, Quota};

use crate::{redis_server::RedisServer, scripts::Caller, support::NOW};

const LIMIT: u32 = 100_000;

/// The most that one call may take of Redis' time, in microseconds.
const MOST: u64 = 1_000;

/// How often each kind of call is measured. The quickest counts: a busy machine only adds to it.
const TIMES: usize = 7;

/// The quickest of some measurements, each of `calls` calls, for one call.
fn quickest(what: &str, mut measure: impl FnMut(usize) -> crate::scripts::Cost) {
    let costs = (0..TIMES).map(&mut measure);
    let micros =
        costs.map(|cost| cost.micros / cost.calls.max(1)).min().expect("some measurements");
    assert!(micros < MOST, "{what}: {micros} us of Redis' time");
}

#[test]
fn a_full_log_of_100_000_never_holds_redis_up() {
    let redis = RedisServer::start();
    let mut redis_calls = Caller::new(&redis.url());
    let caller = &mut redis_calls;
    let (log, quota) = (Algorithm::SlidingLog, Quota::new(LIMIT, 200_000, 1));
    // A charge each ms: as many entries as there can be.
    let filling: Vec<_> = (0..u64::from(LIMIT)).map(|ms| (NOW + ms, 1)).collect();
    let filled = caller.cost_of(|caller| {
        assert_eq!(caller.charge("log", log, &quota, &filling), u64::from(LIMIT));
    });
    assert!(filled.micros / filled.calls < MOST / 4, "{filled:?}");
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
