//! [`ConsumerTableBuilder`]: checks records and adds them to a table.

use std::borrow::Cow;
use std::num::NonZeroU8;

use hashbrown::{HashTable, hash_table::Entry};
use tidegate_base::sensitive::holds_key_or_token;
use tidegate_config::{
    ConsumerRecord, KeyRecord, LastYear, MAX_CONSUMER_NAME, RecordFault, RecordPart, RecordSink,
    is_consumer_name, is_printable, suggest,
};

use super::{ConsumerEntry, ConsumerTable, KeyEntry, TextRange};
use crate::auth::key::KeyHash;
use crate::auth::password::check_password_hash;

/// Maximum length of a key's name, in characters.
const MAX_ID: usize = 64;
/// Bytes that the texts of a record usually take.
const TYPICAL_TEXTS: usize = 24;
/// Maximum number of consumers' names that fit: their texts are found by 32-bit numbers.
const MAX_TEXTS: usize = u32::MAX as usize;

/// Builds a [`ConsumerTable`] from records.
pub struct ConsumerTableBuilder<'p> {
    table: ConsumerTable,
    plans: &'p [Box<str>],
    /// The line of each consumer, to report a second one of the same name.
    lines: Vec<u32>,
}

impl<'p> ConsumerTableBuilder<'p> {
    /// A builder of a table whose consumers may have these plans.
    pub fn new(plans: &'p [Box<str>]) -> Self {
        let table = ConsumerTable { plans: plans.to_vec(), ..ConsumerTable::default() };
        Self { table, plans, lines: Vec::new() }
    }

    /// The table.
    pub fn build(self) -> ConsumerTable {
        let mut table = self.table;
        table.consumers.shrink_to_fit();
        table.keys.shrink_to_fit();
        table.texts.shrink_to_fit();
        table.passwords.shrink_to_fit();
        table
    }

    /// The index of a plan.
    fn plan(&self, name: &str) -> Result<u16, RecordFault> {
        let index = self.plans.iter().position(|plan| **plan == *name);
        index.and_then(|index| u16::try_from(index).ok()).ok_or_else(|| {
            let names = || self.plans.iter().map(|plan| &**plan);
            let expected = match suggest(name, names()) {
                Some(closest) => format!("`{closest}`"),
                None if self.plans.is_empty() => {
                    "a plan of the configuration (it has none)".to_owned()
                }
                None => format!("one of {}", names().collect::<Vec<_>>().join(", ")),
            };
            fault(RecordPart::Plan, format!("unknown plan `{name}`"), expected)
        })
    }

    fn push_text(&mut self, text: &str) -> TextRange {
        let texts = &mut self.table.texts;
        let start = texts.len() as u32;
        texts.push_str(text);
        TextRange { start, length: text.len() as u16 }
    }

    /// Adds the consumer, unless there is one with its name. Returns its index.
    fn add_consumer(
        &mut self,
        record: &ConsumerRecord<'_>,
        (plan, billing_day): (Option<u16>, Option<NonZeroU8>),
        line: usize,
    ) -> Result<u32, RecordFault> {
        let hash = self.table.hasher.hash_one(&*record.name);
        let ConsumerTable { consumers, by_name, texts, hasher, .. } = &mut self.table;
        let text = |index: &u32| {
            let TextRange { start, length } = consumers[*index as usize].name;
            &texts[start as usize..start as usize + usize::from(length)]
        };
        let is_same = |index: &u32| text(index) == record.name;
        let entry = by_name.entry(hash, is_same, |index| hasher.hash_one(text(index)));
        let index = consumers.len() as u32;
        match entry {
            Entry::Occupied(found) => {
                let what = format!("duplicate consumer `{}`", record.name);
                let line = self.lines.get(*found.get() as usize).copied().unwrap_or_default();
                let expected = format!("each name once (line {line} has it already)");
                return Err(fault(RecordPart::Name, what, expected));
            }
            Entry::Vacant(vacant) => {
                vacant.insert(index);
            }
        }
        let name = self.push_text(&record.name);
        let is_disabled = record.is_disabled;
        self.table.consumers.push(ConsumerEntry { name, plan, billing_day, is_disabled });
        self.lines.push(line as u32);
        Ok(index)
    }

    /// Adds a key, unless there is one with its hash.
    fn add_key(
        &mut self,
        index: usize,
        key: &CheckedKey<'_>,
        consumer: u32,
    ) -> Result<(), RecordFault> {
        let ConsumerTable { keys, by_hash, hasher, .. } = &mut self.table;
        let is_same = |other: &u32| keys[*other as usize].hash == key.hash;
        let rehash = |other: &u32| hasher.hash_one(keys[*other as usize].hash);
        match by_hash.entry(hasher.hash_one(key.hash), is_same, rehash) {
            Entry::Occupied(found) => {
                let owner = keys[*found.get() as usize].consumer as usize;
                let line = self.lines.get(owner).copied().unwrap_or_default();
                let expected = format!("each key once (the consumer in line {line} has it)");
                return Err(fault(RecordPart::KeyHash(index), "a key that exists", expected));
            }
            Entry::Vacant(vacant) => {
                vacant.insert(keys.len() as u32);
            }
        }
        let id = self.push_text(key.id);
        let CheckedKey { hash, expires, .. } = *key;
        self.table.keys.push(KeyEntry { hash, consumer, id, expires });
        Ok(())
    }
}

impl RecordSink for ConsumerTableBuilder<'_> {
    fn add(&mut self, record: &ConsumerRecord<'_>, line: usize) -> Vec<RecordFault> {
        let mut faults = Vec::new();
        faults.extend(check_name(&record.name).err());
        if let Some(Err(expected)) = record.password.as_deref().map(check_password_hash) {
            faults.push(fault(RecordPart::Password, "this hash of a password", expected));
        }
        let plan = record.plan.as_deref().map(|plan| self.plan(plan)).transpose();
        let billing_day = record.billing_day.as_deref().map(billing_day).transpose();
        let keys: Result<smallvec::SmallVec<[CheckedKey<'_>; 2]>, RecordFault> =
            record.keys.iter().enumerate().map(|(index, key)| CheckedKey::of(index, key)).collect();
        if self.table.texts.len() + record.text_length() > MAX_TEXTS {
            faults.push(fault(RecordPart::Name, "too many consumers", "names of at most 4 GiB"));
        }
        let (plan, billing_day, keys) = match (plan, billing_day, keys) {
            (Ok(plan), Ok(billing_day), Ok(keys)) if faults.is_empty() => (plan, billing_day, keys),
            (plan, billing_day, keys) => {
                faults.extend(plan.err());
                faults.extend(billing_day.err());
                faults.extend(keys.err());
                return faults;
            }
        };
        let consumer = match self.add_consumer(record, (plan, billing_day), line) {
            Ok(consumer) => consumer,
            Err(duplicate) => return vec![duplicate],
        };
        if let Some(hash) = &record.password {
            self.table.passwords.insert(consumer, hash.as_ref().into());
        }
        for (index, key) in keys.iter().enumerate() {
            faults.extend(self.add_key(index, key, consumer).err());
        }
        faults
    }

    fn reserve(&mut self, records: usize) {
        let ConsumerTable { consumers, by_name, keys, by_hash, texts, .. } = &mut self.table;
        (*by_name, *by_hash) =
            (HashTable::with_capacity(records), HashTable::with_capacity(records));
        consumers.reserve(records);
        keys.reserve(records);
        self.lines.reserve(records);
        texts.reserve(records * TYPICAL_TEXTS);
    }
}

/// What to write instead of a credential.
const SHOWN_NAME: &str = "a name: names are shown in logs";

/// A key of a record, with its values read.
struct CheckedKey<'r> {
    hash: KeyHash,
    id: &'r str,
    expires: Option<u32>,
}

impl<'r> CheckedKey<'r> {
    /// Checks the key with this index.
    fn of(index: usize, key: &'r KeyRecord<'_>) -> Result<Self, RecordFault> {
        let id = key.id.as_deref().unwrap_or_default();
        if holds_key_or_token(id) {
            let what = "an API key or a token as the name of a key";
            return Err(fault(RecordPart::KeyId(index), what, SHOWN_NAME));
        }
        if id.chars().count() > MAX_ID || !is_printable(id) {
            let expected = format!("at most {MAX_ID} printable characters");
            return Err(fault(RecordPart::KeyId(index), "this name of a key", expected));
        }
        let hash = KeyHash::from_hex(&key.sha256).ok_or_else(|| {
            let expected =
                "the SHA-256 of the key, 64 hexadecimal digits: `tidegate key new` prints one";
            fault(RecordPart::KeyHash(index), "this value", expected)
        })?;
        let expires = key.expires.as_deref().map(|text| expiry(index, text)).transpose()?;
        Ok(Self { hash, id, expires })
    }
}

/// Reads when a key expires, in seconds since the epoch. A date alone is its first second.
fn expiry(index: usize, text: &str) -> Result<u32, RecordFault> {
    let since = LastYear::OF_KEYS.parse(text);
    since.and_then(|since| u32::try_from(since.as_secs()).ok()).ok_or_else(|| {
        let expected = "a time such as 2027-01-01T00:00:00Z, or a date, before 2106";
        fault(RecordPart::KeyExpiry(index), format!("`{text}`"), expected)
    })
}

/// Reads the first day of a consumer's months.
fn billing_day(text: &str) -> Result<NonZeroU8, RecordFault> {
    let day = text.parse().ok().filter(|day: &NonZeroU8| day.get() <= 31);
    day.ok_or_else(|| {
        fault(RecordPart::BillingDay, format!("`{text}`"), "a day of the month, 1 to 31")
    })
}

fn check_name(name: &str) -> Result<(), RecordFault> {
    if holds_key_or_token(name) {
        return Err(fault(RecordPart::Name, "an API key or a token as a name", SHOWN_NAME));
    }
    if is_consumer_name(name) {
        return Ok(());
    }
    let expected =
        format!("1 to {MAX_CONSUMER_NAME} printable characters, without white space at an end");
    Err(fault(RecordPart::Name, "this name of a consumer", expected))
}

/// The name of a consumer that a method with this prefix calls `name`.
pub fn prefixed_name<'n>(prefix: &str, name: impl Into<Cow<'n, str>>) -> Cow<'n, str> {
    let name = name.into();
    if prefix.is_empty() { name } else { Cow::Owned([prefix, &*name].concat()) }
}

fn fault(part: RecordPart, what: impl Into<String>, expected: impl Into<String>) -> RecordFault {
    RecordFault::new(part, &what.into(), &expected.into())
}

trait TextLength {
    /// The bytes that the record's texts take in a table.
    fn text_length(&self) -> usize;
}

impl TextLength for ConsumerRecord<'_> {
    fn text_length(&self) -> usize {
        let ids = self.keys.iter().filter_map(|key| key.id.as_deref()).map(str::len);
        self.name.len() + ids.sum::<usize>()
    }
}
