//! Delays requests until their slots in leaky buckets begin.
//!
//! A delayed request is decided when it arrives, but its response is sent later, when the queue is
//! shorter. So when its slot begins, the used quota is computed anew: the request's own cost, and
//! the costs of the requests that still wait in this process. `Remaining: 0` in a response then
//! means a full queue. The slots of other gateways are not known here, so with several gateways
//! `Remaining` may be too high.
//!
//! A delayed request waits in its connection's task, with its body unread. If the client goes away,
//! the future is dropped, and with it the [`DelayGuard`], which frees the slots at once.

use std::{cell::Cell, future::poll_fn, rc::Rc, sync::Arc, task::Poll, time::Duration};

use smallvec::SmallVec;
use tidegate_charge::{Outcome, StoreDecision};
use tidegate_limit::{Change, Millis};
use tidegate_rules::error::GatewayError;
use tidegate_store::Correction;
use tidegate_system::clock::{StoreTime, Uptime};
use tidegate_transport::ClientStream;
use tokio::sync::Notify;

use super::{
    charged_limit::{ChargedLimit, ChargedLimits},
    charging::Charger,
    context::RequestContext,
    delay_queue::{BegunSlot, Slot, SlotClass},
    rules::LimitRule,
};

/// A delayed request and its charges. Dropping it removes the request from the queues and, unless
/// the request was released, refunds the charges.
struct DelayGuard<'a> {
    charger: &'a Charger,
    client: &'a dyn ClientStream,
    /// Receives the duration of the delay.
    delay: &'a Cell<Duration>,
    /// The limit with the longest delay.
    longest: Option<Rc<LimitRule>>,
    wake: Arc<Notify>,
    charges: SmallVec<[DelayedCharge<'a>; 2]>,
    /// The start of the delay, by [`Clock::uptime`](tidegate_system::clock::Clock::uptime).
    since: Uptime,
    released: bool,
}

/// A charge of a delayed request, with or without a delay of its own: all are refunded together.
struct DelayedCharge<'a> {
    limit: &'a mut ChargedLimit,
    decided: StoreDecision,
    state: SlotState,
}

enum SlotState {
    /// The slot has not begun. The value is the request's id in the bucket's queue.
    Waiting(u64),
    /// The slot has begun, or the charge has no delay. The value is the time of the charge, in ms
    /// by the clock of the store that decided.
    Taken(StoreTime),
}

impl Charger {
    /// Waits for the slots that the request was granted.
    ///
    /// # Errors
    ///
    /// [`GatewayError::DelayTimeout`] if the request times out first; its charges are refunded.
    pub(super) async fn delay(
        &self,
        request: &RequestContext,
        limits: &mut ChargedLimits,
    ) -> Result<(), GatewayError> {
        let mut guard = DelayGuard::new(self, request, limits);
        guard.released = guard.wait_for_slots().await;
        if guard.released { Ok(()) } else { Err(GatewayError::DelayTimeout) }
    }

    /// The number of requests that this worker delays now.
    pub(super) fn delayed_requests(&self) -> u64 {
        self.metrics.waiting.get()
    }
}

impl<'a> DelayGuard<'a> {
    fn new(
        charger: &'a Charger,
        request: &'a RequestContext,
        limits: &'a mut ChargedLimits,
    ) -> Self {
        // Read after the decision: an earlier start would release requests before their slots.
        let since = charger.shared.clock.uptime();
        let wake = Arc::new(Notify::new());
        let (mut charges, mut longest) = (SmallVec::new(), (Millis::ZERO, None));
        for limit in limits {
            // Concurrency permits are refunded by `ConcurrencyPermits`.
            let charged = limit.made_charge().filter(|_| !limit.holds_permit());
            let Some(&decided) = charged else { continue };
            let state = SlotState::Taken(decided.charged_at());
            let mut charge = DelayedCharge { limit, decided, state };
            let wait = decided.decision.wait;
            if !wait.is_zero() && charge.limit.limit().enforce {
                if wait > longest.0 {
                    longest = (wait, Some(Rc::clone(charge.limit.rule())));
                }
                let quota = charge.limit.limit().quota.limit;
                let class = SlotClass { cost: charge.limit.cost(), quota, source: decided.source };
                let due = since + wait.as_duration();
                let slot = Slot { due, charged_at: decided.charged_at(), class };
                let queues = &charger.shared.delay_queues;
                charge.state =
                    SlotState::Waiting(queues.insert(bucket_id(charge.limit), slot, &wake));
            }
            charges.push(charge);
        }
        let longest = longest.1;
        if let Some(rule) = &longest {
            rule.counters.delayed.add(1);
        }
        charger.metrics.waiting.add(1);
        let (client, delay) = (&*request.client, &request.ledger.delay);
        Self { charger, client, delay, longest, wake, charges, since, released: false }
    }

    /// Waits until every slot has begun; false if the request times out first.
    async fn wait_for_slots(&mut self) -> bool {
        while let Some(due) = self.take_due_slots(self.charger.shared.clock.uptime()) {
            let state = self.client.state();
            // The sweep wakes the connection's task, which polls this.
            let timed_out = poll_fn(|_| match state.expired_deadline() {
                Some(_) => Poll::Ready(()),
                None => Poll::Pending,
            });
            tokio::select! {
                () = timed_out => return false,
                () = self.charger.shared.clock.sleep_until(due) => {}
                () = self.wake.notified() => {}
            }
        }
        true
    }

    /// Takes the slots that have begun; returns the start of the next one, if any is left.
    fn take_due_slots(&mut self, now: Uptime) -> Option<Uptime> {
        let mut next: Option<Uptime> = None;
        for charge in &mut self.charges {
            let SlotState::Waiting(id) = charge.state else { continue };
            match self.charger.shared.delay_queues.take_due(bucket_id(charge.limit), id, now) {
                Some(Ok(BegunSlot { slot, waiting })) => {
                    charge.state = SlotState::Taken(slot.charged_at);
                    charge.decided.decision.set_used(slot.class.cost + waiting);
                }
                Some(Err(due)) => next = Some(next.map_or(due, |next| next.min(due))),
                // Unreachable: only this guard removes its request.
                None => {}
            }
        }
        next
    }
}

impl Drop for DelayGuard<'_> {
    fn drop(&mut self) {
        let delay = self.charger.shared.clock.uptime().saturating_sub(self.since);
        if let Some(rule) = &self.longest {
            rule.counters.delay_micros.add(delay.as_micros() as u64);
        }
        self.delay.set(delay);
        self.charger.metrics.waiting.decrement();
        let Self { charger, charges, released, .. } = self;
        for DelayedCharge { limit, decided, state } in charges {
            match (&state, *released) {
                (SlotState::Taken(charged_at), true) => {
                    decided.decision.wait = charged_at.since(decided.at);
                    limit.outcome = Outcome::Decided(*decided);
                    continue;
                }
                (SlotState::Waiting(id), _) => {
                    charger.shared.delay_queues.remove(bucket_id(limit), *id, |slot| {
                        refund(charger, limit, decided, slot.charged_at);
                    });
                }
                (SlotState::Taken(charged_at), false) => {
                    refund(charger, limit, decided, *charged_at);
                }
            }
            limit.outcome = Outcome::NotCharged;
        }
    }
}

/// The bucket's id, which is also the id of its record in the store.
fn bucket_id(limit: &ChargedLimit) -> u128 {
    limit.limit().identity.hash() ^ limit.key().0
}

/// Refunds the charge of the slot at `charged_at` (in ms, by the clock of the store that decided).
fn refund(charger: &Charger, limit: &ChargedLimit, decided: &StoreDecision, charged_at: StoreTime) {
    let change = Change::Refund { charged_at, cost: limit.cost() };
    let (key, source) = (limit.key(), decided.source);
    charger.background.adjust_in_background([Correction {
        limit: Arc::clone(limit.limit()),
        key,
        change,
        source,
    }]);
}
