//! [`RecordCache`]: the consumers that were looked up a short time ago.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use tidegate_base::time::{Millis, MonotonicTime};

use super::{names::RecordTag, query::OwnedQuery};
use crate::auth::{ConsumerQuery, ConsumerTable, KeyHash, ProofCache, ProofDigest};

/// How long a consumer is used without reading its record again.
pub const FOUND_TIME: Millis = Millis::from_secs(30);
/// How long an unknown key or name is known as such.
pub const UNKNOWN_TIME: Millis = Millis::from_secs(5);
/// How long a consumer may be used after its record was read, while Redis fails.
pub const OUTAGE_TIME: Millis = Millis::from_mins(10);

/// Number of sets of consumers that were found; each holds four.
const FOUND_SETS: usize = 1 << 14;
/// Number of sets of unknown keys and names.
const UNKNOWN_SETS: usize = 1 << 12;
/// Number of versions, each of which belongs to an equal share of all queries.
const VERSIONS: usize = 1 << 12;

/// The results of lookups, of two fixed sizes: an invented key displaces only another unknown one.
///
/// A query's digest contains its version. A change of a consumer raises the versions of its name
/// and its keys, so that what was read before it, or is being read, is never found again.
pub(super) struct RecordCache {
    found: ProofCache<FoundRecord>,
    unknown: ProofCache<Arc<ConsumerTable>>,
    versions: Box<[AtomicU32]>,
}

/// A consumer that was found.
#[derive(Clone)]
struct FoundRecord {
    table: Arc<ConsumerTable>,
    /// The tag of the consumer's record.
    tag: RecordTag,
    read_at: MonotonicTime,
}

/// What the cache has for a query.
pub(super) enum Recalled {
    /// May be used.
    Fresh(Arc<ConsumerTable>),
    /// May be used while Redis fails. The tag is that of the consumer's record.
    Stale(Arc<ConsumerTable>, RecordTag),
    /// Nothing.
    Nothing,
}

impl RecordCache {
    pub(super) fn new() -> Self {
        Self {
            found: ProofCache::with_sets(FOUND_SETS),
            unknown: ProofCache::with_sets(UNKNOWN_SETS),
            versions: (0..VERSIONS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The digest of a query with its current version.
    pub(super) fn digest(&self, query: ConsumerQuery<'_>) -> ProofDigest {
        let version = self.version(query).load(Ordering::Acquire).to_le_bytes();
        match query {
            ConsumerQuery::Key(hash) => self.found.digest([&version[..], b"key", &hash.0]),
            ConsumerQuery::Name(name) => {
                self.found.digest([&version[..], b"name", name.as_bytes()])
            }
        }
    }

    fn version(&self, query: ConsumerQuery<'_>) -> &AtomicU32 {
        let hash = match query {
            ConsumerQuery::Key(hash) => hash,
            ConsumerQuery::Name(name) => KeyHash::of(name.as_bytes()),
        };
        &self.versions[usize::from(u16::from_be_bytes([hash.0[0], hash.0[1]])) & (VERSIONS - 1)]
    }

    /// What is known at `now`.
    pub(super) fn recall(&self, digest: ProofDigest, now: MonotonicTime) -> Recalled {
        match self.found.get(digest, now) {
            Some(found) if now < found.read_at + FOUND_TIME => Recalled::Fresh(found.table),
            Some(found) => Recalled::Stale(found.table, found.tag),
            None => self.unknown.get(digest, now).map_or(Recalled::Nothing, Recalled::Fresh),
        }
    }

    /// Remembers a consumer that was found for `query`, and read at `read_at`.
    pub(super) fn remember_found(
        &self,
        digest: ProofDigest,
        name: &str,
        table: &Arc<ConsumerTable>,
        read_at: MonotonicTime,
    ) {
        let (table, tag) = (Arc::clone(table), RecordTag::of_name(name));
        self.found.insert(digest, read_at + OUTAGE_TIME, FoundRecord { table, tag, read_at });
    }

    /// Remembers that nothing was found; `table` is the one of an unknown consumer.
    pub(super) fn remember_unknown(
        &self,
        digest: ProofDigest,
        table: &Arc<ConsumerTable>,
        read_at: MonotonicTime,
    ) {
        // Else an outage would bring a deleted consumer back.
        self.found.remove(digest);
        self.unknown.insert(digest, read_at + UNKNOWN_TIME, Arc::clone(table));
    }

    /// Forgets what was read for these queries, and what is being read.
    pub(super) fn forget<'q>(&self, queries: impl IntoIterator<Item = &'q OwnedQuery>) {
        for query in queries {
            self.version(query.view()).fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> MonotonicTime {
        MonotonicTime::from_ms(ms)
    }

    fn label(recalled: &Recalled) -> &'static str {
        match recalled {
            Recalled::Fresh(table) if table.is_empty() => "unknown",
            Recalled::Fresh(_) => "fresh",
            Recalled::Stale(..) => "stale",
            Recalled::Nothing => "nothing",
        }
    }

    fn acme() -> Arc<ConsumerTable> {
        let record = tidegate_config::ConsumerRecord { name: "acme".into(), ..Default::default() };
        Arc::new(ConsumerTable::of_record(&record, "").expect("a record"))
    }

    #[test]
    fn results_have_the_ages_that_the_pages_promise() {
        let cache = RecordCache::new();
        let query = OwnedQuery::Name("acme".into());
        let digest = cache.digest(query.view());
        let seen = |now| label(&cache.recall(digest, at(now)));
        assert_eq!(seen(0), "nothing");
        cache.remember_found(digest, "acme", &acme(), at(0));
        assert_eq!(
            [0, 29_999, 30_000, 599_999, 600_000].map(seen),
            ["fresh", "fresh", "stale", "stale", "nothing"]
        );
        cache.remember_unknown(digest, &Arc::new(ConsumerTable::unknown("")), at(40_000));
        // Also while Redis fails, the deleted one is gone.
        assert_eq!([40_000, 44_999, 45_000].map(seen), ["unknown", "unknown", "nothing"]);
    }

    #[test]
    fn a_change_ends_what_is_known_and_what_is_being_read() {
        let cache = RecordCache::new();
        let hash = KeyHash::of(b"a");
        let queries = [OwnedQuery::Name("acme".into()), OwnedQuery::Key(hash)];
        let digests = queries.each_ref().map(|query| cache.digest(query.view()));
        assert_ne!(digests[0], digests[1]);
        cache.remember_found(digests[0], "acme", &acme(), at(0));
        cache.forget(&queries);
        // A read that began before the change ends after it.
        cache.remember_found(digests[1], "acme", &acme(), at(0));
        for query in &queries {
            let digest = cache.digest(query.view());
            assert_eq!(label(&cache.recall(digest, at(1))), "nothing");
        }
    }

    #[test]
    fn invented_keys_do_not_displace_found_ones() {
        let cache = RecordCache::new();
        let good = cache.digest(ConsumerQuery::Name("acme"));
        cache.remember_found(good, "acme", &acme(), at(0));
        let unknown = Arc::new(ConsumerTable::unknown(""));
        for number in 0..30_000_u32 {
            let query = ConsumerQuery::Key(KeyHash::of(&number.to_le_bytes()));
            cache.remember_unknown(cache.digest(query), &unknown, at(1));
        }
        assert_eq!(label(&cache.recall(good, at(2))), "fresh");
    }
}
