//! Limits as a request meets them: charged before it is forwarded, corrected when it is answered.

use std::{
    pin::pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use http::Response;
use smallvec::SmallVec;
use tokio::time::sleep;

use super::{Gateway, rules::Rules, visit::Visit};
use crate::{
    error::GatewayError,
    limit::{Change, Decision, Key, Limit, Settlement, Verdict},
    plan::charges,
    snapshot::{Ask, RouteLimit},
};

/// How often it is looked whether requests are still held when a worker ends.
const A_MOMENT: Duration = Duration::from_millis(1);

/// A correction that outlives its request.
pub(super) struct Owed {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Key,
    pub(super) change: Change,
}

impl Gateway {
    /// Charges all limits of the route, or none.
    pub(super) async fn charge(
        &self,
        rules: &Rules,
        route: usize,
        visit: &mut Visit,
    ) -> Result<Verdict, GatewayError> {
        let limits = &rules.snapshot.routes[route].limits;
        let charges = charges(&rules.snapshot.routes[route], &visit.asks);
        let decided = self.store.charge(&charges, self.shared.clock.now()).await;
        let verdict = decided.map_err(|_| {
            visit.account.limit = "unknown";
            GatewayError::StoreUnavailable
        })?;
        let counted = limits.iter().zip(&verdict.decisions).zip(&rules.routes[route].limits);
        for ((used, decision), counters) in counted {
            match (decision.counted, decision.admitted) {
                (false, _) => counters.unknown.add(1),
                (true, true) => counters.admitted.add(1),
                (true, false) if used.policy.limit.enforce => counters.refused.add(1),
                (true, false) => counters.would_refuse.add(1),
            }
        }
        visit.account.limit = if verdict.admitted { "admitted" } else { "refused" };
        if verdict.admitted { Ok(verdict) } else { Err(GatewayError::Refused(Box::new(verdict))) }
    }

    /// Corrects what was charged by what the answer says, in the store and in what the client is told.
    /// Nobody waits for it.
    pub(super) fn settle<B>(&self, rules: &Rules, visit: &mut Visit, answer: &Response<B>) {
        let Visit { verdict: Some(verdict), route: Some(route), asks, .. } = visit else { return };
        if !verdict.admitted {
            return;
        }
        let limits = &rules.snapshot.routes[*route].limits;
        let mut owed: SmallVec<[(usize, Owed); 2]> = SmallVec::new();
        for (at, ((used, ask), decision)) in
            limits.iter().zip(&*asks).zip(&verdict.decisions).enumerate()
        {
            if decision.admitted && decision.counted {
                let change = correction(used, ask, answer, verdict.now + decision.wait);
                let limit = used.policy.limit(ask.tier);
                let owe = |change| Owed { limit: Arc::clone(limit), key: ask.key, change };
                owed.extend(change.map(|change| (at, owe(change))));
            }
        }
        if !owed.is_empty() {
            self.pay(verdict, owed);
        }
    }

    #[cold]
    fn pay(&self, verdict: &mut Verdict, owed: SmallVec<[(usize, Owed); 2]>) {
        for (at, owed) in &owed {
            correct(&mut verdict.decisions[*at], owed.change);
        }
        let owed = owed.into_iter().map(|(_, owed)| owed);
        self.repay(owed.collect(), verdict.fallback);
    }

    /// Tells the store of corrections. Nobody waits for it.
    #[cold]
    pub(super) fn repay(&self, owed: SmallVec<[Owed; 2]>, fallback: bool) {
        let store = Rc::clone(&self.store);
        let now = self.shared.clock.now();
        let mut paying = Box::pin(async move {
            let settlements: SmallVec<[Settlement<'_>; 2]> = owed
                .iter()
                .map(|Owed { limit, key, change }| Settlement { limit, key: *key, change: *change })
                .collect();
            // One that does not arrive is counted by the store; it may have been made, and is not
            // repeated.
            let _ = store.settle(&settlements, fallback, now).await;
        });
        // In memory it is done at once; Redis is told while the answer is on its way.
        let mut context = Context::from_waker(Waker::noop());
        if pin!(&mut paying).poll(&mut context).is_pending() {
            tokio::task::spawn_local(self.paying.track_future(paying));
        }
    }

    /// Returns when no request is held and no correction is under way. To be called when nothing more
    /// comes.
    pub async fn settled(&self) {
        while self.held() > 0 {
            sleep(A_MOMENT).await;
        }
        self.paying.close();
        self.paying.wait().await;
    }
}

/// What an answer changes of a charge.
fn correction<B>(
    used: &RouteLimit,
    ask: &Ask,
    answer: &Response<B>,
    charged_at: u64,
) -> Option<Change> {
    let policy = &used.policy;
    if policy.refund.contains(&answer.status().as_u16()) {
        return Some(Change::Refund { charged_at, cost: ask.cost });
    }
    let cost = policy.cost.told(answer.headers())?;
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
