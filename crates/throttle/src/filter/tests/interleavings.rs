//! Concurrent operations in every interleaving that the memory model allows, with loom.

use loom::{sync::Arc, thread};

use super::*;

/// The model checker's atomics.
struct LoomAtomics;

impl Atomics for LoomAtomics {
    type Word = loom::sync::atomic::AtomicU32;
    type Epoch = loom::sync::atomic::AtomicU64;
}

impl AtomicWord for loom::sync::atomic::AtomicU32 {
    fn zero() -> Self {
        Self::new(0)
    }

    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        self.fetch_or(bits, order)
    }

    fn fetch_and(&self, mask: u32, order: Ordering) -> u32 {
        self.fetch_and(mask, order)
    }
}

impl AtomicEpoch for loom::sync::atomic::AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// The fewest positions that distinguish two tokens with two positions each, and the longest
/// `memory`, so that the slot that expires is the next to be reused.
const SMALL: Geometry =
    Geometry { bits: 4, growth: 1, hashes: 2, generation_length: MINUTE, complete_generations: 30 };

/// The index of the generation at [`START`].
const FIRST: u64 = START.as_unix_ms() / MINUTE.as_ms();

fn small() -> Arc<Filter<LoomAtomics>> {
    Arc::new(Filter::with_atomics(SMALL, hash_keys(1), START))
}

/// Two tokens without a common position.
fn disjoint_tokens() -> [u64; 2] {
    let positions = PositionHasher::new(&SMALL, &hash_keys(1));
    let of = |token| [0, 1].map(|i| positions.of(token).at(i));
    let other = (1..1_000).find(|other| of(*other).iter().all(|at| !of(0).contains(at)));
    [0, other.unwrap()]
}

fn join<T>(handle: thread::JoinHandle<T>) -> T {
    handle.join().unwrap()
}

/// The token is recorded in the old minute or in the new one.
#[test]
fn a_token_recorded_during_rotation_is_held_for_its_memory() {
    loom::model(|| {
        let filter = small();
        let recorder = thread::spawn({
            let filter = filter.clone();
            move || assert!(filter.record(7))
        });
        filter.rotate(START + MINUTE);
        join(recorder);
        assert!(filter.contains(7));
        filter.rotate(START + MINUTE * 31 + GRACE - Millis::MILLISECOND);
        assert!(filter.contains(7), "30 minutes after the boundary, by a late clock");
        filter.rotate(START + MINUTE * 32 + GRACE);
        assert!(!filter.contains(7));
    });
}

/// A minute expires, a part of its slot is cleared, then the rest at once, and the next minute
/// reuses it.
fn reuse_slot(filter: &Filter<LoomAtomics>) {
    filter.rotate(START + MINUTE * 31 + GRACE);
    filter.rotate(START + MINUTE * 32);
}

#[test]
fn clearing_a_slot_loses_no_token_of_its_next_minute() {
    let [old, new] = disjoint_tokens();
    loom::model(move || {
        let filter = small();
        filter.record(old);
        filter.rotate(START + MINUTE * 31);
        let recorder = thread::spawn({
            let filter = filter.clone();
            move || {
                assert!(filter.record(new), "it shares no bit with the old token");
                assert!(filter.contains(new), "recorded by this thread");
            }
        });
        reuse_slot(&filter);
        join(recorder);
        assert!(filter.contains(new) && !filter.contains(old));
        filter.rotate(START + MINUTE * 62);
        assert!(filter.contains(new));
    });
}

#[test]
fn a_reused_slot_shows_no_old_token() {
    loom::model(|| {
        let filter = small();
        filter.record(7);
        filter.rotate(START + MINUTE * 31);
        let reader = thread::spawn({
            let filter = filter.clone();
            move || {
                let oldest = *filter.live_generations().start();
                assert!(oldest <= FIRST || !filter.contains(7));
            }
        });
        reuse_slot(&filter);
        join(reader);
    });
}

/// The clock jumps by 32 minutes to the next minute with the same slot. All bits of the old minute
/// are set.
#[test]
fn clearing_removes_no_new_bit() {
    let [old, new] = disjoint_tokens();
    loom::model(move || {
        let filter = small();
        filter.record(old);
        filter.record(new);
        let recorder = thread::spawn({
            let filter = filter.clone();
            move || {
                let now = *filter.live_generations().end();
                // The slot has all bits of the expired minute, or none.
                let is_new = filter.record(new);
                (now == FIRST + 32).then(|| assert!(is_new));
                now
            }
        });
        filter.rotate(START + MINUTE * 32);
        if join(recorder) == FIRST + 32 {
            assert!(filter.contains(new));
            filter.rotate(START + MINUTE * 62);
            assert!(filter.contains(new));
        }
    });
}

/// Two threads record while the throttle's thread exports.
#[test]
fn a_recorded_token_is_exported_or_still_marked() {
    let tokens = disjoint_tokens();
    let mut model = loom::model::Builder::new();
    // All interleavings of three threads pass as well, but take half a minute.
    model.preemption_bound = Some(3);
    model.check(move || {
        let filter = small();
        let recorders = tokens.map(|token| {
            let filter = filter.clone();
            thread::spawn(move || filter.record(token))
        });
        filter.take_changed(FIRST);
        let before = filter.export(FIRST).unwrap();
        for recorder in recorders {
            join(recorder);
        }
        let missed = filter.export(FIRST).unwrap() != before;
        assert!(!missed || filter.take_changed(FIRST));
    });
}

#[test]
fn concurrent_merge_and_record_are_both_kept() {
    let [here, there] = disjoint_tokens();
    loom::model(move || {
        let theirs = small();
        theirs.record(there);
        let bits = theirs.export(FIRST).unwrap();
        let filter = small();
        let recorder = thread::spawn({
            let filter = filter.clone();
            move || [here, there].map(|token| filter.record(token))
        });
        filter.take_changed(FIRST);
        let merged = filter.merge(FIRST, &bits).unwrap();
        let [first, second] = join(recorder);
        assert!(first && filter.contains(here) && filter.contains(there));
        assert!(second || merged.added > 0);
        let all_merged =
            bits.iter().zip(filter.export(FIRST).unwrap()).all(|(bits, ours)| bits & !ours == 0);
        assert!(all_merged);
        // The merge counted the bits that only this filter had, or the change is still marked.
        assert!(merged.remote_missing == 2 || filter.take_changed(FIRST));
    });
}

/// A worker that took the filter before it was resized records in it while its bits are copied.
/// They are copied again once no worker records there.
#[test]
fn a_token_recorded_while_the_filter_is_resized_is_kept_and_marked() {
    for growth in [1, 2] {
        let [other, token] = disjoint_tokens();
        let mut model = loom::model::Builder::new();
        // All interleavings pass as well, but take a minute.
        model.preemption_bound = Some(2);
        model.check(move || {
            let before = Arc::new(Filter::<LoomAtomics>::with_atomics(
                SMALL.grown(growth),
                hash_keys(1),
                START,
            ));
            before.record(other);
            let recorder = thread::spawn({
                let before = before.clone();
                move || before.record(token)
            });
            let after = before.resized(3 - growth);
            let copy = || {
                after.take_marks(&before);
                after.absorb(&before, 0..2 * SMALL.bits);
            };
            copy();
            let first = (after.contains(token), after.take_changed(FIRST));
            join(recorder);
            copy();
            assert!(after.contains(other) && after.contains(token));
            // If the first copy missed a token, it is still marked.
            assert!(first == (true, true) || after.take_changed(FIRST));
        });
    }
}
