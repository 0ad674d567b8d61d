//! All entries of the process, and what they hold together.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use hashbrown::HashMap;

use super::{
    Entry, Waiter,
    atomics::{Atomics, Lock, Native},
};
use crate::{
    limit::{Back, Key, Limit, Order, Reserve},
    store::record_id::record,
};

/// The most entries that a process keeps: about 40 MB. Who finds no place asks the store by itself.
pub const MAX_ENTRIES: usize = 1 << 16;

/// Locks that the entries are spread over.
const SHARDS: usize = 64;

/// Entries that a sweep looks at in each shard.
const SWEPT: usize = 256;

/// What an entry goes by.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Name {
    /// The store's record: the key and the limit's identity.
    pub record: u128,
    /// The record under one quota: who is given another, by a reload or a tier, never spends tokens that
    /// were charged under this one. Nor is one that only watches the same.
    pub id: u128,
}

impl Name {
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
        let low = stir(quota) ^ stir(!reserve);
        Self { record, id: record ^ u128::from(low) ^ u128::from(stir(low)) << 64 }
    }
}

/// Spreads 64 bits: the end of `SplitMix64`.
fn stir(value: u64) -> u64 {
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

/// What all entries hold and have done, in tokens unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Numbers {
    /// Entries in the book.
    pub entries: usize,
    /// Kept here now: charged at the store, not spent yet.
    pub outstanding: u64,
    /// Granted by the store since the process began.
    pub granted: u64,
    /// Given back, with a fetch or by the sweep.
    pub given_back: u64,
    /// Lost with fetches and give-backs whose outcome is unknown, at the most, and with a book that was
    /// closed.
    pub lost: u64,
    /// Deleted by the operator.
    pub forgotten: u64,
}

/// What entries count together.
#[derive(Debug, Default)]
pub(super) struct Tally {
    gateways: AtomicU32,
    granted: AtomicU64,
    given_back: AtomicU64,
    lost: AtomicU64,
    forgotten: AtomicU64,
}

impl Tally {
    /// Two for each gateway: all of them together leave half of what is left.
    pub(super) fn share(&self) -> u32 {
        self.gateways.load(Relaxed).max(1).saturating_mul(2)
    }

    pub(super) fn granted(&self, tokens: u32, given_back: u32) {
        self.granted.fetch_add(u64::from(tokens), Relaxed);
        self.gave_back(given_back);
    }

    pub(super) fn gave_back(&self, tokens: u32) {
        self.given_back.fetch_add(u64::from(tokens), Relaxed);
    }

    pub(super) fn lost(&self, order: &Order) {
        let most = [order.needed, order.extra, order.back.tokens].map(u64::from);
        self.lost.fetch_add(most.iter().sum(), Relaxed);
    }

    pub(super) fn forgot(&self, tokens: u64) {
        self.forgotten.fetch_add(tokens, Relaxed);
    }
}

/// A part of the entries: found by name, walked by place.
struct Shard<W: Waiter, A: Atomics> {
    places: HashMap<u128, usize>,
    entries: Vec<Arc<Entry<W, A>>>,
    /// Where the sweep goes on.
    hand: usize,
}

impl<W: Waiter, A: Atomics> Shard<W, A> {
    fn remove(&mut self, place: usize) {
        let entry = self.entries.swap_remove(place);
        self.places.remove(&entry.name().id);
        if let Some(moved) = self.entries.get(place) {
            self.places.insert(moved.name().id, place);
        }
    }
}

/// All entries of the process: bounded, and emptied of what nobody uses.
pub struct Book<W: Waiter, A: Atomics = Native> {
    shards: Box<[A::Lock<Shard<W, A>>]>,
    /// The most entries of one shard.
    room: usize,
    closed: AtomicBool,
    tally: Arc<Tally>,
}

impl<W: Waiter, A: Atomics> Default for Book<W, A> {
    fn default() -> Self {
        Self::with_room(MAX_ENTRIES)
    }
}

impl<W: Waiter, A: Atomics> Book<W, A> {
    /// One for about `entries` of them.
    pub fn with_room(entries: usize) -> Self {
        let shards = SHARDS.min(entries.max(1));
        let shard = || Shard { places: HashMap::new(), entries: Vec::new(), hand: 0 };
        Self {
            shards: (0..shards).map(|_| A::Lock::new(shard())).collect(),
            room: entries.div_ceil(shards),
            closed: AtomicBool::new(false),
            tally: Arc::default(),
        }
    }

    /// How many gateways are alive, this one included: what one may take ahead follows from it.
    pub fn set_gateways(&self, gateways: u32) {
        self.tally.gateways.store(gateways, Relaxed);
    }

    /// The entry of `key` under `limit`, a new one where there was none. `None` if there is no room, or
    /// after [`Self::drain`].
    pub fn entry(&self, limit: &Limit, key: Key) -> Option<Arc<Entry<W, A>>> {
        let name = Name::of(limit, key);
        self.shard(name.record).with(|shard| {
            if let Some(&place) = shard.places.get(&name.id) {
                return shard.entries.get(place).cloned();
            }
            if shard.entries.len() >= self.room || self.closed.load(Relaxed) {
                return None;
            }
            let tally = Arc::clone(&self.tally);
            let entry = Arc::new(Entry::new(name, Arc::new(limit.clone()), key, tally));
            shard.places.insert(name.id, shard.entries.len());
            shard.entries.push(Arc::clone(&entry));
            Some(entry)
        })
    }

    /// Tokens of `key` under `limit` that can be spent here at `ticks`.
    pub fn spendable(&self, limit: &Limit, key: Key, ticks: u64) -> u32 {
        let name = Name::of(limit, key);
        self.shard(name.record).with(|shard| {
            let place = shard.places.get(&name.id).copied();
            let entry = place.and_then(|place| shard.entries.get(place));
            entry.map_or(0, |entry| entry.spendable(ticks))
        })
    }

    /// Looks after a part of the entries at `ticks`; called a few times a second. Gives `out` what has to
    /// go back to the store: what ended unspent, and what nobody has used for [`super::IDLE`]. Entries
    /// that hold nothing and that nobody uses leave the book. Those of whom the store cannot be told now
    /// stay as they are.
    pub fn sweep(&self, ticks: u64, can_tell: impl Fn(Key) -> bool, out: &mut Vec<GiveBack>) {
        for shard in &self.shards {
            shard.with(|shard| {
                for _ in 0..SWEPT.min(shard.entries.len()) {
                    if shard.hand >= shard.entries.len() {
                        shard.hand = 0;
                    }
                    match shard.entries.get(shard.hand) {
                        Some(entry) if entry.sweep(ticks, &can_tell, out) => {
                            shard.remove(shard.hand);
                        }
                        _ => shard.hand += 1,
                    }
                }
            });
        }
    }

    /// Closes the book: gives `out` everything that is kept here, and no more entries are made. Those
    /// with a fetch in flight stay; call it again once those are over.
    pub fn drain(&self, out: &mut Vec<GiveBack>) {
        self.closed.store(true, Relaxed);
        for shard in &self.shards {
            shard.with(|shard| {
                for place in (0..shard.entries.len()).rev() {
                    if shard.entries[place].sweep(u64::MAX, |_| true, out) {
                        shard.remove(place);
                    }
                }
            });
        }
    }

    /// Forgets the tokens of a caller whose record the operator has deleted at the store, under every
    /// quota and those of a fetch in flight: they are not refunded. Called after the deletion.
    pub fn forget(&self, record: u128) {
        self.shard(record).with(|shard| {
            for entry in shard.entries.iter().filter(|entry| entry.name().record == record) {
                entry.forget();
            }
        });
    }

    /// Whether it has no entries. Takes every lock, one after the other.
    pub fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.with(|shard| shard.entries.is_empty()))
    }

    /// Counts a give-back that did not arrive, so that its tokens are lost.
    pub fn lose(&self, back: &Back) {
        let tokens = u64::from(back.tokens);
        self.tally.given_back.fetch_sub(tokens, Relaxed);
        self.tally.lost.fetch_add(tokens, Relaxed);
    }

    /// What all entries hold and have done. Takes every lock, one after the other: for metrics.
    pub fn numbers(&self) -> Numbers {
        let mut numbers = Numbers {
            granted: self.tally.granted.load(Relaxed),
            given_back: self.tally.given_back.load(Relaxed),
            lost: self.tally.lost.load(Relaxed),
            forgotten: self.tally.forgotten.load(Relaxed),
            ..Numbers::default()
        };
        for shard in &self.shards {
            shard.with(|shard| {
                numbers.entries += shard.entries.len();
                numbers.outstanding +=
                    shard.entries.iter().map(|entry| entry.outstanding()).sum::<u64>();
            });
        }
        numbers
    }

    fn shard(&self, record: u128) -> &A::Lock<Shard<W, A>> {
        &self.shards[(record >> 96) as usize % self.shards.len()]
    }
}
