//! Decides requests with several limits, some of which can be decided in this process. Charges all
//! limits or none.

use smallvec::SmallVec;
use tidegate_base::time::{StoreTime, Uptime};
use tidegate_charge::{Adjustment, Charge, DecisionSource, Outcome, StoreDecision, Verdict};
use tidegate_limit::Change;
use tidegate_redis::RedisFailure;

use super::{
    StoreError, StoreHandle,
    local_admission::{LeasedCharges, LocalAdmission, QueueOutcome, QueueTicket, can_lease},
};

/// One charge of a request, and its state.
struct TrackedCharge<'c> {
    charge: Charge<'c>,
    state: ChargeState,
}

/// The progress of a charge's decision.
#[derive(Clone, Copy)]
enum ChargeState {
    Undecided,
    /// The store gave no answer.
    Failed(RedisFailure),
    Decided(Outcome),
}

impl TrackedCharge<'_> {
    fn is_undecided(&self) -> bool {
        matches!(self.state, ChargeState::Undecided)
    }

    fn failure(&self) -> Option<RedisFailure> {
        match self.state {
            ChargeState::Failed(failure) => Some(failure),
            ChargeState::Undecided | ChargeState::Decided(_) => None,
        }
    }

    fn outcome(&self) -> Outcome {
        match self.state {
            ChargeState::Decided(outcome) => outcome,
            ChargeState::Undecided | ChargeState::Failed(_) => Outcome::NotCharged,
        }
    }

    fn decide(&mut self, decided: StoreDecision) {
        self.state = ChargeState::Decided(Outcome::Decided(decided));
    }

    /// True if this limit refuses the request, whatever the other limits decide.
    fn refuses(&self) -> bool {
        self.charge.limit.enforce && self.outcome().refused().is_some()
    }
}

/// All charges of a request, and the units taken for them.
struct MultiLimitRequest<'a, 'c> {
    local: &'a LocalAdmission,
    /// By `Clock::uptime`.
    deadline: Uptime,
    charges: SmallVec<[TrackedCharge<'c>; 4]>,
    leased: LeasedCharges<'a, 'c>,
}

impl<'a, 'c> MultiLimitRequest<'a, 'c> {
    fn new(local: &'a LocalAdmission, charges: &'c [Charge<'c>]) -> Self {
        let tracked =
            |charge: &Charge<'c>| TrackedCharge { charge: *charge, state: ChargeState::Undecided };
        Self {
            local,
            deadline: local.deadline(),
            charges: charges.iter().map(tracked).collect(),
            leased: LeasedCharges::new(local),
        }
    }

    /// Decides the charges that have leased units or cached denials. True if a cached denial
    /// refuses the request.
    fn decide_locally(&mut self) -> bool {
        let mut refused = false;
        for tracked in &mut self.charges {
            let taken = if refused { None } else { self.local.take(&tracked.charge) };
            if let Some(decided) = taken {
                self.leased.add_taken(&tracked.charge, decided.at);
                tracked.decide(decided);
            } else if let Some(decided) = self.local.cached_denial(&tracked.charge) {
                // No early return: the request's retry time is the latest of all cached denials.
                refused = true;
                tracked.decide(decided);
            }
        }
        refused
    }

    /// Waits in the queues of all leases at the same time. Charges that need a call of their own
    /// stay undecided.
    async fn wait_for_leases(&mut self) {
        let local = self.local;
        let queued: SmallVec<[(&mut TrackedCharge<'c>, QueueTicket); 4]> = self
            .charges
            .iter_mut()
            .filter(|tracked| tracked.is_undecided() && can_lease(&tracked.charge))
            .filter_map(|tracked| local.queue(&tracked.charge).map(|ticket| (tracked, ticket)))
            .collect();
        for (tracked, ticket) in queued {
            match ticket.outcome(&tracked.charge.limit.quota).await {
                QueueOutcome::Decided(decided) => {
                    if decided.decision.admitted {
                        self.leased.add_queued(&tracked.charge, decided.at);
                    }
                    tracked.decide(decided);
                }
                QueueOutcome::CallStore => {}
                QueueOutcome::Failed(failure) => tracked.state = ChargeState::Failed(failure),
            }
        }
    }

    /// The charges that are neither decided nor failed.
    fn undecided(&self) -> SmallVec<[Charge<'c>; 4]> {
        let undecided = self.charges.iter().filter(|tracked| tracked.is_undecided());
        undecided.map(|tracked| tracked.charge).collect()
    }

    fn is_refused(&self) -> bool {
        self.charges.iter().any(TrackedCharge::refuses)
    }

    /// The failures, in the charges' order.
    fn failures(&self) -> impl Iterator<Item = RedisFailure> {
        self.charges.iter().filter_map(TrackedCharge::failure)
    }

    /// Sets the outcomes of the charges that the filter `selects`. `verdict` is the verdict on
    /// these charges.
    fn adopt(&mut self, selects: impl Fn(&TrackedCharge<'c>) -> bool, verdict: Verdict) {
        let selected = self.charges.iter_mut().filter(|tracked| selects(tracked));
        for (tracked, outcome) in selected.zip(verdict.outcomes) {
            tracked.state = ChargeState::Decided(outcome);
        }
    }

    /// The charges made in this process because Redis gave no answer.
    fn local_charges(&self) -> SmallVec<[(Charge<'c>, StoreDecision); 2]> {
        let charged = self.charges.iter().filter_map(|tracked| {
            let outcome = tracked.outcome();
            let decided =
                outcome.admitted().filter(|decided| decided.source == DecisionSource::Fallback)?;
            Some((tracked.charge, *decided))
        });
        charged.collect()
    }

    /// The verdict. A refusal contains only the decisions that refuse.
    fn verdict(self) -> Verdict {
        let admitted = !self.is_refused();
        let outcomes = self.charges.iter().map(|tracked| match tracked.outcome() {
            outcome if admitted || outcome.refused().is_some() => outcome,
            _ => Outcome::NotCharged,
        });
        let verdict = Verdict { admitted, outcomes: outcomes.collect() };
        if admitted {
            self.leased.spend();
        }
        verdict
    }
}

impl StoreHandle {
    /// Decides first from leased units (which can be put back) and cached denials. Then the failure
    /// policies decide the charges whose fetch failed. Last, the store decides the rest in one
    /// call.
    pub(super) async fn charge_multiple(
        &self,
        local: &LocalAdmission,
        charges: &[Charge<'_>],
        now: StoreTime,
    ) -> Result<Verdict, StoreError> {
        let mut request = MultiLimitRequest::new(local, charges);
        let deadline = request.deadline;
        // Limits that do not enforce also report their decisions on refused requests, so the store
        // has to decide all limits.
        let has_dry_run = charges.iter().any(|charge| !charge.limit.enforce);
        if request.decide_locally() {
            if has_dry_run {
                drop(request);
                return self.charge_in_redis(charges, now, None).await;
            }
            return Ok(request.verdict());
        }
        if request.charges.iter().all(TrackedCharge::is_undecided) && !charges.iter().any(can_lease)
        {
            return self.charge_in_redis(charges, now, None).await;
        }
        request.wait_for_leases().await;
        request.failures().for_each(|failure| self.counts.count_failure(failure));
        let failed = request.failures().next().is_some();
        let some_undecided = request.charges.iter().any(TrackedCharge::is_undecided);
        if request.is_refused() {
            // Another limit's retry time may be later, so the store decides all limits in one call.
            if !failed && (has_dry_run || some_undecided) {
                drop(request);
                return self.charge_in_redis(charges, now, Some(deadline)).await;
            }
            return Ok(request.verdict());
        }
        if failed {
            self.apply_failure_policies(&mut request, now)?;
        }
        let undecided = request.undecided();
        if !request.is_refused() && !undecided.is_empty() {
            match self.charge_in_redis(&undecided, now, Some(deadline)).await {
                Ok(verdict) => request.adopt(TrackedCharge::is_undecided, verdict),
                Err(error) => {
                    self.undo(&request.local_charges(), now).await;
                    return Err(error);
                }
            }
        }
        if request.is_refused() {
            self.undo(&request.local_charges(), now).await;
        }
        Ok(request.verdict())
    }

    /// Decides the charges to which the store gave no answer, by their limits' failure policies.
    fn apply_failure_policies(
        &self,
        request: &mut MultiLimitRequest<'_, '_>,
        now: StoreTime,
    ) -> Result<(), StoreError> {
        if request.local.has_timed_out(request.deadline) {
            // The request has no time left for another call.
            for tracked in request.charges.iter_mut().filter(|tracked| tracked.is_undecided()) {
                tracked.state = ChargeState::Failed(RedisFailure::Unsent);
            }
        }
        let failed = |tracked: &TrackedCharge<'_>| tracked.failure().is_some();
        let charges: SmallVec<[Charge<'_>; 4]> = request
            .charges
            .iter()
            .filter(|tracked| failed(tracked))
            .map(|tracked| tracked.charge)
            .collect();
        let verdict = self.fall_back(&charges, now)?;
        request.adopt(failed, verdict);
        Ok(())
    }

    /// Refunds the charges made in this process for a refused request.
    async fn undo(&self, charged: &[(Charge<'_>, StoreDecision)], now: StoreTime) {
        let refunds: SmallVec<[Adjustment<'_>; 2]> = charged
            .iter()
            .map(|&(Charge { limit, key, cost }, decided)| {
                let change = Change::Refund { charged_at: decided.charged_at(), cost };
                Adjustment { limit, key, change }
            })
            .collect();
        // An adjustment in this process neither waits nor fails.
        let _ = self.adjust(&refunds, DecisionSource::Fallback, now).await;
    }
}
