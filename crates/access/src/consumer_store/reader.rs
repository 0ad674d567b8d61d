//! The task that reads records for all workers.

use std::sync::Arc;

use ahash::RandomState;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hashbrown::HashMap;
use parking_lot::Mutex;
use tidegate_base::time::{Millis, MonotonicTime, StoreTime};
use tidegate_redis::RedisFailure;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    lookup::{ConsumerStore, LookupOutcome},
    query::{LookupAnswer, LookupFailed, LookupJob, OwnedQuery},
    record::read_consumer,
    redis::RecordText,
};
use crate::auth::{ConsumerTable, KeyHash, ProofDigest, is_consumer_name};

/// Maximum number of lookups that are read at a time.
const MAX_READS: usize = 1_024;
/// Minimum interval between two log lines about malformed records.
const LOG_INTERVAL: Millis = Millis::from_secs(1);

/// A lookup that was made.
struct LookupResult {
    digest: ProofDigest,
    answer: LookupAnswer,
}

/// What Redis has for a query.
enum FoundText {
    Consumer { name: String, text: Vec<u8> },
    Unknown,
    Malformed,
}

/// When a malformed record was logged last.
#[derive(Default)]
struct MalformedLog {
    logged_at: Option<MonotonicTime>,
}

impl ConsumerStore {
    /// Reads records for all workers until `stop` is cancelled. Concurrent lookups of the same are
    /// read once.
    pub async fn serve(&self, stop: CancellationToken) {
        let Some(mut jobs) = self.incoming.lock().take() else { return };
        let mut waiting = HashMap::<ProofDigest, Vec<_>, RandomState>::default();
        let log = Mutex::new(MalformedLog::default());
        let mut reads = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(LookupResult { digest, answer }) = reads.next() => {
                    for reply in waiting.remove(&digest).unwrap_or_default() {
                        let reply: oneshot::Sender<LookupAnswer> = reply;
                        // The request may have ended.
                        let _ = reply.send(answer.clone());
                    }
                }
                Some(LookupJob { digest, query, reply }) = jobs.recv(), if reads.len() < MAX_READS => {
                    let waiters: &mut Vec<_> = waiting.entry(digest).or_default();
                    if waiters.is_empty() {
                        reads.push(self.read(digest, query, &log));
                    }
                    waiters.push(reply);
                }
            }
        }
    }

    /// Reads what a query asks for, and remembers it.
    async fn read(
        &self,
        digest: ProofDigest,
        query: OwnedQuery,
        log: &Mutex<MalformedLog>,
    ) -> LookupResult {
        let read_at = self.clock.monotonic();
        let Ok(found) = self.find(&query).await else {
            self.counts.add(LookupOutcome::Failed);
            return LookupResult { digest, answer: Err(LookupFailed) };
        };
        let outcome = match found {
            FoundText::Consumer { name, text } => match self.table(&name, &text) {
                Some(table) if has(&table, &query) => {
                    self.counts.add(LookupOutcome::Found);
                    let table = Arc::new(table);
                    self.cache().remember_found(digest, &name, &table, read_at);
                    return LookupResult { digest, answer: Ok(table) };
                }
                // The key was removed from the consumer's record.
                Some(_) => LookupOutcome::Unknown,
                None => LookupOutcome::Malformed,
            },
            FoundText::Unknown => LookupOutcome::Unknown,
            FoundText::Malformed => LookupOutcome::Malformed,
        };
        self.counts.add(outcome);
        if outcome == LookupOutcome::Malformed {
            log.lock().add(&query, read_at);
        }
        let table = Arc::new(ConsumerTable::unknown(&Arc::clone(&self.decoy.lock())));
        self.cache().remember_unknown(digest, &table, read_at);
        LookupResult { digest, answer: Ok(table) }
    }

    async fn find(&self, query: &OwnedQuery) -> Result<FoundText, RedisFailure> {
        let name = match query {
            OwnedQuery::Name(name) => name.to_string(),
            OwnedQuery::Key(hash) => {
                match self.records.read(&self.records.names.of_key(hash)).await? {
                    RecordText::Missing => return Ok(FoundText::Unknown),
                    RecordText::OtherType => return Ok(FoundText::Malformed),
                    RecordText::Text(text) => match String::from_utf8(text) {
                        Ok(name) if is_consumer_name(&name) => name,
                        _ => return Ok(FoundText::Malformed),
                    },
                }
            }
        };
        Ok(match self.records.read(&self.records.names.of_name(&name)).await? {
            RecordText::Missing => FoundText::Unknown,
            RecordText::OtherType => FoundText::Malformed,
            RecordText::Text(text) => FoundText::Consumer { name, text },
        })
    }

    /// The table of a record; `None` if it is malformed.
    fn table(&self, name: &str, text: &[u8]) -> Option<ConsumerTable> {
        let consumer = read_consumer(name, text)?;
        let decoy = match &consumer.password {
            Some(password) => {
                let decoy: Arc<str> = password.as_str().into();
                *self.decoy.lock() = Arc::clone(&decoy);
                decoy
            }
            None => Arc::clone(&self.decoy.lock()),
        };
        ConsumerTable::of_record(&consumer.record(), &decoy).ok()
    }
}

/// True if the table is an answer to the query: it may lack a key that leads to it.
fn has(table: &ConsumerTable, query: &OwnedQuery) -> bool {
    match query {
        OwnedQuery::Key(hash) => table.key(hash, StoreTime::ZERO).is_some(),
        OwnedQuery::Name(_) => true,
    }
}

impl MalformedLog {
    fn add(&mut self, query: &OwnedQuery, now: MonotonicTime) {
        if self.logged_at.is_some_and(|at| now < at + LOG_INTERVAL) {
            return;
        }
        self.logged_at = Some(now);
        let record = match query {
            OwnedQuery::Key(hash) => log_hash(hash),
            OwnedQuery::Name(name) => name.to_string(),
        };
        tracing::warn!(
            record,
            "a record of a consumer in Redis is malformed, and counts as unknown"
        );
    }
}

/// The beginning of a hash, by which an operator finds the record.
fn log_hash(hash: &KeyHash) -> String {
    format!("key {:.12}", hash.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::check_password_hash;
    use crate::consumer_store::query::DECOY;

    #[test]
    fn the_decoy_takes_as_long_as_a_password() {
        assert_eq!(check_password_hash(DECOY), Ok(()));
        let table = ConsumerTable::unknown(DECOY);
        assert_eq!((table.any_password(), table.is_empty()), (Some(DECOY), true));
    }

    #[test]
    fn malformed_records_are_logged_at_most_once_a_second() {
        let mut log = MalformedLog::default();
        let query = OwnedQuery::Key(KeyHash::of(b"a"));
        for (now, logged_at) in [(0, 0), (999, 0), (1_000, 1_000), (1_001, 1_000)] {
            log.add(&query, MonotonicTime::from_ms(now));
            assert_eq!(log.logged_at, Some(MonotonicTime::from_ms(logged_at)));
        }
        assert_eq!(log_hash(&KeyHash::of(b"abc")), "key ba7816bf8f01");
    }
}
