//! Requests: sent to a gateway, admitted from its lease, refunded, or sent to the store without a
//! lease.

use std::sync::Arc;

use tidegate::{
    charge::Key,
    clock::{MonotonicTime, StoreTime},
    limit::{Algorithm, UnitDemand},
    store::unit_lease::{JoinOutcome, LeaseCharge},
};

use super::{Admission, Caller, Event, Request, World};

impl World {
    /// Sends a random request to a random gateway.
    pub(super) fn send_request(&mut self) {
        let gateway = self.any_gateway();
        let key = self.rng.below(self.plan.keys as u64) as usize;
        let cost = 1 + self.rng.below(self.plan.max_cost);
        let (id, monotonic) = (self.requests.len(), self.monotonic(gateway));
        self.requests.push(Request { gateway, key, cost });
        let at = &mut self.gateways[gateway];
        if at
            .denied
            .get(&(key, cost))
            .is_some_and(|&until| monotonic < MonotonicTime::from_ms(until))
        {
            return;
        }
        at.denied.remove(&(key, cost));
        self.pending.insert(id, self.now);
        if self.plan.has_direct_calls && self.rng.one_in(6) {
            return self.call_directly(id);
        }
        let at = &self.gateways[gateway];
        if let Some(taken) = at.leases.take(&at.limit, Key(key as u128), cost, monotonic) {
            self.gateways[gateway].spent += cost;
            self.assert_local_charge(&taken, key);
            return self.admit(id, self.store_now(), taken.charged_at, true);
        }
        let is_cancelled = self.rng.one_in(self.plan.failures);
        let caller = Caller { id, cost, mailbox: Arc::clone(&self.mailbox), is_cancelled };
        let at = &self.gateways[gateway];
        match at.leases.join(&at.limit, Key(key as u128), caller, monotonic) {
            JoinOutcome::Served | JoinOutcome::Waiting => {}
            JoinOutcome::Fetch(fetch) => {
                self.send_call(gateway, key, *fetch.demand(), Some(fetch), None);
            }
            JoinOutcome::Unavailable(_) => self.call_directly(id),
        }
        self.deliver();
    }

    /// Asserts that local units are spent in the sub-window that they were charged to.
    pub(super) fn assert_local_charge(&self, taken: &LeaseCharge, key: usize) {
        let (real, sub_window) = (self.store_now(), self.plan.limit.quota.sub_window());
        assert!(taken.charged_at <= real, "the reported time is ahead of the store's");
        let same = match self.plan.limit.algorithm() {
            Algorithm::FixedWindow => {
                let window = |at| self.ends[key].partition_point(|&end| end <= at);
                window(taken.charged_at) == window(real)
            }
            _ => taken.charged_at.whole_periods(sub_window) == real.whole_periods(sub_window),
        };
        assert!(same, "spent at {real:?}, charged at {:?}", taken.charged_at);
    }

    /// Admits a request at `at`, by a charge at `now`; `is_local` if from leased units.
    pub(super) fn admit(&mut self, id: usize, at: StoreTime, now: StoreTime, is_local: bool) {
        let Request { gateway, key, cost } = self.requests[id];
        assert!(self.pending.remove(&id).is_some(), "{id} has two outcomes");
        self.admitted_cost += cost;
        self.admitted.push(Some(Admission { key, at, cost }));
        if is_local && self.rng.one_in(self.plan.refunds) {
            let admission = self.admitted.len() - 1;
            let incarnation = self.gateways[gateway].incarnation;
            let delay = 1 + self.rng.below(300);
            self.schedule(delay, Event::Refund { gateway, incarnation, admission, now });
        }
    }

    /// Refunds an admitted request to its lease, unless the gateway was restarted.
    pub(super) fn refund(
        &mut self,
        gateway: usize,
        incarnation: u32,
        admission: usize,
        now: StoreTime,
    ) {
        let Some(Admission { key, cost, .. }) = self.admitted[admission] else { return };
        let (monotonic, at) = (self.monotonic(gateway), &mut self.gateways[gateway]);
        if at.incarnation != incarnation {
            return;
        }
        if at.leases.refund(&at.limit, Key(key as u128), now, cost, monotonic).is_some() {
            at.spent -= cost;
            self.admitted[admission] = None;
            self.admitted_cost -= cost;
        }
    }

    /// Sends a request to the store without a lease.
    pub(super) fn call_directly(&mut self, id: usize) {
        let Request { gateway, key, cost } = self.requests[id];
        let extra_divisor = 2 * self.plan.gateways as u64;
        let demand =
            UnitDemand { minimum: cost, needed: cost, extra_divisor, ..UnitDemand::default() };
        self.send_call(gateway, key, demand, None, Some(id));
    }
}
