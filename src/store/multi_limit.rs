//! Requests with several limits, of which some are decided here: all are charged, or none.

use smallvec::SmallVec;

use super::{
    Failure, Store, StoreError,
    ahead::{Ahead, Held, Stood, has_waited, reserves},
    fallback::uncounted,
};
use crate::limit::{Change, Charge, Decision, Millis, Origin, Settlement, Verdict};

/// What is known of each charge so far, in the charges' order.
struct Known<'c> {
    charges: &'c [Charge<'c>],
    made: SmallVec<[Option<Made>; 4]>,
}

/// What is known of one.
#[derive(Clone, Copy)]
struct Made {
    decision: Decision,
    origin: Origin,
    /// Whether it was charged, and is to be taken back if the request is refused.
    charged: bool,
}

impl Made {
    /// What holds once `cost` was taken back, if it was charged.
    fn undone(self, cost: u32) -> Decision {
        let Self { mut decision, .. } = self;
        if self.charged && decision.admitted && decision.counted {
            decision.used = decision.used.saturating_sub(cost.into());
            decision.remaining = decision.limit.saturating_sub(decision.used);
        }
        decision
    }
}

impl<'c> Known<'c> {
    fn nothing(charges: &'c [Charge<'c>]) -> Self {
        Self { charges, made: charges.iter().map(|_| None).collect() }
    }

    fn set(&mut self, at: usize, decision: Decision, now: Millis) {
        let origin = Origin { now, fallback: false };
        self.made[at] = Some(Made { decision, origin, charged: decision.admitted });
    }

    /// Takes over a verdict on the charges at these places.
    fn adopt(&mut self, places: &[usize], verdict: &Verdict) {
        for (index, (&at, decision)) in places.iter().zip(&verdict.decisions).enumerate() {
            let origin = verdict.origin(index);
            self.made[at] = Some(Made { decision: *decision, origin, charged: verdict.admitted });
        }
    }

    /// Whether a limit that may refuse does.
    fn refuses(&self) -> bool {
        let made = self.charges.iter().zip(&self.made);
        made.into_iter().any(|(charge, made)| {
            made.is_some_and(|made| charge.limit.enforce && !made.decision.admitted)
        })
    }

    /// The verdict, in which nothing is told of what was not asked any more.
    fn verdict(self, now: Millis) -> Verdict {
        let admitted = !self.refuses();
        let (mut decisions, mut origins) = (SmallVec::new(), Vec::new());
        for (charge, made) in self.charges.iter().zip(self.made) {
            let (decision, origin) = match made {
                Some(made) if admitted => (made.decision, made.origin),
                Some(made) => (made.undone(charge.cost), made.origin),
                None => (uncounted(charge.limit, now), Origin { now, fallback: false }),
            };
            decisions.push(decision);
            origins.push(origin);
        }
        let now = origins.first().map_or(now, |origin| origin.now);
        let fallback = origins.iter().any(|origin| origin.fallback);
        Verdict { admitted, now, fallback, decisions, origins: Some(origins.into()) }
    }
}

impl Store {
    /// Decides charges of which some may be decided here. Tokens first, which can be put back, then what
    /// is charged in this process because its fetch failed, then the rest at the store, in one call.
    pub(super) async fn charge_several(
        &self,
        ahead: &Ahead,
        charges: &[Charge<'_>],
        now: Millis,
    ) -> Result<Verdict, StoreError> {
        let (mut known, mut held) = (Known::nothing(charges), Held::new(ahead));
        let mut rest: SmallVec<[usize; 4]> = SmallVec::new();
        // Those that only watch tell what becomes of requests that others refuse: the store decides all.
        let watched = charges.iter().any(|charge| !charge.limit.enforce);
        let until = ahead.until();
        let mut refused = false;
        for (at, charge) in charges.iter().enumerate() {
            let taken = if refused { None } else { ahead.take(charge) };
            if let Some((decision, then)) = taken {
                held.add_taken(charge, then);
                known.set(at, decision, then);
            } else if let Some((decision, then)) = ahead.refused(charge) {
                // Of all that are known to refuse, the longest tells when to come again.
                refused = true;
                known.set(at, decision, then);
            } else {
                rest.push(at);
            }
        }
        if refused {
            if watched {
                drop(held);
                return self.ask(charges, now).await;
            }
            return Ok(known.verdict(now));
        }
        if rest.len() == charges.len() && !charges.iter().any(reserves) {
            return self.ask(charges, now).await;
        }
        let mut failed = self.stand(ahead, &mut known, &mut held, &mut rest).await;
        if known.refuses() {
            // The rest may have to wait for longer: the store tells of all from one reading.
            if failed.is_empty() && (watched || !rest.is_empty()) {
                drop(held);
                return self.ask_until(charges, now, until).await;
            }
            return Ok(known.verdict(now));
        }
        if !failed.is_empty() && has_waited(until) {
            // It has waited for as long as it may.
            failed.extend(rest.drain(..).map(|at| (at, Failure::Open)));
        }
        let local = self.charge_failed(&mut known, &failed, now)?;
        if !known.refuses() && !rest.is_empty() {
            let asked: SmallVec<[Charge<'_>; 4]> = rest.iter().map(|&at| charges[at]).collect();
            match self.ask_until(&asked, now, until).await {
                Ok(verdict) => known.adopt(&rest, &verdict),
                Err(error) => {
                    self.undo(&local, now).await;
                    return Err(error);
                }
            }
        }
        if known.refuses() {
            self.undo(&local, now).await;
        } else {
            held.spend();
        }
        Ok(known.verdict(now))
    }

    /// Stands in all lines at once for what reserves among `rest`, and leaves there what has to be asked
    /// for. Returns those to which the store gave no answer.
    async fn stand<'c>(
        &self,
        ahead: &Ahead,
        known: &mut Known<'c>,
        held: &mut Held<'_, 'c>,
        rest: &mut SmallVec<[usize; 4]>,
    ) -> SmallVec<[(usize, Failure); 4]> {
        let (charges, mut failed) = (known.charges, SmallVec::new());
        let queued: SmallVec<[_; 4]> = rest
            .iter()
            .map(|&at| reserves(&charges[at]).then(|| ahead.queue(&charges[at])).flatten())
            .collect();
        let mut places = std::mem::take(rest).into_iter();
        for (queued, at) in queued.into_iter().zip(&mut places) {
            let Some(queued) = queued else {
                rest.push(at);
                continue;
            };
            match queued.outcome(&charges[at].limit.quota).await {
                Stood::Decided((decision, then)) => {
                    if decision.admitted {
                        held.add(&charges[at], then);
                    }
                    known.set(at, decision, then);
                }
                Stood::Ask => rest.push(at),
                Stood::Failed(failure) => {
                    self.counts.failed(failure);
                    failed.push((at, failure));
                }
            }
        }
        failed
    }

    /// Decides by their failure policies those to which the store gave no answer. Returns what it has
    /// charged in this process.
    fn charge_failed<'c>(
        &self,
        known: &mut Known<'c>,
        failed: &[(usize, Failure)],
        now: Millis,
    ) -> Result<SmallVec<[Charge<'c>; 2]>, StoreError> {
        // If one may have been charged at the store, none is noted.
        let kind = |&(_, failure): &(usize, Failure)| failure;
        let unknown = |failure: &Failure| !matches!(failure, Failure::Open | Failure::Server);
        let Some(&(_, first)) = failed.first() else { return Ok(SmallVec::new()) };
        let failure = failed.iter().map(kind).find(unknown).unwrap_or(first);
        let places: SmallVec<[usize; 4]> = failed.iter().map(|&(at, _)| at).collect();
        let charges: SmallVec<[Charge<'_>; 4]> =
            places.iter().map(|&at| known.charges[at]).collect();
        let verdict = self.fall_back(&charges, now, failure)?;
        known.adopt(&places, &verdict);
        let made = charges.iter().zip(&verdict.decisions);
        let made = made.filter(|(_, made)| verdict.admitted && made.admitted && made.counted);
        Ok(made.map(|(charge, _)| *charge).collect())
    }

    /// Takes back what was charged in this process for a request that is refused.
    async fn undo(&self, charged: &[Charge<'_>], now: Millis) {
        let refund = |&Charge { limit, key, cost }| {
            let change = Change::Refund { charged_at: now, cost };
            Settlement { limit, key, change }
        };
        let refunds: SmallVec<[Settlement<'_>; 2]> = charged.iter().map(refund).collect();
        // In this process nothing is waited for, and nothing fails.
        let _ = self.settle(&refunds, true, now).await;
    }
}
