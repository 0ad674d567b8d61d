//! Return and discard of units.

use tidegate_base::time::{Millis, StoreTime, ms};

use super::*;

fn stocked(registry: &Registry, limit: &Arc<Limit>, key: Key, units: u64) -> TestLease {
    lease(registry, limit, key).stock(units)
}

fn sweep(registry: &Registry, now_ms: u64) -> Vec<(u64, StoreTime)> {
    let mut out = Vec::new();
    registry.sweep(at_ms(now_ms), |_| true, &mut out);
    out.iter().map(|unspent| (unspent.to_return.units, unspent.to_return.charged_at)).collect()
}

#[test]
fn idle_units_are_returned_before_their_window_ends() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    let limit = Arc::new(Limit {
        quota: Quota::sliding(100, Millis::from_secs(60), 1),
        ..Limit::clone(&limit)
    });
    let lease = stocked(&registry, &limit, KEY, 5);
    assert_eq!(sweep(&registry, 100), []);
    assert_eq!(sweep(&registry, 600), []);
    assert!(lease.take(1, 700).is_some(), "the lease is used");
    assert_eq!(sweep(&registry, 1_100), []);
    assert_eq!(sweep(&registry, 700 + IDLE_TIMEOUT.as_ms() - 1), []);
    assert_eq!(
        sweep(&registry, 700 + IDLE_TIMEOUT.as_ms()),
        [(4, START + ms(999))],
        "the window ends at 60 s"
    );
    assert_eq!(lease.take(1, 701), None);
    assert_eq!(registry.stats().returned, 4);
}

#[test]
fn units_of_an_unreachable_shard_stay_spendable() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    let lease = stocked(&registry, &limit, KEY, 5);
    stocked(&registry, &limit, Key(8), 3);
    let mut out = Vec::new();
    for monotonic in [100, 100 + IDLE_TIMEOUT.as_ms(), 100 + REMOVAL_TIMEOUT.as_ms()] {
        registry.sweep(at_ms(monotonic), |key| key != KEY, &mut out);
    }
    let returned: Vec<_> =
        out.iter().map(|unspent| (unspent.key, unspent.to_return.units)).collect();
    assert_eq!(returned, [(Key(8), 3)]);
    assert_eq!((registry.stats().entries, registry.stats().outstanding), (1, 5));
    assert!(lease.take(1, 101).is_some());
    assert_eq!(sweep(&registry, 101 + IDLE_TIMEOUT.as_ms() - 1), []);
    assert_eq!(sweep(&registry, 101 + IDLE_TIMEOUT.as_ms()), [(4, START + ms(999))]);
}

#[test]
fn spendable_counts_units_until_their_sub_window_ends() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    let lease = stocked(&registry, &limit, KEY, 5);
    assert_eq!(
        [101, 998, 999].map(|monotonic| registry.spendable(&limit, KEY, at_ms(monotonic))),
        [5, 5, 0]
    );
    let waiting = expect_fetch(lease.join(TestWaiter::of(9), 200));
    assert_eq!(
        [201, 999].map(|monotonic| registry.spendable(&limit, KEY, at_ms(monotonic))),
        [5, 0],
        "with a fetch in flight"
    );
    drop(waiting);
    assert_eq!(registry.spendable(&limit, Key(8), at_ms(101)), 0);
    assert_eq!(registry.stats().entries, 1, "a lookup makes no lease");
}

#[test]
fn unused_leases_are_removed() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    let lease = stocked(&registry, &limit, KEY, 5);
    sweep(&registry, 100);
    sweep(&registry, 100 + IDLE_TIMEOUT.as_ms());
    assert_eq!(registry.stats().entries, 1);
    sweep(&registry, 100 + REMOVAL_TIMEOUT.as_ms());
    assert_eq!(registry.stats(), LeaseStats { granted: 6, returned: 5, ..LeaseStats::default() });
    assert!(!lease.refund(START + ms(100), 1, 101));
    assert_eq!(lease.take(1, 101), None);
    let fetch = expect_fetch(lease.join(TestWaiter::of(1), 20_000));
    assert_eq!(registry.stats().entries, 1);
    assert!(fetch.complete(&reply(2, 50, 20_000)).is_none());
    assert!(lease.take(1, 20_001).is_some());
}

/// A request may be refused by another limit long after it took units.
#[test]
fn units_refunded_after_the_lease_was_removed_are_returned() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    let taken = stocked(&registry, &limit, KEY, 1).take(1, 101).unwrap();
    sweep(&registry, 101 + REMOVAL_TIMEOUT.as_ms());
    assert_eq!(registry.stats().entries, 0);
    assert!(registry.refund_or_mark_for_return(
        &limit,
        KEY,
        taken.charged_at,
        1,
        at_ms(102 + REMOVAL_TIMEOUT.as_ms())
    ));
    assert_eq!(sweep(&registry, 102 + REMOVAL_TIMEOUT.as_ms()), [(1, taken.charged_at)]);
    registry.drain(&mut Vec::new());
    assert!(
        !registry.refund_or_mark_for_return(
            &limit,
            Key(8),
            taken.charged_at,
            1,
            at_ms(103 + REMOVAL_TIMEOUT.as_ms())
        ),
        "the registry is closed"
    );
}

#[test]
fn an_empty_lease_is_removed_while_the_store_is_lost() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    stocked(&registry, &limit, KEY, 5);
    stocked(&registry, &limit, Key(KEY.0 + 1), 0);
    for monotonic in [100, 100 + REMOVAL_TIMEOUT.as_ms()] {
        let mut out = Vec::new();
        registry.sweep(at_ms(monotonic), |_| false, &mut out);
        assert!(out.is_empty());
    }
    assert_eq!(registry.stats().entries, 1);
    let back = sweep(&registry, 100 + REMOVAL_TIMEOUT.as_ms());
    assert_eq!(back.iter().map(|(units, _)| units).sum::<u64>(), 5);
}

/// After a reload or in another tier, a record may have another quota.
#[test]
fn units_of_one_quota_are_not_spent_under_another() {
    let (registry, old) = (registry(), limit(LeaseSize::Units(10)));
    stocked(&registry, &old, KEY, 5);
    let algorithm = Algorithm::SlidingWindow { resolution: 6, strict: true };
    let strict = Quota { algorithm, ..old.quota };
    for quota in [
        Quota::sliding(10, Millis::from_secs(6), 6),
        Quota::sliding(101, Millis::from_secs(6), 6),
        strict,
    ] {
        let new = Arc::new(Limit { quota, ..Limit::clone(&old) });
        assert_eq!(LeaseKey::of(&new, KEY).record, LeaseKey::of(&old, KEY).record);
        assert_eq!(registry.take(&new, KEY, 1, at_ms(101)), None);
    }
    let reordered = Arc::new(Limit { index: 3, ..Limit::clone(&old) });
    assert!(
        registry.take(&reordered, KEY, 1, at_ms(101)).is_some(),
        "only the limit's index differs"
    );
}

#[test]
fn registry_capacity_is_bounded() {
    let registry = Arc::new(LeaseRegistry::<TestWaiter>::with_capacity(3));
    let limit = limit(LeaseSize::Auto);
    let join = |key| registry.join(&limit, Key(key << 96), TestWaiter::of(1), at_ms(100));
    let outcomes: Vec<_> = (0..100_u128).map(join).collect();
    let refused =
        outcomes.iter().filter(|outcome| matches!(outcome, JoinOutcome::Unavailable(_))).count();
    assert_eq!((refused, registry.stats().entries), (97, 3));
    drop(outcomes);
    registry.drain(&mut Vec::new());
    assert_eq!(registry.stats().entries, 0);
    assert!(matches!(join(0), JoinOutcome::Unavailable(_)), "the registry is closed");
}

#[test]
fn sweeps_visit_every_lease() {
    const LEASES: usize = 30_000;
    let registry = registry();
    let limit = limit(LeaseSize::Units(10));
    for key in 0..LEASES as u128 {
        stocked(&registry, &limit, Key(key << 96), 2);
    }
    let mut out = Vec::new();
    registry.sweep(at_ms(100 + REMOVAL_TIMEOUT.as_ms()), |_| true, &mut out);
    assert!((1..LEASES).contains(&out.len()), "one sweep is bounded: {}", out.len());
    registry.sweep(at_ms(100 + REMOVAL_TIMEOUT.as_ms()), |_| true, &mut out);
    assert_eq!((out.len(), registry.stats().entries), (LEASES, 0));
}

#[test]
fn drain_returns_all_units() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    stocked(&registry, &limit, KEY, 5);
    let busy = stocked(&registry, &limit, Key(8), 3);
    let fetch = expect_fetch(busy.join(TestWaiter::of(4), 101));
    let mut out = Vec::new();
    registry.drain(&mut out);
    assert_eq!(out.iter().map(|unspent| unspent.to_return.units).sum::<u64>(), 5);
    assert_eq!(registry.stats().outstanding, 3, "in flight");
    assert!(fetch.complete(&reply(2, 40, 102)).is_none());
    registry.drain(&mut out);
    assert_eq!(out.iter().map(|unspent| unspent.to_return.units).sum::<u64>(), 6);
    assert_eq!((registry.stats().outstanding, registry.stats().entries), (0, 0));
}

#[test]
fn units_of_a_deleted_record_are_discarded() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    let lease = stocked(&registry, &limit, KEY, 5);
    let other = stocked(&registry, &limit, Key(8), 5);
    let raised = Arc::new(Limit {
        quota: Quota::sliding(200, Millis::from_secs(6), 6),
        ..Limit::clone(&limit)
    });
    let other_quota = stocked(&registry, &raised, KEY, 4);
    registry.discard(LeaseKey::of(&limit, KEY).record);
    assert!(lease.take(1, 101).is_none() && other_quota.take(1, 101).is_none());
    assert!(!lease.refund(START + ms(100), 1, 101));
    assert!(other.take(1, 101).is_some());
    assert_eq!(registry.stats().discarded, 9);
    // A fetch in flight serves the waiting requests, and the rest is discarded.
    let waiter = TestWaiter::of(1);
    let fetch = expect_fetch(lease.join(waiter.clone(), 102));
    registry.discard(LeaseKey::of(&limit, KEY).record);
    assert!(fetch.complete(&reply(11, 40, 103)).is_none());
    assert!(waiter.is_granted());
    assert_eq!(lease.take(1, 104), None);
    assert_eq!(registry.stats().discarded, 19);
    assert_eq!(sweep(&registry, 100), []);
}

#[test]
fn a_refunded_unit_can_be_spent_while_its_sub_window_lasts() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    let lease = stocked(&registry, &limit, KEY, 1);
    let taken = lease.take(1, 200).unwrap();
    assert_eq!((taken.charged_at, taken.remaining), (START + ms(200), 50));
    assert_eq!(lease.take(1, 201), None);
    assert!(lease.refund(taken.charged_at, 1, 300));
    assert!(lease.take(1, 301).is_some());
    assert!(!lease.refund(taken.charged_at, 1, 1_000), "its sub-window has ended");
    assert!(!lease.refund(START - ms(1), 1, 301), "charged in an earlier sub-window");
    // During a fetch, a refunded unit is kept for the queue.
    let waiter = TestWaiter::of(1);
    let fetch = expect_fetch(lease.join(waiter.clone(), 302));
    assert!(lease.refund(taken.charged_at, 1, 303));
    fetch.fail(RedisFailure::Timeout, at_ms(304));
    assert!(waiter.is_granted());
}

/// A refund may come after the sweep has returned the other units.
#[test]
fn a_refund_after_the_idle_return_adds_one_unit() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    let limit = Arc::new(Limit {
        quota: Quota::sliding(100, Millis::from_secs(60), 1),
        ..Limit::clone(&limit)
    });
    let lease = lease(&registry, &limit, KEY);
    let mut granted = reply(6, 50, 100);
    granted.grant.spendable_until = START + ms(60_000);
    assert!(expect_fetch(lease.join(TestWaiter::of(1), 100)).complete(&granted).is_none());
    let taken = lease.take(1, 101).expect("5 units are left");
    assert_eq!(
        sweep(&registry, 101 + IDLE_TIMEOUT.as_ms()).iter().map(|back| back.0).sum::<u64>(),
        4
    );
    let monotonic = 102 + IDLE_TIMEOUT.as_ms();
    let back = registry
        .refund(&limit, KEY, taken.charged_at, 1, at_ms(monotonic))
        .expect("its sub-window lasts");
    assert_eq!(back.remaining, taken.remaining + 1);
    assert_eq!(lease.take(1, monotonic).map(|taken| taken.remaining), Some(taken.remaining));
}

#[test]
fn a_unit_is_not_refunded_into_the_next_sub_window() {
    let (registry, limit) = (registry(), limit(LeaseSize::Units(10)));
    let lease = stocked(&registry, &limit, KEY, 1);
    let taken = lease.take(1, 998).unwrap();
    let fetch = expect_fetch(lease.join(TestWaiter::of(1), 1_001));
    assert!(fetch.complete(&reply(3, 50, 1_001)).is_none());
    assert!(!lease.refund(taken.charged_at, 1, 1_002));
    let snapshot = registry.snapshot(&limit, KEY).unwrap();
    assert_eq!((snapshot.end, snapshot.remaining), (START + ms(2_000), 50));
    assert!(lease.take(1, 1_998).is_some());
    assert_eq!(lease.take(1, 1_999), None);
}
