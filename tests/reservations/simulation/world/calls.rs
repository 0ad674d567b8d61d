//! Calls to the store and their outcomes.

use tidegate::clock::ms;
use tidegate::{charge::Key, store::unit_lease::FetchReply};

use super::*;

impl World {
    /// Sends a call to the store, for a fetch or for the request `direct`.
    pub(super) fn send_call(
        &mut self,
        gateway: usize,
        key: usize,
        mut demand: UnitDemand,
        fetch: Option<LeaseFetch<Caller>>,
        direct: Option<usize>,
    ) {
        self.store_calls += 1;
        if !self.plan.has_bound {
            demand.extra_divisor = 1;
        }
        let (sent, incarnation) = (self.monotonic(gateway), self.gateways[gateway].incarnation);
        let limit = fetch.as_ref().map(|fetch| Arc::clone(fetch.limit()));
        let limit = limit.unwrap_or_else(|| Arc::clone(&self.gateways[gateway].limit));
        let call = self.calls.len();
        let is_over = false;
        self.calls.push(Call {
            gateway,
            incarnation,
            key,
            limit,
            demand,
            fetch,
            direct,
            sent,
            is_over,
        });
        if !self.rng.one_in(self.plan.failures) {
            let delay = self.latency();
            self.schedule(delay, Event::Call(call));
        }
        self.schedule(RESPONSE_TIMEOUT, Event::Timeout(call));
    }

    /// Handles the arrival of a call at the store.
    pub(super) fn handle_call(&mut self, call: usize) {
        let now = self.store_now();
        let Call { gateway, key, demand, ref limit, incarnation, is_over, .. } = self.calls[call];
        let quota = limit.quota;
        let grant = self.records[key].acquire(&quota, now, &demand);
        if grant.units > 0 {
            assert!(grant.spendable_until > now);
            if self.ends[key].last() != Some(&grant.spendable_until) {
                self.ends[key].push(grant.spendable_until);
            }
        } else {
            self.first_refusal.get_or_insert(self.admitted_cost);
            self.max_unspent_at_refusal = self.max_unspent_at_refusal.max(self.spendable(key));
        }
        let is_awaited = self.calls[call].fetch.is_some() && !is_over;
        if is_awaited && incarnation == self.gateways[gateway].incarnation {
            self.gateways[gateway].unreplied += grant.units;
        }
        self.replies.push((grant, now));
        if !self.rng.one_in(self.plan.failures) {
            let (reply, delay) = (self.replies.len() - 1, self.latency());
            self.schedule(delay, Event::Reply(call, reply));
        }
    }

    /// The leased units of a key that gateways can spend now; the store counts them as used.
    fn spendable(&self, key: usize) -> u64 {
        let of = |(at, gateway): (usize, &Gateway)| {
            let monotonic = self.monotonic(at);
            gateway.leases.spendable(&gateway.limit, Key(key as u128), monotonic)
        };
        self.gateways.iter().enumerate().map(of).sum()
    }

    /// Handles the arrival of a reply at the gateway.
    pub(super) fn handle_reply(&mut self, call: usize, reply: usize) {
        let (grant, now) = self.replies[reply];
        let Call { gateway, sent, direct, is_over, .. } = self.calls[call];
        if is_over {
            return;
        }
        let received = self.monotonic(gateway);
        let fetch = self.calls[call].fetch.take();
        self.calls[call].is_over = true;
        if let Some(fetch) = fetch {
            self.gateways[gateway].unreplied -= grant.units;
            if let Some(next) =
                fetch.complete(&FetchReply { grant, decided_at: now, sent, received })
            {
                let key = self.calls[call].key;
                self.send_call(gateway, key, *next.demand(), Some(next), None);
            }
        }
        let Some(id) = direct else { return };
        if grant.units == 0 {
            self.refuse(id, grant.decision.remaining, grant.decision.retry_at, now);
            return;
        }
        self.admit(id, now, now, false);
    }

    /// Handles the gateway's response timeout.
    pub(super) fn handle_timeout(&mut self, call: usize) {
        let Call { gateway, demand, direct, is_over, .. } = self.calls[call];
        if is_over {
            return;
        }
        self.calls[call].is_over = true;
        let monotonic = self.monotonic(gateway);
        if let Some(fetch) = self.calls[call].fetch.take() {
            self.gateways[gateway].unconfirmed += demand.returned.units;
            if self.rng.one_in(4) {
                drop(fetch);
            } else {
                fetch.fail(RedisFailure::Timeout, monotonic);
            }
        }
        if let Some(id) = direct {
            assert!(self.pending.remove(&id).is_some(), "{id} has two outcomes");
        }
    }

    /// Refuses a request, and caches the refusal.
    fn refuse(&mut self, id: usize, left: u64, retry_at: Option<StoreTime>, now: StoreTime) {
        let Request { gateway, key, cost } = self.requests[id];
        assert!(self.pending.remove(&id).is_some(), "{id} has two outcomes");
        assert!(left < cost, "refused {cost} of {left}");
        let monotonic = self.monotonic(gateway);
        let until =
            monotonic + retry_at.map_or(INITIAL_TRUST, |at| at.since(now).min(INITIAL_TRUST));
        self.gateways[gateway].denied.insert((key, cost), until.as_ms());
    }

    /// Delivers the outcomes to the waiters.
    pub(super) fn deliver(&mut self) {
        loop {
            let outcomes = std::mem::take(&mut *self.mailbox.lock());
            if outcomes.is_empty() {
                return;
            }
            for (id, outcome) in outcomes {
                let Request { gateway, cost, .. } = self.requests[id];
                match outcome {
                    WaiterOutcome::Granted(taken) => {
                        self.gateways[gateway].spent += cost;
                        let (now, arrived) = (self.store_now(), self.pending.get(&id).copied());
                        assert!(taken.charged_at <= now);
                        // A request that arrived after the store's decision was not decided there.
                        let is_later =
                            arrived.is_some_and(|at| START + ms(at) - ms(1_000) > taken.charged_at);
                        self.admit(
                            id,
                            if is_later { now } else { taken.charged_at },
                            taken.charged_at,
                            true,
                        );
                    }
                    WaiterOutcome::Refused { decision, decided_at } => {
                        assert!(!decision.admitted);
                        self.refuse(id, decision.remaining, decision.retry_at, decided_at);
                    }
                    WaiterOutcome::CallStore => self.call_directly(id),
                    WaiterOutcome::Failed(_) => {
                        assert!(self.pending.remove(&id).is_some(), "{id} has two outcomes");
                    }
                }
            }
        }
    }

    /// Asserts that every charged unit is spent, held, returned, or lost.
    pub(super) fn assert_balance(&mut self) {
        for at in &self.gateways {
            for drained in [false, true] {
                if drained {
                    at.leases.drain(&mut Vec::new());
                }
                let stats = at.leases.stats();
                let used = at.spent + stats.outstanding + stats.returned + at.unconfirmed;
                assert_eq!(stats.granted, used, "{stats:?}, spent {}", at.spent);
                assert!(stats.lost >= at.unconfirmed + at.unreplied, "{stats:?}");
                assert!(!drained || (stats.entries, stats.outstanding) == (0, 0));
            }
        }
    }
}
