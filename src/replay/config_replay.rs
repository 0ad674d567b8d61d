//! One configuration in a replay: its rules, its counters, and the outcomes of the requests.

mod planning;

use std::{collections::BTreeMap, sync::Arc};

use smallvec::SmallVec;

pub(super) use self::planning::{CostSource, LoggedRequest, PlannedRequest};
use super::{
    counts::{DecisionCounts, LogEvent, LoggedCaller},
    waiting::{ThrottledRequest, WaitingCounts, WaitingReplay},
};
use crate::{
    auth::ConsumerTable,
    charge::{Adjustment, BlockEffect, Charge},
    clock::StoreTime,
    identity::KeySecret,
    limit::Change,
    plan::{self, Admission},
    snapshot::{LimitPolicy, PlannedCharge, Snapshot},
    store::{charge_in_memory, memory::MemoryStore},
    time::Millis,
};

/// The minimum number of requests between two removals of expired counters, which are also at least
/// one virtual second apart. Scanning a part of the table more often would cost more than the
/// requests.
const REQUESTS_PER_TICK: u32 = 1 << 16;

/// One configuration in a replay.
pub struct ConfigReplay {
    /// Name of the configuration's file.
    pub name: String,
    /// The compiled configuration.
    pub snapshot: Snapshot,
    /// Decisions by route, in the snapshot's order.
    pub routes: Vec<DecisionCounts>,
    /// Decisions by limit, in the snapshot's order.
    pub limits: Vec<DecisionCounts>,
    /// Refusals by limit, in the snapshot's order. Only for requests that the other configuration
    /// decides differently.
    pub differing_refusals: Vec<u64>,
    /// Number of requests that the limits of their route admitted.
    pub admitted: u64,
    /// Number of requests that a limit refused.
    pub refused: u64,
    /// Number of requests of routes without limits.
    pub unlimited: u64,
    /// Number of requests refused by `allow` or `deny`, by route, in the snapshot's order.
    pub denied: Vec<u64>,
    /// Number of requests that the gateway itself would have answered before any limit, by status.
    pub unmatched: BTreeMap<u16, u64>,
    /// Number of requests whose route depends on data that the log lacks: a header, a query, a
    /// weight.
    pub undecided: u64,
    /// Number of requests whose line lacks the cost of a limit whose cost depends on the request or
    /// its response.
    pub without_cost: u64,
    consumers: Arc<ConsumerTable>,
    memory: MemoryStore,
    secret: KeySecret,
    /// The waiting room, if the throttle has one.
    room: Option<WaitingReplay>,
    /// Virtual time of the last removal of expired counters, in ms, and number of requests since
    /// then.
    last_tick: (StoreTime, u32),
}

/// The outcome of a request. Routes and limits are indices in the snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RequestOutcome {
    /// The logging gateway ended it before any limit was charged.
    NotChecked,
    /// The gateway itself answers it with this status.
    AnsweredByGateway(u16),
    /// Its route depends on data that the log lacks.
    Undecided,
    /// Its route has no limits.
    Unlimited {
        /// The route.
        route: usize,
    },
    /// All limits admit it.
    Admitted {
        /// The route.
        route: usize,
    },
    /// `allow` or `deny` of its route refuses it.
    Denied {
        /// The route.
        route: usize,
    },
    /// These limits refuse it.
    Refused {
        /// The route.
        route: usize,
        /// The limits; at least one.
        limits: SmallVec<[u32; 4]>,
        /// `Refused`, or `Blocked` if the block of a limit refused it.
        admission: Admission,
    },
}

impl RequestOutcome {
    /// True if a limit refused it, or `allow` or `deny` of its route.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Denied { .. })
    }

    /// The limits that refused it.
    pub fn refusing(&self) -> &[u32] {
        match self {
            Self::Refused { limits, .. } => limits,
            _ => &[],
        }
    }
}

impl ConfigReplay {
    /// A configuration with empty counters, at most `max_keys` of them. `secret` is the key of the
    /// hash that counters are stored under.
    pub fn new(name: &str, snapshot: Snapshot, max_keys: usize, secret: KeySecret) -> Self {
        Self {
            name: name.to_owned(),
            routes: vec![DecisionCounts::default(); snapshot.routes.len()],
            limits: vec![DecisionCounts::default(); snapshot.limits.len()],
            differing_refusals: vec![0; snapshot.limits.len()],
            admitted: 0,
            refused: 0,
            unlimited: 0,
            denied: vec![0; snapshot.routes.len()],
            unmatched: BTreeMap::new(),
            undecided: 0,
            without_cost: 0,
            consumers: Arc::default(),
            memory: MemoryStore::new(max_keys),
            secret,
            room: snapshot
                .throttle
                .as_ref()
                .filter(|throttle| throttle.waiting_room.is_some())
                .map(WaitingReplay::new),
            last_tick: (StoreTime::ZERO, 0),
            snapshot,
        }
    }

    /// The same configuration with these consumers.
    #[must_use]
    pub fn with_consumers(self, consumers: Arc<ConsumerTable>) -> Self {
        Self { consumers, ..self }
    }

    /// The same configuration; a user gives up after it has waited for `patience`, instead of a
    /// day.
    #[must_use]
    pub fn with_patience(mut self, patience: Millis) -> Self {
        if let Some(room) = &mut self.room {
            room.set_patience(patience);
        }
        self
    }

    /// What the waiting room would have done; `None` without one.
    pub fn waiting(&self) -> Option<&WaitingCounts> {
        self.room.as_ref().map(|room| &room.counts)
    }

    /// How long a user waits before it gives up; `None` without a waiting room.
    pub fn patience(&self) -> Option<Millis> {
        self.room.as_ref().map(WaitingReplay::patience)
    }

    /// Number of counters that were evicted because memory was full.
    pub fn evictions(&self) -> u64 {
        self.memory.evictions()
    }

    /// Charges a request at the virtual time `at`, which never decreases. Takes the request's
    /// charges from the front of `planned_charges`.
    pub(super) fn decide(
        &mut self,
        plan: PlannedRequest,
        planned_charges: &mut &[PlannedCharge],
        at: LogEvent,
    ) -> RequestOutcome {
        let (index, requests, status) = match plan {
            PlannedRequest::NotChecked => return RequestOutcome::NotChecked,
            PlannedRequest::AnsweredByGateway(status) => {
                *self.unmatched.entry(status).or_default() += 1;
                return RequestOutcome::AnsweredByGateway(status);
            }
            PlannedRequest::Undecided => {
                self.undecided += 1;
                return RequestOutcome::Undecided;
            }
            PlannedRequest::Denied(route) => {
                let route = route as usize;
                self.denied[route] += 1;
                return RequestOutcome::Denied { route };
            }
            PlannedRequest::Routed { route, planned_charges: count, status, costs, .. } => {
                self.without_cost += u64::from(costs == CostSource::Estimated);
                let (own, rest) = planned_charges.split_at(count as usize);
                *planned_charges = rest;
                (route as usize, own, status)
            }
        };
        if requests.is_empty() {
            self.unlimited += 1;
            self.routes[index].add_admitted();
            return RequestOutcome::Unlimited { route: index };
        }
        self.tick(at.time);
        let route = &self.snapshot.routes[index];
        let charges: SmallVec<[Charge<'_>; 4]> =
            requests.iter().filter_map(|request| plan::charge_for(route, request)).collect();
        let verdict = charge_in_memory(&self.memory, &charges, at.time);
        let mut admission = Admission::Refused;
        let (mut refusing, mut refunds) = (SmallVec::new(), SmallVec::<[Adjustment<'_>; 2]>::new());
        for ((request, charge), outcome) in requests.iter().zip(&charges).zip(&verdict.outcomes) {
            let Some(decided) = outcome.decided() else { continue };
            let (decision, limit) = (&decided.decision, charge.limit.index);
            // A candidate has its limit's index, but does not count among the limit's decisions.
            if charge.limit.name() == self.snapshot.limits[limit].limit.name() {
                let counts = &mut self.limits[limit];
                if decision.admitted {
                    counts.add_admitted();
                } else {
                    counts.add_refused(at);
                }
            }
            if !decision.admitted && charge.limit.enforce {
                refusing.push(limit as u32);
                if let BlockEffect::Refused { .. } = decided.block {
                    admission = Admission::Blocked;
                }
            }
            let policy = &route.limits[usize::from(request.limit_index)];
            if decision.admitted && is_refunded(policy, status) {
                let change = Change::Refund { charged_at: decided.charged_at(), cost: charge.cost };
                refunds.push(Adjustment { limit: charge.limit, key: charge.key, change });
            }
        }
        if verdict.admitted {
            self.routes[index].add_admitted();
            for refund in &refunds {
                self.memory.adjust(refund, at.time, 1);
            }
            self.admitted += 1;
            RequestOutcome::Admitted { route: index }
        } else {
            self.routes[index].add_refused(at);
            self.refused += 1;
            RequestOutcome::Refused { route: index, limits: refusing, admission }
        }
    }

    /// Sends a decided request to the waiting room, if there is one. `name` is its caller.
    pub(super) fn wait(
        &mut self,
        plan: PlannedRequest,
        outcome: &RequestOutcome,
        name: &LoggedCaller,
        now: StoreTime,
    ) {
        let (Some(room), PlannedRequest::Routed { caller: Some(caller), status, .. }) =
            (&mut self.room, plan)
        else {
            return;
        };
        let status = Some(status).filter(|_| !outcome.is_refused());
        room.request(ThrottledRequest { caller, name, status }, now);
    }

    /// Ends the log at `now`.
    pub(super) fn finish(&mut self, now: StoreTime) {
        if let Some(room) = &mut self.room {
            room.finish(now);
        }
    }

    /// Removes expired counters if a removal is due.
    fn tick(&mut self, now: StoreTime) {
        let (last, requests) = &mut self.last_tick;
        *requests += 1;
        if *requests >= REQUESTS_PER_TICK && now.since(*last).as_ms() >= 1_000 {
            (*last, *requests) = (now, 0);
            self.memory.expire(now);
        }
    }
}

/// True if a response with this status refunds the charge to this limit.
fn is_refunded(policy: &LimitPolicy, status: u16) -> bool {
    // A log does not show which requests were in flight together, so each counts as ended before
    // the next.
    let is_released = policy.limit.algorithm().holds_permit();
    is_released || policy.refunds.include(status)
}
