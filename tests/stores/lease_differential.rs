use std::sync::Arc;

use proptest::{prelude::*, test_runner::TestCaseResult};
use testkit::{
    redis_server::RedisServer,
    scripts::{ACQUIRE, ScriptCaller},
};
use tidegate::clock::ms;
use tidegate::{
    charge::Limit,
    clock::StoreTime,
    limit::{
        Algorithm, AlgorithmState, Calendar, CalendarPeriod, Decision, Grant, MAX_UNITS, Millis,
        Quota, UnitDemand, UnitReturn,
    },
};

use crate::support::{NOW, limit};

/// A demand, after a delay in ms; the units that it returns were charged `ago` ms before.
#[derive(Clone, Debug)]
struct AcquireCall {
    delay: u64,
    demand: UnitDemand,
    ago: u64,
}

fn hours() -> Calendar {
    Calendar::new(CalendarPeriod::Hour, "Australia/Lord_Howe").expect("a zone")
}

fn any_limit() -> impl Strategy<Value = Arc<Limit>> {
    let one = (
        any::<bool>(),
        prop_oneof![8 => 1_u64..60, 1 => 1_000_000_u64..40_000_000, 1 => MAX_UNITS / 2..=MAX_UNITS],
        prop::sample::select(vec![1_u64, 7, 1_000, 10_000]),
        prop::sample::select(vec![1_u32, 2, 6, 60]),
        any::<bool>(),
    );
    one.prop_map(|(is_fixed, quota, sub_window, resolution, strict)| {
        let window = Millis::from_ms(sub_window) * u64::from(resolution);
        let sliding = Algorithm::SlidingWindow { resolution, strict };
        let own = match (is_fixed, strict) {
            (true, true) => Quota::calendar(quota, hours()),
            (true, false) => Quota::new(quota, window, Algorithm::FixedWindow),
            (false, _) => Quota::new(quota, window, sliding),
        };
        Arc::new(Limit { quota: own, ..Limit::clone(&limit("leased", 1)) })
    })
}

fn any_calls(limit: &Arc<Limit>) -> impl Strategy<Value = Vec<AcquireCall>> + use<> {
    let (sub_window, quota) = (limit.quota.sub_window().as_ms(), limit.quota.limit);
    let delay =
        prop_oneof![3 => 0..=sub_window / 3, 2 => 0..=sub_window * 2, 1 => 0..=sub_window * 70];
    let minimum = prop_oneof![5 => Just(1_u64), 2 => 1_u64..8, 1 => 1..=quota + 2];
    let more = prop_oneof![2 => Just(0_u64), 2 => 0_u64..20, 1 => 0..=quota / 3];
    let extra = prop_oneof![1 => Just(0_u64), 2 => 0_u64..40, 1 => 0..=quota];
    let back = prop_oneof![3 => Just(0_u64), 1 => 1_u64..20];
    let call = (delay, minimum, more, extra, 1_u64..12, back, 0..sub_window * 9).prop_map(
        |(delay, minimum, more, extra, extra_divisor, units, ago)| {
            let back = UnitReturn { charged_at: StoreTime::ZERO, units };
            let needed = (minimum + more).min(MAX_UNITS);
            let minimum = minimum.min(MAX_UNITS);
            AcquireCall {
                delay,
                demand: UnitDemand { minimum, needed, extra, extra_divisor, returned: back },
                ago,
            }
        },
    );
    prop::collection::vec(call, 1..40)
}

fn any_sequence() -> impl Strategy<Value = (Arc<Limit>, Vec<AcquireCall>)> {
    any_limit().prop_flat_map(|limit| {
        let calls = any_calls(&limit);
        (Just(limit), calls)
    })
}

/// The reply of the script.
fn grant_in_lua(
    caller: &mut ScriptCaller,
    limit: &Arc<Limit>,
    run: u64,
    now: StoreTime,
    demand: &UnitDemand,
) -> Vec<i64> {
    let Quota { limit: quota, window, algorithm } = limit.quota;
    let mut command = caller.command();
    command
        .arg(1)
        .arg(run)
        .arg(now.as_unix_ms())
        .arg(algorithm.tag())
        .arg(demand.minimum)
        .arg(quota);
    if let Some(calendar) = algorithm.calendar() {
        let window = calendar.window_at(now);
        let next = calendar.window_at(window.end);
        command
            .arg(window.length().as_ms())
            .arg(next.length().as_ms())
            .arg(window.end.as_unix_ms());
    } else {
        command
            .arg(window.as_ms())
            .arg(algorithm.resolution())
            .arg(u8::from(algorithm.is_strict()));
    }
    command.arg(demand.needed);
    command
        .arg(demand.extra)
        .arg(demand.extra_divisor)
        .arg(demand.returned.units)
        .arg(demand.returned.charged_at.as_unix_ms());
    command.query(&mut caller.connection).expect("a reply")
}

/// The grant of the Rust implementation, in the format of the script's reply.
fn grant_in_rust(
    state: &mut AlgorithmState,
    limit: &Arc<Limit>,
    now: StoreTime,
    demand: &UnitDemand,
) -> Vec<i64> {
    let Grant { units, spendable_until: end, decision } = state.acquire(&limit.quota, now, demand);
    let Decision { admitted, remaining, used, reset_at, retry_at, wait, .. } = decision;
    let mut reply = [now.as_unix_ms(), admitted.into(), remaining, used, reset_at.as_unix_ms()]
        .map(u64::cast_signed)
        .to_vec();
    reply.push(retry_at.map_or(-1, |at| at.as_unix_ms().cast_signed()));
    reply.extend([wait.as_ms(), units, end.as_unix_ms()].map(u64::cast_signed));
    reply
}

#[test]
fn rust_and_lua_grant_alike() {
    let redis = RedisServer::start();
    let caller = std::cell::RefCell::new(ScriptCaller::new(&redis.url(), ACQUIRE));
    let run = std::cell::Cell::new(0);
    let config = ProptestConfig { cases: 600, ..ProptestConfig::default() };
    proptest!(config, |((limit, calls) in any_sequence())| {
        run.set(run.get() + 1);
        assert_same_grants(&mut caller.borrow_mut(), run.get(), &limit, &calls)?;
    });
}

fn assert_same_grants(
    caller: &mut ScriptCaller,
    run: u64,
    limit: &Arc<Limit>,
    calls: &[AcquireCall],
) -> TestCaseResult {
    let (mut state, mut now) = (AlgorithmState::fresh(limit.algorithm()), NOW);
    for AcquireCall { delay, demand, ago } in calls {
        now += ms(*delay);
        let demand = UnitDemand {
            returned: UnitReturn { charged_at: now - ms(*ago), ..demand.returned },
            ..*demand
        };
        let in_lua = grant_in_lua(caller, limit, run, now, &demand);
        prop_assert_eq!(grant_in_rust(&mut state, limit, now, &demand), in_lua);
    }
    Ok(())
}
