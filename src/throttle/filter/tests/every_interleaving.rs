//! What threads do to each other, in every order that the memory model allows (loom).

use loom::{sync::Arc, thread};

use super::*;

/// The model checker's atomics.
struct Checked;

impl Atomics for Checked {
    type Word = loom::sync::atomic::AtomicU32;
    type Epoch = loom::sync::atomic::AtomicU64;
}

impl Word for loom::sync::atomic::AtomicU32 {
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

impl Stamp for loom::sync::atomic::AtomicU64 {
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

/// As few positions as can tell two tokens apart, which have two each; the largest memory, so that a
/// slot that leaves is the next to be used.
const SMALL: Geometry = Geometry { bits: 4, hashes: 2, generation: MINUTE, memory: 30 };

/// The index of the generation at [`START`].
const FIRST: u64 = START / MINUTE;

fn small() -> Arc<Filter<Checked>> {
    Arc::new(Filter::with(SMALL, seed(1), START))
}

/// Two tokens that have no position in common.
fn apart() -> [u64; 2] {
    let positions = Positions::new(&SMALL, &seed(1));
    let of = |token| [0, 1].map(|i| positions.of(token).at(i));
    let other = (1..1_000).find(|other| of(*other).iter().all(|at| !of(0).contains(at)));
    [0, other.unwrap()]
}

fn joined<T>(handle: thread::JoinHandle<T>) -> T {
    handle.join().unwrap()
}

/// Whoever records while the minute turns, in the old or the new, is known for all of his memory.
#[test]
fn who_records_while_a_minute_turns_is_known_for_his_memory() {
    loom::model(|| {
        let filter = small();
        let recorder = thread::spawn({
            let filter = filter.clone();
            move || assert!(filter.record(7))
        });
        filter.turn(START + MINUTE);
        joined(recorder);
        assert!(filter.knows(7));
        filter.turn(START + 31 * MINUTE + GRACE - 1);
        assert!(filter.knows(7), "30 minutes after the boundary, under a late clock");
        filter.turn(START + 32 * MINUTE + GRACE);
        assert!(!filter.knows(7));
    });
}

/// A minute leaves memory, a part of its slot is cleared, then in haste the rest, and the next minute
/// has it.
fn reused(filter: &Filter<Checked>) {
    filter.turn(START + 31 * MINUTE + GRACE);
    filter.turn(START + 32 * MINUTE);
}

/// Nothing is lost of what is recorded meanwhile.
#[test]
fn clearing_a_slot_loses_nothing_of_its_next_minute() {
    let [old, new] = apart();
    loom::model(move || {
        let filter = small();
        filter.record(old);
        filter.turn(START + 31 * MINUTE);
        let recorder = thread::spawn({
            let filter = filter.clone();
            move || {
                assert!(filter.record(new), "it has no bit of another's");
                assert!(filter.knows(new), "what one recorded oneself");
            }
        });
        reused(&filter);
        joined(recorder);
        assert!(filter.knows(new) && !filter.knows(old));
        filter.turn(START + 62 * MINUTE);
        assert!(filter.knows(new));
    });
}

/// Nothing of the first minute is seen in the slot's next.
#[test]
fn nothing_old_is_seen_in_a_slot_used_again() {
    loom::model(|| {
        let filter = small();
        filter.record(7);
        filter.turn(START + 31 * MINUTE);
        let asker = thread::spawn({
            let filter = filter.clone();
            move || {
                let oldest = *filter.live().start();
                assert!(oldest <= FIRST || !filter.knows(7));
            }
        });
        reused(&filter);
        joined(asker);
    });
}

/// The clock jumps from a minute to the next that has its slot, whose bits all are set.
#[test]
fn clearing_undoes_nothing_that_is_new() {
    let [old, new] = apart();
    loom::model(move || {
        let filter = small();
        filter.record(old);
        filter.record(new);
        let recorder = thread::spawn({
            let filter = filter.clone();
            move || {
                let now = *filter.live().end();
                // The slot has all its bits from the minute that left, or none.
                let news = filter.record(new);
                (now == FIRST + 32).then(|| assert!(news));
                now
            }
        });
        filter.turn(START + 32 * MINUTE);
        if joined(recorder) == FIRST + 32 {
            assert!(filter.knows(new));
            filter.turn(START + 62 * MINUTE);
            assert!(filter.knows(new));
        }
    });
}

/// What two workers record while the control thread cuts is in the cut, or is still marked.
#[test]
fn nothing_is_recorded_unseen() {
    let tokens = apart();
    let mut model = loom::model::Builder::new();
    // All orders of three threads take half a minute; they hold as well.
    model.preemption_bound = Some(3);
    model.check(move || {
        let filter = small();
        let recorders = tokens.map(|token| {
            let filter = filter.clone();
            thread::spawn(move || filter.record(token))
        });
        filter.take_changed(FIRST);
        let cut = filter.cut(FIRST).unwrap();
        for recorder in recorders {
            joined(recorder);
        }
        let missed = filter.cut(FIRST).unwrap() != cut;
        assert!(!missed || filter.take_changed(FIRST));
    });
}

/// Merging and recording the same words lose nothing of each other.
#[test]
fn what_is_merged_and_what_is_recorded_are_both_kept() {
    let [here, there] = apart();
    loom::model(move || {
        let theirs = small();
        theirs.record(there);
        let bits = theirs.cut(FIRST).unwrap();
        let filter = small();
        let recorder = thread::spawn({
            let filter = filter.clone();
            move || [here, there].map(|token| filter.record(token))
        });
        filter.take_changed(FIRST);
        let merged = filter.merge(FIRST, &bits).unwrap();
        let [news, again] = joined(recorder);
        assert!(news && filter.knows(here) && filter.knows(there));
        assert!(again || merged.gained > 0);
        let known = bits.iter().zip(filter.cut(FIRST).unwrap()).all(|(bits, cut)| bits & !cut == 0);
        assert!(known);
        // What they lack was told by the merge, or is still marked.
        assert!(merged.lacked == 2 || filter.take_changed(FIRST));
    });
}
