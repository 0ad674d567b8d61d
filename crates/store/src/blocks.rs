//! Blocks: charges a limit together with its block, and counts the limit's refusals for it.
//!
//! A limit with a block ([`tidegate_charge::Limit::block`]) is charged as two limits under one key,
//! in one call: itself and the block, which refuses while it is in force and counts nothing.
//! [`expand`] adds the blocks to the charges of a request, [`Folded`] joins each pair of outcomes
//! to one.
//!
//! A refusal by the limit itself is counted in the block's record. In memory that is done at once.
//! In Redis it would be a call for each refusal, although most refusals need none, because the deny
//! cache makes them. So [`RefusalCounts`] sums them up in this process and sends the sum with the
//! other corrections, about ten times a second. The refusal that begins the block by the count of
//! this gateway alone is sent at once, and its response already names the end of the block.
//!
//! | file | content |
//! |---|---|
//! | `refusals` | refusals that are not in Redis yet |
//! | `known` | the blocks that this process knows, for the operator |

mod known;
mod refusals;

use std::sync::Arc;

use smallvec::SmallVec;

pub use self::known::KnownBlock;
use tidegate_base::time::{Millis, MonotonicTime, StoreTime};
use tidegate_charge::{
    Adjustment, BlockEffect, Charge, DecisionSource, Key, Limit, Outcome, StoreDecision, Verdict,
};
use tidegate_limit::{Change, Decision};

use self::{known::KnownBlocks, refusals::RefusalCounts};
use super::{
    StoreError, StoreHandle,
    deny_cache::{DenyCache, ReplyTiming},
    memory::MemoryStore,
    record_id::record_id,
};

/// The charges of a request and of its limits' blocks.
pub(super) type ExpandedCharges<'c> = SmallVec<[Charge<'c>; 6]>;

/// True if a limit of the request has a block.
#[inline]
pub(super) fn has_block(charges: &[Charge<'_>]) -> bool {
    charges.iter().any(|charge| charge.limit.block.is_some())
}

/// The charges, each followed by that of its limit's block.
pub(super) fn expand<'c>(charges: &[Charge<'c>]) -> ExpandedCharges<'c> {
    let both = charges.iter().flat_map(|charge| [Some(*charge), block_charge(charge)]);
    both.flatten().collect()
}

/// The charge of the block of the limit that is charged, if it has one.
fn block_charge<'c>(charge: &Charge<'c>) -> Option<Charge<'c>> {
    let limit = charge.limit.block.as_ref()?;
    Some(Charge { limit, key: charge.key, cost: 1 })
}

/// The outcomes of a limit and of its block.
#[derive(Clone, Copy)]
struct Folded<'c> {
    charge: Charge<'c>,
    own: Outcome,
    block: Option<(Charge<'c>, Outcome)>,
}

/// Joins the outcomes of [`expand`]ed charges with the charges of the request.
fn fold<'c>(charges: &[Charge<'c>], verdict: &Verdict) -> SmallVec<[Folded<'c>; 2]> {
    let mut outcomes = verdict.outcomes.iter().copied();
    let mut next = || outcomes.next().unwrap_or_default();
    let pair = |charge: &Charge<'c>| {
        let own = next();
        Folded { charge: *charge, own, block: block_charge(charge).map(|block| (block, next())) }
    };
    charges.iter().map(pair).collect()
}

impl Folded<'_> {
    /// The decision of the block, if it refuses.
    fn refused_by_block(&self) -> Option<StoreDecision> {
        self.block.as_ref()?.1.refused().copied()
    }

    /// The outcome if the block has decided `blocked`: the request is refused until the block's
    /// end, or until the limit itself would admit it if that is later.
    fn blocked(&self, blocked: &StoreDecision, effect: fn(StoreTime) -> BlockEffect) -> Outcome {
        let limit = self.charge.limit.quota.capacity();
        let end = blocked.decision.reset_at;
        let own = self.own.decided().map(|decided| decided.decision);
        // A permit may be free at any time: then the block alone decides.
        let is_own_retry_known = !self.charge.limit.algorithm().holds_permit();
        let own_refusal = self.own.refused().filter(|_| is_own_retry_known);
        let own_refusal = own_refusal.map(|decided| decided.decision.retry_at);
        let decision = Decision {
            admitted: false,
            limit,
            remaining: 0,
            used: own.map_or(limit, |own| own.used),
            reset_at: own.map_or(end, |own| own.reset_at.max(end)),
            retry_at: own_refusal.map_or(Some(end), |retry_at| retry_at.map(|at| at.max(end))),
            wait: Millis::ZERO,
        };
        let StoreDecision { at, source, .. } = *blocked;
        Outcome::Decided(StoreDecision { decision, at, source, block: effect(end) })
    }

    /// The outcome of a peek.
    fn peeked(&self) -> Outcome {
        match self.refused_by_block() {
            Some(refused) => self.blocked(&refused, refused_until),
            None => self.own,
        }
    }

    /// The outcome after the limit's refusal was counted in the block's record: `counted` is the
    /// record after it, with `refusals` more than before.
    fn counted(&self, counted: &StoreDecision, refusals: u64) -> Outcome {
        if counted.decision.remaining > 0 {
            return self.own;
        }
        let effect: fn(StoreTime) -> BlockEffect =
            if has_begun(&counted.decision, refusals) { begun_until } else { refused_until };
        self.blocked(counted, effect)
    }

    /// The correction that gives back the limit's charge, if it was charged although its block
    /// refuses: only if neither is enforced.
    fn uncharge(&self, verdict: &Verdict) -> Option<(Change, DecisionSource)> {
        let own = self.own.admitted().filter(|_| verdict.admitted && self.charge.cost > 0)?;
        let change = Change::Refund { charged_at: own.charged_at(), cost: self.charge.cost };
        Some((change, own.source))
    }
}

fn begun_until(until: StoreTime) -> BlockEffect {
    BlockEffect::Begun { until }
}

fn refused_until(until: StoreTime) -> BlockEffect {
    BlockEffect::Refused { until }
}

/// True if the last `refusals` that were counted began the block.
fn has_begun(counted: &Decision, refusals: u64) -> bool {
    counted.used >= counted.limit && counted.used.saturating_sub(refusals) < counted.limit
}

/// The adjustment that counts `refusals` in the record of a block.
fn counting<'c>(block: &Charge<'c>, refusals: u64) -> Adjustment<'c> {
    Adjustment { limit: block.limit, key: block.key, change: Change::Overdraw { cost: refusals } }
}

/// The verdict on each charge of a peek whose charges were [`expand`]ed.
pub(super) fn fold_peek(charges: &[Charge<'_>], verdict: &Verdict) -> Verdict {
    let outcomes = fold(charges, verdict).iter().map(Folded::peeked).collect();
    Verdict { admitted: verdict.admitted, outcomes }
}

/// Charges a request to counters in memory, with the blocks of its limits, as a worker does without
/// Redis.
pub fn charge_in_memory(memory: &MemoryStore, charges: &[Charge<'_>], now: StoreTime) -> Verdict {
    if !has_block(charges) {
        return memory.charge(charges, now);
    }
    let verdict = memory.charge(&expand(charges), now);
    let settle = |folded: &Folded<'_>| {
        if let Some(refused) = folded.refused_by_block() {
            if let Some((change, _)) = folded.uncharge(&verdict) {
                let Charge { limit, key, .. } = folded.charge;
                memory.adjust(&Adjustment { limit, key, change }, now, 1);
            }
            return folded.blocked(&refused, refused_until);
        }
        match (&folded.block, folded.own.refused()) {
            (Some((block, _)), Some(_)) => {
                let counted = memory.adjust(&counting(block, 1), now, 1);
                let counted = StoreDecision::new(counted, now, DecisionSource::Store);
                folded.counted(&counted, 1)
            }
            _ => folded.own,
        }
    };
    let outcomes = fold(charges, &verdict).iter().map(settle).collect();
    Verdict { admitted: verdict.admitted, outcomes }
}

/// What the process knows of blocks besides their records.
pub(super) struct BlockTracker {
    deny_cache: Arc<DenyCache>,
    refusals: RefusalCounts,
    known: KnownBlocks,
}

impl BlockTracker {
    pub(super) fn new(deny_cache: Arc<DenyCache>) -> Self {
        Self { deny_cache, refusals: RefusalCounts::default(), known: KnownBlocks::default() }
    }

    pub(super) fn known(&self) -> &KnownBlocks {
        &self.known
    }

    /// Forgets a record that the operator has deleted.
    pub(super) fn discard(&self, record: u128) {
        self.refusals.discard(record);
        self.known.discard(record);
    }

    /// The refusals that are not in Redis yet.
    pub(super) fn take_refusals(&self, monotonic: MonotonicTime) -> Vec<(Arc<Limit>, Key, Change)> {
        self.refusals.take(monotonic)
    }

    /// Records the reply to a call that counted `refusals` in the record of `block` in Redis. A
    /// block that is in force is cached like a denial.
    pub(super) fn record_reply(
        &self,
        block: &Charge<'_>,
        counted: &StoreDecision,
        refusals: u64,
        timing: ReplyTiming,
    ) {
        self.refusals.record_reply(block, counted, timing.received);
        self.record(block, counted, refusals);
        if counted.decision.remaining == 0 {
            let retry_at = Some(counted.decision.reset_at);
            let denial = Decision { admitted: false, retry_at, ..counted.decision };
            self.deny_cache.insert(block, &denial, timing);
        }
    }

    /// Records the state of a block's record after `refusals` were counted.
    fn record(&self, block: &Charge<'_>, counted: &StoreDecision, refusals: u64) {
        if counted.decision.remaining == 0 {
            let has_begun = has_begun(&counted.decision, refusals);
            self.known.record(block, counted.decision.reset_at, has_begun);
        }
    }
}

impl StoreHandle {
    /// Decides and charges like [`StoreHandle::charge`], with the blocks of the limits.
    pub(super) async fn charge_with_blocks(
        &self,
        charges: &[Charge<'_>],
        now: StoreTime,
    ) -> Result<Verdict, StoreError> {
        let verdict = self.charge_each(&expand(charges), now).await?;
        let mut outcomes = SmallVec::new();
        for folded in fold(charges, &verdict) {
            outcomes.push(self.settle_block(&folded, &verdict, now).await);
        }
        Ok(Verdict { admitted: verdict.admitted, outcomes })
    }

    /// The outcome of a limit with its block. Counts a refusal by the limit itself.
    async fn settle_block(
        &self,
        folded: &Folded<'_>,
        verdict: &Verdict,
        now: StoreTime,
    ) -> Outcome {
        let Some((block, _)) = &folded.block else { return folded.own };
        let tracker = &self.store.blocks;
        let cached = || self.cached_block(folded);
        if let Some(refused) = folded.refused_by_block().or_else(cached) {
            if let Some((change, source)) = folded.uncharge(verdict) {
                let Charge { limit, key, .. } = folded.charge;
                let limit = Arc::clone(limit);
                self.adjust_in_background([super::Correction { limit, key, change, source }], now);
            }
            tracker.known.record(block, refused.decision.reset_at, false);
            return folded.blocked(&refused, refused_until);
        }
        let Some(refused) = folded.own.refused() else { return folded.own };
        let source = refused.source;
        let (counted, refusals) = if self.is_in_redis(source) {
            match tracker.refusals.count(block, self.store.clock.monotonic()) {
                0 => return folded.own,
                refusals => (self.send_refusals(block, refusals).await, refusals),
            }
        } else {
            let counted = self.adjust_in_memory(&counting(block, 1), source, now);
            if let Some(counted) = counted.decided() {
                tracker.record(block, counted, 1);
            }
            (counted, 1)
        };
        counted.decided().map_or(folded.own, |counted| folded.counted(counted, refusals))
    }

    /// The cached denial by the block of a request that the deny cache refused for the limit,
    /// though it may no longer be trusted: while neither was lifted, the block stands.
    fn cached_block(&self, folded: &Folded<'_>) -> Option<StoreDecision> {
        let (block, outcome) = folded.block.as_ref()?;
        if *outcome != Outcome::NotCharged || folded.own.refused().is_none() {
            return None;
        }
        let denial = self.store.deny_cache.get_stale(block, self.store.clock.monotonic())?;
        Some(StoreDecision::new(denial.decision, denial.now, DecisionSource::Store))
    }

    /// Counts refusals in Redis, and waits for the reply.
    async fn send_refusals(&self, block: &Charge<'_>, refusals: u64) -> Outcome {
        let sent = self.store.clock.monotonic();
        let outcome = self.adjust_now(&counting(block, refusals)).await;
        if let Some(counted) = outcome.decided() {
            let received = self.store.clock.monotonic();
            let timing = ReplyTiming { sent, received, decided_at: counted.at };
            self.store.blocks.record_reply(block, counted, refusals, timing);
        }
        outcome
    }
}

/// The record of a block, as the tables of this process name it.
fn block_record(block: &Charge<'_>) -> u128 {
    record_id(block.limit, block.key)
}
