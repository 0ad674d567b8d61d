//! Slots that requests hold while they are in flight, by limits on concurrency.
//!
//! Each is held on a lease, which is taken anew while the request lasts and given back when it is over,
//! whatever ends it: [`Lent`] lives in the request's account. What a worker holds is in one list, so that
//! the worker's sweep finds the leases that are due, and a lease that is being taken anew when its request
//! ends is given back once it is known which it is.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::charging::Payer;
use crate::{
    limit::{Algorithm, Change, Charge, Decision, Key, Limit, Millis, Origin, Settlement, Verdict},
    store::{Correction, StoreError},
};

/// Leases that one call takes anew.
const BATCH: usize = 16;

/// A lease is taken anew when so much of it is over: one in so many.
const PART: Millis = 3;

/// One charge that outlives its request's future.
pub(super) struct Wanted {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Key,
    pub(super) cost: u32,
}

/// The slots of one request; given back when it is dropped.
pub(super) struct Lent {
    slots: Rc<Slots>,
    leases: SmallVec<[u64; 2]>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.slots.give_back(&self.leases);
    }
}

/// One lease.
struct Lease {
    limit: Arc<Limit>,
    key: Key,
    cost: u32,
    /// When it was taken last (ms, by the clock that decided).
    charged_at: Millis,
    /// Whether it was taken in this process because Redis was lost.
    fallback: bool,
    /// When it is to be taken anew (ms, by the worker's coarse clock).
    due: u64,
    /// Whether it is being taken anew.
    busy: bool,
    /// Whether its request is over; only while it is busy.
    over: bool,
}

/// All slots that a worker's requests hold.
pub(super) struct Slots {
    payer: Rc<Payer>,
    /// The worker's coarse clock, in ms.
    clock: Rc<Cell<u64>>,
    next: Cell<u64>,
    /// No lease is due before (ms, by the coarse clock).
    due: Cell<u64>,
    leases: RefCell<BTreeMap<u64, Lease>>,
}

impl Slots {
    pub(super) fn new(payer: Rc<Payer>, clock: Rc<Cell<u64>>) -> Self {
        let due = Cell::new(u64::MAX);
        Self { payer, clock, next: Cell::new(0), due, leases: RefCell::default() }
    }

    /// Whether no request holds a slot.
    pub(super) fn are_free(&self) -> bool {
        self.leases.borrow().is_empty()
    }

    /// Charges all or none. The slots that this takes are given back also when no request waits for the
    /// verdict any more.
    pub(super) async fn take(
        self: &Rc<Self>,
        wanted: Vec<Wanted>,
    ) -> Result<(Verdict, Option<Lent>), StoreError> {
        let (tell, told) = oneshot::channel();
        let slots = Rc::clone(self);
        self.payer.see_to(async move {
            let charges = wanted.iter();
            let charges: SmallVec<[Charge<'_>; 4]> = charges
                .map(|Wanted { limit, key, cost }| Charge { limit, key: *key, cost: *cost })
                .collect();
            let decided = slots.payer.store.charge(&charges, slots.payer.now()).await;
            drop(charges);
            let lent = decided.map(|verdict| {
                let lent = slots.lend(&wanted, &verdict);
                (verdict, lent)
            });
            // The slots that it lent are given back where it is dropped.
            if let Err(Ok((verdict, _lent))) = tell.send(lent) {
                slots.abandon(&wanted, &verdict);
            }
        });
        // Only a worker that ends drops the task.
        told.await.unwrap_or(Err(StoreError::Unavailable { limit: 0 }))
    }

    /// Gives back what a request was charged that would have been held, and whose client is gone before: as
    /// one that leaves while it is held, it has used nothing.
    fn abandon(&self, wanted: &[Wanted], verdict: &Verdict) {
        let decided = wanted.iter().zip(&verdict.decisions).enumerate();
        let is_held = |(_, (wanted, decision)): (usize, (&Wanted, &Decision))| {
            wanted.limit.enforce && decision.wait > 0
        };
        if !verdict.admitted || !decided.clone().any(is_held) {
            return;
        }
        let charged = decided.filter(|(_, (wanted, decision))| {
            let is_leased = wanted.limit.algorithm == Algorithm::Concurrency;
            decision.admitted && decision.counted && !is_leased
        });
        self.payer.repay(charged.map(|(at, (Wanted { limit, key, cost }, decision))| {
            let Origin { now, fallback } = verdict.origin(at);
            let change = Change::Refund { charged_at: now + decision.wait, cost: *cost };
            Correction { limit: Arc::clone(limit), key: *key, change, fallback }
        }));
    }

    /// Notes what was taken.
    fn lend(self: &Rc<Self>, wanted: &[Wanted], verdict: &Verdict) -> Option<Lent> {
        let decided = wanted.iter().zip(&verdict.decisions).enumerate();
        let decided = decided.filter(|(_, (wanted, decision))| {
            let holds = wanted.limit.algorithm == Algorithm::Concurrency && wanted.cost > 0;
            holds && verdict.admitted && decision.admitted && decision.counted
        });
        let mut all = self.leases.borrow_mut();
        let mut leases = SmallVec::new();
        for (at, (Wanted { limit, key, cost }, _)) in decided {
            let id = self.next.replace(self.next.get() + 1);
            let due = self.due_of(limit);
            let Origin { now: charged_at, fallback } = verdict.origin(at);
            let (limit, key, cost) = (Arc::clone(limit), *key, *cost);
            let lease =
                Lease { limit, key, cost, charged_at, fallback, due, busy: false, over: false };
            all.insert(id, lease);
            leases.push(id);
        }
        (!leases.is_empty()).then(|| Lent { slots: Rc::clone(self), leases })
    }

    /// When a lease that is taken now is due; the list is looked at then.
    fn due_of(&self, limit: &Limit) -> u64 {
        let due = self.clock.get() + limit.quota.window / PART;
        self.due.set(self.due.get().min(due));
        due
    }

    /// Gives back the slots of one request, but for those that are being taken anew.
    fn give_back(&self, leases: &[u64]) {
        let mut all = self.leases.borrow_mut();
        let mut owed: SmallVec<[Correction; 2]> = SmallVec::new();
        for id in leases {
            if let Some(lease) = all.get_mut(id).filter(|lease| lease.busy) {
                lease.over = true;
            } else if let Some(lease) = all.remove(id) {
                owed.push(lease.into_owed());
            }
        }
        drop(all);
        if !owed.is_empty() {
            self.payer.repay(owed);
        }
    }

    /// Takes anew the leases that are due. To be called often: see [`PART`].
    pub(super) fn renew(self: &Rc<Self>) {
        let now = self.clock.get();
        if now < self.due.get() {
            return;
        }
        self.due.set(u64::MAX);
        let mut due: [Vec<u64>; 2] = Default::default();
        for (&id, lease) in self.leases.borrow_mut().iter_mut() {
            if lease.due <= now {
                lease.due = now + lease.limit.quota.window / PART;
                if !lease.busy {
                    lease.busy = true;
                    due[usize::from(lease.fallback)].push(id);
                }
            }
            self.due.set(self.due.get().min(lease.due));
        }
        for (fallback, due) in [false, true].into_iter().zip(due) {
            for leases in due.chunks(BATCH) {
                let (slots, leases) = (Rc::clone(self), leases.to_vec());
                self.payer.see_to(async move { slots.take_anew(&leases, fallback).await });
            }
        }
    }

    /// Takes these leases anew, then gives back those that they follow: so nobody else gets the slots in
    /// between. A lease that has ended meanwhile is taken all the same: its request is in flight.
    async fn take_anew(&self, leases: &[u64], fallback: bool) {
        let held: SmallVec<[Correction; BATCH]> = {
            let all = self.leases.borrow();
            leases.iter().filter_map(|id| all.get(id)).map(Lease::owed).collect()
        };
        let settlements: Vec<Settlement<'_>> = held
            .iter()
            .flat_map(|owed| {
                let change = Change::Overdraw { cost: owed.change.cost() };
                let Correction { limit, key, .. } = owed;
                let held = Settlement { limit, key: *key, change: owed.change };
                [Settlement { change, ..held }, held]
            })
            .collect();
        let settled = self.payer.store.settle(&settlements, fallback, self.payer.now()).await;
        let mut over: SmallVec<[Correction; 2]> = SmallVec::new();
        let mut all = self.leases.borrow_mut();
        for (at, id) in leases.iter().enumerate() {
            let Some(lease) = all.get_mut(id) else { continue };
            lease.busy = false;
            // Where no answer came the lease may be either: the one that is not given back ends by
            // itself.
            let decided = settled.as_ref().filter(|verdict| {
                verdict.decisions.get(2 * at).is_some_and(|decision| decision.counted)
            });
            if let Some(verdict) = decided {
                lease.charged_at = verdict.origin(2 * at).now;
            }
            if lease.over {
                over.extend(all.remove(id).map(Lease::into_owed));
            }
        }
        drop(all);
        if !over.is_empty() {
            self.payer.repay(over);
        }
    }
}

impl Lease {
    /// What gives it back.
    fn owed(&self) -> Correction {
        let change = Change::Refund { charged_at: self.charged_at, cost: self.cost };
        let (limit, key, fallback) = (Arc::clone(&self.limit), self.key, self.fallback);
        Correction { limit, key, change, fallback }
    }

    fn into_owed(self) -> Correction {
        self.owed()
    }
}
