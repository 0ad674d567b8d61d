//! The requests that a reply serves, and their order.

use tidegate_base::time::ms;
use tidegate_limit::UnitReturn;

use super::*;

fn test_lease(registry: &Registry) -> TestLease {
    lease(registry, &limit(LeaseSize::Units(10)), KEY)
}

fn join_queue(lease: &TestLease, cost: u64, now_ms: u64) -> TestWaiter {
    let waiter = TestWaiter::of(cost);
    assert!(matches!(lease.join(waiter.clone(), now_ms), JoinOutcome::Waiting));
    waiter
}

/// A lease with `units` at 100 ms.
fn stocked(registry: &Registry, units: u64) -> TestLease {
    test_lease(registry).stock(units)
}

#[test]
fn a_fetch_asks_for_the_queue_and_a_chunk() {
    let registry = registry();
    registry.set_gateways(20);
    let lease = test_lease(&registry);
    let fetch = expect_fetch(lease.join(TestWaiter::of(3), 100));
    let demand = *fetch.demand();
    assert_eq!((demand.minimum, demand.needed, demand.extra, demand.extra_divisor), (3, 3, 10, 40));
    assert!(fetch.started_empty());
    let next = [join_queue(&lease, 5, 101), join_queue(&lease, 2, 101)];
    let fetch = fetch.complete(&reply(4, 50, 102)).expect("two requests came during the fetch");
    assert_eq!(
        (fetch.demand().minimum, fetch.demand().needed),
        (1, 6),
        "one unit is left of the first grant"
    );
    assert!(!fetch.started_empty());
    assert!(next.iter().all(|waiter| waiter.outcome().is_none()));
    assert!(fetch.complete(&reply(16, 40, 103)).is_none());
    assert!(next.iter().all(TestWaiter::is_granted));
    assert_eq!(lease.take(10, 104).map(|taken| taken.remaining), Some(40));
    assert_eq!(lease.take(1, 104), None);
}

#[test]
fn a_request_that_costs_too_much_is_passed_over() {
    let registry = registry();
    let lease = test_lease(&registry);
    let first = TestWaiter::of(1);
    let fetch = expect_fetch(lease.join(first.clone(), 100));
    let waiters = [7, 3, 4, 2].map(|cost| join_queue(&lease, cost, 101));
    let fetch = fetch.complete(&reply(1, 50, 102)).unwrap();
    assert_eq!((fetch.demand().minimum, fetch.demand().needed), (2, 16));
    assert!(fetch.complete(&reply(6, 0, 103)).is_none());
    let [seven, three, four, two] = waiters.map(|waiter| waiter.outcome().unwrap());
    assert_eq!(
        seven,
        WaiterOutcome::CallStore,
        "a cheaper request's retry time would be too early"
    );
    assert!(matches!(three, WaiterOutcome::Granted(taken) if taken.remaining == 3));
    assert_eq!(four, WaiterOutcome::CallStore);
    assert!(matches!(two, WaiterOutcome::Granted(taken) if taken.remaining == 1));
}

/// These are the last units of the quota, leased for the expensive request: other gateways may need
/// them.
#[test]
fn the_rest_of_a_partial_grant_is_returned() {
    let registry = registry();
    let lease = test_lease(&registry);
    let fetch = expect_fetch(lease.join(TestWaiter::of(1), 100));
    let (cheap, expensive) = (join_queue(&lease, 1, 101), join_queue(&lease, 70, 101));
    let fetch = fetch.complete(&reply(1, 60, 102)).unwrap();
    assert_eq!((fetch.demand().minimum, fetch.demand().needed), (1, 71));
    let arrival = join_queue(&lease, 2, 102);
    assert!(fetch.complete(&reply(60, 0, 103)).is_none());
    assert!(cheap.is_granted() && arrival.is_granted());
    assert_eq!(expensive.outcome(), Some(WaiterOutcome::CallStore));
    assert_eq!(lease.take(1, 104), None);
    let mut out = Vec::new();
    registry.sweep(at_ms(104), |_| true, &mut out);
    let returned: Vec<_> = out.iter().map(|unspent| unspent.to_return).collect();
    assert_eq!(returned, [UnitReturn { charged_at: START + ms(999), units: 57 }]);
}

#[test]
fn an_empty_grant_keeps_the_leases_units() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let expensive = TestWaiter::of(50);
    let fetch = expect_fetch(lease.join(expensive.clone(), 101));
    assert!(fetch.complete(&reply(0, 10, 102)).is_none());
    assert_eq!(expensive.outcome(), Some(WaiterOutcome::CallStore));
    assert!(lease.take(3, 103).is_some());
}

#[test]
fn a_refused_request_gets_the_stores_own_decision() {
    let registry = registry();
    let lease = test_lease(&registry);
    let first = TestWaiter::of(2);
    let fetch = expect_fetch(lease.join(first.clone(), 100));
    assert!(fetch.complete(&reply(0, 1, 102)).is_none());
    let Some(WaiterOutcome::Refused { decision, decided_at }) = first.outcome() else {
        panic!("{:?}", first.outcome())
    };
    assert_eq!((decision.admitted, decision.remaining), (false, 1));
    assert_eq!((decision.retry_at, decided_at), (Some(START + ms(6_000)), START + ms(102)));
    assert!(matches!(lease.join(TestWaiter::of(2), 103), JoinOutcome::Fetch(_)));
}

#[test]
fn no_request_takes_units_while_others_wait() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let first = TestWaiter::of(5);
    let fetch = expect_fetch(lease.join(first.clone(), 101));
    assert_eq!((fetch.demand().minimum, fetch.demand().needed), (2, 2));
    assert_eq!(lease.take(1, 101), None);
    let later = join_queue(&lease, 1, 101);
    assert!(fetch.complete(&reply(2, 40, 102)).is_some_and(|next| next.demand().needed == 1));
    assert!(first.is_granted());
    assert_eq!(later.outcome(), Some(WaiterOutcome::Failed(None)), "its own fetch was dropped");
}

#[test]
fn a_cancelled_request_spends_nothing() {
    let registry = registry();
    let lease = test_lease(&registry);
    let fetch = expect_fetch(lease.join(TestWaiter::cancelled(4), 100));
    let next = join_queue(&lease, 4, 101);
    assert!(fetch.complete(&reply(4, 50, 102)).is_none());
    assert!(next.is_granted(), "the cancelled request left its units");
    assert_eq!(registry.stats().outstanding, 0);
}

/// The fetch asked for less because of these units, so the request keeps its place in the queue.
#[test]
fn units_that_expire_during_the_fetch_are_returned() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let first = TestWaiter::of(5);
    let fetch = expect_fetch(lease.join(first.clone(), 990));
    assert_eq!(fetch.demand().needed, 2);
    let later = join_queue(&lease, 1, 995);
    let fetch =
        fetch.complete(&reply(3, 40, 1_005)).expect("3 units do not serve a request of cost 5");
    assert!(first.outcome().is_none());
    assert!(later.is_granted());
    let demand = *fetch.demand();
    assert_eq!((demand.minimum, demand.needed), (3, 3));
    assert_eq!((demand.returned.units, demand.returned.charged_at), (3, START + ms(999)));
    assert!(fetch.complete(&reply(3, 40, 1_006)).is_none());
    assert!(first.is_granted());
}

/// The store decided for the fetch's requests in time; a later request gets none of the expired
/// units.
#[test]
fn a_late_reply_serves_the_requests_of_its_fetch() {
    let registry = registry();
    let lease = test_lease(&registry);
    let first = TestWaiter::of(1);
    let fetch = expect_fetch(lease.join(first.clone(), 980));
    let later = join_queue(&lease, 1, 1_005);
    let late = FetchReply { received: at_ms(1_010), ..reply(5, 50, 990) };
    let fetch = fetch.complete(&late).expect("the remaining units have expired");
    assert!(
        matches!(first.outcome(), Some(WaiterOutcome::Granted(taken)) if taken.charged_at == START + ms(990))
    );
    assert!(later.outcome().is_none());
    assert_eq!(fetch.demand().returned.units, 4);
    assert_eq!(fetch.demand().needed, 1);
}

#[test]
fn after_a_failure_the_leases_units_serve_the_queue() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let first_cost = 5;
    let fetch = expect_fetch(lease.join(TestWaiter::of(first_cost), 101));
    let others = [2, 2, 1].map(|cost| join_queue(&lease, cost, 101));
    fetch.fail(RedisFailure::Timeout, at_ms(102));
    let outcomes = others.map(|waiter| waiter.outcome().unwrap());
    assert!(matches!(outcomes[0], WaiterOutcome::Granted(taken) if taken.remaining == 51));
    assert_eq!(outcomes[1], WaiterOutcome::Failed(Some(RedisFailure::Timeout)));
    assert!(matches!(outcomes[2], WaiterOutcome::Granted(_)));
    let stats = registry.stats();
    assert_eq!((stats.outstanding, stats.lost), (0, 2 + 10));
    assert!(
        matches!(lease.join(TestWaiter::of(1), 103), JoinOutcome::Fetch(_)),
        "the next request fetches"
    );
}

#[test]
fn a_fetch_that_was_not_executed_loses_nothing() {
    for failure in [RedisFailure::Unsent, RedisFailure::Server] {
        let registry = registry();
        let lease = stocked(&registry, 3);
        let fetch = expect_fetch(lease.join(TestWaiter::of(1), 1_200));
        assert_eq!(fetch.demand().returned.units, 3);
        fetch.fail(failure, at_ms(1_201));
        let stats = registry.stats();
        assert_eq!((stats.outstanding, stats.lost), (3, 0));
        assert_eq!(expect_fetch(lease.join(TestWaiter::of(1), 1_202)).demand().returned.units, 3);
    }
}

#[test]
fn a_dropped_fetch_keeps_the_leases_units() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let first = TestWaiter::of(5);
    drop(expect_fetch(lease.join(first.clone(), 101)));
    assert_eq!(first.outcome(), Some(WaiterOutcome::Failed(None)));
    assert!(lease.take(3, 102).is_some());
}
