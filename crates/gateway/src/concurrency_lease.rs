//! Leases of the concurrency permits that requests hold while they are in flight.
//!
//! A lease is renewed while its request is in flight, and released when the request's context drops
//! the [`ConcurrencyPermits`]. All leases of a worker are in one table, in which the worker's sweep
//! finds the leases that are due. If a request ends while its lease is being renewed, the lease is
//! released after the renewal.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
};

use smallvec::SmallVec;
use tidegate_base::time::{CoarseTime, Millis, StoreTime};
use tidegate_charge::{Adjustment, DecisionSource, Key, Limit};
use tidegate_limit::Change;
use tidegate_store::Correction;
use tidegate_system::clock::CoarseClock;

use super::{background::Background, charged_limit::ChargedLimit};

/// Maximum number of leases that one call to the store renews.
const RENEWAL_BATCH: usize = 16;

/// Renewals per term of a lease. The term is the window of the lease's limit.
const RENEWALS_PER_TERM: u64 = 3;

/// Delay before a failed renewal is repeated.
const RETRY_INTERVAL: Millis = Millis::from_ms(500);

/// The permits of one request. Dropping this releases them.
pub(super) struct ConcurrencyPermits {
    table: Rc<LeaseTable>,
    lease_ids: SmallVec<[u64; 2]>,
}

impl Drop for ConcurrencyPermits {
    fn drop(&mut self) {
        self.table.release(&self.lease_ids);
    }
}

/// A lease of `cost` concurrency permits.
struct ConcurrencyLease {
    limit: Arc<Limit>,
    key: Key,
    cost: u64,
    /// When it was acquired or last renewed, by the clock of the store that decided.
    charged_at: StoreTime,
    /// The store that granted it.
    source: DecisionSource,
    /// The next renewal.
    due: CoarseTime,
    renewal: Renewal,
}

/// The state of a lease's renewal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Renewal {
    None,
    InProgress,
    /// In progress, and the request has ended.
    Abandoned,
}

/// The leases of all requests of a worker, by id.
pub(super) struct LeaseTable {
    background: Rc<Background>,
    /// The worker's clock.
    coarse_clock: CoarseClock,
    next_id: Cell<u64>,
    /// No lease is due before this; `CoarseTime::MAX` without leases.
    next_due: Cell<CoarseTime>,
    leases: RefCell<BTreeMap<u64, ConcurrencyLease>>,
}

impl LeaseTable {
    pub(super) fn new(background: Rc<Background>, coarse_clock: CoarseClock) -> Self {
        let next_due = Cell::new(CoarseTime::MAX);
        Self {
            background,
            coarse_clock,
            next_id: Cell::new(0),
            next_due,
            leases: RefCell::default(),
        }
    }

    /// True if no request holds a concurrency permit.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.borrow().is_empty()
    }

    /// Registers the permits that an admitted request was granted; `None` if it was granted none.
    pub(super) fn register(self: &Rc<Self>, limits: &[ChargedLimit]) -> Option<ConcurrencyPermits> {
        let mut leases = self.leases.borrow_mut();
        let mut lease_ids = SmallVec::new();
        for charged in limits.iter().filter(|charged| charged.holds_permit()) {
            let Some(decided) = charged.made_charge() else { continue };
            let id = self.next_id.replace(self.next_id.get() + 1);
            let lease = ConcurrencyLease {
                limit: Arc::clone(charged.limit()),
                key: charged.key(),
                cost: charged.cost(),
                charged_at: decided.at,
                source: decided.source,
                due: self.schedule_renewal(charged.limit()),
                renewal: Renewal::None,
            };
            leases.insert(id, lease);
            lease_ids.push(id);
        }
        (!lease_ids.is_empty()).then(|| ConcurrencyPermits { table: Rc::clone(self), lease_ids })
    }

    /// Schedules the renewal of a lease that is acquired now; returns its due time.
    fn schedule_renewal(&self, limit: &Limit) -> CoarseTime {
        let due = self.coarse_clock.now() + limit.quota.window / RENEWALS_PER_TERM;
        self.next_due.set(self.next_due.get().min(due));
        due
    }

    /// Releases the permits of one request. Permits whose renewal is in progress are released when
    /// it ends.
    fn release(&self, lease_ids: &[u64]) {
        let mut leases = self.leases.borrow_mut();
        let mut released: SmallVec<[Correction; 2]> = SmallVec::new();
        for id in lease_ids {
            if let Some(lease) = leases.get_mut(id).filter(|lease| lease.renewal != Renewal::None) {
                lease.renewal = Renewal::Abandoned;
            } else if let Some(lease) = leases.remove(id) {
                released.push(lease.refund());
            }
        }
        drop(leases);
        if !released.is_empty() {
            self.background.adjust_in_background(released);
        }
    }

    /// Starts the renewal of the leases that are due. Call it far more often than
    /// [`RENEWALS_PER_TERM`] times per term.
    pub(super) fn renew(self: &Rc<Self>) {
        let now = self.coarse_clock.now();
        if now < self.next_due.get() {
            return;
        }
        self.next_due.set(CoarseTime::MAX);
        let (mut in_store, mut in_fallback) = (Vec::new(), Vec::new());
        for (&id, lease) in self.leases.borrow_mut().iter_mut() {
            if lease.due <= now {
                lease.due = now + lease.limit.quota.window / RENEWALS_PER_TERM;
                if lease.renewal == Renewal::None {
                    lease.renewal = Renewal::InProgress;
                    match lease.source {
                        DecisionSource::Store => in_store.push(id),
                        DecisionSource::Fallback => in_fallback.push(id),
                    }
                }
            }
            self.next_due.set(self.next_due.get().min(lease.due));
        }
        for (source, due) in
            [(DecisionSource::Store, in_store), (DecisionSource::Fallback, in_fallback)]
        {
            for lease_ids in due.chunks(RENEWAL_BATCH) {
                let (table, lease_ids) = (Rc::clone(self), lease_ids.to_vec());
                self.background.run(async move { table.renew_batch(&lease_ids, source).await });
            }
        }
    }

    /// Renews leases: makes a new charge without a check of the quota, then refunds the old one, so
    /// that no other request gets the permit in between. An expired lease is charged again as well:
    /// its request is still in flight.
    async fn renew_batch(&self, lease_ids: &[u64], source: DecisionSource) {
        let refunds: SmallVec<[Correction; RENEWAL_BATCH]> = {
            let leases = self.leases.borrow();
            lease_ids.iter().filter_map(|id| leases.get(id)).map(ConcurrencyLease::refund).collect()
        };
        let adjustments: Vec<Adjustment<'_>> = refunds
            .iter()
            .flat_map(|Correction { limit, key, change, .. }| {
                let refund = Adjustment { limit, key: *key, change: *change };
                let renewal = Change::Overdraw { cost: change.cost() };
                [Adjustment { change: renewal, ..refund }, refund]
            })
            .collect();
        let now = self.background.now();
        let outcomes = self.background.store.renew_permits(&adjustments, source, now).await;
        let mut released: SmallVec<[Correction; 2]> = SmallVec::new();
        let mut leases = self.leases.borrow_mut();
        for (id, renewed) in lease_ids.iter().zip(outcomes.chunks(2)) {
            let Some(lease) = leases.get_mut(id) else { continue };
            // Without a reply, either the old or the new charge may stand. A charge that is never
            // refunded expires.
            if let Some(decided) = renewed.first().and_then(|outcome| outcome.decided()) {
                lease.charged_at = decided.at;
            } else {
                lease.due = lease.due.min(self.coarse_clock.now() + RETRY_INTERVAL);
                self.next_due.set(self.next_due.get().min(lease.due));
            }
            if std::mem::replace(&mut lease.renewal, Renewal::None) == Renewal::Abandoned {
                released.extend(leases.remove(id).map(|lease| lease.refund()));
            }
        }
        drop(leases);
        if !released.is_empty() {
            self.background.adjust_in_background(released);
        }
    }
}

impl ConcurrencyLease {
    /// The correction that refunds its last charge.
    fn refund(&self) -> Correction {
        let change = Change::Refund { charged_at: self.charged_at, cost: self.cost };
        Correction { limit: Arc::clone(&self.limit), key: self.key, change, source: self.source }
    }
}
