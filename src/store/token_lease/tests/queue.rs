//! Which requests are served, and in which order.

use super::*;

fn test_lease(registry: &Registry) -> Handle {
    lease(registry, &limit(Reserve::Tokens(10)), KEY)
}

fn wait(lease: &Handle, cost: u32, ticks: u64) -> Caller {
    let caller = Caller::of(cost);
    assert!(matches!(lease.join(caller.clone(), ticks), Joined::Waiting));
    caller
}

/// With `tokens` at tick 100.
fn stocked(registry: &Registry, tokens: u32) -> Handle {
    test_lease(registry).stock(tokens)
}

#[test]
fn a_fetch_asks_for_the_queue_and_a_chunk() {
    let registry = registry();
    registry.set_gateways(20);
    let lease = test_lease(&registry);
    let fetching = fetch(lease.join(Caller::of(3), 100));
    let order = *fetching.order();
    assert_eq!((order.least, order.needed, order.extra, order.share), (3, 3, 10, 40));
    assert!(fetching.is_alone());
    let next = [wait(&lease, 5, 101), wait(&lease, 2, 101)];
    let fetching = fetching.complete(&reply(4, 50, 102)).expect("two came since");
    assert_eq!(
        (fetching.order().least, fetching.order().needed),
        (1, 6),
        "one is left of the first"
    );
    assert!(!fetching.is_alone());
    assert!(next.iter().all(|caller| caller.heard().is_none()));
    assert!(fetching.complete(&reply(16, 40, 103)).is_none());
    assert!(next.iter().all(Caller::is_granted));
    assert_eq!(lease.take(10, 104).map(|taken| taken.remaining), Some(40));
    assert_eq!(lease.take(1, 104), None);
}

#[test]
fn a_request_that_costs_too_much_is_passed_over_as_the_store_would() {
    let registry = registry();
    let lease = test_lease(&registry);
    let first = Caller::of(1);
    let fetching = fetch(lease.join(first.clone(), 100));
    let callers = [7, 3, 4, 2].map(|cost| wait(&lease, cost, 101));
    let fetching = fetching.complete(&reply(1, 50, 102)).unwrap();
    assert_eq!((fetching.order().least, fetching.order().needed), (2, 16));
    assert!(fetching.complete(&reply(6, 0, 103)).is_none());
    let [seven, three, four, two] = callers.map(|caller| caller.heard().unwrap());
    assert_eq!(seven, WaiterOutcome::Ask, "the retry time of a cheaper one would be too early");
    assert!(matches!(three, WaiterOutcome::Granted(taken) if taken.remaining == 3));
    assert_eq!(four, WaiterOutcome::Ask);
    assert!(matches!(two, WaiterOutcome::Granted(taken) if taken.remaining == 1));
}

/// All that was left was taken for one that costs too much: it is not kept from the other gateways.
#[test]
fn what_a_cut_grant_leaves_goes_back() {
    let registry = registry();
    let lease = test_lease(&registry);
    let fetching = fetch(lease.join(Caller::of(1), 100));
    let (cheap, dear) = (wait(&lease, 1, 101), wait(&lease, 70, 101));
    let fetching = fetching.complete(&reply(1, 60, 102)).unwrap();
    assert_eq!((fetching.order().least, fetching.order().needed), (1, 71));
    let newcomer = wait(&lease, 2, 102);
    assert!(fetching.complete(&reply(60, 0, 103)).is_none());
    assert!(cheap.is_granted() && newcomer.is_granted());
    assert_eq!(dear.heard(), Some(WaiterOutcome::Ask));
    assert_eq!(lease.take(1, 104), None);
    let mut out = Vec::new();
    registry.sweep(104, |_| true, &mut out);
    let backs: Vec<_> = out.iter().map(|give| give.back).collect();
    assert_eq!(backs, [crate::limit::Back { charged_at: START + 999, tokens: 57 }]);
}

/// What was kept before is no part of a grant that was none.
#[test]
fn where_nothing_was_granted_what_is_kept_stays() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let dear = Caller::of(50);
    let fetching = fetch(lease.join(dear.clone(), 101));
    assert!(fetching.complete(&reply(0, 10, 102)).is_none());
    assert_eq!(dear.heard(), Some(WaiterOutcome::Ask));
    assert!(lease.take(3, 103).is_some());
}

#[test]
fn a_refused_request_gets_the_stores_own_decision() {
    let registry = registry();
    let lease = test_lease(&registry);
    let first = Caller::of(2);
    let fetching = fetch(lease.join(first.clone(), 100));
    assert!(fetching.complete(&reply(0, 1, 102)).is_none());
    let Some(WaiterOutcome::Refused { decision, now }) = first.heard() else {
        panic!("{:?}", first.heard())
    };
    assert_eq!((decision.admitted, decision.remaining), (false, 1));
    assert_eq!((decision.retry_at, now), (Some(START + 6_000), START + 102));
    assert!(matches!(lease.join(Caller::of(2), 103), Joined::Fetch(_)));
}

/// A request that comes later does not take what others wait for.
#[test]
fn while_requests_wait_none_takes() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let first = Caller::of(5);
    let fetching = fetch(lease.join(first.clone(), 101));
    assert_eq!((fetching.order().least, fetching.order().needed), (2, 2));
    assert_eq!(lease.take(1, 101), None);
    let later = wait(&lease, 1, 101);
    assert!(fetching.complete(&reply(2, 40, 102)).is_some_and(|next| next.order().needed == 1));
    assert!(first.is_granted());
    assert_eq!(later.heard(), Some(WaiterOutcome::Failed(None)), "its own fetch was dropped");
}

#[test]
fn a_request_that_is_gone_takes_nothing() {
    let registry = registry();
    let lease = test_lease(&registry);
    let fetching = fetch(lease.join(Caller::gone(4), 100));
    let next = wait(&lease, 4, 101);
    assert!(fetching.complete(&reply(4, 50, 102)).is_none());
    assert!(next.is_granted(), "what the first left");
    assert_eq!(registry.numbers().outstanding, 0);
}

/// The tokens here were of a sub-window that ended meanwhile: a request that counted on them keeps its place.
#[test]
fn tokens_that_end_during_the_fetch_are_given_back() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let first = Caller::of(5);
    let fetching = fetch(lease.join(first.clone(), 990));
    assert_eq!(fetching.order().needed, 2);
    let later = wait(&lease, 1, 995);
    let fetching = fetching.complete(&reply(3, 40, 1_005)).expect("five are not three");
    assert!(first.heard().is_none());
    assert!(later.is_granted());
    let order = *fetching.order();
    assert_eq!((order.least, order.needed), (3, 3));
    assert_eq!((order.back.tokens, order.back.charged_at), (3, START + 999));
    assert!(fetching.complete(&reply(3, 40, 1_006)).is_none());
    assert!(first.is_granted());
}

/// Decided in time at the store, however late the reply; a later request gets nothing that has ended.
#[test]
fn a_late_reply_serves_those_it_was_made_for() {
    let registry = registry();
    let lease = test_lease(&registry);
    let first = Caller::of(1);
    let fetching = fetch(lease.join(first.clone(), 980));
    let later = wait(&lease, 1, 1_005);
    let late = Reply { received: 1_010, ..reply(5, 50, 990) };
    let fetching = fetching.complete(&late).expect("what is left has ended");
    assert!(
        matches!(first.heard(), Some(WaiterOutcome::Granted(taken)) if taken.now == START + 990)
    );
    assert!(later.heard().is_none());
    assert_eq!(fetching.order().back.tokens, 4);
    assert_eq!(fetching.order().needed, 1);
}

#[test]
fn a_failure_leaves_what_is_kept_to_the_queue() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let callers = [5, 2, 2, 1];
    let fetching = fetch(lease.join(Caller::of(callers[0]), 101));
    let others = [2, 2, 1].map(|cost| wait(&lease, cost, 101));
    fetching.fail(Failure::Timeout, 102);
    let told = others.map(|caller| caller.heard().unwrap());
    assert!(matches!(told[0], WaiterOutcome::Granted(taken) if taken.remaining == 51));
    assert_eq!(told[1], WaiterOutcome::Failed(Some(Failure::Timeout)));
    assert!(matches!(told[2], WaiterOutcome::Granted(_)));
    let numbers = registry.numbers();
    assert_eq!((numbers.outstanding, numbers.lost), (0, 2 + 10));
    assert!(matches!(lease.join(Caller::of(1), 103), Joined::Fetch(_)), "the next may fetch");
}

#[test]
fn a_fetch_that_was_never_sent_or_not_made_loses_nothing() {
    for failure in [Failure::Open, Failure::Server] {
        let registry = registry();
        let lease = stocked(&registry, 3);
        let fetching = fetch(lease.join(Caller::of(1), 1_200));
        assert_eq!(fetching.order().back.tokens, 3);
        fetching.fail(failure, 1_201);
        let numbers = registry.numbers();
        assert_eq!((numbers.outstanding, numbers.lost), (3, 0));
        assert_eq!(fetch(lease.join(Caller::of(1), 1_202)).order().back.tokens, 3);
    }
}

#[test]
fn a_dropped_fetch_spends_nothing_and_keeps_what_was_here() {
    let registry = registry();
    let lease = stocked(&registry, 3);
    let first = Caller::of(5);
    drop(fetch(lease.join(first.clone(), 101)));
    assert_eq!(first.heard(), Some(WaiterOutcome::Failed(None)));
    assert!(lease.take(3, 102).is_some());
}
