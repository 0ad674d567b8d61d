//! Charges requests whose records live on several shards of Redis.
//!
//! All shards are called at the same time, and each charges all of its records or none. If the
//! request is refused, or is cancelled before all shards have answered, the charges made are
//! refunded in the background. Until then the counters are too high, so no excess request is
//! admitted.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt as _},
};
use smallvec::SmallVec;
use tidegate_base::time::{StoreTime, Uptime};
use tidegate_charge::{Adjustment, Charge, Outcome, Verdict};
use tidegate_limit::Change;
use tidegate_redis::{CallError, LateReply, RedisBackend, RedisClient, RedisFailure, ShardId};

use super::{
    CounterStore, StoreError,
    corrections::{CorrectionReason, CorrectionSender},
    fallback,
    stats::WorkerCounts,
};

/// The shard of the items, if all are on the same one.
pub(super) fn common_shard<T>(items: &[T], shard_of: impl Fn(&T) -> ShardId) -> Option<ShardId> {
    let (first, rest) = items.split_first()?;
    let first = shard_of(first);
    rest.iter().all(|item| shard_of(item) == first).then_some(first)
}

/// The result of a call to one shard.
type CallResult = Result<Verdict, CallError>;

/// One item of a request, the shard of its record, and its outcome.
struct RoutedItem<T> {
    item: T,
    shard: ShardId,
    outcome: Outcome,
}

/// The items of a request that live on one shard.
struct ShardBatch<T> {
    shard: ShardId,
    items: SmallVec<[T; 4]>,
}

/// All items of a request, in its order.
struct RoutedItems<T>(SmallVec<[RoutedItem<T>; 4]>);

impl<T: Copy> RoutedItems<T> {
    fn new(items: &[T], shard_of: impl Fn(&T) -> ShardId) -> Self {
        let routed = |item: &T| RoutedItem {
            item: *item,
            shard: shard_of(item),
            outcome: Outcome::NotCharged,
        };
        Self(items.iter().map(routed).collect())
    }

    /// One batch per shard, in the order of the shards' first items.
    fn batches(&self) -> Vec<ShardBatch<T>> {
        let mut batches: Vec<ShardBatch<T>> = Vec::new();
        for RoutedItem { item, shard, .. } in &self.0 {
            if let Some(batch) = batches.iter_mut().find(|batch| batch.shard == *shard) {
                batch.items.push(*item);
            } else {
                let items = [*item].into_iter().collect();
                batches.push(ShardBatch { shard: *shard, items });
            }
        }
        batches
    }

    /// Sets the outcomes of the items on the shards that the filter `selects`, in the items' order.
    fn set_outcomes(
        &mut self,
        selects: impl Fn(ShardId) -> bool,
        outcomes: impl IntoIterator<Item = Outcome>,
    ) {
        let selected = self.0.iter_mut().filter(|routed| selects(routed.shard));
        for (routed, outcome) in selected.zip(outcomes) {
            routed.outcome = outcome;
        }
    }

    /// Keeps only the outcomes that refuse: the request is refused, and its charges are undone.
    fn retain_refusals(&mut self) {
        for routed in self.0.iter_mut().filter(|routed| routed.outcome.refused().is_none()) {
            routed.outcome = Outcome::NotCharged;
        }
    }

    fn outcomes(self) -> SmallVec<[Outcome; 2]> {
        self.0.into_iter().map(|routed| routed.outcome).collect()
    }
}

/// A worker's calls for a request whose records live on several shards.
pub(super) struct ShardFanout<'a> {
    pub(super) client: &'a Arc<RedisClient>,
    pub(super) counts: &'a Arc<CachePadded<WorkerCounts>>,
    pub(super) store: &'a CounterStore,
    pub(super) corrections: &'a CorrectionSender,
}

impl ShardFanout<'_> {
    /// Decides all charges, and charges all or none. Waits at most for one response timeout. If a
    /// shard gives no decision, the failure policies of its limits decide.
    pub(super) async fn charge(
        &self,
        charges: &[Charge<'_>],
        now: StoreTime,
        deadline: Option<Uptime>,
    ) -> Result<Verdict, StoreError> {
        let mut items = RoutedItems::new(charges, |charge| self.client.shard_of(charge.key));
        let mut calls = self.call_all(items.batches(), deadline).await;
        let fallback_verdict = self.decide_failed(&items, &calls, now);
        let admitted =
            calls.admit() && fallback_verdict.as_ref().is_ok_and(|verdict| verdict.admitted);
        calls.undo_late_charges();
        if !admitted {
            calls.undo();
        }
        for ShardCall { batch, result } in calls.calls.drain(..) {
            if let Some(Ok(verdict)) = result {
                items.set_outcomes(|shard| shard == batch.shard, verdict.outcomes);
            }
        }
        let failed = std::mem::take(&mut calls.failed_shards);
        items.set_outcomes(|shard| failed.contains(&shard), fallback_verdict?.outcomes);
        if !admitted {
            items.retain_refusals();
        }
        Ok(Verdict { admitted, outcomes: items.outcomes() })
    }

    /// Decides the charges whose shards gave no decision, by their limits' failure policies.
    fn decide_failed(
        &self,
        items: &RoutedItems<Charge<'_>>,
        calls: &ShardCalls<'_, '_>,
        now: StoreTime,
    ) -> Result<Verdict, StoreError> {
        let failed = items.0.iter().filter(|routed| calls.failed_shards.contains(&routed.shard));
        let failed: SmallVec<[Charge<'_>; 4]> = failed.map(|routed| routed.item).collect();
        if failed.is_empty() {
            return Ok(Verdict::empty());
        }
        if let Some(denied) = fallback::cached_denial(&failed, self.store) {
            return Ok(denied);
        }
        if !calls.admit() {
            return fallback::peek_refused(&failed, now, self.store, self.counts);
        }
        fallback::decide(&failed, now, self.store, self.counts)
    }

    /// Calls all shards, and waits for all of them. If the request is cancelled first, the charges
    /// that the shards have made are refunded.
    async fn call_all<'s, 'c>(
        &'s self,
        batches: Vec<ShardBatch<Charge<'c>>>,
        deadline: Option<Uptime>,
    ) -> ShardCalls<'s, 'c> {
        let calls = batches.into_iter().map(|batch| ShardCall { batch, result: None }).collect();
        let mut calls = ShardCalls { fanout: self, calls, failed_shards: SmallVec::new() };
        let pending = calls.calls.iter_mut().map(|ShardCall { batch, result }| async {
            *result = Some(self.client.charge(batch.shard, &batch.items, deadline).await);
        });
        let mut pending: FuturesUnordered<_> = pending.collect();
        while pending.next().await.is_some() {}
        drop(pending);
        calls.failures().for_each(|failure| self.counts.count_failure(failure));
        calls.find_failed();
        calls
    }

    /// Decides each charge independently, and charges nothing.
    pub(super) async fn peek(
        &self,
        charges: &[Charge<'_>],
        now: StoreTime,
    ) -> Result<Verdict, StoreError> {
        let mut items = RoutedItems::new(charges, |charge| self.client.shard_of(charge.key));
        let batches = items.batches();
        let results =
            join_all(batches.iter().map(|batch| self.client.peek(batch.shard, &batch.items))).await;
        let mut failed_shards: SmallVec<[ShardId; 4]> = SmallVec::new();
        for (batch, result) in batches.iter().zip(results) {
            match result {
                Ok(verdict) => items.set_outcomes(|shard| shard == batch.shard, verdict.outcomes),
                Err(failure) => {
                    self.counts.count_failure(failure);
                    failed_shards.push(batch.shard);
                }
            }
        }
        let failed = items.0.iter().filter(|routed| failed_shards.contains(&routed.shard));
        let failed: SmallVec<[Charge<'_>; 4]> = failed.map(|routed| routed.item).collect();
        let fallback_verdict = fallback::peek(&failed, now, self.store)?;
        items.set_outcomes(|shard| failed_shards.contains(&shard), fallback_verdict.outcomes);
        Ok(peek_verdict(charges, items))
    }

    /// Adjusts each charge on its shard; [`Outcome::Unknown`] where the shard gave no answer.
    /// Adjustments that were certainly not made are queued.
    pub(super) async fn adjust(&self, adjustments: &[Adjustment<'_>]) -> SmallVec<[Outcome; 2]> {
        let items =
            RoutedItems::new(adjustments, |adjustment| self.client.shard_of(adjustment.key));
        let batches = items.batches();
        let results =
            join_all(batches.iter().map(|batch| self.client.adjust(batch.shard, &batch.items)))
                .await;
        for (batch, result) in batches.iter().zip(&results) {
            if let Err(failure) = result {
                self.corrections.push_unsent(&batch.items, *failure);
            }
        }
        self.collect_adjusted(items, &batches, results)
    }

    /// Renews permits. Adjusts like [`Self::adjust`], but waits for a hung server, and queues
    /// nothing.
    pub(super) async fn renew_permits(
        &self,
        adjustments: &[Adjustment<'_>],
    ) -> SmallVec<[Outcome; 2]> {
        let items =
            RoutedItems::new(adjustments, |adjustment| self.client.shard_of(adjustment.key));
        let batches = items.batches();
        let calls = batches
            .iter()
            .map(|batch| self.client.adjust_awaiting_late_reply(batch.shard, &batch.items));
        let results = join_all(calls).await;
        self.collect_adjusted(items, &batches, results)
    }

    fn collect_adjusted(
        &self,
        mut items: RoutedItems<Adjustment<'_>>,
        batches: &[ShardBatch<Adjustment<'_>>],
        results: Vec<Result<Verdict, RedisFailure>>,
    ) -> SmallVec<[Outcome; 2]> {
        for (batch, result) in batches.iter().zip(results) {
            match result {
                Ok(verdict) => items.set_outcomes(|shard| shard == batch.shard, verdict.outcomes),
                Err(failure) => {
                    self.counts.count_failure(failure);
                    let unknown = batch.items.iter().map(|_| Outcome::Unknown);
                    items.set_outcomes(|shard| shard == batch.shard, unknown);
                }
            }
        }
        items.outcomes()
    }

    /// Queues refunds of the charges that a shard has made.
    fn undo(&self, batch: &ShardBatch<Charge<'_>>, verdict: &Verdict) {
        if !verdict.admitted {
            return;
        }
        let charged = batch.items.iter().zip(&verdict.outcomes);
        let refunds = charged.filter_map(|(charge, outcome)| {
            let charged_at = outcome.admitted()?.charged_at();
            let change = Change::Refund { charged_at, cost: charge.cost };
            Some((Arc::clone(charge.limit), charge.key, change))
        });
        self.corrections.push(refunds, CorrectionReason::Request);
    }
}

/// The call to one shard; `result` is `None` until it ends.
struct ShardCall<'c> {
    batch: ShardBatch<Charge<'c>>,
    result: Option<CallResult>,
}

/// The calls to all shards of a request. If it is dropped with results in it, it refunds what was
/// charged.
struct ShardCalls<'s, 'c> {
    fanout: &'s ShardFanout<'s>,
    calls: Vec<ShardCall<'c>>,
    /// The shards that gave no decision.
    failed_shards: SmallVec<[ShardId; 4]>,
}

impl ShardCalls<'_, '_> {
    /// True if all shards that gave a decision admit the request.
    fn admit(&self) -> bool {
        let mut decided = self.calls.iter().filter_map(|call| call.result.as_ref()?.as_ref().ok());
        decided.all(|verdict| verdict.admitted)
    }

    fn failures(&self) -> impl Iterator<Item = RedisFailure> {
        self.calls.iter().filter_map(|call| Some(call.result.as_ref()?.as_ref().err()?.failure))
    }

    fn find_failed(&mut self) {
        let failed = self.calls.iter().filter(|call| matches!(call.result, Some(Err(_))));
        self.failed_shards = failed.map(|call| call.batch.shard).collect();
    }

    /// Undoes, in the background, charges of calls whose replies may still arrive: the request was
    /// decided without them.
    fn undo_late_charges(&mut self) {
        for ShardCall { batch, result } in &mut self.calls {
            let late: Option<LateReply> = match result {
                Some(Err(error)) => error.late.take(),
                _ => None,
            };
            if let Some(late) = late {
                self.fanout.corrections.undo_late_charge(late, &batch.items);
            }
        }
    }

    /// Refunds what the shards have charged.
    fn undo(&self) {
        for ShardCall { batch, result } in &self.calls {
            if let Some(Ok(verdict)) = result {
                self.fanout.undo(batch, verdict);
            }
        }
    }
}

impl Drop for ShardCalls<'_, '_> {
    fn drop(&mut self) {
        self.undo();
    }
}

/// The verdict on charges that were decided independently.
fn peek_verdict(charges: &[Charge<'_>], items: RoutedItems<Charge<'_>>) -> Verdict {
    let outcomes = items.outcomes();
    let mut decided = charges.iter().zip(&outcomes);
    let admitted =
        !decided.any(|(charge, outcome)| charge.limit.enforce && outcome.refused().is_some());
    Verdict { admitted, outcomes }
}

/// Decides each charge independently, over a new connection, and charges nothing: for the operator.
pub(super) async fn peek_each(
    backend: &RedisBackend,
    charges: &[Charge<'_>],
) -> Result<Verdict, RedisFailure> {
    let mut items = RoutedItems::new(charges, |charge| backend.shard_of(charge.key));
    let batches = items.batches();
    let results =
        join_all(batches.iter().map(|batch| backend.peek(batch.shard, &batch.items))).await;
    for (batch, result) in batches.iter().zip(results) {
        items.set_outcomes(|shard| shard == batch.shard, result?.outcomes);
    }
    Ok(peek_verdict(charges, items))
}
