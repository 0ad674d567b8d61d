//! Slots that requests hold while they are in flight, by limits on concurrency.
//!
//! Each is held on a lease, which is renewed while the request lasts and given back when it is over,
//! whatever ends it: [`ConcurrencyPermit`] lives in the request's context. All leases of a worker are in one
//! table, so that the worker's sweep finds those that are due; a lease that is being renewed when its
//! request ends is given back once the renewal is over.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

use smallvec::SmallVec;

use super::background::Background;
use crate::{
    limit::{Algorithm, Change, Charge, Decider, Key, Limit, Millis, Settlement, Verdict},
    store::Correction,
};

/// Leases that one call renews.
const BATCH: usize = 16;

/// A lease is renewed when so much of it is over: one in so many.
const PART: Millis = 3;

/// A renewal that failed is tried again after so many ms.
const AGAIN: u64 = 500;

/// One charge that outlives its request's future.
pub(super) struct LeasedCharge {
    pub(super) limit: Arc<Limit>,
    pub(super) key: Key,
    pub(super) cost: u32,
}

impl LeasedCharge {
    /// The same as the store takes it.
    pub(super) fn charge(&self) -> Charge<'_> {
        Charge { limit: &self.limit, key: self.key, cost: self.cost }
    }
}

/// The slots of one request; given back when it is dropped.
pub(super) struct ConcurrencyPermit {
    table: Rc<LeaseTable>,
    leases: SmallVec<[u64; 2]>,
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        self.table.give_back(&self.leases);
    }
}

/// One lease.
struct Lease {
    limit: Arc<Limit>,
    key: Key,
    cost: u32,
    /// When it was taken or renewed last (ms, by the clock that decided).
    charged_at: Millis,
    /// Where it was taken.
    by: Decider,
    /// When it is to be renewed (ms, by the worker's coarse clock).
    due: u64,
    renewal: Renewal,
}

/// Whether a lease is being renewed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Renewal {
    None,
    UnderWay,
    /// Its request has ended meanwhile.
    Abandoned,
}

/// All leases that a worker's requests hold.
pub(super) struct LeaseTable {
    background: Rc<Background>,
    /// The worker's coarse clock, in ms.
    clock: Rc<Cell<u64>>,
    next: Cell<u64>,
    /// No lease is due before (ms, by the coarse clock).
    due: Cell<u64>,
    leases: RefCell<BTreeMap<u64, Lease>>,
}

impl LeaseTable {
    pub(super) fn new(background: Rc<Background>, clock: Rc<Cell<u64>>) -> Self {
        let due = Cell::new(u64::MAX);
        Self { background, clock, next: Cell::new(0), due, leases: RefCell::default() }
    }

    /// Whether no request holds a slot.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.borrow().is_empty()
    }

    /// Takes over the slots that a request was granted.
    pub(super) fn take(
        self: &Rc<Self>,
        wanted: &[LeasedCharge],
        verdict: &Verdict,
    ) -> Option<ConcurrencyPermit> {
        let mut all = self.leases.borrow_mut();
        let mut leases = SmallVec::new();
        for (LeasedCharge { limit, key, cost }, outcome) in wanted.iter().zip(&verdict.outcomes) {
            let holds = limit.algorithm == Algorithm::Concurrency && *cost > 0 && verdict.admitted;
            let Some(decided) = outcome.admitted().filter(|_| holds) else { continue };
            let id = self.next.replace(self.next.get() + 1);
            let lease = Lease {
                limit: Arc::clone(limit),
                key: *key,
                cost: *cost,
                charged_at: decided.at,
                by: decided.by,
                due: self.due_of(limit),
                renewal: Renewal::None,
            };
            all.insert(id, lease);
            leases.push(id);
        }
        (!leases.is_empty()).then(|| ConcurrencyPermit { table: Rc::clone(self), leases })
    }

    /// When a lease that is taken now is due; the table is looked at then.
    fn due_of(&self, limit: &Limit) -> u64 {
        let due = self.clock.get() + limit.quota.window / PART;
        self.due.set(self.due.get().min(due));
        due
    }

    /// Gives back the slots of one request, but for those that are being renewed.
    fn give_back(&self, leases: &[u64]) {
        let mut all = self.leases.borrow_mut();
        let mut released: SmallVec<[Correction; 2]> = SmallVec::new();
        for id in leases {
            if let Some(lease) = all.get_mut(id).filter(|lease| lease.renewal != Renewal::None) {
                lease.renewal = Renewal::Abandoned;
            } else if let Some(lease) = all.remove(id) {
                released.push(lease.release());
            }
        }
        drop(all);
        if !released.is_empty() {
            self.background.correct(released);
        }
    }

    /// Renews the leases that are due. To be called often: see [`PART`].
    pub(super) fn renew(self: &Rc<Self>) {
        let now = self.clock.get();
        if now < self.due.get() {
            return;
        }
        self.due.set(u64::MAX);
        let (mut shared, mut local) = (Vec::new(), Vec::new());
        for (&id, lease) in self.leases.borrow_mut().iter_mut() {
            if lease.due <= now {
                lease.due = now + lease.limit.quota.window / PART;
                if lease.renewal == Renewal::None {
                    lease.renewal = Renewal::UnderWay;
                    match lease.by {
                        Decider::Store => shared.push(id),
                        Decider::Fallback => local.push(id),
                    }
                }
            }
            self.due.set(self.due.get().min(lease.due));
        }
        for (by, due) in [(Decider::Store, shared), (Decider::Fallback, local)] {
            for leases in due.chunks(BATCH) {
                let (table, leases) = (Rc::clone(self), leases.to_vec());
                self.background.run(async move { table.renew_batch(&leases, by).await });
            }
        }
    }

    /// Takes these leases anew, then gives back those that they follow, so that no other request gets the
    /// slots in between. A lease that has ended meanwhile is taken all the same: its request is in flight.
    async fn renew_batch(&self, leases: &[u64], by: Decider) {
        let held: SmallVec<[Correction; BATCH]> = {
            let all = self.leases.borrow();
            leases.iter().filter_map(|id| all.get(id)).map(Lease::release).collect()
        };
        let settlements: Vec<Settlement<'_>> = held
            .iter()
            .flat_map(|release| {
                let change = Change::Overdraw { cost: release.change.cost() };
                let Correction { limit, key, change: release, .. } = release;
                let release = Settlement { limit, key: *key, change: *release };
                [Settlement { change, ..release }, release]
            })
            .collect();
        let now = self.background.now();
        let settled = self.background.store.renew(&settlements, by, now).await;
        let mut released: SmallVec<[Correction; 2]> = SmallVec::new();
        let mut all = self.leases.borrow_mut();
        for (id, renewed) in leases.iter().zip(settled.chunks(2)) {
            let Some(lease) = all.get_mut(id) else { continue };
            // Where no answer came the lease may be either: the one that is not given back ends by
            // itself.
            if let Some(decided) = renewed.first().and_then(|outcome| outcome.decided()) {
                lease.charged_at = decided.at;
            } else {
                lease.due = lease.due.min(self.clock.get() + AGAIN);
                self.due.set(self.due.get().min(lease.due));
            }
            if std::mem::replace(&mut lease.renewal, Renewal::None) == Renewal::Abandoned {
                released.extend(all.remove(id).map(|lease| lease.release()));
            }
        }
        drop(all);
        if !released.is_empty() {
            self.background.correct(released);
        }
    }
}

impl Lease {
    /// What gives it back.
    fn release(&self) -> Correction {
        let change = Change::Refund { charged_at: self.charged_at, cost: self.cost };
        Correction { limit: Arc::clone(&self.limit), key: self.key, change, by: self.by }
    }
}
