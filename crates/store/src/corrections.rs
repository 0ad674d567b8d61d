//! The queue of corrections that no request waits for: refunds and later charges for decided
//! requests, refunds for calls that timed out, and returned units.
//!
//! Each shard has one queue and at most one call in flight, so corrections reach Redis in the order
//! in which the workers of this process pushed them. [`CorrectionSender::push`] never waits: a task
//! on the worker's runtime sends. Corrections that were certainly not sent stay, in order, until
//! the shard can be reached again; refused ones are sent once more. A sender waits for the reply of
//! a hung server ([`RedisClient::adjust_awaiting_late_reply`]). Corrections of unknown outcome are
//! dropped and counted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;

mod shard_queues;

pub(super) use self::shard_queues::CorrectionReason;
use tidegate_charge::{Acquisition, Adjustment, Charge, DecisionSource, Key, Limit, Verdict};
use tidegate_limit::{Change, UnitDemand};
use tidegate_redis::{LATE_REPLY_TIMEOUT, LateReply, RedisClient, RedisFailure, ShardId};
use tidegate_system::clock::{Clock, MonotonicTime};

use self::shard_queues::{PendingCorrection, ShardQueues};
use super::{
    blocks::BlockTracker,
    deny_cache::{DenyCache, ReplyTiming},
    record_id::record_id,
    stats::WorkerCounts,
};

/// A correction of a charge, which may outlive its request.
#[derive(Clone, Debug)]
pub struct Correction {
    /// The limit that was charged.
    pub limit: Arc<Limit>,
    /// The key that was charged.
    pub key: Key,
    /// What to correct.
    pub change: Change,
    /// Where the charge was made.
    pub source: DecisionSource,
}

/// Totals of the corrections that the queue has dropped.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct QueueStats {
    /// Dropped corrections, except returns of units. Redis did not make them, or may not have made
    /// them.
    pub(super) dropped: u64,
    /// Units whose return was dropped, for the same reasons.
    pub(super) lost_units: u64,
}

/// The corrections of the process.
pub(super) struct CorrectionQueue {
    shards: Mutex<ShardQueues<ShardId>>,
    deny_cache: Arc<DenyCache>,
    blocks: Arc<BlockTracker>,
    clock: Clock,
    dropped: AtomicU64,
    lost_units: AtomicU64,
}

impl CorrectionQueue {
    pub(super) fn new(deny_cache: Arc<DenyCache>, blocks: Arc<BlockTracker>, clock: Clock) -> Self {
        Self {
            shards: Mutex::default(),
            deny_cache,
            blocks,
            clock,
            dropped: AtomicU64::new(0),
            lost_units: AtomicU64::new(0),
        }
    }

    pub(super) fn stats(&self) -> QueueStats {
        QueueStats {
            dropped: self.dropped.load(Relaxed),
            lost_units: self.lost_units.load(Relaxed),
        }
    }

    /// Removes the corrections of a record that the operator has deleted.
    pub(super) fn remove(&self, shard: ShardId, limit: &Limit, key: Key) {
        self.shards.lock().remove(shard, record_id(limit, key));
    }

    /// True if corrections are in flight or ready to be sent.
    pub(super) fn is_busy(&self) -> bool {
        self.shards.lock().is_busy()
    }

    fn push(&self, shard: ShardId, pending: PendingCorrection) {
        let evicted = self.shards.lock().push(shard, pending);
        if let Some(oldest) = evicted {
            self.count_lost(&oldest);
        }
    }

    /// Counts a correction that is dropped although Redis may not have made it.
    fn count_lost(&self, pending: &PendingCorrection) {
        match pending.reason {
            CorrectionReason::UnspentUnits => {
                self.lost_units.fetch_add(pending.change.cost(), Relaxed);
            }
            CorrectionReason::Request => {
                self.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// Takes the next batch for a sender; `None` ends the sender.
    fn take_batch(&self) -> Option<(ShardId, Vec<PendingCorrection>)> {
        self.shards.lock().take_batch(self.clock.monotonic())
    }

    /// Records the blocks in the reply to a batch that was sent at `sent`.
    fn record_refusals(&self, batch: &[PendingCorrection], verdict: &Verdict, sent: MonotonicTime) {
        let received = self.clock.monotonic();
        for (pending, outcome) in batch.iter().zip(&verdict.outcomes) {
            if let (true, Some(counted)) = (pending.limit.algorithm().is_block(), outcome.decided())
            {
                let block = Charge { limit: &pending.limit, key: pending.key, cost: 1 };
                let timing = ReplyTiming { sent, received, decided_at: counted.at };
                self.blocks.record_reply(&block, counted, pending.change.cost(), timing);
            }
        }
    }

    /// Ends a batch with this outcome.
    fn finish(
        &self,
        shard: ShardId,
        batch: Vec<PendingCorrection>,
        outcome: Result<(), RedisFailure>,
    ) {
        if !matches!(outcome, Err(RedisFailure::Unsent)) {
            // The corrected charges may be the reason for cached denials.
            let monotonic = self.clock.monotonic();
            // Refusals make no block shorter.
            for pending in batch.iter().filter(|pending| !pending.limit.algorithm().is_block()) {
                self.deny_cache.invalidate(pending.record(), monotonic);
            }
        }
        let retry = match outcome {
            Ok(()) => return self.shards.lock().complete(shard),
            Err(RedisFailure::Unsent) => batch,
            Err(RedisFailure::Server) => {
                let (lost, mut retry): (Vec<_>, Vec<_>) =
                    batch.into_iter().partition(|pending| pending.was_refused);
                for pending in &lost {
                    self.count_lost(pending);
                }
                for pending in &mut retry {
                    pending.was_refused = true;
                }
                retry
            }
            Err(RedisFailure::Timeout | RedisFailure::Io | RedisFailure::Reply) => {
                for pending in &batch {
                    self.count_lost(pending);
                }
                Vec::new()
            }
        };
        self.shards.lock().park(shard, retry);
    }
}

/// One worker's access to the queue.
#[derive(Clone)]
pub(super) struct CorrectionSender {
    queue: Arc<CorrectionQueue>,
    client: Arc<RedisClient>,
    counts: Arc<CachePadded<WorkerCounts>>,
}

impl CorrectionSender {
    pub(super) fn new(
        queue: Arc<CorrectionQueue>,
        client: Arc<RedisClient>,
        counts: Arc<CachePadded<WorkerCounts>>,
    ) -> Self {
        Self { queue, client, counts }
    }

    /// Queues corrections of records in Redis. Never waits.
    pub(super) fn push(
        &self,
        corrections: impl IntoIterator<Item = (Arc<Limit>, Key, Change)>,
        reason: CorrectionReason,
    ) {
        let pushed_at = self.queue.clock.monotonic();
        for (limit, key, change) in corrections {
            if change.cost() > 0 {
                let pending =
                    PendingCorrection { limit, key, change, reason, pushed_at, was_refused: false };
                self.queue.push(self.client.shard_of(key), pending);
            }
        }
        self.start_senders();
    }

    /// Queues the adjustments of a failed call, if they were certainly not made.
    pub(super) fn push_unsent(&self, adjustments: &[Adjustment<'_>], failure: RedisFailure) {
        if matches!(failure, RedisFailure::Unsent | RedisFailure::Server) {
            let owned = |adjustment: &Adjustment<'_>| {
                (Arc::clone(adjustment.limit), adjustment.key, adjustment.change)
            };
            self.push(adjustments.iter().map(owned), CorrectionReason::Request);
        }
    }

    /// Resumes sending to the shards that this worker can reach again. To be called about every 100
    /// ms.
    pub(super) fn resume(&self) {
        self.queue.shards.lock().resume(|shard| self.client.is_live(shard));
        self.start_senders();
    }

    /// Starts senders for the ready queues, up to the maximum.
    fn start_senders(&self) {
        while self.queue.shards.lock().start_sender() {
            let task = SenderTask { sender: self.clone(), batch: None, is_over: false };
            // If there is no runtime, or it ends, another worker sends after its next `resume`.
            let Ok(runtime) = Handle::try_current() else { return };
            // A runtime that ends drops the task at once, which makes its queue ready again.
            if runtime.spawn(task.run()).is_finished() {
                return;
            }
        }
    }

    /// Waits for the reply of a call that timed out, and refunds what it charged. The request was
    /// decided without that reply, so no request holds its slots and permits. A hung Redis charges
    /// at the time at which it resumes, not at the time of the call: without the refund, a quota of
    /// 1 would stay used beyond the `Retry-After` that the client got.
    pub(super) fn undo_late_charge(&self, reply: LateReply, charges: &[Charge<'_>]) {
        let owned = |charge: &Charge<'_>| (Arc::clone(charge.limit), charge.key, charge.cost);
        let charges: Vec<_> = charges.iter().map(owned).collect();
        let sender = self.clone();
        let undo = async move {
            let limits = charges.iter().map(|(limit, ..)| &**limit);
            let verdict =
                sender.queue.clock.timeout(LATE_REPLY_TIMEOUT, reply.verdict(limits)).await;
            let Ok(Some(verdict)) = verdict else { return };
            if !verdict.admitted {
                return;
            }
            let charged = charges.into_iter().zip(&verdict.outcomes);
            let refunds = charged.filter_map(|((limit, key, cost), outcome)| {
                let charged_at = outcome.admitted()?.charged_at();
                Some((limit, key, Change::Refund { charged_at, cost }))
            });
            sender.push(refunds, CorrectionReason::Request);
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(undo);
        }
    }

    /// Waits for the reply of a fetch that timed out, and refunds the granted units.
    pub(super) fn return_late_grant(
        &self,
        reply: LateReply,
        limit: Arc<Limit>,
        key: Key,
        demand: UnitDemand,
    ) {
        let sender = self.clone();
        let refund = async move {
            let acquisition = Acquisition { limit: &limit, key, demand };
            let grant = reply.grant(&acquisition);
            let grant = sender.queue.clock.timeout(LATE_REPLY_TIMEOUT, grant).await;
            let Ok(Some((grant, now))) = grant else { return };
            let change = Change::Refund { charged_at: now, cost: grant.units };
            sender.push([(limit, key, change)], CorrectionReason::Request);
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(refund);
        }
    }
}

/// A task that sends batches, shard after shard, until no queue is ready. If it is dropped with its
/// runtime, the other workers send the rest.
struct SenderTask {
    sender: CorrectionSender,
    batch: Option<(ShardId, Vec<PendingCorrection>)>,
    /// True if no queue was ready: [`ShardQueues::take_batch`] has then ended the sender.
    is_over: bool,
}

impl SenderTask {
    async fn run(mut self) {
        while self.take_batch() {
            let Some((shard, batch)) = &self.batch else { return };
            let adjustments: SmallVec<[Adjustment<'_>; 8]> = batch
                .iter()
                .map(|PendingCorrection { limit, key, change, .. }| Adjustment {
                    limit,
                    key: *key,
                    change: *change,
                })
                .collect();
            let sent = self.sender.queue.clock.monotonic();
            let outcome = self.sender.client.adjust_awaiting_late_reply(*shard, &adjustments).await;
            drop(adjustments);
            if let Ok(verdict) = &outcome {
                self.sender.queue.record_refusals(batch, verdict, sent);
            }
            if let Err(failure) = &outcome
                && *failure != RedisFailure::Unsent
            {
                self.sender.counts.count_failure(*failure);
                tracing::debug!(failure = failure.label(), "corrections failed in Redis");
            }
            if let Some((shard, batch)) = self.batch.take() {
                self.sender.queue.finish(shard, batch, outcome.map(drop));
            }
        }
    }

    fn take_batch(&mut self) -> bool {
        self.batch = self.sender.queue.take_batch();
        self.is_over = self.batch.is_none();
        !self.is_over
    }
}

impl Drop for SenderTask {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let queue = &self.sender.queue;
        if let Some((shard, batch)) = self.batch.take() {
            // It may have been sent.
            queue.finish(shard, batch, Err(RedisFailure::Io));
        }
        queue.shards.lock().end_sender();
    }
}

#[cfg(test)]
mod tests;
