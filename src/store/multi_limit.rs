//! Requests with several limits, of which some are decided in this process: all are charged, or none.

use std::time::Instant;

use smallvec::SmallVec;

use super::{
    Failure, Store, StoreError,
    local_admission::{LeasedCharges, LocalAdmission, QueueOutcome, Queued, has_waited, reserves},
};
use crate::limit::{Change, Charge, Decided, Decider, Millis, Outcome, Settlement, Verdict};

/// One charge of a request, as far as it has come.
struct Pending<'c> {
    charge: Charge<'c>,
    state: State,
}

/// What is known of a charge.
#[derive(Clone, Copy)]
enum State {
    /// Not asked yet.
    Open,
    /// The store gave no answer.
    Failed(Failure),
    /// Decided.
    Known(Outcome),
}

impl Pending<'_> {
    fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    fn failure(&self) -> Option<Failure> {
        match self.state {
            State::Failed(failure) => Some(failure),
            State::Open | State::Known(_) => None,
        }
    }

    fn outcome(&self) -> Outcome {
        match self.state {
            State::Known(outcome) => outcome,
            State::Open | State::Failed(_) => Outcome::NotCharged,
        }
    }

    fn decide(&mut self, decided: Decided) {
        self.state = State::Known(Outcome::Decided(decided));
    }

    /// Whether this limit alone refuses the request.
    fn refuses(&self) -> bool {
        self.charge.limit.enforce && self.outcome().refused().is_some()
    }
}

/// All charges of a request, and what is leased for them.
struct Request<'a, 'c> {
    local: &'a LocalAdmission,
    until: Instant,
    charges: SmallVec<[Pending<'c>; 4]>,
    leased: LeasedCharges<'a, 'c>,
}

impl<'a, 'c> Request<'a, 'c> {
    fn new(local: &'a LocalAdmission, charges: &'c [Charge<'c>]) -> Self {
        let pending = |charge: &Charge<'c>| Pending { charge: *charge, state: State::Open };
        Self {
            local,
            until: local.until(),
            charges: charges.iter().map(pending).collect(),
            leased: LeasedCharges::new(local),
        }
    }

    /// Decides what the leases and the deny cache can; says whether a limit is known to refuse.
    fn decide_here(&mut self) -> bool {
        let mut refused = false;
        for pending in &mut self.charges {
            let taken = if refused { None } else { self.local.take(&pending.charge) };
            if let Some(decided) = taken {
                self.leased.add_taken(&pending.charge, decided.at);
                pending.decide(decided);
            } else if let Some(decided) = self.local.refused(&pending.charge) {
                // Of all that are known to refuse, the longest tells when to come again.
                refused = true;
                pending.decide(decided);
            }
        }
        refused
    }

    /// Waits in all queues for leases at once. What has to be asked for stays open.
    async fn wait_for_leases(&mut self) {
        let local = self.local;
        let queued: SmallVec<[(&mut Pending<'c>, Queued); 4]> = self
            .charges
            .iter_mut()
            .filter(|pending| pending.is_open() && reserves(&pending.charge))
            .filter_map(|pending| local.queue(&pending.charge).map(|queued| (pending, queued)))
            .collect();
        for (pending, queued) in queued {
            match queued.outcome(&pending.charge.limit.quota).await {
                QueueOutcome::Decided(decided) => {
                    if decided.decision.admitted {
                        self.leased.add(&pending.charge, decided.at);
                    }
                    pending.decide(decided);
                }
                QueueOutcome::Ask => {}
                QueueOutcome::Failed(failure) => pending.state = State::Failed(failure),
            }
        }
    }

    /// The charges that are not decided and did not fail.
    fn open(&self) -> SmallVec<[Charge<'c>; 4]> {
        let open = self.charges.iter().filter(|pending| pending.is_open());
        open.map(|pending| pending.charge).collect()
    }

    fn is_refused(&self) -> bool {
        self.charges.iter().any(Pending::refuses)
    }

    /// The failures, in the charges' order.
    fn failures(&self) -> impl Iterator<Item = Failure> {
        self.charges.iter().filter_map(Pending::failure)
    }

    /// Takes over a verdict on the charges of which `is_meant`, in their order.
    fn adopt(&mut self, is_meant: impl Fn(&Pending<'c>) -> bool, verdict: Verdict) {
        let meant = self.charges.iter_mut().filter(|pending| is_meant(pending));
        for (pending, outcome) in meant.zip(verdict.outcomes) {
            pending.state = State::Known(outcome);
        }
    }

    /// What was charged in this process because Redis gave no answer.
    fn charged_here(&self) -> SmallVec<[(Charge<'c>, Decided); 2]> {
        let charged = self.charges.iter().filter_map(|pending| {
            let outcome = pending.outcome();
            let decided = outcome.admitted().filter(|decided| decided.by == Decider::Fallback)?;
            Some((pending.charge, *decided))
        });
        charged.collect()
    }

    /// The verdict; of a refusal it tells what refuses.
    fn verdict(self) -> Verdict {
        let admitted = !self.is_refused();
        let outcomes = self.charges.iter().map(|pending| match pending.outcome() {
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

impl Store {
    /// Decides charges of which some may be decided here: from leases first, which can be put back, then
    /// what is charged in this process because its fetch failed, then the rest at the store, in one call.
    pub(super) async fn charge_several(
        &self,
        local: &LocalAdmission,
        charges: &[Charge<'_>],
        now: Millis,
    ) -> Result<Verdict, StoreError> {
        let mut request = Request::new(local, charges);
        let until = request.until;
        // Those that only watch tell what becomes of requests that others refuse: the store decides all.
        let watched = charges.iter().any(|charge| !charge.limit.enforce);
        if request.decide_here() {
            if watched {
                drop(request);
                return self.ask(charges, now).await;
            }
            return Ok(request.verdict());
        }
        if request.charges.iter().all(Pending::is_open) && !charges.iter().any(reserves) {
            return self.ask(charges, now).await;
        }
        request.wait_for_leases().await;
        request.failures().for_each(|failure| self.counts.failed(failure));
        let failed = request.failures().next().is_some();
        let some_open = request.charges.iter().any(Pending::is_open);
        if request.is_refused() {
            // The rest may have to wait for longer: the store tells of all from one reading.
            if !failed && (watched || some_open) {
                drop(request);
                return self.ask_until(charges, now, until).await;
            }
            return Ok(request.verdict());
        }
        if failed {
            self.charge_failed(&mut request, now)?;
        }
        let open = request.open();
        if !request.is_refused() && !open.is_empty() {
            match self.ask_until(&open, now, until).await {
                Ok(verdict) => request.adopt(Pending::is_open, verdict),
                Err(error) => {
                    self.undo(&request.charged_here(), now).await;
                    return Err(error);
                }
            }
        }
        if request.is_refused() {
            self.undo(&request.charged_here(), now).await;
        }
        Ok(request.verdict())
    }

    /// Decides by their failure policies those to which the store gave no answer.
    fn charge_failed(&self, request: &mut Request<'_, '_>, now: Millis) -> Result<(), StoreError> {
        if has_waited(request.until) {
            // The request has waited for as long as it may.
            for pending in request.charges.iter_mut().filter(|pending| pending.is_open()) {
                pending.state = State::Failed(Failure::Open);
            }
        }
        // If one may have been charged at the store, none is noted.
        let unknown = |failure: &Failure| !matches!(failure, Failure::Open | Failure::Server);
        let Some(first) = request.failures().next() else { return Ok(()) };
        let failure = request.failures().find(unknown).unwrap_or(first);
        let failed = |pending: &Pending<'_>| pending.failure().is_some();
        let charges: SmallVec<[Charge<'_>; 4]> =
            request.charges.iter().filter(|p| failed(p)).map(|pending| pending.charge).collect();
        let verdict = self.fall_back(&charges, now, failure)?;
        request.adopt(failed, verdict);
        Ok(())
    }

    /// Takes back what was charged in this process for a request that is refused.
    async fn undo(&self, charged: &[(Charge<'_>, Decided)], now: Millis) {
        let refunds: SmallVec<[Settlement<'_>; 2]> = charged
            .iter()
            .map(|&(Charge { limit, key, cost }, decided)| {
                let change = Change::Refund { charged_at: decided.charged_at(), cost };
                Settlement { limit, key, change }
            })
            .collect();
        // In this process nothing is waited for, and nothing fails.
        let _ = self.settle(&refunds, Decider::Fallback, now).await;
    }
}
