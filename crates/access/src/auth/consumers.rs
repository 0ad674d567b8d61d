//! [`ConsumerTable`]: the consumers, found by the hash of a key or by name.
//!
//! A million consumers with a key each take about 100 bytes a key: hashes, names and expiries are
//! in a few arrays, which the two indexes refer to by 32-bit numbers.

mod builder;

use std::num::NonZeroU8;

use ahash::RandomState;
use hashbrown::{HashMap, HashTable};

pub use self::builder::ConsumerTableBuilder;
pub use self::builder::prefixed_name;
use tidegate_base::time::{StoreTime, UnixSeconds};
use tidegate_config::{ConsumerRecord, RecordFault, RecordSink as _};
use tidegate_identity::Consumer;

use super::key::KeyHash;

/// The consumers, their plans and keys. Immutable: a reload replaces it.
#[derive(Default)]
pub struct ConsumerTable {
    consumers: Vec<ConsumerEntry>,
    by_name: HashTable<u32>,
    keys: Vec<KeyEntry>,
    by_hash: HashTable<u32>,
    /// The names of consumers and of keys, one after the other.
    texts: String,
    plans: Vec<Box<str>>,
    /// The hashes of passwords, by the index of their consumer.
    passwords: HashMap<u32, Box<str>, RandomState>,
    is_in_store: bool,
    hasher: RandomState,
}

/// A text in [`ConsumerTable::texts`].
#[derive(Clone, Copy)]
struct TextRange {
    start: u32,
    length: u16,
}

/// A consumer.
struct ConsumerEntry {
    name: TextRange,
    /// The index of its plan.
    plan: Option<u16>,
    billing_day: Option<NonZeroU8>,
    is_disabled: bool,
}

/// A key.
struct KeyEntry {
    hash: KeyHash,
    /// The index of its consumer.
    consumer: u32,
    id: TextRange,
    /// When it ceases to be valid, in [`UnixSeconds`], in half of the space.
    expires: Option<u32>,
}

/// A key that was found, and its consumer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FoundKey<'t> {
    /// The consumer.
    pub consumer: Consumer<'t>,
    /// The name of the key; empty if it has none.
    pub id: &'t str,
    /// True if it may be used now.
    pub validity: KeyValidity,
}

/// If a key may be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyValidity {
    /// It may.
    Valid,
    /// It has expired.
    Expired,
    /// Its consumer is disabled.
    Disabled,
}

/// A consumer that was found by its name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FoundConsumer<'t> {
    /// The consumer.
    pub consumer: Consumer<'t>,
    /// True if its requests are refused.
    pub is_disabled: bool,
    /// The hash of its password.
    pub password: Option<&'t str>,
}

/// The index of a password that is no consumer's.
const DECOY: u32 = u32::MAX;

impl ConsumerTable {
    /// The consumers are in a store: this table has their `plans` alone, and each consumer is
    /// looked up.
    pub fn in_store(plans: &[Box<str>]) -> Self {
        Self { plans: plans.to_vec(), is_in_store: true, ..Self::default() }
    }

    /// True if each consumer is looked up in a store.
    pub fn is_in_store(&self) -> bool {
        self.is_in_store
    }

    /// The table of one consumer, whose plan may have any name. Passwords of other names are
    /// compared with `decoy`.
    ///
    /// # Errors
    ///
    /// The record's faults.
    pub fn of_record(record: &ConsumerRecord<'_>, decoy: &str) -> Result<Self, Vec<RecordFault>> {
        let plans: Vec<Box<str>> = record.plan.iter().map(|plan| plan.as_ref().into()).collect();
        let mut builder = ConsumerTableBuilder::new(&plans);
        let faults = builder.add(record, 1);
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut table = builder.build();
        if table.passwords.is_empty() {
            table.passwords.insert(DECOY, decoy.into());
        }
        Ok(table)
    }

    /// The table of a consumer that does not exist. Passwords are compared with `decoy`.
    pub fn unknown(decoy: &str) -> Self {
        let mut table = Self::default();
        table.passwords.insert(DECOY, decoy.into());
        table
    }

    /// True if consumers may have this plan.
    pub fn has_plan(&self, name: &str) -> bool {
        self.plans.iter().any(|plan| **plan == *name)
    }

    /// Finds a key at the time `now`. The time of a lookup does not depend on how much of a hash is
    /// equal in a way that a client could use: a client chooses the key, and not its hash.
    pub fn key(&self, hash: &KeyHash, now: StoreTime) -> Option<FoundKey<'_>> {
        let wanted = self.hasher.hash_one(hash);
        let is_same = |index: &u32| self.keys[*index as usize].hash == *hash;
        let key = &self.keys[*self.by_hash.find(wanted, is_same)? as usize];
        let entry = &self.consumers[key.consumer as usize];
        let is_expired =
            key.expires.is_some_and(|end| UnixSeconds::of(now).as_secs() >= u64::from(end));
        let validity = match (entry.is_disabled, is_expired) {
            (true, _) => KeyValidity::Disabled,
            (false, true) => KeyValidity::Expired,
            (false, false) => KeyValidity::Valid,
        };
        Some(FoundKey { consumer: self.view(entry), id: self.text(key.id), validity })
    }

    /// Finds a consumer by its name.
    pub fn consumer(&self, name: &str) -> Option<FoundConsumer<'_>> {
        let wanted = self.hasher.hash_one(name);
        let is_same = |index: &u32| self.text(self.consumers[*index as usize].name) == name;
        let index = self.by_name.find(wanted, is_same)?;
        let entry = &self.consumers[*index as usize];
        let password = self.passwords.get(index).map(|hash| &**hash);
        Some(FoundConsumer { consumer: self.view(entry), is_disabled: entry.is_disabled, password })
    }

    /// The hash of some consumer's password; `None` if no consumer has one.
    pub fn any_password(&self) -> Option<&str> {
        self.passwords.values().next().map(|hash| &**hash)
    }

    /// The number of consumers.
    pub fn len(&self) -> usize {
        self.consumers.len()
    }

    /// True without a consumer.
    pub fn is_empty(&self) -> bool {
        self.consumers.is_empty()
    }

    /// The number of keys.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The memory of the table, in bytes.
    pub fn memory(&self) -> usize {
        let entries = size_of::<ConsumerEntry>() * self.consumers.capacity()
            + size_of::<KeyEntry>() * self.keys.capacity();
        let index = |table: &HashTable<u32>| table.allocation_size();
        let passwords = self.passwords.allocation_size()
            + self.passwords.values().map(|hash| hash.len()).sum::<usize>();
        entries + passwords + self.texts.capacity() + index(&self.by_name) + index(&self.by_hash)
    }

    fn view(&self, entry: &ConsumerEntry) -> Consumer<'_> {
        let plan = entry.plan.and_then(|plan| self.plans.get(usize::from(plan)));
        let billing_day = entry.billing_day.map(NonZeroU8::get);
        Consumer { billing_day, ..Consumer::new(self.text(entry.name), plan.map(|plan| &**plan)) }
    }

    fn text(&self, range: TextRange) -> &str {
        let start = range.start as usize;
        &self.texts[start..start + usize::from(range.length)]
    }
}

/// The counts alone: the content is secret, or large.
impl std::fmt::Debug for ConsumerTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumerTable")
            .field("consumers", &self.len())
            .field("keys", &self.key_count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
