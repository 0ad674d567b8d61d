//! All leases of the process, and what they hold together.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
};

use hashbrown::HashMap;

use super::{
    lease::{Enqueued, FetchOrder, Lease, Unfetched},
    snapshot::{LeaseSnapshot, Taken},
    sync::Mutex,
    waiter::{Reply, Waiter},
};
use crate::{
    limit::{Back, Key, Limit, Millis, Reserve},
    store::{Failure, record_id::record},
};

/// The most leases that a process keeps: about 30 MB. A caller who finds no room asks the store.
pub const MAX_LEASES: usize = 1 << 16;

/// Locks that the leases are spread over.
const SHARDS: usize = 64;

/// Leases that one sweep looks at, and those of the last shard beyond.
const SWEPT: usize = 1 << 14;

/// What a lease is found by.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LeaseKey {
    /// The store's record: the key and the limit's identity.
    pub record: u128,
    /// The record under one quota: a request under another, after a reload or in another tier, never
    /// spends tokens that were charged under this one. Nor does one of a limit that only watches.
    pub id: u128,
}

impl LeaseKey {
    /// That of `key` under `limit`.
    pub fn of(limit: &Limit, key: Key) -> Self {
        let record = record(limit, key);
        let reserve = match limit.reserve {
            Reserve::Off => 0,
            Reserve::Auto => 1,
            Reserve::Tokens(count) => u64::from(count) + 2,
        };
        let kind = u64::from(limit.quota.strict) << 1 | u64::from(limit.enforce);
        let quota = u64::from(limit.quota.limit) << 2 | kind;
        let low = mix(quota) ^ mix(!reserve);
        Self { record, id: record ^ u128::from(low) ^ u128::from(mix(low)) << 64 }
    }
}

/// Spreads 64 bits: the end of `SplitMix64`.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Tokens that have to go back to the store.
#[derive(Clone, Debug)]
pub struct GiveBack {
    /// The limit that was charged.
    pub limit: Arc<Limit>,
    /// Who was counted.
    pub key: Key,
    /// How many, and when they were charged.
    pub back: Back,
}

/// What may be put back into the store's record.
impl From<Back> for crate::limit::Change {
    fn from(Back { charged_at, tokens }: Back) -> Self {
        Self::Refund { charged_at, cost: tokens }
    }
}

/// What all leases hold and have done, in tokens unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Numbers {
    /// Leases in the registry.
    pub entries: usize,
    /// Kept here now: charged at the store, not spent yet.
    pub outstanding: u64,
    /// Granted by the store since the process began.
    pub granted: u64,
    /// Given back, with a fetch or by the sweep.
    pub given_back: u64,
    /// Lost with fetches and give-backs whose outcome is unknown, at the most, and with a registry that
    /// was closed.
    pub lost: u64,
    /// Deleted by the operator.
    pub forgotten: u64,
}

/// A part of the leases.
struct Shard<W> {
    leases: HashMap<u128, Lease<W>>,
    /// What they have done; neither how many they are nor what they hold.
    numbers: Numbers,
}

/// All leases of the process: bounded, and emptied of those that are not used.
pub struct LeaseRegistry<W: Waiter> {
    shards: Box<[Mutex<Shard<W>>]>,
    /// The most leases of one shard.
    room: usize,
    /// Where the next sweep begins.
    hand: AtomicUsize,
    gateways: AtomicU32,
    is_closed: AtomicBool,
}

impl<W: Waiter> Default for LeaseRegistry<W> {
    fn default() -> Self {
        Self::with_room(MAX_LEASES)
    }
}

impl<W: Waiter> LeaseRegistry<W> {
    /// One for about `leases` of them.
    pub fn with_room(leases: usize) -> Self {
        let shards = SHARDS.min(leases.max(1));
        let shard = || Shard { leases: HashMap::new(), numbers: Numbers::default() };
        Self {
            shards: (0..shards).map(|_| Mutex::new(shard())).collect(),
            room: leases.div_ceil(shards),
            hand: AtomicUsize::new(0),
            gateways: AtomicU32::new(1),
            is_closed: AtomicBool::new(false),
        }
    }

    /// How many gateways are alive, this one included: how much one may lease follows from it.
    pub fn set_gateways(&self, gateways: u32) {
        self.gateways.store(gateways, Relaxed);
    }

    /// Takes `cost` tokens (at least 1) of `key` under `limit` at `ticks`, if they are here and no
    /// request waits for them.
    #[inline]
    pub fn take(&self, limit: &Limit, key: Key, cost: u32, ticks: u64) -> Option<Taken> {
        let LeaseKey { record, id } = LeaseKey::of(limit, key);
        self.shard(record).lock().leases.get_mut(&id)?.take(cost, ticks)
    }

    /// Gives back `cost` tokens that were taken here at `now` ([`Taken::now`]) while their sub-window
    /// lasts, for the next to take: the store hears nothing of it. Returns what is left then; `None` if it
    /// has ended, or nothing is kept here any more: then they are refunded at the store, at that time.
    pub fn give_back(
        &self,
        limit: &Limit,
        key: Key,
        now: Millis,
        cost: u32,
        ticks: u64,
    ) -> Option<Taken> {
        let LeaseKey { record, id } = LeaseKey::of(limit, key);
        self.shard(record).lock().leases.get_mut(&id)?.give_back(now, cost, ticks)
    }

    /// The same, and where their sub-window has ended, the store is told with the next fetch, or the
    /// sweep. False where no lease can be had for that: the registry is full or closed.
    pub fn put_back(&self, limit: &Limit, key: Key, now: Millis, cost: u32, ticks: u64) -> bool {
        let found = self.with(limit, key, ticks, |lease, numbers| {
            let back = Back { charged_at: now, tokens: cost };
            if lease.give_back(now, cost, ticks).is_none() && !lease.set_aside(back) {
                numbers.forgotten += u64::from(cost);
            }
        });
        found.is_some()
    }

    /// Adds a request to those that wait, after [`Self::take`] gave nothing. Gives the waiter back if the
    /// registry is full or closed.
    pub(super) fn enqueue(
        &self,
        limit: &Limit,
        key: Key,
        waiter: W,
        ticks: u64,
    ) -> Result<Enqueued, W> {
        let (mut waiter, share) = (Some(waiter), self.share());
        let enqueued = self.with(limit, key, ticks, |lease, _| {
            waiter.take().map(|waiter| lease.enqueue(waiter, ticks, share))
        });
        match (enqueued.flatten(), waiter) {
            (Some(enqueued), _) => Ok(enqueued),
            (None, Some(waiter)) => Err(waiter),
            (None, None) => unreachable!("a waiter is enqueued or given back"),
        }
    }

    /// Brings the reply to a fetch; returns the next one, if requests still wait.
    pub(super) fn complete(
        &self,
        LeaseKey { record, id }: LeaseKey,
        ask: &FetchOrder,
        reply: &Reply,
    ) -> Option<FetchOrder> {
        let (share, mut shard) = (self.share(), self.shard(record).lock());
        let Shard { leases, numbers } = &mut *shard;
        numbers.granted += u64::from(reply.grant.tokens);
        numbers.given_back += u64::from(ask.order.back.tokens);
        // With a fetch in flight it is there.
        let (next, forgotten) = leases.get_mut(&id)?.complete(ask, reply, share);
        numbers.forgotten += u64::from(forgotten);
        next
    }

    /// Ends a fetch that failed, as [`Lease::fail`].
    pub(super) fn fail(
        &self,
        LeaseKey { record, id }: LeaseKey,
        ask: &FetchOrder,
        failure: Option<(Failure, u64)>,
    ) {
        let mut shard = self.shard(record).lock();
        let Shard { leases, numbers } = &mut *shard;
        match leases.get_mut(&id).map(|lease| lease.fail(ask, failure)) {
            Some(Unfetched::Lost(tokens)) => numbers.lost += tokens,
            Some(Unfetched::Forgotten(tokens)) => numbers.forgotten += u64::from(tokens),
            Some(Unfetched::Kept) | None => {}
        }
    }

    /// Tokens of `key` under `limit` that can be spent here at `ticks`.
    pub fn spendable(&self, limit: &Limit, key: Key, ticks: u64) -> u32 {
        let LeaseKey { record, id } = LeaseKey::of(limit, key);
        let shard = self.shard(record).lock();
        shard.leases.get(&id).map_or(0, |lease| lease.spendable(ticks))
    }

    /// What the store last said of `key` under `limit`.
    pub fn snapshot(&self, limit: &Limit, key: Key) -> Option<LeaseSnapshot> {
        let LeaseKey { record, id } = LeaseKey::of(limit, key);
        self.shard(record).lock().leases.get(&id).map(Lease::snapshot)
    }

    /// Looks at a part of the leases at `ticks`; called a few times a second. Gives `out` what has to go
    /// back to the store: what ended unspent, and what no request has used for [`super::IDLE`]. Leases
    /// that hold nothing and are not used are removed. Those whose store cannot be reached stay as they
    /// are.
    pub fn sweep(&self, ticks: u64, is_reachable: impl Fn(Key) -> bool, out: &mut Vec<GiveBack>) {
        let mut looked_at = 0;
        for _ in 0..self.shards.len() {
            let at = self.hand.fetch_add(1, Relaxed) % self.shards.len();
            looked_at +=
                self.remove_where(at, out, |lease, backs| lease.sweep(ticks, &is_reachable, backs));
            if looked_at >= SWEPT {
                return;
            }
        }
    }

    /// Closes the registry: gives `out` everything that is kept here, and no more leases are made. Those
    /// with a fetch in flight stay; call it again once those are over.
    pub fn drain(&self, out: &mut Vec<GiveBack>) {
        self.is_closed.store(true, Relaxed);
        for at in 0..self.shards.len() {
            self.remove_where(at, out, Lease::drain);
        }
    }

    /// Removes the leases of a shard of which `visit` says so, and gives `out` what it gives back.
    /// Returns how many leases there were.
    fn remove_where(
        &self,
        at: usize,
        out: &mut Vec<GiveBack>,
        mut visit: impl FnMut(&mut Lease<W>, &mut Vec<Back>) -> bool,
    ) -> usize {
        let mut shard = self.shards[at].lock();
        let Shard { leases, numbers } = &mut *shard;
        let (count, mut backs) = (leases.len(), Vec::new());
        leases.retain(|_, lease| {
            let is_removed = visit(lease, &mut backs);
            for back in backs.drain(..) {
                numbers.given_back += u64::from(back.tokens);
                out.push(GiveBack { limit: Arc::clone(lease.limit()), key: lease.key(), back });
            }
            !is_removed
        });
        count
    }

    /// Forgets the tokens of a caller whose record the operator has deleted at the store, under every
    /// quota and those of a fetch in flight: they are not refunded. Called after the deletion.
    pub fn forget(&self, deleted: u128) {
        let mut shard = self.shard(deleted).lock();
        let Shard { leases, numbers } = &mut *shard;
        let of_record = |lease: &&mut Lease<W>| record(lease.limit(), lease.key()) == deleted;
        for lease in leases.values_mut().filter(of_record) {
            numbers.forgotten += lease.forget();
        }
    }

    /// Whether it has no leases. Takes every lock, one after the other.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().leases.is_empty())
    }

    /// Counts tokens that were taken here, and can neither be spent nor given back.
    pub fn lose(&self, limit: &Limit, key: Key, cost: u32) {
        self.shard(record(limit, key)).lock().numbers.lost += u64::from(cost);
    }

    /// What all leases hold and have done. Takes every lock, one after the other: for metrics.
    pub fn numbers(&self) -> Numbers {
        let mut all = Numbers::default();
        for shard in &self.shards {
            let shard = shard.lock();
            all.entries += shard.leases.len();
            all.outstanding += shard.leases.values().map(Lease::outstanding).sum::<u64>();
            all.granted += shard.numbers.granted;
            all.given_back += shard.numbers.given_back;
            all.lost += shard.numbers.lost;
            all.forgotten += shard.numbers.forgotten;
        }
        all
    }

    /// Two for each gateway: all of them together leave half of what is left.
    fn share(&self) -> u32 {
        self.gateways.load(Relaxed).max(1).saturating_mul(2)
    }

    /// Does something with the lease of `key` under `limit`, a new one where there was none. `None` if
    /// there is no room, or after [`Self::drain`].
    fn with<R>(
        &self,
        limit: &Limit,
        key: Key,
        ticks: u64,
        act: impl FnOnce(&mut Lease<W>, &mut Numbers) -> R,
    ) -> Option<R> {
        let LeaseKey { record, id } = LeaseKey::of(limit, key);
        let mut shard = self.shard(record).lock();
        let Shard { leases, numbers } = &mut *shard;
        if !leases.contains_key(&id) {
            if leases.len() >= self.room || self.is_closed.load(Relaxed) {
                return None;
            }
            leases.insert(id, Lease::new(Arc::new(limit.clone()), key, ticks));
        }
        leases.get_mut(&id).map(|lease| act(lease, numbers))
    }

    /// The shard of a record, and of its leases under every quota.
    fn shard(&self, record: u128) -> &Mutex<Shard<W>> {
        &self.shards[(record >> 96) as usize % self.shards.len()]
    }
}
