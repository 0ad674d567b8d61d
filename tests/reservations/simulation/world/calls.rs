//! Calls to the store and their outcomes.

use super::*;

impl World {
    pub(super) fn send(
        &mut self,
        gateway: usize,
        key: usize,
        mut order: TokenDemand,
        fetching: Option<LeaseFetch<Caller>>,
        own: Option<usize>,
    ) {
        self.asked += 1;
        if !self.plan.shares {
            order.extra_divisor = 1;
        }
        let (sent, life) = (self.ticks(gateway), self.gateways[gateway].life);
        let limit = fetching.as_ref().map(|fetching| Limit::clone(fetching.limit()));
        let limit = limit.unwrap_or_else(|| self.gateways[gateway].limit.clone());
        let call = self.calls.len();
        let over = false;
        self.calls.push(Call { gateway, life, key, limit, order, fetching, own, sent, over });
        if !self.rng.one_in(self.plan.failures) {
            let delay = self.delay();
            self.after(delay, Event::Arrive(call));
        }
        self.after(PATIENCE, Event::GiveUp(call));
    }

    /// At the store.
    pub(super) fn arrive(&mut self, call: usize) {
        let now = self.store_now();
        let Call { gateway, key, order, ref limit, life, over, .. } = self.calls[call];
        let quota = limit.quota;
        let grant = self.records[key].acquire(&quota, now, &order);
        if grant.tokens > 0 {
            assert!(grant.spendable_until > now);
            if self.ends[key].last() != Some(&grant.spendable_until) {
                self.ends[key].push(grant.spendable_until);
            }
        } else {
            self.first_refusal.get_or_insert(self.passed);
            self.unseen = self.unseen.max(self.spendable(key));
        }
        let heard = self.calls[call].fetching.is_some() && !over;
        if heard && life == self.gateways[gateway].life {
            self.gateways[gateway].unheard += u64::from(grant.tokens);
        }
        self.replies.push((grant, now));
        if !self.rng.one_in(self.plan.failures) {
            let (reply, delay) = (self.replies.len() - 1, self.delay());
            self.after(delay, Event::Answer(call, reply));
        }
    }

    /// The tokens of a key that gateways can spend now and that the store counts as used.
    fn spendable(&self, key: usize) -> u64 {
        let of = |(at, gateway): (usize, &Gateway)| {
            let ticks = self.ticks(at);
            u64::from(gateway.leases.spendable(&gateway.limit, Key(key as u128), ticks))
        };
        self.gateways.iter().enumerate().map(of).sum()
    }

    /// At the gateway.
    pub(super) fn answer(&mut self, call: usize, reply: usize) {
        let (grant, now) = self.replies[reply];
        let Call { gateway, sent, own, over, .. } = self.calls[call];
        if over {
            return;
        }
        let received = self.ticks(gateway);
        let fetching = self.calls[call].fetching.take();
        self.calls[call].over = true;
        if let Some(fetching) = fetching {
            self.gateways[gateway].unheard -= u64::from(grant.tokens);
            if let Some(next) = fetching.complete(&FetchReply { grant, now, sent, received }) {
                let key = self.calls[call].key;
                self.send(gateway, key, *next.demand(), Some(next), None);
            }
        }
        let Some(id) = own else { return };
        if grant.tokens == 0 {
            self.refused(id, grant.decision.remaining, grant.decision.retry_at, now);
            return;
        }
        self.admit(id, now, now, false);
    }

    /// The gateway's response timeout expires.
    pub(super) fn give_up(&mut self, call: usize) {
        let Call { gateway, order, own, over, .. } = self.calls[call];
        if over {
            return;
        }
        self.calls[call].over = true;
        let ticks = self.ticks(gateway);
        if let Some(fetching) = self.calls[call].fetching.take() {
            self.gateways[gateway].unknown += u64::from(order.returned.tokens);
            if self.rng.one_in(4) {
                drop(fetching);
            } else {
                fetching.fail(Failure::Timeout, ticks);
            }
        }
        if let Some(id) = own {
            assert!(self.pending.remove(&id).is_some(), "{id} has two outcomes");
        }
    }

    fn refused(&mut self, id: usize, left: u64, retry_at: Option<Millis>, now: Millis) {
        let Request { gateway, key, cost } = self.requests[id];
        assert!(self.pending.remove(&id).is_some(), "{id} has two outcomes");
        assert!(left < u64::from(cost), "refused {cost} of {left}");
        let ticks = self.ticks(gateway);
        let until =
            ticks + retry_at.map_or(INITIAL_TRUST, |at| at.saturating_sub(now).min(INITIAL_TRUST));
        self.gateways[gateway].denied.insert((key, cost), until);
    }

    /// Delivers the outcomes to the waiters.
    pub(super) fn deliver(&mut self) {
        loop {
            let told = std::mem::take(&mut *self.mailbox.lock());
            if told.is_empty() {
                return;
            }
            for (id, outcome) in told {
                let Request { gateway, cost, .. } = self.requests[id];
                match outcome {
                    WaiterOutcome::Granted(taken) => {
                        self.gateways[gateway].spent += u64::from(cost);
                        let (now, came) = (self.store_now(), self.pending.get(&id).copied());
                        assert!(taken.now <= now);
                        // A request that arrived after the store's decision was not decided there.
                        let since = came.is_some_and(|came| START + came - 1_000 > taken.now);
                        self.admit(id, if since { now } else { taken.now }, taken.now, true);
                    }
                    WaiterOutcome::Refused { decision, now } => {
                        assert!(!decision.admitted);
                        self.refused(id, decision.remaining, decision.retry_at, now);
                    }
                    WaiterOutcome::CallStore => self.ask(id),
                    WaiterOutcome::Failed(_) => {
                        assert!(self.pending.remove(&id).is_some(), "{id} has two outcomes");
                    }
                }
            }
        }
    }

    /// Every charged token is spent, kept, returned, or lost.
    pub(super) fn balance(&mut self) {
        for at in &self.gateways {
            for drained in [false, true] {
                if drained {
                    at.leases.drain(&mut Vec::new());
                }
                let numbers = at.leases.stats();
                let used = at.spent + numbers.outstanding + numbers.given_back + at.unknown;
                assert_eq!(numbers.granted, used, "{numbers:?}, spent {}", at.spent);
                assert!(numbers.lost >= at.unknown + at.unheard, "{numbers:?}");
                assert!(!drained || (numbers.entries, numbers.outstanding) == (0, 0));
            }
        }
    }
}
