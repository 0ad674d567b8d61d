//! The slots of a leaky bucket that were freed before others that are taken.
//!
//! Positions are in units of `1 / rate` ms after now, as in `Horizon::ahead`; a slot is
//! `window` of them. A run begins where its slot began to the unit, so the slots of a bucket stay apart
//! by what they always were.
//!
//! The Lua twin is `lua/holes.lua`: function for function the same.

use smallvec::SmallVec;

use super::Millis;

/// The most runs of free slots that a record keeps. One more drops the soonest: its slots pass unused.
const MAX_HOLES: usize = 32;

/// Free slots in a row, as a record keeps them: the first begins at `at + fraction / rate` ms.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Hole {
    at: Millis,
    fraction: u32,
    slots: u32,
}

/// Free slots in a row, as they lie from now.
#[derive(Clone, Copy)]
struct Run {
    begins: i64,
    slots: i64,
}

/// The free slots of a record as they lie from now, the soonest first, no two runs overlapping.
pub(super) struct Holes {
    window: i64,
    rate: i64,
    runs: SmallVec<[Run; 2]>,
}

impl Holes {
    /// Those of a record that have not passed.
    pub(super) fn read(holes: &[Hole], now: Millis, rate: u64, window: Millis) -> Self {
        let (window, rate) = (window.cast_signed(), rate.cast_signed());
        let mut read = Self { window, rate, runs: SmallVec::new() };
        for hole in holes {
            let begins =
                (hole.at.cast_signed() - now.cast_signed()) * rate + i64::from(hole.fraction);
            read.runs.extend(read.rest(Run { begins, slots: hole.slots.into() }));
        }
        read
    }

    pub(super) fn write(&self, now: Millis) -> Box<[Hole]> {
        let hole = |run: &Run| Hole {
            at: now.saturating_add_signed(run.begins.div_euclid(self.rate)),
            fraction: run.begins.rem_euclid(self.rate) as u32,
            slots: run.slots as u32,
        };
        self.runs.iter().map(hole).collect()
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
    }

    /// How many slots begin from now on and no later than `latest`.
    pub(super) fn free(&self, latest: i64) -> u64 {
        if latest < self.rate {
            return 0;
        }
        let runs = self.runs.iter().map(|run| self.usable(run));
        let in_time = runs.take_while(|run| run.begins <= latest);
        in_time.map(|run| run.slots.min((latest - run.begins) / self.window + 1) as u64).sum()
    }

    /// Where the first run begins that has `cost` slots from now on, if one has. `latest` is when the
    /// request has to begin at the latest: within the next ms no run is of use, for in whole ms it may
    /// have passed when a client that was told of it comes.
    pub(super) fn first(&self, cost: u32, latest: i64) -> Option<i64> {
        let fits = |run: &Run| run.slots >= i64::from(cost);
        let mut usable = self.runs.iter().map(|run| self.usable(run));
        usable.find(fits).map(|run| run.begins).filter(|_| latest >= self.rate)
    }

    /// Takes `cost` slots from `begins` on, as [`Self::first`] told it. A slot under way before them stays.
    pub(super) fn take(&mut self, begins: i64, cost: u32) {
        let cost = i64::from(cost);
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

    /// The latest place at or before `begins` for `length` units of which none is free already.
    pub(super) fn place(&self, mut begins: i64, length: i64) -> i64 {
        for run in self.runs.iter().rev() {
            if self.end(run) <= begins {
                break;
            }
            begins = begins.min(run.begins - length);
        }
        begins
    }

    /// Where the taken slots end, if those from `end` on are not taken any more.
    pub(super) fn absorb(&mut self, mut end: i64) -> i64 {
        while let Some(last) = self.runs.last().copied().filter(|run| self.end(run) == end) {
            end = last.begins;
            self.runs.pop();
        }
        end
    }

    /// Adds `slots` that begin at `begins`, none of which is here.
    pub(super) fn add(&mut self, begins: i64, slots: i64) {
        let Some(mut run) = self.rest(Run { begins, slots }) else { return };
        let joins = |slots: i64| slots <= u32::MAX.into();
        let mut at = self.runs.partition_point(|other| other.begins < run.begins);
        if let Some(next) = self.runs.get(at).copied()
            && self.end(&run) == next.begins
            && joins(run.slots + next.slots)
        {
            run.slots += next.slots;
            self.runs.remove(at);
        }
        if let Some(before) = at.checked_sub(1).map(|before| self.runs[before])
            && self.end(&before) == run.begins
            && joins(before.slots + run.slots)
        {
            at -= 1;
            run = Run { begins: before.begins, slots: before.slots + run.slots };
            self.runs.remove(at);
        }
        self.runs.insert(at, run);
        if self.runs.len() > MAX_HOLES {
            self.runs.remove(0);
        }
    }

    fn end(&self, run: &Run) -> i64 {
        run.begins + run.slots * self.window
    }

    /// What of a run has not passed. A slot under way is no use to any request, but is free if those
    /// after it are.
    fn rest(&self, run: Run) -> Option<Run> {
        let passed = (-run.begins).max(0) / self.window;
        let (begins, slots) = (run.begins + passed * self.window, run.slots - passed);
        (slots > 0).then_some(Run { begins, slots })
    }

    /// What of a run begins from now on.
    fn usable(&self, run: &Run) -> Run {
        let under_way = i64::from(run.begins < 0);
        Run { begins: run.begins + under_way * self.window, slots: run.slots - under_way }
    }
}
