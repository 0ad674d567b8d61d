use std::collections::BTreeMap;

use proptest::{prelude::*, test_runner::TestCaseResult};
use redis::Commands as _;
use tidegate::limit::{Algorithm, Back, Decision, Grant, Limit, Order, Quota, State};

use crate::{
    redis_server::RedisServer,
    scripts::{ACQUIRE, Caller},
    support::{NOW, limit},
};

/// One call: so many ms later, an order from each of some limits.
#[derive(Clone, Debug)]
struct Call {
    later: u64,
    orders: Vec<(usize, Order, u64)>,
}

fn limits() -> impl Strategy<Value = Vec<Limit>> {
    let one = (
        prop::sample::select(Algorithm::ALL.to_vec()),
        prop_oneof![8 => 1_u32..60, 1 => 1_000_000_u32..40_000_000],
        prop::sample::select(vec![1_u64, 7, 1_000, 10_000]),
        prop::sample::select(vec![1_u32, 2, 6, 60]),
        any::<bool>(),
        prop::bool::weighted(0.8),
    );
    prop::collection::vec(one, 1..4).prop_map(|all| {
        let compile = |(at, (algorithm, quota, s, k, strict, enforce))| {
            let window = s * u64::from(k);
            let resolution = if algorithm == Algorithm::SlidingWindow { k } else { 1 };
            let max_wait = if algorithm == Algorithm::LeakyBucket { 3_000 } else { 0 };
            let quota = Quota { limit: quota, window, resolution, max_wait, strict };
            Limit { algorithm, quota, enforce, ..limit(&format!("limit-{at}"), 1) }
        };
        all.into_iter().enumerate().map(compile).collect()
    })
}

fn order(quota: u32, ahead: bool) -> impl Strategy<Value = (Order, u64)> {
    let least = prop_oneof![5 => Just(1_u32), 2 => 1_u32..8, 1 => 1..=quota.saturating_add(2)];
    let more = prop_oneof![2 => Just(0_u32), 2 => 0_u32..20, 1 => 0..=quota];
    let extra = prop_oneof![1 => Just(0_u32), 2 => 0_u32..40, 1 => 0..=quota];
    let back = prop_oneof![3 => Just(0_u32), 1 => 1_u32..20];
    (least, more, extra, 1_u32..12, back, 0_u64..20_000).prop_map(
        move |(least, more, extra, share, tokens, ago)| {
            let (more, extra) = if ahead { (more, extra) } else { (0, 0) };
            let back = Back { charged_at: 0, tokens };
            (Order { least, needed: least.saturating_add(more), extra, share, back }, ago)
        },
    )
}

fn calls(limits: &[Limit]) -> impl Strategy<Value = Vec<Call>> + use<> {
    let s = limits.iter().map(|limit| limit.quota.sub_window()).max().unwrap_or(1);
    let later = prop_oneof![3 => 0..=s / 3, 2 => 0..=s * 2, 1 => 0..=s * 70];
    let orders: Vec<_> = limits
        .iter()
        .enumerate()
        .map(|(at, limit)| {
            let ahead = limit.algorithm.reserves();
            let one =
                order(limit.quota.limit, ahead).prop_map(move |(order, ago)| (at, order, ago));
            prop::option::weighted(0.7, one)
        })
        .collect();
    let call = (later, orders)
        .prop_map(|(later, orders)| Call { later, orders: orders.into_iter().flatten().collect() });
    prop::collection::vec(call, 1..40)
}

fn sequences() -> impl Strategy<Value = (Vec<Limit>, Vec<Call>)> {
    limits().prop_flat_map(|limits| {
        let calls = calls(&limits);
        (Just(limits), calls)
    })
}

/// What Redis granted: as the script replies.
fn theirs(
    caller: &mut Caller,
    limits: &[Limit],
    run: u64,
    now: u64,
    orders: &[(usize, Order)],
) -> Vec<i64> {
    let mut command = caller.command();
    command.arg(orders.len());
    for (at, _) in orders {
        command.arg(format!("{run}:{at}"));
    }
    command.arg(now);
    for (at, order) in orders {
        let Limit { algorithm, quota, enforce, .. } = &limits[*at];
        let option = quota.max_wait.max(quota.strict.into());
        command.arg(algorithm.tag()).arg(order.least).arg(quota.limit).arg(quota.window);
        command.arg(quota.resolution).arg(option).arg(order.needed).arg(order.extra);
        command.arg(order.share).arg(order.back.tokens).arg(order.back.charged_at);
        command.arg(u8::from(*enforce));
    }
    command.query(&mut caller.connection).expect("a reply")
}

/// What the twin grants.
fn ours(
    states: &mut BTreeMap<usize, State>,
    limits: &[Limit],
    now: u64,
    orders: &[(usize, Order)],
) -> Vec<i64> {
    let mut offers = Vec::new();
    let mut all = true;
    for (at, order) in orders {
        let Limit { algorithm, quota, enforce, .. } = &limits[*at];
        let state = states.entry(*at).or_insert_with(|| State::fresh(*algorithm));
        let offer = state.offer(quota, now, order);
        all &= offer.decision.admitted || !enforce;
        offers.push(offer);
    }
    let mut reply = vec![now.cast_signed()];
    for ((at, order), offer) in orders.iter().zip(offers) {
        let state = states.get_mut(at).expect("a state that was offered");
        let order = Order { back: Back::default(), ..*order };
        let Grant { tokens, end, decision } = if all {
            state.acquire(&limits[*at].quota, now, &order)
        } else {
            Grant { tokens: 0, end: 0, ..offer }
        };
        let Decision { admitted, remaining, used, reset_at, retry_at, wait, .. } = decision;
        reply.extend([admitted.into(), remaining, used, reset_at].map(u64::cast_signed));
        reply.push(retry_at.map_or(-1, u64::cast_signed));
        reply.extend([wait, tokens.into(), end].map(u64::cast_signed));
    }
    reply
}

#[test]
fn rust_and_lua_grant_alike() {
    let redis = RedisServer::start();
    let mut caller = Caller::of(&redis.url(), ACQUIRE);
    let run = std::cell::Cell::new(0);
    let config = ProptestConfig { cases: 400, ..ProptestConfig::default() };
    let caller = std::cell::RefCell::new(&mut caller);
    proptest!(config, |((limits, calls) in sequences())| {
        run.set(run.get() + 1);
        check(&mut caller.borrow_mut(), run.get(), &limits, &calls)?;
    });
    let _: () = caller.borrow_mut().connection.flushall().expect("an empty Redis");
}

fn check(caller: &mut Caller, run: u64, limits: &[Limit], calls: &[Call]) -> TestCaseResult {
    let (mut states, mut now) = (BTreeMap::new(), NOW);
    for call in calls {
        now += call.later;
        let placed = |&(at, order, ago): &(usize, Order, u64)| {
            let back = Back { charged_at: now - ago, ..order.back };
            (at, Order { back, ..order })
        };
        let orders: Vec<(usize, Order)> = call.orders.iter().map(placed).collect();
        if orders.is_empty() {
            continue;
        }
        let theirs = theirs(caller, limits, run, now, &orders);
        prop_assert_eq!(ours(&mut states, limits, now, &orders), theirs);
    }
    Ok(())
}
