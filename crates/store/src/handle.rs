//! A worker's handle to the counters: decides requests, and adjusts their charges.

use std::{sync::Arc, time::Duration};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use tidegate_base::time::{StoreTime, Uptime};
use tidegate_charge::{
    Adjustment, Charge, DecisionSource, OnFailure, Outcome, StoreDecision, Verdict,
};
use tidegate_redis::{CallError, RedisClient};
use tokio_util::task::AbortOnDropHandle;

use super::{
    CounterStore, StoreError, blocks,
    corrections::{Correction, CorrectionReason, CorrectionSender},
    fallback,
    local_admission::{LocalAdmission, QueueOutcome, can_lease},
    maintenance::Maintenance,
    remaining,
    shard_fanout::{self, ShardFanout},
    stats::WorkerCounts,
};

/// A worker's handle to the counters. Its connections to Redis live on the runtime that made it.
pub struct StoreHandle {
    pub(super) store: Arc<CounterStore>,
    pub(super) counts: Arc<CachePadded<WorkerCounts>>,
    redis: Option<RedisPath>,
}

/// A worker's access to counters in Redis.
struct RedisPath {
    client: Arc<RedisClient>,
    local: LocalAdmission,
    corrections: CorrectionSender,
    _maintenance: AbortOnDropHandle<()>,
}

impl StoreHandle {
    pub(super) fn new(store: &Arc<CounterStore>, counts: Arc<CachePadded<WorkerCounts>>) -> Self {
        let redis = store.redis.as_ref().map(|backend| {
            let client = Arc::new(RedisClient::new(Arc::clone(backend)));
            let corrections = CorrectionSender::new(
                Arc::clone(&store.corrections),
                Arc::clone(&client),
                Arc::clone(&counts),
            );
            let maintenance = Maintenance::new(store, &client, &corrections);
            let counts = Arc::clone(&counts);
            RedisPath {
                local: LocalAdmission::new(store, &client, corrections.clone(), counts),
                client,
                corrections,
                _maintenance: AbortOnDropHandle::new(tokio::spawn(maintenance.run())),
            }
        });
        Self { store: Arc::clone(store), counts, redis }
    }

    /// Decides all charges of a request, and charges all or none. `now` is the gateway's time;
    /// Redis reads its own clock. Without Redis it never waits.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if Redis gave no answer and a limit's failure policy is
    /// `closed`.
    pub async fn charge(
        &self,
        charges: &[Charge<'_>],
        now: StoreTime,
    ) -> Result<Verdict, StoreError> {
        let verdict = if blocks::has_block(charges) {
            // Boxed, so that requests without a block do not hold its state.
            Box::pin(self.charge_with_blocks(charges, now)).await?
        } else {
            self.charge_each(charges, now).await?
        };
        self.counts.count_verdict(&verdict);
        Ok(verdict)
    }

    /// As [`Self::charge`], without a future, if nothing is waited for: the counters are in this
    /// process, and no limit has a block.
    #[inline]
    pub fn charge_at_once(&self, charges: &[Charge<'_>], now: StoreTime) -> Option<Verdict> {
        if self.redis.is_some() || blocks::has_block(charges) {
            return None;
        }
        self.counts.count_request();
        let verdict = self.store.memory.charge(charges, now);
        self.counts.count_verdict(&verdict);
        Some(verdict)
    }

    /// Like [`Self::charge`], without the blocks of the limits.
    pub(super) async fn charge_each(
        &self,
        charges: &[Charge<'_>],
        now: StoreTime,
    ) -> Result<Verdict, StoreError> {
        self.counts.count_request();
        let Some(path) = self.redis.as_ref().filter(|_| !charges.is_empty()) else {
            return Ok(self.store.memory.charge(charges, now));
        };
        let [charge] = charges else {
            // Boxed, so that requests with one limit do not hold its state.
            return Box::pin(self.charge_multiple(&path.local, charges, now)).await;
        };
        if let Some(taken) = path.local.take(charge) {
            path.local.count_taken();
            return Ok(single_verdict(charge, taken));
        }
        if let Some(denied) = path.local.cached_denial(charge) {
            return Ok(single_verdict(charge, denied));
        }
        if can_lease(charge)
            && let Some(ticket) = path.local.queue(charge)
        {
            let deadline = path.local.deadline();
            match Box::pin(ticket.outcome(&charge.limit.quota)).await {
                QueueOutcome::Decided(decision) => return Ok(single_verdict(charge, decision)),
                QueueOutcome::CallStore => {
                    return Box::pin(self.charge_in_redis(charges, now, Some(deadline))).await;
                }
                QueueOutcome::Failed(failure) => {
                    self.counts.count_failure(failure);
                    return self.fall_back(charges, now);
                }
            }
        }
        self.charge_in_redis(charges, now, None).await
    }

    /// Charges in Redis, and caches denials. A request that has already waited in a queue passes
    /// the `deadline` of that wait (by `Clock::uptime`), so that it does not wait for a second
    /// response timeout.
    pub(super) async fn charge_in_redis(
        &self,
        charges: &[Charge<'_>],
        now: StoreTime,
        deadline: Option<Uptime>,
    ) -> Result<Verdict, StoreError> {
        let Some(path @ RedisPath { local, .. }) = &self.redis else {
            return Ok(self.store.memory.charge(charges, now));
        };
        let retry_deadline = deadline.unwrap_or_else(|| local.deadline());
        let sent = local.monotonic();
        let Some(mut verdict) = self.call_redis(path, charges, now, deadline).await? else {
            return self.fall_back(charges, now);
        };
        if !verdict.admitted
            && Box::pin(self.return_own_units(path, charges, &verdict, retry_deadline)).await
        {
            let retried = self.call_redis(path, charges, now, Some(retry_deadline)).await?;
            let Some(retried) = retried else { return self.fall_back(charges, now) };
            verdict = retried;
        }
        if !verdict.admitted {
            remaining::add_to_refusals(&self.store, charges, &mut verdict);
        }
        local.cache_denials(charges, &verdict, sent);
        Ok(verdict)
    }

    /// Charges by one call to each shard. `None` if the only shard gives no answer.
    async fn call_redis(
        &self,
        path: &RedisPath,
        charges: &[Charge<'_>],
        now: StoreTime,
        deadline: Option<Uptime>,
    ) -> Result<Option<Verdict>, StoreError> {
        self.counts.count_call();
        let client = &path.client;
        match shard_fanout::common_shard(charges, |charge| client.shard_of(charge.key)) {
            None => Box::pin(self.fan_out(path).charge(charges, now, deadline)).await.map(Some),
            Some(shard) => match client.charge(shard, charges, deadline).await {
                Ok(verdict) => Ok(Some(verdict)),
                Err(CallError { failure, late }) => {
                    self.counts.count_failure(failure);
                    if let Some(late) = late {
                        path.corrections.undo_late_charge(late, charges);
                    }
                    Ok(None)
                }
            },
        }
    }

    /// Returns to Redis the units that this gateway holds, under any quota, of the records that
    /// refuse. True if it held some and they are returned before the `deadline`: Redis may now
    /// admit the request.
    async fn return_own_units(
        &self,
        path: &RedisPath,
        charges: &[Charge<'_>],
        verdict: &Verdict,
        deadline: Uptime,
    ) -> bool {
        let mut unspent = Vec::new();
        for (charge, outcome) in charges.iter().zip(&verdict.outcomes) {
            let is_live = || path.client.is_live(path.client.shard_of(charge.key));
            if outcome.refused().is_some() && is_live() {
                self.store.leases.drain_record(charge.limit, charge.key, &mut unspent);
            }
        }
        let returns: SmallVec<[Adjustment<'_>; 2]> = unspent
            .iter()
            .map(|unspent| Adjustment {
                limit: &unspent.limit,
                key: unspent.key,
                change: unspent.to_return.into(),
            })
            .collect();
        if returns.is_empty() {
            return false;
        }
        let fan_out = self.fan_out(path);
        let adjusted = self.store.clock.timeout_at(deadline, fan_out.adjust(&returns)).await;
        let are_returned = |outcomes: SmallVec<[Outcome; 2]>| {
            outcomes.iter().all(|outcome| outcome.decided().is_some())
        };
        adjusted.is_ok_and(are_returned) && !path.local.has_timed_out(deadline)
    }

    /// Decides without Redis: by the deny cache, or by each limit's failure policy. Charges made
    /// here are not repeated in Redis later.
    pub(super) fn fall_back(
        &self,
        charges: &[Charge<'_>],
        now: StoreTime,
    ) -> Result<Verdict, StoreError> {
        if let Some(denied) = fallback::cached_denial(charges, &self.store) {
            return Ok(denied);
        }
        fallback::decide(charges, now, &self.store, &self.counts)
    }

    /// The calls for charges whose records live on several shards.
    fn fan_out<'a>(
        &'a self,
        RedisPath { client, corrections, .. }: &'a RedisPath,
    ) -> ShardFanout<'a> {
        ShardFanout { client, counts: &self.counts, store: &self.store, corrections }
    }

    /// Adjusts charges where they were made: in memory at once, and in Redis through a queue that
    /// keeps the order of these calls over all workers. Never waits. `now` is the gateway's time.
    pub fn adjust_in_background(
        &self,
        corrections: impl IntoIterator<Item = Correction>,
        now: StoreTime,
    ) {
        for Correction { limit, key, change, source } in corrections {
            let adjustment = Adjustment { limit: &limit, key, change };
            match (&self.redis, source) {
                (Some(path), DecisionSource::Store) => {
                    if path.local.absorb_refund(&adjustment).is_none() {
                        path.corrections.push([(limit, key, change)], CorrectionReason::Request);
                    }
                }
                _ => drop(self.adjust_in_memory(&adjustment, source, now)),
            }
        }
    }

    /// Adjusts the charges of a request. Returns the decision after each adjustment, or
    /// [`Outcome::Unknown`] if it was not made. `source` is the source of the charges' decisions: a
    /// charge is adjusted where it was made. Returns within the store's response timeout. An
    /// adjustment that was certainly not made is queued; one whose outcome is unknown is never
    /// repeated.
    pub async fn adjust(
        &self,
        adjustments: &[Adjustment<'_>],
        source: DecisionSource,
        now: StoreTime,
    ) -> SmallVec<[Outcome; 2]> {
        match (&self.redis, source) {
            (Some(path), DecisionSource::Store) => self.adjust_in_redis(path, adjustments).await,
            _ => adjustments.iter().map(|each| self.adjust_in_memory(each, source, now)).collect(),
        }
    }

    /// Renews leases of concurrency limits: each renewal is a charge, then the refund of the
    /// previous charge. Unlike [`Self::adjust`], it waits for a hung server, so that the outcome of
    /// each renewal is known, and queues nothing: leases are renewed again when Redis is back.
    pub async fn renew_permits(
        &self,
        adjustments: &[Adjustment<'_>],
        source: DecisionSource,
        now: StoreTime,
    ) -> SmallVec<[Outcome; 2]> {
        match (&self.redis, source) {
            (Some(path), DecisionSource::Store) => {
                self.fan_out(path).renew_permits(adjustments).await
            }
            _ => adjustments.iter().map(|each| self.adjust_in_memory(each, source, now)).collect(),
        }
    }

    /// Adjusts a charge in this process, where it was made. With Redis, only limits with the
    /// failure policy `local` have charges here.
    pub(super) fn adjust_in_memory(
        &self,
        adjustment: &Adjustment<'_>,
        source: DecisionSource,
        now: StoreTime,
    ) -> Outcome {
        let mut gateways = 1;
        if self.redis.is_some() {
            if adjustment.limit.on_failure != OnFailure::Local {
                return Outcome::Unknown;
            }
            gateways = self.store.presence.gateways();
        }
        let decision = self.store.memory.adjust(adjustment, now, gateways);
        Outcome::Decided(StoreDecision::new(decision, now, source))
    }

    /// True if a decision of this source was made by Redis.
    pub(super) fn is_in_redis(&self, source: DecisionSource) -> bool {
        self.redis.is_some() && source == DecisionSource::Store
    }

    /// Makes one adjustment in Redis, as [`Self::adjust`], but keeps the cached denials of its
    /// record.
    pub(super) async fn adjust_now(&self, adjustment: &Adjustment<'_>) -> Outcome {
        let Some(path) = &self.redis else { return Outcome::Unknown };
        let adjusted = Box::pin(self.fan_out(path).adjust(&[*adjustment])).await;
        adjusted.first().copied().unwrap_or(Outcome::Unknown)
    }

    async fn adjust_in_redis(
        &self,
        path: &RedisPath,
        adjustments: &[Adjustment<'_>],
    ) -> SmallVec<[Outcome; 2]> {
        // Leases absorb refunds of their units; the rest go to Redis.
        let absorb = |adjustment: &Adjustment<'_>| {
            path.local.absorb_refund(adjustment).map(Outcome::Decided)
        };
        let absorbed: SmallVec<[Option<Outcome>; 4]> = adjustments.iter().map(absorb).collect();
        let rest = adjustments.iter().zip(&absorbed).filter(|(_, outcome)| outcome.is_none());
        let rest: SmallVec<[Adjustment<'_>; 4]> = rest.map(|(adjustment, _)| *adjustment).collect();
        let mut adjusted = Box::pin(self.fan_out(path).adjust(&rest)).await.into_iter();
        // The adjustment may have moved the retry time of a denial that was cached before it.
        for Adjustment { limit, key, .. } in &rest {
            path.local.invalidate(limit, *key);
        }
        let outcome =
            |absorbed: Option<Outcome>| absorbed.or_else(|| adjusted.next()).unwrap_or_default();
        absorbed.into_iter().map(outcome).collect()
    }

    /// Decides each charge independently, and charges nothing. An expired record counts as empty,
    /// and leased units count as remaining. If Redis gives no answer, cached denials and the
    /// limits' failure policies decide.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`], as [`Self::charge`].
    pub async fn peek(
        &self,
        charges: &[Charge<'_>],
        now: StoreTime,
    ) -> Result<Verdict, StoreError> {
        if blocks::has_block(charges) {
            let verdict = Box::pin(self.peek_each(&blocks::expand(charges), now)).await?;
            return Ok(blocks::fold_peek(charges, &verdict));
        }
        self.peek_each(charges, now).await
    }

    /// Like [`Self::peek`], without the blocks of the limits.
    async fn peek_each(
        &self,
        charges: &[Charge<'_>],
        now: StoreTime,
    ) -> Result<Verdict, StoreError> {
        let Some(path) = self.redis.as_ref().filter(|_| !charges.is_empty()) else {
            return Ok(self.store.memory.peek(charges, now));
        };
        let client = &path.client;
        let mut verdict =
            match shard_fanout::common_shard(charges, |charge| client.shard_of(charge.key)) {
                None => Box::pin(self.fan_out(path).peek(charges, now)).await?,
                Some(shard) => match client.peek(shard, charges).await {
                    Ok(verdict) => verdict,
                    Err(failure) => {
                        self.counts.count_failure(failure);
                        return fallback::peek(charges, now, &self.store);
                    }
                },
            };
        remaining::add_to_peeked(&self.store, charges, &mut verdict);
        Ok(verdict)
    }

    /// Returns all leased units to Redis and sends the queued corrections. Nothing may be charged
    /// through the store afterwards. Takes at most `timeout`, or the maximum duration of a call if
    /// that is shorter. Units that are not returned by then count as spent until their window has
    /// passed.
    pub async fn shut_down(&self, timeout: Duration) {
        if let (Some(path), Some(backend)) = (&self.redis, &self.store.redis) {
            let maintenance = Maintenance::new(&self.store, &path.client, &path.corrections);
            maintenance.finish(backend.max_call_duration().min(timeout)).await;
        }
    }
}

fn single_verdict(charge: &Charge<'_>, decided: StoreDecision) -> Verdict {
    let mut verdict = Verdict::empty();
    verdict.push(decided, charge.limit.enforce);
    verdict
}
