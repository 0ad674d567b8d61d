//! Measures a decision of the memory store: `cargo bench --bench decision`.

use std::{
    hint::black_box,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use divan::Bencher;
use tidegate::clock::ms;
use tidegate::{
    charge::{Charge, Key, Limit, LimitIdentity},
    clock::StoreTime,
    limit::{Millis, Quota, sliding_window},
    mix::SplitMix,
    store::memory::MemoryStore,
};

/// Callers in the large table; few under `cargo test`, where each benchmark runs once and measures
/// nothing.
static COLD_KEYS: LazyLock<u64> =
    LazyLock::new(|| if std::env::args().any(|arg| arg == "--bench") { 10_000_000 } else { 1_000 });

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// A store with ten million callers that were each charged once: about 1.1 GB.
static LARGE_STORE: LazyLock<MemoryStore> = LazyLock::new(|| {
    let (store, limit) =
        (MemoryStore::new(2 * *COLD_KEYS as usize), limit("per-caller", 1_000_000));
    for caller in 0..*COLD_KEYS {
        store.charge(&[charge(&limit, hashed_key(caller))], NOW);
    }
    store
});

fn main() {
    divan::main();
}

fn limit(name: &str, quota: u64) -> Arc<Limit> {
    Arc::new(Limit::new(
        LimitIdentity::new(name, 0x1234_5678_9abc_def0),
        Quota::sliding(quota, Millis::from_secs(60), 6),
    ))
}

fn charge(limit: &Arc<Limit>, key: Key) -> Charge<'_> {
    Charge { limit, key, cost: 1 }
}

/// A key as random as a hash (`SplitMix64`).
fn hashed_key(caller: u64) -> Key {
    let first = SplitMix::new(caller).bits();
    Key(u128::from(first) << 64 | u128::from(SplitMix::new(first).bits()))
}

/// The algorithm without a store, on a window that contains an older charge.
#[divan::bench]
fn algorithm_alone(bencher: Bencher<'_, '_>) {
    let quota = Quota::sliding(u32::MAX.into(), Millis::from_secs(60), 6);
    let mut state = sliding_window::SlidingWindowState::default();
    sliding_window::admit(&mut state, &quota, NOW - ms(55_000), 1_000);
    bencher.bench_local(|| sliding_window::admit(black_box(&mut state), &quota, black_box(NOW), 1));
}

/// One caller whose requests are all admitted; two threads share its record and lock.
#[divan::bench(threads = [1, 2], sample_size = 10_000)]
fn hot_key(bencher: Bencher<'_, '_>) {
    let (store, limit) = (MemoryStore::new(1 << 20), limit("per-caller", u32::MAX.into()));
    bencher.bench(|| store.charge(black_box(&[charge(&limit, hashed_key(1))]), black_box(NOW)));
}

/// One caller that is refused: the retry time is computed each time.
#[divan::bench]
fn hot_key_refused(bencher: Bencher<'_, '_>) {
    let (store, limit) = (MemoryStore::new(1 << 20), limit("per-caller", 1));
    bencher.bench(|| store.charge(black_box(&[charge(&limit, hashed_key(1))]), black_box(NOW)));
}

/// Two limits on one request: two records, two locks, all or none.
#[divan::bench]
fn hot_key_two_limits(bencher: Bencher<'_, '_>) {
    let (one, other) = (limit("per-caller", u32::MAX.into()), limit("everyone", u32::MAX.into()));
    let store = MemoryStore::new(1 << 20);
    bencher.bench(|| {
        let charges = [charge(&one, hashed_key(1)), charge(&other, hashed_key(2))];
        store.charge(black_box(&charges), black_box(NOW))
    });
}

/// Each decision is for another of ten million callers, whose record is in no CPU cache.
#[divan::bench(threads = [1, 2], sample_size = 100_000, sample_count = 40)]
fn ten_million_cold_keys(bencher: Bencher<'_, '_>) {
    let (store, limit) = (&*LARGE_STORE, limit("per-caller", 1_000_000));
    let (next, callers) = (AtomicU64::new(0), *COLD_KEYS);
    bencher.bench(|| {
        let caller = hashed_key(next.fetch_add(1, Ordering::Relaxed)).0 as u64 % callers;
        store.charge(black_box(&[charge(&limit, hashed_key(caller))]), black_box(NOW + ms(1)))
    });
}

/// For comparison: one dependent random read in as much memory, the lower bound for any table.
#[divan::bench(sample_size = 100_000, sample_count = 40)]
fn one_cold_read(bencher: Bencher<'_, '_>) {
    let memory = vec![[1_u64; 10]; 16_777_216];
    let mut at = 0_u64;
    bencher.bench_local(|| {
        at = hashed_key(at + memory[at as usize & 0xff_ffff][3]).0 as u64;
        at
    });
}

/// A flood of new callers into a full store: each evicts a record.
#[divan::bench(sample_size = 100_000, sample_count = 20)]
fn flood_into_a_full_store(bencher: Bencher<'_, '_>) {
    let (store, limit) = (MemoryStore::new(100_000), limit("per-caller", 100));
    let next = AtomicU64::new(0);
    bencher.bench(|| {
        let caller = next.fetch_add(1, Ordering::Relaxed);
        store.charge(black_box(&[charge(&limit, hashed_key(caller))]), black_box(NOW))
    });
}
