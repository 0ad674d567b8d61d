//! Limits as a request meets them: charged before it is forwarded, corrected when it is answered.

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::{Gateway, answer::Draft, context::RequestContext, rules::Rules, slots::Wanted};
use crate::{
    clock::Clock,
    error::GatewayError,
    limit::{Algorithm, Change, Decision, Millis, Verdict},
    plan::charges,
    snapshot::{Ask, Route, RouteLimit},
    store::{Correction, Store, StoreError},
};

/// How often it is looked whether requests are still held when a worker ends.
const A_MOMENT: Duration = Duration::from_millis(1);

impl Gateway {
    /// Charges all limits of the route, or none.
    pub(super) async fn charge(
        &self,
        rules: &Rules,
        route: usize,
        context: &mut RequestContext,
    ) -> Result<Verdict, GatewayError> {
        let limits = &rules.snapshot.routes[route].limits;
        let decided = self.decide(&rules.snapshot.routes[route], context).await;
        let verdict = decided.map_err(|_| {
            context.limit = "unknown";
            GatewayError::StoreUnavailable
        })?;
        let counted = limits.iter().zip(&verdict.decisions).zip(&rules.routes[route].limits);
        for (at, ((used, decision), counters)) in counted.enumerate() {
            match (decision.counted, decision.admitted) {
                (false, _) if verdict.origin(at).fallback => counters.unknown.add(1),
                // Another limit refused, and this one was not asked.
                (false, _) => {}
                (true, true) => counters.admitted.add(1),
                (true, false) if used.policy.limit.enforce => counters.refused.add(1),
                (true, false) => counters.would_refuse.add(1),
            }
        }
        context.limit = if verdict.admitted { "admitted" } else { "refused" };
        if verdict.admitted { Ok(verdict) } else { Err(GatewayError::Refused(Box::new(verdict))) }
    }

    async fn decide(
        &self,
        route: &Route,
        context: &mut RequestContext,
    ) -> Result<Verdict, StoreError> {
        let charges = charges(route, &context.asks);
        let holds =
            |algorithm| matches!(algorithm, Algorithm::Concurrency | Algorithm::LeakyBucket);
        if !charges.iter().any(|charge| holds(charge.limit.algorithm)) {
            return self.store.charge(&charges, self.shared.clock.now()).await;
        }
        let limits = route.limits.iter().zip(&context.asks);
        let wanted = limits.map(|(used, ask)| {
            let limit = Arc::clone(used.policy.limit(ask.tier));
            Wanted { limit, key: ask.key, cost: ask.cost }
        });
        // In a task of its own: a slot is given back also where the client goes away meanwhile. Boxed, so
        // that requests without one do not carry its state.
        let (verdict, lent) = Box::pin(self.slots.take(wanted.collect())).await?;
        context.lent = lent;
        Ok(verdict)
    }

    /// Corrects what was charged by what the answer says, in the store and in what the client is told.
    /// Nobody waits for it.
    pub(super) fn settle(&self, rules: &Rules, context: &mut RequestContext, answer: &Draft) {
        let RequestContext { verdict: Some(verdict), route: Some(route), asks, .. } = context
        else {
            return;
        };
        if !verdict.admitted {
            return;
        }
        let limits = &rules.snapshot.routes[*route].limits;
        let mut owed: SmallVec<[(usize, Correction); 2]> = SmallVec::new();
        for (at, ((used, ask), decision)) in
            limits.iter().zip(&*asks).zip(&verdict.decisions).enumerate()
        {
            if decision.admitted && decision.counted {
                let origin = verdict.origin(at);
                let change = correction(used, ask, answer, origin.now + decision.wait);
                let limit = used.policy.limit(ask.tier);
                let (limit, key, fallback) = (Arc::clone(limit), ask.key, origin.fallback);
                let owe = |change| Correction { limit, key, change, fallback };
                owed.extend(change.map(|change| (at, owe(change))));
            }
        }
        if !owed.is_empty() {
            self.pay(verdict, owed);
        }
    }

    #[cold]
    fn pay(&self, verdict: &mut Verdict, owed: SmallVec<[(usize, Correction); 2]>) {
        for (at, owed) in &owed {
            correct(&mut verdict.decisions[*at], owed.change);
        }
        let owed = owed.into_iter().map(|(_, owed)| owed);
        self.payer.repay(owed);
    }

    /// Returns when no request is held, none holds a slot, and no correction is under way. To be called
    /// when nothing more comes.
    pub async fn settled(&self) {
        while self.held() > 0 || !self.slots.are_free() {
            sleep(A_MOMENT).await;
        }
        self.payer.paying.close();
        self.payer.paying.wait().await;
    }

    /// Gives back to the store what it keeps for requests that will not come.
    pub async fn leave(&self) {
        self.store.leave().await;
    }

    /// Tells the store nothing more: the worker's runtime ends.
    pub fn end(&self) {
        self.payer.over.set(true);
    }
}

/// What the store is told beside requests, and after them.
pub(super) struct Payer {
    pub(super) store: Rc<Store>,
    clock: Clock,
    /// What is under way.
    paying: TaskTracker,
    over: Cell<bool>,
}

impl Payer {
    pub(super) fn new(store: Rc<Store>, clock: Clock) -> Self {
        Self { store, clock, paying: TaskTracker::new(), over: Cell::new(false) }
    }

    /// The gateway's time.
    pub(super) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Tells the store of corrections, which no request waits for.
    pub(super) fn repay(&self, owed: impl IntoIterator<Item = Correction>) {
        self.store.correct(owed, self.now());
    }

    /// Does what need not be waited for, but must not be given up with a request.
    pub(super) fn see_to(&self, work: impl Future<Output = ()> + 'static) {
        // In memory it is done at once; Redis is told while the answer is on its way.
        let mut work = Box::pin(work);
        let mut context = Context::from_waker(Waker::noop());
        if work.as_mut().poll(&mut context).is_pending() && !self.over.get() {
            tokio::task::spawn_local(self.paying.track_future(work));
        }
    }
}

/// What an answer changes of a charge.
fn correction(used: &RouteLimit, ask: &Ask, answer: &Draft, charged_at: u64) -> Option<Change> {
    let policy = &used.policy;
    if policy.refund.contains(&answer.status().as_u16()) {
        return Some(Change::Refund { charged_at, cost: ask.cost });
    }
    let cost = policy.cost.told(answer.upstream_fields()?)?;
    match cost.cmp(&ask.cost) {
        std::cmp::Ordering::Less => Some(Change::Refund { charged_at, cost: ask.cost - cost }),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(Change::Overdraw { cost: cost - ask.cost }),
    }
}

/// What a client is told of a limit whose charge is corrected.
fn correct(decision: &mut Decision, change: Change) {
    match change {
        Change::Refund { cost, .. } => {
            let cost = u64::from(cost).min(decision.used);
            decision.used -= cost;
            decision.remaining = decision.limit.saturating_sub(decision.used);
        }
        Change::Overdraw { cost } => {
            decision.used += u64::from(cost);
            decision.remaining = decision.limit.saturating_sub(decision.used);
        }
    }
}
