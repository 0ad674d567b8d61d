//! All leases of the process: lookup, capacity, sweeps and totals.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
};

use hashbrown::HashMap;
use smallvec::SmallVec;
use tidegate_base::mix::SplitMix;
use tidegate_base::time::{MonotonicTime, StoreTime};
use tidegate_charge::{Key, LeaseSize, Limit};
use tidegate_limit::UnitReturn;
use tidegate_redis::RedisFailure;

use super::{
    lease::{EnqueueOutcome, FailedFetch, FetchAttempt, FetchRequest, Lease, OnPartialGrant},
    snapshot::{LeaseCharge, LeaseSnapshot},
    sync::Mutex,
    waiter::{FetchReply, LeaseWaiter},
};
use crate::record_id::record_id;

/// Maximum number of leases in a process: about 30 MB. A request that finds no room calls the store
/// itself.
pub const MAX_LEASES: usize = 1 << 16;

/// Number of locks over which the leases are striped.
const STRIPES: usize = 64;

/// A sweep visits whole stripes until it has visited this many leases.
const SWEEP_BATCH: usize = 1 << 14;

/// The identity of a lease.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeaseKey {
    /// The store's record: the key and the limit's identity, whatever its quota.
    pub record: u128,
    /// The record under one combination of quota, lease size and `enforce`. Units charged under one
    /// combination are never spent under another, neither after a reload nor in another tier.
    pub lease_id: u128,
}

impl LeaseKey {
    /// The lease of `key` under `limit`.
    pub fn of(limit: &Limit, key: Key) -> Self {
        let record = record_id(limit, key);
        let lease_size = match limit.lease_size {
            LeaseSize::Off => 0,
            LeaseSize::Auto => 1,
            LeaseSize::Units(count) => count.saturating_add(2),
        };
        let flags = u64::from(limit.quota.variant()) << 1 | u64::from(limit.enforce);
        let low = mix(mix(limit.quota.limit) ^ flags) ^ mix(!lease_size);
        Self { record, lease_id: record ^ u128::from(low) ^ u128::from(mix(low)) << 64 }
    }
}

fn mix(value: u64) -> u64 {
    SplitMix::new(value).bits()
}

/// Units to return to the store.
#[derive(Clone, Debug)]
pub struct UnspentUnits {
    /// The limit that was charged.
    pub limit: Arc<Limit>,
    /// The key that was charged.
    pub key: Key,
    /// The number of units, and the time at which they were charged.
    pub to_return: UnitReturn,
}

/// Totals of all leases, in units unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LeaseStats {
    /// The number of leases in the registry.
    pub entries: usize,
    /// Units held now: charged at the store and not spent yet.
    pub outstanding: u64,
    /// Granted by the store since the process began.
    pub granted: u64,
    /// Returned to the store, with a fetch or by the sweep.
    pub returned: u64,
    /// Upper bound of the units that were lost with fetches and returns of unknown outcome, or
    /// after the registry was closed.
    pub lost: u64,
    /// Discarded because the operator deleted their record.
    pub discarded: u64,
}

/// The leases behind one lock.
struct Stripe<W> {
    /// By [`LeaseKey::record`]: the leases of a record, one for each quota.
    records: HashMap<u128, SmallVec<[Lease<W>; 1]>>,
    /// The counters; `outstanding` is 0 here.
    stats: LeaseStats,
}

impl<W: LeaseWaiter> Stripe<W> {
    fn get_mut(&mut self, LeaseKey { record, lease_id }: LeaseKey) -> Option<&mut Lease<W>> {
        let mut leases = self.records.get_mut(&record)?.iter_mut();
        leases.find(|lease| lease.id() == lease_id)
    }
}

/// All leases of the process: bounded in number, and swept of unused ones.
pub struct LeaseRegistry<W: LeaseWaiter> {
    stripes: Box<[Mutex<Stripe<W>>]>,
    /// Maximum number of leases in one stripe.
    stripe_capacity: usize,
    /// The stripe at which the next sweep begins, modulo the number of stripes.
    sweep_cursor: AtomicUsize,
    gateways: AtomicU32,
    is_closed: AtomicBool,
}

impl<W: LeaseWaiter> Default for LeaseRegistry<W> {
    fn default() -> Self {
        Self::with_capacity(MAX_LEASES)
    }
}

impl<W: LeaseWaiter> LeaseRegistry<W> {
    /// An empty registry for at least `leases` leases, rounded up to a multiple of the stripes.
    pub fn with_capacity(leases: usize) -> Self {
        let stripes = STRIPES.min(leases.max(1));
        let stripe = || Stripe { records: HashMap::new(), stats: LeaseStats::default() };
        Self {
            stripes: (0..stripes).map(|_| Mutex::new(stripe())).collect(),
            stripe_capacity: leases.div_ceil(stripes),
            sweep_cursor: AtomicUsize::new(0),
            gateways: AtomicU32::new(1),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Sets the number of live gateways, including this one. It bounds the units that a fetch asks
    /// for beyond the needed ones.
    pub fn set_gateways(&self, gateways: u32) {
        self.gateways.store(gateways, Relaxed);
    }

    /// Takes `cost` units (at least 1) of `key` under `limit` at `monotonic`, if they are here and
    /// no request waits for them.
    #[inline]
    pub fn take(
        &self,
        limit: &Limit,
        key: Key,
        cost: u64,
        monotonic: MonotonicTime,
    ) -> Option<LeaseCharge> {
        let lease_key = LeaseKey::of(limit, key);
        self.stripe(lease_key.record).lock().get_mut(lease_key)?.take(cost, monotonic)
    }

    /// Puts back `cost` units that were taken here at [`LeaseCharge::charged_at`], without a call
    /// to the store. Returns the time and the remaining units after that. `None` if their
    /// sub-window has ended or the lease is gone: the caller then has to refund them at the store,
    /// with the same `charged_at`.
    pub fn refund(
        &self,
        limit: &Limit,
        key: Key,
        charged_at: StoreTime,
        cost: u64,
        monotonic: MonotonicTime,
    ) -> Option<LeaseCharge> {
        let lease_key = LeaseKey::of(limit, key);
        let mut stripe = self.stripe(lease_key.record).lock();
        stripe.get_mut(lease_key)?.refund(charged_at, cost, monotonic)
    }

    /// Like [`Self::refund`], but returns units whose sub-window has ended to the store with the
    /// next fetch or sweep. Returns false if there is no lease for that, because the registry is
    /// full or closed.
    pub fn refund_or_mark_for_return(
        &self,
        limit: &Arc<Limit>,
        key: Key,
        charged_at: StoreTime,
        cost: u64,
        monotonic: MonotonicTime,
    ) -> bool {
        let refunded = self.with_lease(limit, key, monotonic, |lease, stats| {
            let to_return = UnitReturn { charged_at, units: cost };
            if lease.refund(charged_at, cost, monotonic).is_none()
                && !lease.mark_for_return(to_return)
            {
                stats.discarded += cost;
            }
        });
        refunded.is_some()
    }

    /// Adds a request to the queue of its lease, after [`Self::take`] returned none.
    ///
    /// # Errors
    ///
    /// The waiter, if the registry is full or closed.
    pub(super) fn enqueue(
        &self,
        limit: &Arc<Limit>,
        key: Key,
        waiter: W,
        monotonic: MonotonicTime,
    ) -> Result<EnqueueOutcome, W> {
        let (mut waiter, extra_divisor) = (Some(waiter), self.extra_divisor());
        let outcome = self.with_lease(limit, key, monotonic, |lease, _| {
            waiter.take().map(|waiter| lease.enqueue(waiter, monotonic, extra_divisor))
        });
        match (outcome.flatten(), waiter) {
            (Some(outcome), _) => Ok(outcome),
            (None, Some(waiter)) => Err(waiter),
            (None, None) => unreachable!("the closure takes the waiter only to enqueue it"),
        }
    }

    /// Completes a fetch with its reply. Returns the next one, if requests still wait.
    pub(super) fn complete(
        &self,
        LeaseKey { record, lease_id }: LeaseKey,
        request: &FetchRequest,
        reply: &FetchReply,
    ) -> Option<FetchRequest> {
        let (extra_divisor, mut stripe) = (self.extra_divisor(), self.stripe(record).lock());
        let Stripe { records, stats } = &mut *stripe;
        stats.granted += reply.grant.units;
        stats.returned += request.demand.returned.units;
        // A lease with a fetch in flight is never removed.
        let leases = records.get_mut(&record)?;
        let is_partial = reply.grant.units < request.demand.needed;
        let others = leases.iter().filter(|lease| lease.id() != lease_id && !is_partial);
        let unspent = others.map(Lease::outstanding).sum();
        let lease = leases.iter_mut().find(|lease| lease.id() == lease_id)?;
        let (next, discarded) =
            lease.complete(request, &reply.with_own_units(unspent), extra_divisor);
        stats.discarded += discarded;
        next
    }

    /// The effect of a partial grant on a lease that waits for it. At the first attempt, moves the
    /// units of the same record under other quotas into this lease, to be returned with its next
    /// fetch. Units for which requests wait stay.
    pub(super) fn reclaim(
        &self,
        LeaseKey { record, lease_id }: LeaseKey,
        attempt: FetchAttempt,
    ) -> OnPartialGrant {
        let mut stripe = self.stripe(record).lock();
        let Stripe { records, stats } = &mut *stripe;
        let mut unspent = Vec::new();
        for lease in records.get_mut(&record).into_iter().flatten() {
            if lease.id() != lease_id && attempt == FetchAttempt::First {
                lease.drain(&mut unspent);
            }
        }
        // A lease with a fetch in flight is never removed.
        let mut leases = records.get_mut(&record).into_iter().flatten();
        let Some(lease) = leases.find(|lease| lease.id() == lease_id) else {
            return OnPartialGrant::Refuse;
        };
        for to_return in unspent {
            if !lease.mark_for_return(to_return) {
                stats.discarded += to_return.units;
            }
        }
        if lease.has_unspent() { OnPartialGrant::Retry } else { OnPartialGrant::Refuse }
    }

    /// Moves all units of a record, under every quota, to `out`. Units for which requests wait
    /// stay.
    pub fn drain_record(&self, limit: &Limit, key: Key, out: &mut Vec<UnspentUnits>) {
        let record = record_id(limit, key);
        let mut stripe = self.stripe(record).lock();
        let Stripe { records, stats } = &mut *stripe;
        for lease in records.get_mut(&record).into_iter().flatten() {
            let mut returns = Vec::new();
            lease.drain(&mut returns);
            push_unspent(lease, &mut returns, stats, out);
        }
    }

    /// Ends a failed fetch, with [`Lease::fail`].
    pub(super) fn fail(
        &self,
        lease_key: LeaseKey,
        request: &FetchRequest,
        failure: Option<(RedisFailure, MonotonicTime)>,
    ) {
        let mut stripe = self.stripe(lease_key.record).lock();
        match stripe.get_mut(lease_key).map(|lease| lease.fail(request, failure)) {
            Some(FailedFetch::Lost(units)) => stripe.stats.lost += units,
            Some(FailedFetch::Discarded(units)) => stripe.stats.discarded += units,
            Some(FailedFetch::Kept) | None => {}
        }
    }

    /// Units of the record of `key` under `limit`, of every quota, that can be spent here at
    /// `monotonic`.
    pub fn spendable(&self, limit: &Limit, key: Key, monotonic: MonotonicTime) -> u64 {
        let record = record_id(limit, key);
        let stripe = self.stripe(record).lock();
        let leases = stripe.records.get(&record).into_iter().flatten();
        leases.map(|lease| lease.spendable(monotonic)).fold(0, u64::saturating_add)
    }

    /// The store's last reply for `key` under `limit`.
    pub fn snapshot(&self, limit: &Limit, key: Key) -> Option<LeaseSnapshot> {
        let lease_key = LeaseKey::of(limit, key);
        self.stripe(lease_key.record).lock().get_mut(lease_key).map(|lease| lease.snapshot())
    }

    /// Sweeps a part of the leases at `monotonic`; call it a few times a second. Adds to `out` the
    /// units that are to be returned: units whose sub-window has ended, and all units of leases
    /// without a request for [`super::IDLE_TIMEOUT`]. Removes leases without a request for
    /// [`super::REMOVAL_TIMEOUT`]. Units whose key's shard is not reachable stay, and so do their
    /// leases.
    pub fn sweep(
        &self,
        monotonic: MonotonicTime,
        is_reachable: impl Fn(Key) -> bool,
        out: &mut Vec<UnspentUnits>,
    ) {
        let mut visited = 0;
        for _ in 0..self.stripes.len() {
            let index = self.sweep_cursor.fetch_add(1, Relaxed) % self.stripes.len();
            visited += self.remove_where(index, out, |lease, returns| {
                lease.sweep(monotonic, &is_reachable, returns)
            });
            if visited >= SWEEP_BATCH {
                return;
            }
        }
    }

    /// Closes the registry: moves all units to `out`, and no more leases are made. Leases with a
    /// fetch in flight stay: call it again once the fetches are over.
    pub fn drain(&self, out: &mut Vec<UnspentUnits>) {
        self.is_closed.store(true, Relaxed);
        for index in 0..self.stripes.len() {
            self.remove_where(index, out, Lease::drain);
        }
    }

    /// Calls `visit` for each lease of a stripe, moves the units that it puts into its list to
    /// `out`, and removes the lease if it returns true. Returns the number of leases visited.
    fn remove_where(
        &self,
        index: usize,
        out: &mut Vec<UnspentUnits>,
        mut visit: impl FnMut(&mut Lease<W>, &mut Vec<UnitReturn>) -> bool,
    ) -> usize {
        let mut stripe = self.stripes[index].lock();
        let Stripe { records, stats } = &mut *stripe;
        let (count, mut returns) = (stats.entries, Vec::new());
        records.retain(|_, leases| {
            leases.retain(|lease| {
                let is_removed = visit(lease, &mut returns);
                push_unspent(lease, &mut returns, stats, out);
                stats.entries -= usize::from(is_removed);
                !is_removed
            });
            !leases.is_empty()
        });
        count
    }

    /// Discards, without a refund, the units of a record that the operator has deleted at the
    /// store, under every quota, including those of a fetch in flight. Call it after the deletion.
    pub fn discard(&self, deleted_record: u128) {
        let mut stripe = self.stripe(deleted_record).lock();
        let Stripe { records, stats } = &mut *stripe;
        for lease in records.get_mut(&deleted_record).into_iter().flatten() {
            stats.discarded += lease.discard();
        }
    }

    /// True if there are no leases. Takes every lock, one after the other.
    pub fn is_empty(&self) -> bool {
        self.stripes.iter().all(|stripe| stripe.lock().records.is_empty())
    }

    /// Counts units that were taken here and can be neither spent nor returned.
    pub fn count_lost(&self, limit: &Limit, key: Key, cost: u64) {
        self.stripe(record_id(limit, key)).lock().stats.lost += cost;
    }

    /// Totals of all leases, for metrics. Takes every lock, one after the other.
    pub fn stats(&self) -> LeaseStats {
        let mut total = LeaseStats::default();
        for stripe in &self.stripes {
            let Stripe { records, stats } = &*stripe.lock();
            let leases = records.values().flatten();
            total.entries += stats.entries;
            total.outstanding += leases.map(Lease::outstanding).sum::<u64>();
            total.granted += stats.granted;
            total.returned += stats.returned;
            total.lost += stats.lost;
            total.discarded += stats.discarded;
        }
        total
    }

    /// Twice the number of gateways, so that all their extra units together are at most half of the
    /// remainder.
    fn extra_divisor(&self) -> u64 {
        u64::from(self.gateways.load(Relaxed).max(1)) * 2
    }

    /// Applies `act` to the lease of `key` under `limit`, and makes the lease if it is missing.
    /// `None` if there is no room, or after [`Self::drain`].
    fn with_lease<R>(
        &self,
        limit: &Arc<Limit>,
        key: Key,
        monotonic: MonotonicTime,
        act: impl FnOnce(&mut Lease<W>, &mut LeaseStats) -> R,
    ) -> Option<R> {
        let lease_key @ LeaseKey { record, lease_id } = LeaseKey::of(limit, key);
        let mut stripe = self.stripe(record).lock();
        if stripe.get_mut(lease_key).is_none() {
            if stripe.stats.entries >= self.stripe_capacity || self.is_closed.load(Relaxed) {
                return None;
            }
            let lease = Lease::new(Arc::clone(limit), key, lease_id, monotonic);
            stripe.records.entry(record).or_default().push(lease);
            stripe.stats.entries += 1;
        }
        let Stripe { records, stats } = &mut *stripe;
        let mut leases = records.get_mut(&record)?.iter_mut();
        leases.find(|lease| lease.id() == lease_id).map(|lease| act(lease, stats))
    }

    /// The stripe that holds the leases of a record under every quota.
    fn stripe(&self, record: u128) -> &Mutex<Stripe<W>> {
        &self.stripes[(record >> 96) as usize % self.stripes.len()]
    }
}

/// Moves `returns`, which come from `lease`, to `out`, and counts them.
fn push_unspent<W: LeaseWaiter>(
    lease: &Lease<W>,
    returns: &mut Vec<UnitReturn>,
    stats: &mut LeaseStats,
    out: &mut Vec<UnspentUnits>,
) {
    for to_return in returns.drain(..) {
        stats.returned += to_return.units;
        out.push(UnspentUnits { limit: Arc::clone(lease.limit()), key: lease.key(), to_return });
    }
}
