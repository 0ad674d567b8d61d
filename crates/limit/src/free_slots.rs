//! The free slots of a leaky bucket: slots that were refunded while later ones are still taken.
//!
//! Positions are in units of `1 / rate` ms after now, as in `GcraState::backlog`; a slot is
//! as many units long as the window has ms. A run keeps the exact position of its first slot, so the distance between
//! slots never changes.
//!
//! The Lua counterpart is `lua/free_slots.lua`.

use smallvec::SmallVec;
use tidegate_base::time::{Millis, StoreTime};

/// Maximum number of runs in a record. If there would be more, the soonest run is dropped, and its
/// slots pass unused.
const MAX_RUNS: usize = 32;

/// Adjacent free slots, as stored in a record: the first begins at `at + fraction / rate` ms.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct StoredRun {
    at: StoreTime,
    fraction: u32,
    slots: u32,
}

/// Adjacent free slots, relative to now.
#[derive(Clone, Copy)]
struct Run {
    begins: i64,
    slots: i64,
}

/// The free slots of a record, relative to now: the soonest first, without overlaps.
pub(super) struct FreeSlots {
    /// The length of a slot, in units.
    window: i64,
    rate: i64,
    runs: SmallVec<[Run; 2]>,
}

impl FreeSlots {
    /// The runs of a record that have not passed.
    pub(super) fn read(stored: &[StoredRun], now: StoreTime, rate: u64, window: Millis) -> Self {
        let (window, rate) = (window.as_ms().cast_signed(), rate.cast_signed());
        let mut free = Self { window, rate, runs: SmallVec::new() };
        for run in stored {
            // A product of a time, negative for a slot that has begun, and units.
            let begins = run.at.ms_since(now) * rate + i64::from(run.fraction);
            free.runs.extend(free.not_passed(Run { begins, slots: run.slots.into() }));
        }
        free
    }

    /// The runs as a record stores them.
    pub(super) fn write(&self, now: StoreTime) -> Box<[StoredRun]> {
        let stored = |run: &Run| StoredRun {
            at: now.saturating_add_signed(run.begins.div_euclid(self.rate)),
            fraction: run.begins.rem_euclid(self.rate) as u32,
            slots: run.slots as u32,
        };
        self.runs.iter().map(stored).collect()
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// The number of slots that begin from now to `latest`.
    pub(super) fn count_until(&self, latest: i64) -> u64 {
        if latest < self.rate {
            return 0;
        }
        let runs = self.runs.iter().map(|run| self.usable(run));
        let in_time = runs.take_while(|run| run.begins <= latest);
        in_time.map(|run| run.slots.min((latest - run.begins) / self.window + 1) as u64).sum()
    }

    /// The position of the first `cost` adjacent slots that begin from now on, if any. `latest` is
    /// the last position at which the request may begin. If `latest` is within the next ms, no run
    /// is used: times are sent in whole ms, so the run could have passed when the client retries.
    pub(super) fn first_fit(&self, cost: u64, latest: i64) -> Option<i64> {
        let fits = |run: &Run| run.slots >= cost.cast_signed();
        let mut usable = self.runs.iter().map(|run| self.usable(run));
        usable.find(fits).map(|run| run.begins).filter(|_| latest >= self.rate)
    }

    /// Takes `cost` slots from `begins` on; [`Self::first_fit`] returned that position. If the
    /// run's first slot has already begun, it stays free.
    pub(super) fn take(&mut self, begins: i64, cost: u64) {
        let cost = cost.cast_signed();
        let fits = |run: &Run| run.begins == begins && run.slots >= cost;
        let Some(at) = self.runs.iter().position(|run| fits(&self.usable(run))) else { return };
        let run = self.runs.remove(at);
        let usable = self.usable(&run);
        if usable.slots > cost {
            let begins = begins + cost * self.window;
            self.runs.insert(at, Run { begins, slots: usable.slots - cost });
        }
        if run.begins < begins {
            self.runs.insert(at, Run { slots: 1, ..run });
        }
    }

    /// The last position at or before `begins` where a range of `length` units overlaps no free
    /// slot.
    pub(super) fn last_taken(&self, mut begins: i64, length: i64) -> i64 {
        for run in self.runs.iter().rev() {
            if self.end(run) <= begins {
                break;
            }
            begins = begins.min(run.begins - length);
        }
        begins
    }

    /// Removes the runs that end at `end`, once the slots from `end` on are free. Returns the new
    /// end of the taken slots.
    pub(super) fn trim_end(&mut self, mut end: i64) -> i64 {
        while let Some(last) = self.runs.last().copied().filter(|run| self.end(run) == end) {
            end = last.begins;
            self.runs.pop();
        }
        end
    }

    /// Adds `slots` adjacent slots from `begins` on, all of which are taken.
    pub(super) fn insert(&mut self, begins: i64, slots: i64) {
        let Some(mut run) = self.not_passed(Run { begins, slots }) else { return };
        let fits = |slots: i64| slots <= u32::MAX.into();
        let mut at = self.runs.partition_point(|other| other.begins < run.begins);
        if let Some(next) = self.runs.get(at).copied()
            && self.end(&run) == next.begins
            && fits(run.slots + next.slots)
        {
            run.slots += next.slots;
            self.runs.remove(at);
        }
        if let Some(before) = at.checked_sub(1).map(|before| self.runs[before])
            && self.end(&before) == run.begins
            && fits(before.slots + run.slots)
        {
            at -= 1;
            run = Run { begins: before.begins, slots: before.slots + run.slots };
            self.runs.remove(at);
        }
        self.runs.insert(at, run);
        if self.runs.len() > MAX_RUNS {
            self.runs.remove(0);
        }
    }

    /// Checks that the runs are few and ordered, do not overlap, and end at the latest at
    /// `backlog`, the end of the taken slots.
    pub(super) fn check_invariants(&self, backlog: i64) {
        if !cfg!(debug_assertions) {
            return;
        }
        debug_assert!(self.runs.len() <= MAX_RUNS, "{} runs", self.runs.len());
        debug_assert!(self.runs.iter().all(|run| run.slots > 0), "an empty run");
        let are_apart = |pair: &[Run]| self.end(&pair[0]) <= pair[1].begins;
        debug_assert!(self.runs.windows(2).all(are_apart), "runs that overlap");
        let last_end = self.runs.last().map_or(0, |last| self.end(last));
        debug_assert!(last_end <= backlog, "a free slot after the taken ones");
    }

    fn end(&self, run: &Run) -> i64 {
        run.begins + run.slots * self.window
    }

    /// The part of a run that has not passed. A slot that has begun is kept although no request can
    /// use it: if all slots after it are refunded, the end of the taken slots moves back to its
    /// beginning.
    fn not_passed(&self, run: Run) -> Option<Run> {
        let passed = (-run.begins).max(0) / self.window;
        let (begins, slots) = (run.begins + passed * self.window, run.slots - passed);
        (slots > 0).then_some(Run { begins, slots })
    }

    /// The part of a run that begins from now on.
    fn usable(&self, run: &Run) -> Run {
        let begun = i64::from(run.begins < 0);
        Run { begins: run.begins + begun * self.window, slots: run.slots - begun }
    }
}
