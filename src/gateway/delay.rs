//! Requests that wait for the slots of their leaky buckets.
//!
//! A request is held in its own task, its body unread, and nothing of it is forwarded before. If its
//! client goes away, the task's future is dropped, and with it [`DelayGuard`]: the place is free at once.

use std::{
    cell::Cell,
    future::poll_fn,
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use smallvec::SmallVec;
use tokio::{sync::Notify, time::sleep_until};

use super::{
    Gateway,
    charged_limit::ChargedLimit,
    context::RequestContext,
    delay_queue::{Size, Slot},
    rules::LimitRule,
};
use crate::{
    clock,
    error::GatewayError,
    framing::ClientStream,
    limit::{Algorithm, Change, Decided, Millis, Outcome},
    store::Correction,
};

/// A request that is held, and what it has of each of its buckets. However it ends, its places are
/// given up; and if it was not released, its charges are given back.
struct DelayGuard<'a> {
    gateway: &'a Gateway,
    client: &'a dyn ClientStream,
    /// Where it is noted for how long it was held.
    delay: &'a Cell<Duration>,
    /// The limit that holds it longest.
    longest: Option<Rc<LimitRule>>,
    called: Arc<Notify>,
    places: SmallVec<[Place<'a>; 2]>,
    since: Instant,
    released: bool,
}

/// A charge of the request, and its place in the bucket's line.
struct Place<'a> {
    limit: &'a mut ChargedLimit,
    decided: Decided,
    state: State,
}

enum State {
    /// In the line, by this name.
    Waiting(u64),
    /// The slot has come, and is this one (ms, by the clock that decided); or there is none to wait for.
    Taken(Millis),
}

impl Gateway {
    /// Waits for the slots that the request was just granted.
    ///
    /// # Errors
    ///
    /// [`GatewayError::Late`] if the request's own time is over before.
    pub(super) async fn hold(&self, context: &mut RequestContext) -> Result<(), GatewayError> {
        let mut held = DelayGuard::new(self, context);
        held.released = held.turn().await;
        if held.released { Ok(()) } else { Err(GatewayError::Late) }
    }

    /// How many requests are held by this worker now.
    pub fn held(&self) -> u64 {
        self.shard.waiting.get()
    }
}

impl<'a> DelayGuard<'a> {
    fn new(gateway: &'a Gateway, context: &'a mut RequestContext) -> Self {
        // The moment of the decision, or a little later: no request is released before its slot.
        let since = clock::instant();
        let called = Arc::new(Notify::new());
        let RequestContext { limits, client, delay, .. } = context;
        let (mut places, mut longest) = (SmallVec::new(), (0, None));
        for limit in limits {
            // Slots of requests in flight are given back by their permit.
            let is_leased = limit.limit().algorithm == Algorithm::Concurrency;
            let charged = limit.outcome.admitted().filter(|_| limit.cost() > 0 && !is_leased);
            let Some(&decided) = charged else { continue };
            let state = State::Taken(decided.charged_at());
            let mut place = Place { limit, decided, state };
            let wait = decided.decision.wait;
            if wait > 0 && place.limit.limit().enforce {
                if wait > longest.0 {
                    longest = (wait, Some(Rc::clone(place.limit.rule())));
                }
                let quota = place.limit.limit().quota.limit;
                let size = Size { cost: place.limit.cost(), quota, by: decided.by };
                let due = since + Duration::from_millis(wait);
                let slot = Slot { due, at: decided.charged_at(), size };
                let lines = &gateway.shared.delay_queues;
                place.state = State::Waiting(lines.enter(bucket(place.limit), slot, &called));
            }
            places.push(place);
        }
        let longest = longest.1;
        if let Some(rule) = &longest {
            rule.counters.delayed.add(1);
        }
        gateway.shard.waiting.add(1);
        let client = &**client;
        Self { gateway, client, delay, longest, called, places, since, released: false }
    }

    /// Waits until every slot has come; false if the request's own time is over before.
    async fn turn(&mut self) -> bool {
        while let Some(due) = self.look(clock::instant()) {
            let state = self.client.state();
            // The sweep wakes the connection's task, which is the one that polls this.
            let late = poll_fn(|_| match state.timeout() {
                Some(_) => Poll::Ready(()),
                None => Poll::Pending,
            });
            tokio::select! {
                () = late => return false,
                () = sleep_until(due.into()) => {}
                () = self.called.notified() => {}
            }
        }
        true
    }

    /// Takes the slots that have come; when the next comes, if not all have.
    fn look(&mut self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        for place in &mut self.places {
            let State::Waiting(id) = place.state else { continue };
            match self.gateway.shared.delay_queues.take(bucket(place.limit), id, now) {
                Some(Ok(slot)) => place.state = State::Taken(slot.at),
                Some(Err(due)) => next = Some(next.map_or(due, |next| next.min(due))),
                // It stands there until it is taken or left, both only here.
                None => {}
            }
        }
        next
    }
}

impl Drop for DelayGuard<'_> {
    fn drop(&mut self) {
        let delay = clock::instant().saturating_duration_since(self.since);
        if let Some(rule) = &self.longest {
            rule.counters.delay.add(delay.as_micros() as u64);
        }
        self.delay.set(delay);
        self.gateway.shard.waiting.take();
        let Self { gateway, places, released, .. } = self;
        for Place { limit, decided, state } in places {
            match (&state, *released) {
                (State::Taken(at), true) => {
                    decided.decision.wait = at.saturating_sub(decided.at);
                    limit.outcome = Outcome::Decided(*decided);
                    continue;
                }
                (State::Waiting(id), _) => {
                    let bucket = bucket(limit);
                    gateway.shared.delay_queues.leave(bucket, *id, |slot| {
                        give_back(gateway, limit, decided, slot.at);
                    });
                }
                (State::Taken(at), false) => give_back(gateway, limit, decided, *at),
            }
            limit.outcome = Outcome::NotCharged;
        }
    }
}

/// The bucket that a line is for: the name of its record, as stores have it.
fn bucket(limit: &ChargedLimit) -> u128 {
    limit.limit().identity() ^ limit.key().0
}

/// Gives a charge back that is known by this time.
fn give_back(gateway: &Gateway, limit: &ChargedLimit, decided: &Decided, charged_at: Millis) {
    let change = Change::Refund { charged_at, cost: limit.cost() };
    let (key, by) = (limit.key(), decided.by);
    gateway.background.correct([Correction { limit: Arc::clone(limit.limit()), key, change, by }]);
}
