//! The corrections that wait to be sent: one FIFO queue per shard. Pure: nothing here sends or
//! waits.

use std::{cmp::Reverse, collections::VecDeque, hash::Hash, sync::Arc};

use ahash::RandomState;
use hashbrown::HashMap;
use tidegate_base::time::MonotonicTime;
use tidegate_charge::{Key, Limit};
use tidegate_limit::{Change, MAX_UNITS};

use crate::record_id::record_id;

/// Maximum number of waiting corrections, in all queues: about 6 MB.
pub(super) const CAPACITY: usize = 1 << 16;

/// Maximum number of corrections in one call.
pub(super) const MAX_BATCH: usize = 64;

/// Maximum number of calls in flight. In a Cluster, nearly every record has a shard (slot) of its
/// own, so the number of queues does not bound the calls.
pub(super) const MAX_SENDERS: usize = 16;

/// Maximum number of queues whose lengths are summed to check the invariants.
const CHECKED_QUEUES: usize = 64;

/// The reason for a correction, which decides how it is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CorrectionReason {
    /// A request that has ended, or whose call timed out.
    Request,
    /// Units of a lease that were not spent.
    UnspentUnits,
}

/// A waiting correction.
#[derive(Clone, Debug)]
pub(super) struct PendingCorrection {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Key,
    pub(super) change: Change,
    pub(super) reason: CorrectionReason,
    /// The monotonic time at which it was pushed.
    pub(super) pushed_at: MonotonicTime,
    /// True if Redis has refused it once.
    pub(super) was_refused: bool,
}

impl PendingCorrection {
    pub(super) fn record(&self) -> u128 {
        record_id(&self.limit, self.key)
    }

    /// True if the charge no longer counts, so that the correction has no effect.
    fn is_expired(&self, monotonic: MonotonicTime) -> bool {
        self.pushed_at.after(self.limit.quota.correction_window()) <= monotonic
    }

    /// Merges another correction of the same record and time into this one. Returns false if they
    /// cannot be merged.
    fn try_coalesce(&mut self, other: &Self) -> bool {
        let is_same = self.key == other.key
            && (self.reason, self.was_refused) == (other.reason, other.was_refused)
            && self.limit.quota == other.limit.quota
            && self.limit.identity == other.limit.identity;
        let sum =
            self.change.cost().checked_add(other.change.cost()).filter(|&sum| sum <= MAX_UNITS);
        let (Some(cost), true) = (sum, is_same) else { return false };
        let coalesced = match (self.change, other.change) {
            // Two slots may begin in the same ms, so their refunds stay apart.
            (Change::Refund { charged_at, .. }, Change::Refund { charged_at: at, .. })
                if charged_at == at && !self.limit.algorithm().takes_slot() =>
            {
                Change::Refund { charged_at, cost }
            }
            (Change::Release { .. }, Change::Release { .. }) => Change::Release { cost },
            (Change::Overdraw { .. }, Change::Overdraw { .. }) => Change::Overdraw { cost },
            _ => return false,
        };
        (self.change, self.pushed_at) = (coalesced, other.pushed_at);
        true
    }
}

/// The corrections of one shard, in the order in which they were pushed.
#[derive(Debug)]
struct ShardQueue {
    waiting: VecDeque<PendingCorrection>,
    state: ShardQueueState,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ShardQueueState {
    /// In [`ShardQueues::ready`]: a sender may take a batch.
    Ready,
    /// A sender has a batch in flight.
    Sending,
    /// The last batch failed; see [`ShardQueues::resume`].
    Parked,
}

/// The queues of all shards, and the number of senders that empty them.
#[derive(Debug)]
pub(super) struct ShardQueues<S> {
    /// A shard without corrections, waiting or in flight, has no queue.
    queues: HashMap<S, ShardQueue, RandomState>,
    ready: VecDeque<S>,
    /// Number of waiting corrections, in all queues.
    waiting: usize,
    /// Senders that are running.
    senders: usize,
    /// Senders that have a batch.
    sending: usize,
}

impl<S> Default for ShardQueues<S> {
    fn default() -> Self {
        let (queues, ready) = (HashMap::default(), VecDeque::new());
        Self { queues, ready, waiting: 0, senders: 0, sending: 0 }
    }
}

impl<S: Copy + Eq + Hash> ShardQueues<S> {
    /// Adds a correction to the end of its shard's queue, or merges it into the last one there. If
    /// there is no room, drops and returns the oldest correction of the longest queue.
    pub(super) fn push(
        &mut self,
        shard: S,
        pending: PendingCorrection,
    ) -> Option<PendingCorrection> {
        if let Some(last) = self.queues.get_mut(&shard).and_then(|queue| queue.waiting.back_mut())
            && last.try_coalesce(&pending)
        {
            return None;
        }
        let evicted = if self.waiting >= CAPACITY { self.evict_oldest() } else { None };
        let queue = self.queues.entry(shard).or_insert_with(|| {
            self.ready.push_back(shard);
            ShardQueue { waiting: VecDeque::new(), state: ShardQueueState::Ready }
        });
        queue.waiting.push_back(pending);
        self.waiting += 1;
        self.check_invariants();
        evicted
    }

    fn evict_oldest(&mut self) -> Option<PendingCorrection> {
        let longest = self.queues.values_mut().max_by_key(|queue| queue.waiting.len())?;
        let oldest = longest.waiting.pop_front();
        self.waiting -= usize::from(oldest.is_some());
        oldest
    }

    /// Counts a new sender if one more is useful. If it returns true, the caller must run that
    /// sender.
    pub(super) fn start_sender(&mut self) -> bool {
        // Running senders without a batch will take the first ready queues.
        let is_useful =
            self.senders < MAX_SENDERS && self.ready.len() > self.senders - self.sending;
        self.senders += usize::from(is_useful);
        is_useful
    }

    /// The next batch for a sender; `None` ends the sender. Drops expired corrections.
    pub(super) fn take_batch(
        &mut self,
        monotonic: MonotonicTime,
    ) -> Option<(S, Vec<PendingCorrection>)> {
        while let Some(shard) = self.ready.pop_front() {
            let Some(queue) = self.queues.get_mut(&shard) else { continue };
            let mut batch = Vec::new();
            while batch.len() < MAX_BATCH
                && let Some(pending) = queue.waiting.pop_front()
            {
                self.waiting -= 1;
                if !pending.is_expired(monotonic) {
                    batch.push(pending);
                }
            }
            if batch.is_empty() {
                self.queues.remove(&shard);
                continue;
            }
            queue.state = ShardQueueState::Sending;
            self.sending += 1;
            sort_slots(&mut batch);
            self.check_invariants();
            return Some((shard, batch));
        }
        self.end_sender();
        None
    }

    /// Ends a sender.
    pub(super) fn end_sender(&mut self) {
        self.senders -= 1;
        self.check_invariants();
    }

    /// Ends a batch whose corrections Redis has made.
    pub(super) fn complete(&mut self, shard: S) {
        self.end_batch(shard, Vec::new(), ShardQueueState::Ready);
    }

    /// Ends a batch that failed. Its corrections in `retry` are sent first when the shard can be
    /// reached.
    pub(super) fn park(&mut self, shard: S, retry: Vec<PendingCorrection>) {
        self.end_batch(shard, retry, ShardQueueState::Parked);
    }

    fn end_batch(&mut self, shard: S, retry: Vec<PendingCorrection>, state: ShardQueueState) {
        self.sending -= 1;
        let Some(queue) = self.queues.get_mut(&shard) else { return };
        self.waiting += retry.len();
        for pending in retry.into_iter().rev() {
            queue.waiting.push_front(pending);
        }
        if queue.waiting.is_empty() {
            self.queues.remove(&shard);
        } else {
            queue.state = state;
            if state == ShardQueueState::Ready {
                self.ready.push_back(shard);
            }
        }
        self.check_invariants();
    }

    /// Makes parked queues ready if their shard can be reached again.
    pub(super) fn resume(&mut self, is_live: impl Fn(S) -> bool) {
        for (&shard, queue) in &mut self.queues {
            if queue.state == ShardQueueState::Parked && is_live(shard) {
                queue.state = ShardQueueState::Ready;
                self.ready.push_back(shard);
            }
        }
        self.check_invariants();
    }

    /// Removes the waiting corrections of a record.
    pub(super) fn remove(&mut self, shard: S, record: u128) {
        let Some(queue) = self.queues.get_mut(&shard) else { return };
        let before = queue.waiting.len();
        queue.waiting.retain(|pending| pending.record() != record);
        self.waiting -= before - queue.waiting.len();
        self.check_invariants();
    }

    /// Checks the invariants between the fields, in debug builds. Sums the queues only while they
    /// are few, because this runs after each step.
    fn check_invariants(&self) {
        debug_assert!(self.waiting <= CAPACITY + MAX_SENDERS * MAX_BATCH, "{} wait", self.waiting);
        debug_assert!(self.senders <= MAX_SENDERS, "{} senders", self.senders);
        debug_assert!(self.sending <= self.senders, "a batch without a sender");
        if cfg!(debug_assertions) && self.queues.len() <= CHECKED_QUEUES {
            let lengths = self.queues.values().map(|queue| queue.waiting.len());
            debug_assert_eq!(lengths.sum::<usize>(), self.waiting);
            let with_state = |state| self.queues.values().filter(move |queue| queue.state == state);
            debug_assert_eq!(with_state(ShardQueueState::Sending).count(), self.sending);
            debug_assert_eq!(with_state(ShardQueueState::Ready).count(), self.ready.len());
        }
    }

    /// True if a batch is in flight or ready to be sent.
    pub(super) fn is_busy(&self) -> bool {
        self.sending > 0 || !self.ready.is_empty()
    }
}

/// Sorts refunds of leaky buckets by record and time, the latest first. The refund of the last slot
/// shortens the backlog, whereas the refund of an earlier slot leaves a free slot, and a record
/// keeps a bounded number of runs of free slots. All other corrections keep their positions.
fn sort_slots(batch: &mut [PendingCorrection]) {
    let slot = |pending: &PendingCorrection| match pending.change {
        Change::Refund { charged_at, .. } if pending.limit.algorithm().takes_slot() => {
            Some(charged_at)
        }
        Change::Refund { .. } | Change::Release { .. } | Change::Overdraw { .. } => None,
    };
    let positions: Vec<usize> = (0..batch.len()).filter(|&at| slot(&batch[at]).is_some()).collect();
    let mut slots: Vec<PendingCorrection> = positions.iter().map(|&at| batch[at].clone()).collect();
    slots.sort_by_cached_key(|pending| (pending.record(), Reverse(slot(pending))));
    for (at, pending) in positions.into_iter().zip(slots) {
        batch[at] = pending;
    }
}

#[cfg(test)]
mod tests;
