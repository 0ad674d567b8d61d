//! The queue of corrections that no request waits for: slots and leases of requests that are over, tokens
//! that were not spent, charges of requests that were given up, and what was admitted during an outage.
//!
//! Each place has one line and at most one call in flight, so corrections reach Redis in the order in
//! which the workers of this process pushed them. [`CorrectionSender::push`] never waits: a task of the
//! worker's runtime sends. What certainly was not sent stays, in order, until the place can be reached
//! again; what Redis refused is sent once more. The reply of a server that hangs is awaited
//! ([`Worker::settle_patiently`]); what may have been executed all the same is dropped and counted.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{runtime::Handle, time::timeout};

mod lines;

pub(super) use self::lines::Source;
use self::lines::{Lines, Pending, Pushed};
use super::{
    deny_cache::DenyCache,
    merged::MergedSums,
    record_id::record,
    redis::{Failure, LATE, LateReply, Place, Worker},
    stats::WorkerCounts,
};
use crate::{
    clock::Clock,
    limit::{
        Algorithm, Change, Charge, Decider, Fetch, Key, Limit, Order, Outcome, Settlement, Verdict,
    },
};

/// A correction of a charge, with what it needs to outlive its request.
#[derive(Clone, Debug)]
pub struct Correction {
    /// The limit that was charged.
    pub limit: Arc<Limit>,
    /// Who was counted.
    pub key: Key,
    /// What to correct.
    pub change: Change,
    /// Where the charge was made.
    pub by: Decider,
}

/// What the queue has done and holds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct QueueStats {
    /// Sums of an outage that have been charged.
    pub(super) merged: u64,
    /// Corrections, but those of tokens, that Redis will never hear of, or of which that is unknown.
    pub(super) dropped: u64,
    /// Tokens of which the same is true.
    pub(super) lost_tokens: u64,
    /// Sums of an outage that wait, or are on their path.
    pub(super) unmerged: usize,
}

/// The corrections of the process.
pub(super) struct CorrectionQueue {
    lines: Mutex<Lines<Place>>,
    deny_cache: Arc<DenyCache>,
    clock: Clock,
    /// The sums of an outage that can still be given back.
    sums: MergedSums,
    merged: AtomicU64,
    dropped: AtomicU64,
    lost_tokens: AtomicU64,
    unmerged: AtomicUsize,
}

impl CorrectionQueue {
    pub(super) fn new(deny_cache: Arc<DenyCache>, clock: Clock) -> Self {
        Self {
            lines: Mutex::default(),
            deny_cache,
            clock,
            sums: MergedSums::default(),
            merged: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            lost_tokens: AtomicU64::new(0),
            unmerged: AtomicUsize::new(0),
        }
    }

    pub(super) fn stats(&self) -> QueueStats {
        QueueStats {
            merged: self.merged.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            lost_tokens: self.lost_tokens.load(Relaxed),
            unmerged: self.unmerged.load(Relaxed),
        }
    }

    /// Drops the corrections of a record that the operator has deleted.
    pub(super) fn forget(&self, place: Place, limit: &Limit, key: Key) {
        let record = record(limit, key);
        self.sums.forget(record);
        let gone = self.lines.lock().forget(place, record);
        for pending in &gone {
            self.left(pending);
        }
    }

    /// Drops what counts no more of sums that can be given back.
    pub(super) fn expire(&self) {
        self.sums.expire(self.clock.ticks());
    }

    /// Whether corrections are on their path, or could be.
    pub(super) fn is_busy(&self) -> bool {
        self.lines.lock().is_busy()
    }

    fn push(&self, place: Place, pending: Pending) {
        let outage = usize::from(pending.source == Source::Outage);
        // Counted before it can be made.
        self.unmerged.fetch_add(outage, Relaxed);
        let pushed = self.lines.lock().push(place, pending);
        match pushed {
            Pushed::Queued => {}
            Pushed::Merged => drop(self.unmerged.fetch_sub(outage, Relaxed)),
            Pushed::Replaced(oldest) => self.lose(&oldest),
        }
    }

    /// Counts one that Redis has made, by this decision.
    fn made(&self, pending: &Pending, outcome: &Outcome) {
        if pending.source == Source::Outage {
            self.merged.fetch_add(1, Relaxed);
            if let Some(decided) = outcome.decided() {
                let until = self.clock.ticks().saturating_add(pending.limit.reach());
                let (charged_at, cost) = (decided.charged_at(), pending.change.cost());
                self.sums.insert(pending.record(), charged_at, cost, until);
            }
        }
        self.left(pending);
    }

    /// Counts one that is dropped though it mattered.
    fn lose(&self, pending: &Pending) {
        match pending.source {
            Source::Tokens => {
                self.lost_tokens.fetch_add(pending.change.cost().into(), Relaxed);
            }
            Source::Request | Source::Outage => {
                self.dropped.fetch_add(1, Relaxed);
            }
        }
        self.left(pending);
    }

    fn left(&self, pending: &Pending) {
        self.unmerged.fetch_sub(usize::from(pending.source == Source::Outage), Relaxed);
    }

    /// Takes the next batch for a sender; without one, the sender is over.
    fn take(&self) -> Option<(Place, Vec<Pending>)> {
        let mut past = Vec::new();
        let batch = self.lines.lock().take(self.clock.ticks(), &mut past);
        for pending in &past {
            self.left(pending);
        }
        batch
    }

    /// A batch has this outcome.
    fn finish(&self, place: Place, batch: Vec<Pending>, outcome: Result<Verdict, Failure>) {
        if !matches!(outcome, Err(Failure::Open)) {
            // What was refused before was perhaps refused because of what is corrected now.
            let ticks = self.clock.ticks();
            for pending in &batch {
                self.deny_cache.invalidate(pending.record(), ticks);
            }
        }
        let again = match outcome {
            Ok(verdict) => {
                for (pending, outcome) in batch.iter().zip(&verdict.outcomes) {
                    self.made(pending, outcome);
                }
                return self.lines.lock().go_on(place);
            }
            Err(Failure::Open) => batch,
            Err(Failure::Server) => {
                let (lost, mut again): (Vec<_>, Vec<_>) =
                    batch.into_iter().partition(|pending| pending.refused);
                for pending in &lost {
                    self.lose(pending);
                }
                for pending in &mut again {
                    pending.refused = true;
                }
                again
            }
            Err(Failure::Timeout | Failure::Io | Failure::Reply) => {
                for pending in &batch {
                    self.lose(pending);
                }
                Vec::new()
            }
        };
        self.lines.lock().park(place, again);
    }
}

/// One worker's access to the queue.
#[derive(Clone)]
pub(super) struct CorrectionSender {
    queue: Arc<CorrectionQueue>,
    worker: Arc<Worker>,
    counts: Arc<CachePadded<WorkerCounts>>,
}

impl CorrectionSender {
    pub(super) fn new(
        queue: Arc<CorrectionQueue>,
        worker: Arc<Worker>,
        counts: Arc<CachePadded<WorkerCounts>>,
    ) -> Self {
        Self { queue, worker, counts }
    }

    /// Queues corrections of records in Redis. Never waits.
    pub(super) fn push(
        &self,
        corrections: impl IntoIterator<Item = (Arc<Limit>, Key, Change)>,
        source: Source,
    ) {
        let pushed = self.queue.clock.ticks();
        for (limit, key, change) in corrections {
            if change.cost() > 0 {
                let pending = Pending { limit, key, change, source, pushed, refused: false };
                self.queue.push(self.worker.place(key), pending);
            }
        }
        self.start();
    }

    /// Queues corrections that a request waited for and that `failure` says were certainly not made.
    pub(super) fn push_unsent(&self, settlements: &[Settlement<'_>], failure: Failure) {
        if matches!(failure, Failure::Open | Failure::Server) {
            let owned = |settlement: &Settlement<'_>| {
                (Arc::new(settlement.limit.clone()), settlement.key, settlement.change)
            };
            self.push(settlements.iter().map(owned), Source::Request);
        }
    }

    /// Refunds in Redis a request that was decided here, where its sum has been charged there meanwhile.
    pub(super) fn refund_merged(&self, limit: &Limit, key: Key, cost: u32) {
        if let Some(change) = self.queue.sums.refund(record(limit, key), cost) {
            self.push([(Arc::new(limit.clone()), key, change)], Source::Request);
        }
    }

    /// Sends again to places that this worker reaches again. To be called every 100 ms or so.
    pub(super) fn resume(&self) {
        self.queue.lines.lock().resume(|place| self.worker.is_live(place));
        self.start();
    }

    /// Starts as many senders as are of use.
    fn start(&self) {
        while self.queue.lines.lock().begin() {
            let sender = Sender { access: self.clone(), batch: None, is_over: false };
            // Without a runtime, or with one that ends, the next tick of another worker sends.
            let Ok(runtime) = Handle::try_current() else { return };
            runtime.spawn(sender.run());
        }
    }

    /// Waits for the reply of a call that was given up, and takes back what it charged: the slots and
    /// leases, which nothing holds; and where the request has not `passed`, everything. Of a request that
    /// passed, the other charges stand for it, for they were not added to the outage ledger.
    pub(super) fn undo_late(&self, reply: LateReply, charges: &[Charge<'_>], passed: bool) {
        let owned = |charge: &Charge<'_>| (Arc::new(charge.limit.clone()), charge.key, charge.cost);
        let charges: Vec<_> = charges.iter().map(owned).collect();
        let holds = |limit: &Limit| {
            matches!(limit.algorithm, Algorithm::LeakyBucket | Algorithm::Concurrency)
        };
        let is_undone = move |limit: &Limit| !passed || holds(limit);
        if !charges.iter().any(|(limit, ..)| is_undone(limit)) {
            return;
        }
        let access = self.clone();
        let undo = async move {
            let limits = charges.iter().map(|(limit, ..)| &**limit);
            let Ok(Some(verdict)) = timeout(LATE, reply.verdict(limits)).await else { return };
            if !verdict.admitted {
                return;
            }
            let made = charges.into_iter().zip(&verdict.outcomes);
            let undone = made.filter(|((limit, ..), _)| is_undone(limit));
            let refunds = undone.filter_map(|((limit, key, cost), outcome)| {
                let charged_at = outcome.admitted()?.charged_at();
                Some((limit, key, Change::Refund { charged_at, cost }))
            });
            access.push(refunds, Source::Request);
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(undo);
        }
    }

    /// Waits for the reply of a fetch of tokens that was given up, and gives back what it was granted.
    pub(super) fn return_late(&self, reply: LateReply, limit: Arc<Limit>, key: Key, order: Order) {
        let access = self.clone();
        let undo = async move {
            let fetch = Fetch { limit: &limit, key, order };
            let Ok(Some((grant, now))) = timeout(LATE, reply.granted(&fetch)).await else { return };
            let change = Change::Refund { charged_at: now, cost: grant.tokens };
            access.push([(limit, key, change)], Source::Request);
        };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(undo);
        }
    }
}

/// A task that sends, place after place, until nothing waits that can be sent. Dropped with its runtime,
/// it leaves the rest to the others.
struct Sender {
    access: CorrectionSender,
    batch: Option<(Place, Vec<Pending>)>,
    is_over: bool,
}

impl Sender {
    async fn run(mut self) {
        while self.next() {
            let Some((place, batch)) = &self.batch else { return };
            let settlements: SmallVec<[Settlement<'_>; 8]> = batch
                .iter()
                .map(|Pending { limit, key, change, .. }| Settlement {
                    limit,
                    key: *key,
                    change: *change,
                })
                .collect();
            let outcome = self.access.worker.settle_patiently(*place, &settlements).await;
            drop(settlements);
            if let Err(failure) = &outcome
                && *failure != Failure::Open
            {
                self.access.counts.failed(*failure);
                tracing::debug!(failure = failure.label(), "corrections were not made in Redis");
            }
            if let Some((place, batch)) = self.batch.take() {
                self.access.queue.finish(place, batch, outcome);
            }
        }
    }

    fn next(&mut self) -> bool {
        self.batch = self.access.queue.take();
        self.is_over = self.batch.is_none();
        !self.is_over
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let queue = &self.access.queue;
        if let Some((place, batch)) = self.batch.take() {
            // It may have been sent.
            queue.finish(place, batch, Err(Failure::Io));
        }
        queue.lines.lock().end();
    }
}

#[cfg(test)]
mod tests;
