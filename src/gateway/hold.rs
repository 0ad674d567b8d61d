//! Requests that wait for the slots of their leaky buckets.
//!
//! A request is held in its own task, its body unread, and nothing of it is forwarded before. If its
//! client goes away, the task's future is dropped, and with it [`Held`]: the place is free at once.

use std::{
    future::poll_fn,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use smallvec::SmallVec;
use tokio::{sync::Notify, time::sleep_until};

use super::{
    Gateway,
    context::RequestContext,
    line::{Size, Slot},
    rules::Rules,
};
use crate::{
    clock,
    error::GatewayError,
    limit::{Algorithm, Change, Key, Limit, Millis, Verdict},
    metrics::LimitCounters,
    store::Correction,
};

/// A request that is held, and what it has of each of its buckets. However it ends, its places are
/// given up; and if it was not released, its slots are given back.
struct Held<'a> {
    gateway: &'a Gateway,
    context: &'a RequestContext,
    /// What is counted of the limit that holds it longest.
    counters: &'a LimitCounters,
    called: Arc<Notify>,
    places: SmallVec<[Place<'a>; 2]>,
    since: Instant,
    released: bool,
}

/// A place in one bucket's line.
struct Place<'a> {
    /// The limit's place in its route.
    index: usize,
    limit: &'a Arc<Limit>,
    key: Key,
    cost: u32,
    /// Whether it was charged in this process because Redis was lost.
    fallback: bool,
    state: State,
}

enum State {
    /// In the line, by this name.
    Waiting(u64),
    /// The slot has come, and is this one (ms, by the clock that decided).
    Taken(Millis),
}

impl Place<'_> {
    /// The bucket that the line is for: the name of its record, as stores have it.
    fn bucket(&self) -> u128 {
        self.limit.identity() ^ self.key.0
    }
}

impl Gateway {
    /// Waits for the slots that `verdict`, just decided, gave the request at `index`.
    ///
    /// # Errors
    ///
    /// [`GatewayError::Late`] if the request's own time is over before.
    pub(super) async fn hold(
        &self,
        rules: &Rules,
        index: usize,
        context: &mut RequestContext,
        verdict: &mut Verdict,
    ) -> Result<(), GatewayError> {
        let mut held = Held::new(self, rules, index, context, verdict);
        let in_time = held.turn().await;
        held.released = in_time;
        let slots: SmallVec<[_; 2]> = held.places.iter().map(Place::told).collect();
        drop(held);
        for (index, slot) in slots {
            if let Some(slot) = slot {
                verdict.decisions[index].wait = slot.saturating_sub(verdict.origin(index).now);
            }
            if !in_time {
                // It has been given back: nothing that the answer says changes it again.
                context.asks[index].cost = 0;
            }
        }
        if in_time { Ok(()) } else { Err(GatewayError::Late) }
    }

    /// How many requests are held by this worker now.
    pub fn held(&self) -> u64 {
        self.shard.waiting.get()
    }
}

impl Place<'_> {
    fn told(&self) -> (usize, Option<Millis>) {
        match self.state {
            State::Waiting(_) => (self.index, None),
            State::Taken(at) => (self.index, Some(at)),
        }
    }
}

impl<'a> Held<'a> {
    fn new(
        gateway: &'a Gateway,
        rules: &'a Rules,
        index: usize,
        context: &'a RequestContext,
        verdict: &Verdict,
    ) -> Self {
        // The moment of the decision, or a little later: no request is released before its slot.
        let since = clock::instant();
        let called = Arc::new(Notify::new());
        let (mut places, mut longest) = (SmallVec::new(), (0, 0));
        let limits = rules.snapshot.routes[index].limits.iter().zip(&context.asks);
        for (index, ((used, ask), decision)) in limits.zip(&verdict.decisions).enumerate() {
            let limit = used.policy.limit(ask.tier);
            // Slots of requests in flight are given back by whoever holds them.
            let charged = decision.admitted && decision.counted && ask.cost > 0;
            if !charged || limit.algorithm == Algorithm::Concurrency {
                continue;
            }
            let origin = verdict.origin(index);
            let at = origin.now + decision.wait;
            let state = State::Taken(at);
            let (key, cost, fallback) = (ask.key, ask.cost, origin.fallback);
            let mut place = Place { index, limit, key, cost, fallback, state };
            let waits = limit.enforce && limit.algorithm == Algorithm::LeakyBucket;
            if waits && decision.wait > 0 {
                longest = longest.max((decision.wait, index));
                let size = Size { cost: ask.cost, quota: limit.quota.limit, fallback };
                let slot = Slot { due: since + Duration::from_millis(decision.wait), at, size };
                let lines = &gateway.shared.lines;
                place.state = State::Waiting(lines.enter(place.bucket(), slot, &called));
            }
            places.push(place);
        }
        let counters = &rules.routes[index].limits[longest.1];
        counters.delayed.add(1);
        gateway.shard.waiting.add(1);
        Self { gateway, context, counters, called, places, since, released: false }
    }

    /// Waits until every slot has come; false if the request's own time is over before.
    async fn turn(&mut self) -> bool {
        while let Some(due) = self.look(clock::instant()) {
            let state = self.context.client.state();
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
            match self.gateway.shared.lines.take(place.bucket(), id, now) {
                Some(Ok(slot)) => place.state = State::Taken(slot.at),
                Some(Err(due)) => next = Some(next.map_or(due, |next| next.min(due))),
                // It stands there until it is taken or left, both only here.
                None => {}
            }
        }
        next
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let delay = clock::instant().saturating_duration_since(self.since);
        self.counters.delay.add(delay.as_micros() as u64);
        self.context.delay.set(delay);
        self.gateway.shard.waiting.take();
        if self.released {
            return;
        }
        let lines = &self.gateway.shared.lines;
        let payer = &self.gateway.payer;
        for place in &self.places {
            let give_back = |charged_at| {
                let change = Change::Refund { charged_at, cost: place.cost };
                let (limit, key, fallback) = (Arc::clone(place.limit), place.key, place.fallback);
                payer.repay([Correction { limit, key, change, fallback }]);
            };
            match place.state {
                State::Waiting(id) => lines.leave(place.bucket(), id, |slot| give_back(slot.at)),
                State::Taken(at) => give_back(at),
            }
        }
    }
}
