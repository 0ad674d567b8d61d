//! The corrections that wait to be sent: one line a place, first in, first out. Pure: nothing here sends
//! or waits.

use std::{cmp::Reverse, collections::VecDeque, hash::Hash, sync::Arc};

use ahash::RandomState;
use hashbrown::HashMap;

use crate::{
    limit::{Algorithm, Change, Key, Limit},
    store::record_id::record,
};

/// The most corrections that wait, over all places: about 6 MB.
pub(super) const ROOM: usize = 1 << 16;

/// The most corrections in one call.
pub(super) const BATCH: usize = 64;

/// The most calls in flight: nearly every record of a Cluster has a place of its own.
pub(super) const SENDERS: usize = 16;

/// Where a correction comes from, and so what it is counted as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::store) enum Source {
    /// A request that is over, or was given up.
    Request,
    /// Tokens of a lease that were not spent.
    Tokens,
    /// Charges that were made in this process while the place could not be reached.
    Outage,
}

/// A correction that waits.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Key,
    pub(super) change: Change,
    pub(super) source: Source,
    /// The tick at which it was pushed.
    pub(super) pushed: u64,
    /// Whether Redis has refused it once.
    pub(super) refused: bool,
}

impl Pending {
    pub(super) fn record(&self) -> u128 {
        record(&self.limit, self.key)
    }

    fn is_past(&self, ticks: u64) -> bool {
        self.pushed.saturating_add(self.limit.reach()) <= ticks
    }

    /// Adds another of the same record and time to this one; false if it has to stand by itself.
    fn merge(&mut self, other: &Self) -> bool {
        let is_same = self.key == other.key
            && (self.source, self.refused) == (other.source, other.refused)
            && self.limit.quota == other.limit.quota
            && self.limit.identity() == other.limit.identity();
        let sum = self.change.cost().checked_add(other.change.cost());
        let (Some(cost), true) = (sum, is_same) else { return false };
        let merged = match (self.change, other.change) {
            // Two slots of a leaky bucket may begin in the same ms and are not one slot.
            (Change::Refund { charged_at, .. }, Change::Refund { charged_at: at, .. })
                if charged_at == at && self.limit.algorithm != Algorithm::LeakyBucket =>
            {
                Change::Refund { charged_at, cost }
            }
            (Change::Overdraw { .. }, Change::Overdraw { .. }) => Change::Overdraw { cost },
            _ => return false,
        };
        (self.change, self.pushed) = (merged, other.pushed);
        true
    }
}

/// The corrections of one place, in the order in which they were pushed.
#[derive(Debug)]
struct Line {
    waiting: VecDeque<Pending>,
    state: LineState,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum LineState {
    /// In the list of places that a sender may take.
    Ready,
    /// A sender has a batch of it.
    Sending,
    /// The place could not be reached; see [`Lines::resume`].
    Parked,
}

/// What became of a correction that was pushed.
#[derive(Debug)]
pub(super) enum Pushed {
    Queued,
    /// Into the one before it.
    Merged,
    /// Queued in the room of this one.
    Replaced(Pending),
}

/// The lines of all places, and how many senders empty them.
#[derive(Debug)]
pub(super) struct Lines<P> {
    all: HashMap<P, Line, RandomState>,
    ready: VecDeque<P>,
    waiting: usize,
    /// Senders that have begun.
    senders: usize,
    /// Those of them that have a batch.
    sending: usize,
}

impl<P> Default for Lines<P> {
    fn default() -> Self {
        let (all, ready) = (HashMap::default(), VecDeque::new());
        Self { all, ready, waiting: 0, senders: 0, sending: 0 }
    }
}

impl<P: Copy + Eq + Hash> Lines<P> {
    /// Puts a correction at the end of its place's line. Where there is no room, the oldest of the
    /// longest line leaves.
    pub(super) fn push(&mut self, place: P, pending: Pending) -> Pushed {
        if let Some(last) = self.all.get_mut(&place).and_then(|line| line.waiting.back_mut())
            && last.merge(&pending)
        {
            return Pushed::Merged;
        }
        let dropped = if self.waiting >= ROOM { self.drop_oldest() } else { None };
        let line = self.all.entry(place).or_insert_with(|| {
            self.ready.push_back(place);
            Line { waiting: VecDeque::new(), state: LineState::Ready }
        });
        line.waiting.push_back(pending);
        self.waiting += 1;
        dropped.map_or(Pushed::Queued, Pushed::Replaced)
    }

    fn drop_oldest(&mut self) -> Option<Pending> {
        let longest = self.all.values_mut().max_by_key(|line| line.waiting.len())?;
        let oldest = longest.waiting.pop_front();
        self.waiting -= usize::from(oldest.is_some());
        oldest
    }

    /// Whether one more sender is of use; if so, it has begun.
    pub(super) fn begin(&mut self) -> bool {
        // Those that have begun and have no batch yet take the first of the ready places.
        let is_useful = self.senders < SENDERS && self.ready.len() > self.senders - self.sending;
        self.senders += usize::from(is_useful);
        is_useful
    }

    /// The next batch for a sender; without one, the sender has ended. `past` is given what no longer
    /// matters.
    pub(super) fn take(
        &mut self,
        ticks: u64,
        past: &mut Vec<Pending>,
    ) -> Option<(P, Vec<Pending>)> {
        while let Some(place) = self.ready.pop_front() {
            let Some(line) = self.all.get_mut(&place) else { continue };
            let mut batch = Vec::new();
            while batch.len() < BATCH
                && let Some(pending) = line.waiting.pop_front()
            {
                self.waiting -= 1;
                if pending.is_past(ticks) { past.push(pending) } else { batch.push(pending) }
            }
            if batch.is_empty() {
                self.all.remove(&place);
                continue;
            }
            line.state = LineState::Sending;
            self.sending += 1;
            sort_slots(&mut batch);
            return Some((place, batch));
        }
        self.end();
        None
    }

    /// A sender has ended.
    pub(super) fn end(&mut self) {
        self.senders -= 1;
    }

    /// The batch of a place was made.
    pub(super) fn go_on(&mut self, place: P) {
        self.release(place, Vec::new(), LineState::Ready);
    }

    /// The batch of a place was not made. Of it, `again` comes first when the place can be reached.
    pub(super) fn park(&mut self, place: P, again: Vec<Pending>) {
        self.release(place, again, LineState::Parked);
    }

    fn release(&mut self, place: P, again: Vec<Pending>, state: LineState) {
        self.sending -= 1;
        let Some(line) = self.all.get_mut(&place) else { return };
        self.waiting += again.len();
        for pending in again.into_iter().rev() {
            line.waiting.push_front(pending);
        }
        if line.waiting.is_empty() {
            self.all.remove(&place);
            return;
        }
        line.state = state;
        if state == LineState::Ready {
            self.ready.push_back(place);
        }
    }

    /// Makes parked places ready that can be reached again.
    pub(super) fn resume(&mut self, is_live: impl Fn(P) -> bool) {
        for (&place, line) in &mut self.all {
            if line.state == LineState::Parked && is_live(place) {
                line.state = LineState::Ready;
                self.ready.push_back(place);
            }
        }
    }

    /// Removes the corrections of a record that wait.
    pub(super) fn forget(&mut self, place: P, record: u128) -> Vec<Pending> {
        let Some(line) = self.all.get_mut(&place) else { return Vec::new() };
        let (gone, kept): (Vec<_>, Vec<_>) =
            line.waiting.drain(..).partition(|pending| pending.record() == record);
        line.waiting = kept.into();
        self.waiting -= gone.len();
        gone
    }

    /// Whether something is on its way, or could be.
    pub(super) fn is_busy(&self) -> bool {
        self.sending > 0 || !self.ready.is_empty()
    }
}

/// Sorts the slots of each leaky bucket, the last first: only the last that is taken can be given back.
fn sort_slots(batch: &mut [Pending]) {
    let slot = |pending: &Pending| match pending.change {
        Change::Refund { charged_at, .. } if pending.limit.algorithm == Algorithm::LeakyBucket => {
            Some(charged_at)
        }
        Change::Refund { .. } | Change::Overdraw { .. } => None,
    };
    let places: Vec<usize> = (0..batch.len()).filter(|&at| slot(&batch[at]).is_some()).collect();
    let mut slots: Vec<Pending> = places.iter().map(|&at| batch[at].clone()).collect();
    slots.sort_by_cached_key(|pending| (pending.record(), Reverse(slot(pending))));
    for (at, pending) in places.into_iter().zip(slots) {
        batch[at] = pending;
    }
}

#[cfg(test)]
mod tests;
