//! What is kept: for how long, and where it goes.

use super::*;

fn stock(registry: &Registry, limit: &Limit, key: Key, tokens: u32) -> Handle {
    lease(registry, limit, key).stock(tokens)
}

fn swept(registry: &Registry, ticks: u64) -> Vec<(u32, Millis)> {
    let mut out = Vec::new();
    registry.sweep(ticks, |_| true, &mut out);
    out.iter().map(|give| (give.back.tokens, give.back.charged_at)).collect()
}

#[test]
fn what_nobody_uses_is_given_back_early() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    let limit = Limit { quota: Quota::new(100, 60_000, 1), ..limit };
    let lease = stock(&registry, &limit, KEY, 5);
    assert_eq!(swept(&registry, 100), []);
    assert_eq!(swept(&registry, 600), []);
    assert!(lease.take(1, 700).is_some(), "used once more");
    assert_eq!(swept(&registry, 1_100), []);
    assert_eq!(swept(&registry, 700 + IDLE - 1), []);
    assert_eq!(swept(&registry, 700 + IDLE), [(4, START + 999)], "long before its window ends");
    assert_eq!(lease.take(1, 701), None);
    assert_eq!(registry.numbers().given_back, 4);
}

/// Until its server is there again.
#[test]
fn what_nobody_can_be_told_of_stays_and_can_be_spent() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    let lease = stock(&registry, &limit, KEY, 5);
    stock(&registry, &limit, Key(8), 3);
    let mut out = Vec::new();
    for ticks in [100, 100 + IDLE, 100 + RETIRE] {
        registry.sweep(ticks, |key| key != KEY, &mut out);
    }
    let given: Vec<_> = out.iter().map(|give| (give.key, give.back.tokens)).collect();
    assert_eq!(given, [(Key(8), 3)]);
    assert_eq!((registry.numbers().entries, registry.numbers().outstanding), (1, 5));
    assert!(lease.take(1, 101).is_some());
    assert_eq!(swept(&registry, 101 + IDLE - 1), []);
    assert_eq!(swept(&registry, 101 + IDLE), [(4, START + 999)]);
}

#[test]
fn what_can_be_spent_is_told_until_its_sub_window_ends() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    let lease = stock(&registry, &limit, KEY, 5);
    assert_eq!([101, 998, 999].map(|ticks| registry.spendable(&limit, KEY, ticks)), [5, 5, 0]);
    let waiting = fetch(lease.join(Caller::of(9), 200));
    assert_eq!(
        [201, 999].map(|ticks| registry.spendable(&limit, KEY, ticks)),
        [5, 0],
        "with a fetch in flight"
    );
    drop(waiting);
    assert_eq!(registry.spendable(&limit, Key(8), 101), 0);
    assert_eq!(registry.numbers().entries, 1, "none was made for it");
}

#[test]
fn a_lease_that_is_not_used_is_removed() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    let lease = stock(&registry, &limit, KEY, 5);
    swept(&registry, 100);
    swept(&registry, 100 + IDLE);
    assert_eq!(registry.numbers().entries, 1);
    swept(&registry, 100 + RETIRE);
    assert_eq!(registry.numbers(), Numbers { granted: 6, given_back: 5, ..Numbers::default() });
    assert!(!lease.give_back(START + 100, 1, 101));
    assert_eq!(lease.take(1, 101), None);
    let fetching = fetch(lease.join(Caller::of(1), 20_000));
    assert_eq!(registry.numbers().entries, 1);
    assert!(fetching.complete(&reply(2, 50, 20_000)).is_none());
    assert!(lease.take(1, 20_001).is_some());
}

/// A request may come long after its tokens were granted, and be refused by another limit.
#[test]
fn what_is_put_back_after_the_lease_was_removed_goes_to_the_store() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    let taken = stock(&registry, &limit, KEY, 1).take(1, 101).unwrap();
    swept(&registry, 101 + RETIRE);
    assert_eq!(registry.numbers().entries, 0);
    assert!(registry.put_back(&limit, KEY, taken.now, 1, 102 + RETIRE));
    assert_eq!(swept(&registry, 102 + RETIRE), [(1, taken.now)]);
    registry.drain(&mut Vec::new());
    assert!(!registry.put_back(&limit, Key(8), taken.now, 1, 103 + RETIRE), "it is closed");
}

#[test]
fn a_lease_that_keeps_nothing_is_removed_though_the_store_is_lost() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    stock(&registry, &limit, KEY, 5);
    stock(&registry, &limit, Key(KEY.0 + 1), 0);
    for ticks in [100, 100 + RETIRE] {
        let mut out = Vec::new();
        registry.sweep(ticks, |_| false, &mut out);
        assert!(out.is_empty());
    }
    assert_eq!(registry.numbers().entries, 1);
    let back = swept(&registry, 100 + RETIRE);
    assert_eq!(back.iter().map(|(tokens, _)| tokens).sum::<u32>(), 5);
}

/// A reload or a tier: the same record, another quota.
#[test]
fn tokens_of_one_quota_are_not_spent_under_another() {
    let (registry, old) = (registry(), limit(Reserve::Tokens(10)));
    stock(&registry, &old, KEY, 5);
    let strict = Quota { strict: true, ..old.quota };
    for quota in [Quota::new(10, 6_000, 6), Quota::new(101, 6_000, 6), strict] {
        let new = Limit { quota, ..old.clone() };
        assert_eq!(LeaseKey::of(&new, KEY).record, LeaseKey::of(&old, KEY).record);
        assert_eq!(registry.take(&new, KEY, 1, 101), None);
    }
    let moved = Limit { index: 3, ..old };
    assert!(registry.take(&moved, KEY, 1, 101).is_some(), "only its place changed");
}

#[test]
fn the_registry_has_its_bounds() {
    let registry = Arc::new(LeaseRegistry::<Caller>::with_room(3));
    let limit = limit(Reserve::Auto);
    let join = |key| registry.join(&limit, Key(key << 96), Caller::of(1), 100);
    let made: Vec<_> = (0..100_u128).map(join).collect();
    let refused = made.iter().filter(|made| matches!(made, Joined::Unavailable(_))).count();
    assert_eq!((refused, registry.numbers().entries), (97, 3));
    drop(made);
    registry.drain(&mut Vec::new());
    assert_eq!(registry.numbers().entries, 0);
    assert!(matches!(join(0), Joined::Unavailable(_)), "it is closed");
}

#[test]
fn the_sweep_reaches_every_lease() {
    const LEASES: usize = 30_000;
    let registry = registry();
    let limit = limit(Reserve::Tokens(10));
    for key in 0..LEASES as u128 {
        stock(&registry, &limit, Key(key << 96), 2);
    }
    let mut out = Vec::new();
    registry.sweep(100 + RETIRE, |_| true, &mut out);
    assert!((1..LEASES).contains(&out.len()), "one sweep is bounded: {}", out.len());
    registry.sweep(100 + RETIRE, |_| true, &mut out);
    assert_eq!((out.len(), registry.numbers().entries), (LEASES, 0));
}

#[test]
fn shutdown_gives_everything_back() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    stock(&registry, &limit, KEY, 5);
    let busy = stock(&registry, &limit, Key(8), 3);
    let fetching = fetch(busy.join(Caller::of(4), 101));
    let mut out = Vec::new();
    registry.drain(&mut out);
    assert_eq!(out.iter().map(|give| give.back.tokens).sum::<u32>(), 5);
    assert_eq!(registry.numbers().outstanding, 3, "in flight");
    assert!(fetching.complete(&reply(2, 40, 102)).is_none());
    registry.drain(&mut out);
    assert_eq!(out.iter().map(|give| give.back.tokens).sum::<u32>(), 6);
    assert_eq!((registry.numbers().outstanding, registry.numbers().entries), (0, 0));
}

#[test]
fn what_the_operator_reset_is_not_refunded() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    let lease = stock(&registry, &limit, KEY, 5);
    let other = stock(&registry, &limit, Key(8), 5);
    let raised = Limit { quota: Quota::new(200, 6_000, 6), ..limit.clone() };
    let under_another = stock(&registry, &raised, KEY, 4);
    registry.forget(LeaseKey::of(&limit, KEY).record);
    assert!(lease.take(1, 101).is_none() && under_another.take(1, 101).is_none());
    assert!(!lease.give_back(START + 100, 1, 101));
    assert!(other.take(1, 101).is_some());
    assert_eq!(registry.numbers().forgotten, 9);
    // In flight: who waited is served, what is beyond that is discarded.
    let caller = Caller::of(1);
    let fetching = fetch(lease.join(caller.clone(), 102));
    registry.forget(LeaseKey::of(&limit, KEY).record);
    assert!(fetching.complete(&reply(11, 40, 103)).is_none());
    assert!(caller.is_granted());
    assert_eq!(lease.take(1, 104), None);
    assert_eq!(registry.numbers().forgotten, 19);
    assert_eq!(swept(&registry, 100), []);
}

/// A 304 costs nothing: the token is there again.
#[test]
fn a_token_comes_back_while_its_sub_window_lasts() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    let lease = stock(&registry, &limit, KEY, 1);
    let taken = lease.take(1, 200).unwrap();
    assert_eq!((taken.now, taken.remaining), (START + 200, 50));
    assert_eq!(lease.take(1, 201), None);
    assert!(lease.give_back(taken.now, 1, 300));
    assert!(lease.take(1, 301).is_some());
    assert!(!lease.give_back(taken.now, 1, 1_000), "its sub-window is over");
    assert!(!lease.give_back(START - 1, 1, 301), "of the one before");
    // While a fetch is in flight it waits with the queue.
    let caller = Caller::of(1);
    let fetching = fetch(lease.join(caller.clone(), 302));
    assert!(lease.give_back(taken.now, 1, 303));
    fetching.fail(Failure::Timeout, 304);
    assert!(caller.is_granted());
}

/// A grant of the next sub-window does not take in what was spent in the last.
/// A refund may come after the sweep has given the others back.
#[test]
fn a_token_that_comes_back_after_the_others_were_given_back_is_one_more() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    let limit = Limit { quota: Quota::new(100, 60_000, 1), ..limit };
    let lease = lease(&registry, &limit, KEY);
    let mut granted = reply(6, 50, 100);
    granted.grant.end = START + 60_000;
    assert!(fetch(lease.join(Caller::of(1), 100)).complete(&granted).is_none());
    let taken = lease.take(1, 101).expect("five are here");
    assert_eq!(swept(&registry, 101 + IDLE).iter().map(|back| back.0).sum::<u32>(), 4);
    let ticks = 102 + IDLE;
    let back = registry.give_back(&limit, KEY, taken.now, 1, ticks).expect("its sub-window lasts");
    assert_eq!(back.remaining, taken.remaining + 1);
    assert_eq!(lease.take(1, ticks).map(|taken| taken.remaining), Some(taken.remaining));
}

#[test]
fn a_token_of_the_last_sub_window_does_not_come_back_into_the_next() {
    let (registry, limit) = (registry(), limit(Reserve::Tokens(10)));
    let lease = stock(&registry, &limit, KEY, 1);
    let taken = lease.take(1, 998).unwrap();
    let fetching = fetch(lease.join(Caller::of(1), 1_001));
    assert!(fetching.complete(&reply(3, 50, 1_001)).is_none());
    assert!(!lease.give_back(taken.now, 1, 1_002));
    let told = registry.snapshot(&limit, KEY).unwrap();
    assert_eq!((told.end, told.remaining), (START + 2_000, 50));
    assert!(lease.take(1, 1_998).is_some());
    assert_eq!(lease.take(1, 1_999), None);
}
