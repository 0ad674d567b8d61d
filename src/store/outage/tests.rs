//! The sums that the ledger hands over, and its bound.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use proptest::prelude::*;

use super::*;
use crate::limit::{LeaseSize, Millis, OnFailure, Quota, State};

/// The store's time at the monotonic time 0.
const NOW: Millis = 1_700_000_000_000;

fn limit_of(algorithm: Algorithm) -> Limit {
    let resolution = if algorithm == Algorithm::SlidingWindow { 6 } else { 1 };
    Limit {
        name: "outage".into(),
        fingerprint: 7,
        algorithm,
        quota: Quota::new(100, 6_000, resolution),
        cost: 1,
        on_failure: OnFailure::Local,
        lease_size: LeaseSize::Off,
        enforce: true,
        index: 0,
    }
}

fn record_charge(ledger: &OutageLedger, limit: &Limit, key: u128, cost: u32, monotonic_ms: u64) {
    OutageRecorder { ledger, monotonic_ms }.record_charge(&Charge { limit, key: Key(key), cost });
}

/// The `n`-th of a sequence of keys as random as hashed ones.
fn spread(n: u64) -> u128 {
    u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

fn take_all(ledger: &OutageLedger, monotonic_ms: u64) -> Vec<(u128, u32)> {
    let mut all = Vec::new();
    ledger.take(monotonic_ms, |_| true, |sum| all.push((sum.key.0, sum.cost)));
    all.sort_unstable();
    all
}

#[test]
fn charges_of_a_record_form_one_sum_that_is_taken_once() {
    let (ledger, limit) = (OutageLedger::default(), limit_of(Algorithm::SlidingLog));
    for (monotonic_ms, cost) in [(1_500, 2), (2_200, 3), (6_300, 4), (7_600, 5)] {
        record_charge(&ledger, &limit, 1, cost, monotonic_ms);
    }
    record_charge(&ledger, &limit, 2, 9, 1_000);
    assert_eq!(ledger.len(), 2);
    assert_eq!(take_all(&ledger, 7_700), [(1, 14), (2, 9)]);
    assert_eq!((ledger.len(), take_all(&ledger, 7_700)), (0, vec![]));
}

#[test]
fn a_sum_is_never_above_the_quota() {
    let (ledger, limit) = (OutageLedger::default(), limit_of(Algorithm::TokenBucket));
    for monotonic_ms in 0..3_000 {
        record_charge(&ledger, &limit, 1, 1, monotonic_ms);
    }
    record_charge(&ledger, &limit, 2, u32::MAX, 2_000);
    record_charge(&ledger, &limit, 2, u32::MAX, 2_000);
    assert_eq!(take_all(&ledger, 3_000), [(1, 100), (2, 100)]);
}

#[test]
fn a_long_outage_counts_two_windows() {
    let (ledger, limit) = (OutageLedger::default(), limit_of(Algorithm::FixedWindow));
    for second in 0..=60 {
        record_charge(&ledger, &limit, 1, 1, second * 1_000);
    }
    assert_eq!(take_all(&ledger, 60_000), [(1, 7)]);
}

#[test]
fn local_refunds_are_deducted() {
    let (ledger, limit) = (OutageLedger::default(), limit_of(Algorithm::SlidingWindow));
    record_charge(&ledger, &limit, 1, 5, 1_000);
    record_charge(&ledger, &limit, 1, 5, 8_500);
    let recorder = OutageRecorder { ledger: &ledger, monotonic_ms: 9_000 };
    let adjust = |key, change| {
        recorder.record_adjustment(&Adjustment { limit: &limit, key: Key(key), change })
    };
    adjust(1, Change::Refund { charged_at: NOW, cost: 7 });
    adjust(1, Change::Overdraw { cost: 1 });
    adjust(2, Change::Refund { charged_at: NOW, cost: 7 });
    assert_eq!(take_all(&ledger, 9_000), [(1, 4)]);
    record_charge(&ledger, &limit, 3, 5, 9_000);
    adjust(3, Change::Refund { charged_at: NOW, cost: 99 });
    assert_eq!((take_all(&ledger, 9_000), ledger.len()), (vec![], 0));
}

#[test]
fn leaky_buckets_and_leases_are_not_recorded() {
    let ledger = OutageLedger::default();
    for algorithm in [Algorithm::LeakyBucket, Algorithm::Concurrency] {
        record_charge(&ledger, &limit_of(algorithm), 1, 5, 1_000);
    }
    assert_eq!(ledger.len(), 0);
}

#[test]
fn expired_and_reset_sums_are_dropped() {
    let (ledger, limit) = (OutageLedger::default(), limit_of(Algorithm::FixedWindow));
    record_charge(&ledger, &limit, 1, 5, 1_000);
    record_charge(&ledger, &limit, 2, 5, 8_000);
    record_charge(&ledger, &limit, 3, 5, 8_000);
    ledger.remove(&limit, Key(3));
    assert_eq!(ledger.len(), 2);
    ledger.expire(13_000);
    assert_eq!(ledger.len(), 1);
    assert_eq!(take_all(&ledger, 13_000), [(2, 5)]);
}

#[test]
fn the_ledger_is_bounded_and_counts_drops() {
    let (ledger, limit) = (OutageLedger::default(), limit_of(Algorithm::SlidingWindow));
    let flood = 2 * OutageLedger::CAPACITY as u64;
    for n in 0..flood {
        record_charge(&ledger, &limit, spread(n), 1, 0);
    }
    assert!(ledger.len() <= OutageLedger::CAPACITY);
    assert_eq!(ledger.len() as u64 + ledger.dropped(), flood);
    let full = ledger.len();
    for n in 0..100 {
        record_charge(&ledger, &limit, spread(flood + n), 1, 100_000);
    }
    assert!(ledger.len() < full, "expired sums made room");
    assert!(ledger.shards.iter().all(|shard| shard.lock().limits.len() <= 1), "one copy");
}

#[test]
fn a_changed_quota_keeps_the_sum() {
    let (ledger, limit) = (OutageLedger::default(), limit_of(Algorithm::SlidingWindow));
    record_charge(&ledger, &limit, 1, 60, 1_000);
    let raised = Limit { quota: Quota { limit: 200, ..limit.quota }, ..limit.clone() };
    record_charge(&ledger, &raised, 1, 60, 1_000);
    assert_eq!(take_all(&ledger, 1_000), [(1, 120)]);
}

#[test]
fn sums_of_other_keys_stay() {
    let (ledger, limit) = (OutageLedger::default(), limit_of(Algorithm::SlidingWindow));
    for key in 1..=10 {
        record_charge(&ledger, &limit, key, 5, 1_000);
    }
    let mut some = 0;
    ledger.take(1_000, |Key(key)| key <= 4, |_| some += 1);
    assert_eq!((some, ledger.len()), (4, 6));
    assert_eq!(take_all(&ledger, 1_000).len(), 6);
}

/// A reader of first the ledger's length and then the number of sums handed over misses none.
#[test]
fn a_sum_is_handed_over_before_it_is_uncounted() {
    const RECORDS: usize = 4_000;
    let (ledger, limit) = (OutageLedger::default(), limit_of(Algorithm::SlidingWindow));
    for n in 0..RECORDS as u64 {
        record_charge(&ledger, &limit, spread(n), 5, 1_000);
    }
    let (is_done, handed_over) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ledger.take(
                1_000,
                |_| true,
                |_| {
                    handed_over.fetch_add(1, SeqCst);
                },
            );
            is_done.store(true, SeqCst);
        });
        while !is_done.load(SeqCst) {
            let held = ledger.len();
            assert!(held + handed_over.load(SeqCst) >= RECORDS);
        }
    });
    assert_eq!((ledger.len(), handed_over.into_inner()), (0, RECORDS));
}

proptest! {
    /// Two gateways admit by their shares, then both charge an empty store. It counts no less than it would
    /// have counted for both.
    #[test]
    fn merged_sums_cover_what_gateways_admitted_by_themselves(
        charges in prop::collection::vec((0_u64..900, 0_usize..2, 1_u32..9), 1..80),
        later in 0_u64..3_000,
        algorithm in prop::sample::select(vec![
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::FixedWindow,
            Algorithm::TokenBucket,
        ]),
    ) {
        let limit = limit_of(algorithm);
        let share = Quota { limit: limit.quota.limit / 2, ..limit.quota };
        let ledgers = [OutageLedger::default(), OutageLedger::default()];
        let mut local = [State::fresh(algorithm), State::fresh(algorithm)];
        let (mut all, mut monotonic_ms) = (State::fresh(algorithm), 0);
        for (wait, at, cost) in charges {
            monotonic_ms += wait;
            if local[at].admit(&share, NOW + monotonic_ms, cost).admitted {
                all.charge(&limit.quota, NOW + monotonic_ms, cost);
                record_charge(&ledgers[at], &limit, 1, cost, monotonic_ms);
            }
        }
        monotonic_ms += later;
        let mut merged = State::fresh(algorithm);
        for ledger in &ledgers {
            for (_, cost) in take_all(ledger, monotonic_ms) {
                merged.adjust(&limit.quota, NOW + monotonic_ms, Change::Overdraw { cost });
            }
        }
        let used = |state: &mut State| state.decide(&limit.quota, NOW + monotonic_ms, 0).used;
        prop_assert!(used(&mut merged) >= used(&mut all));
    }
}
