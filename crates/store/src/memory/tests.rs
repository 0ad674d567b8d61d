//! Tests that the memory store is exact under concurrency, charges all or none, is bounded, and
//! frees memory.

mod eviction;
mod share;

use std::sync::{
    Arc, Barrier,
    atomic::{AtomicU64, Ordering},
};

use proptest::prelude::*;
use tidegate_base::mix::SplitMix;
use tidegate_base::time::{Millis, StoreTime, ms};
use tidegate_charge::LimitIdentity;
use tidegate_limit::Quota;

use super::*;

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

fn limit(name: &str, quota: u64) -> Arc<Limit> {
    Arc::new(Limit::new(
        LimitIdentity::new(name, 7),
        Quota::sliding(quota, Millis::from_secs(60), 6),
    ))
}

fn charge(limit: &Arc<Limit>, key: u128) -> Charge<'_> {
    Charge { limit, key: Key(key), cost: 1 }
}

/// The `n`-th of a sequence of keys as random as hashed ones.
fn key(n: u64) -> u128 {
    let mut random = SplitMix::new(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678);
    u128::from(random.bits()) << 64 | u128::from(random.bits())
}

#[test]
fn concurrent_charges_admit_the_quota_exactly() {
    const QUOTA: u64 = 10_000;
    let (store, limit) = (MemoryStore::new(1_000), limit("a", QUOTA));
    let (admitted, start) = (AtomicU64::new(0), Barrier::new(2));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                for _ in 0..QUOTA {
                    let passed = store.charge(&[charge(&limit, 1)], NOW).admitted;
                    admitted.fetch_add(u64::from(passed), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), QUOTA);
}

#[test]
fn several_limits_in_any_order_neither_deadlock_nor_over_admit() {
    let limits: Vec<Arc<Limit>> = (0..4).map(|n| limit(&format!("limit-{n}"), 3_000)).collect();
    let store = MemoryStore::new(1 << 20);
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for reversed in [false, true] {
            let (limits, store, admitted) = (&limits, &store, &admitted);
            scope.spawn(move || {
                let mut charges: Vec<_> = limits.iter().map(|limit| charge(limit, 9)).collect();
                if reversed {
                    charges.reverse();
                }
                for _ in 0..2_500 {
                    let passed = store.charge(&charges, NOW).admitted;
                    admitted.fetch_add(u64::from(passed), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 3_000);
}

#[test]
fn a_refusal_by_one_limit_charges_none() {
    let (narrow, broad) = (limit("narrow", 1), limit("broad", 1_000));
    let store = MemoryStore::new(1_000);
    let both = [charge(&broad, 1), charge(&narrow, 1)];
    assert!(store.charge(&both, NOW).admitted);
    for _ in 0..1_000 {
        let verdict = store.charge(&both, NOW);
        assert!(!verdict.admitted);
        assert!(
            verdict.decided(0).unwrap().decision.admitted
                && !verdict.decided(1).unwrap().decision.admitted
        );
        assert_eq!(verdict.decided(0).unwrap().decision.remaining, 999);
    }
}

#[test]
fn two_limits_that_count_the_same_key_keep_two_records() {
    let (one, other) = (limit("one", 5), limit("other", 5));
    let store = MemoryStore::new(1_000);
    for expected in (0..5).rev() {
        assert_eq!(
            store.charge(&[charge(&one, 1)], NOW).decided(0).unwrap().decision.remaining,
            expected
        );
    }
    assert_eq!(store.charge(&[charge(&other, 1)], NOW).decided(0).unwrap().decision.remaining, 4);
}

#[test]
fn one_record_charged_twice_by_a_request_counts_both_or_none() {
    let limit = limit("twice", 3);
    let store = MemoryStore::new(1_000);
    let twice = [charge(&limit, 1), charge(&limit, 1)];
    let verdict = store.charge(&twice, NOW);
    assert_eq!(
        (
            verdict.decided(0).unwrap().decision.remaining,
            verdict.decided(1).unwrap().decision.remaining
        ),
        (2, 1)
    );
    let verdict = store.charge(&twice, NOW);
    assert!(
        !verdict.admitted
            && verdict.decided(0).unwrap().decision.admitted
            && !verdict.decided(1).unwrap().decision.admitted
    );
    assert!(store.charge(&[charge(&limit, 1)], NOW).admitted, "the refusal charged nothing");
}

#[test]
fn a_refused_caller_gets_no_record() {
    let limit = limit("a", 1);
    let store = MemoryStore::new(1_000);
    let expensive = Charge { cost: 2, ..charge(&limit, 1) };
    assert!(!store.charge(&[expensive], NOW).admitted);
    assert!(store.is_empty());
}

#[test]
fn memory_is_freed_when_records_expire() {
    let limit = limit("a", 100);
    let store = MemoryStore::new(1_000_000);
    for n in 0..10_000 {
        store.charge(&[charge(&limit, key(n))], NOW);
    }
    assert_eq!(store.len(), 10_000);
    store.expire(NOW + ms(1_000));
    assert_eq!(store.len(), 10_000, "nothing expires early");
    for second in 0..20 {
        store.expire(NOW + ms(80_000) + ms(second * 1_000));
    }
    assert_eq!((store.len(), store.capacity()), (0, 0));
}

#[test]
fn a_large_table_is_swept_in_parts() {
    let limit = limit("a", 100);
    let store = MemoryStore::new(100_000);
    for n in 0..50_000 {
        store.charge(&[charge(&limit, key(n))], NOW);
    }
    store.expire(NOW + ms(80_000));
    assert!(!store.is_empty(), "one call does not visit everything");
    for _ in 0..20 {
        store.expire(NOW + ms(80_000));
    }
    assert_eq!(store.len(), 0);
}

#[test]
fn a_full_store_drops_expired_records_before_it_evicts() {
    let limit = limit("a", 100);
    let store = MemoryStore::new(1_000);
    for n in 0..1_000 {
        store.charge(&[charge(&limit, key(n))], NOW);
    }
    for n in 0..1_000 {
        store.charge(&[charge(&limit, key(10_000 + n))], NOW + ms(80_000));
    }
    assert!(store.evictions() < 100, "{} evicted", store.evictions());
}

#[test]
fn a_changed_quota_keeps_the_usage() {
    let (before, raised, lowered) = (limit("a", 10), limit("a", 20), limit("a", 5));
    let store = MemoryStore::new(1_000);
    for _ in 0..8 {
        store.charge(&[charge(&before, 1)], NOW);
    }
    let verdict = store.charge(&[charge(&lowered, 1)], NOW);
    assert_eq!((verdict.admitted, verdict.decided(0).unwrap().decision.used), (false, 8));
    let verdict = store.charge(&[charge(&raised, 1)], NOW);
    assert_eq!((verdict.admitted, verdict.decided(0).unwrap().decision.remaining), (true, 11));
}

proptest! {
    #[test]
    fn the_number_of_records_is_bounded(max in 1_usize..5_000, keys in 1_u64..6_000) {
        let limit = limit("a", 100);
        let store = MemoryStore::new(max);
        for n in 0..keys {
            store.charge(&[charge(&limit, key(n))], NOW);
        }
        prop_assert!(store.len() <= max);
    }
}

/// An attacker that knows the hash secret can choose keys that agree in the bits of their shard.
#[test]
fn chosen_keys_evict_no_records() {
    let (store, limit) = (MemoryStore::new(4 * MIN_RECORDS_PER_SHARD), limit("a", 10));
    assert_eq!(store.shards.len(), 4);
    for n in 0..2_000 {
        assert!(store.charge(&[charge(&limit, n << 72)], NOW).admitted);
    }
    assert_eq!((store.len(), store.evictions()), (2_000, 0));
}
