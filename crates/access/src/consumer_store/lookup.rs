//! [`ConsumerStore`]: looks consumers up for requests.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_redis::Connector;
use tidegate_system::clock::Clock;
use tokio::sync::{mpsc, oneshot};

use super::{
    cache::{Recalled, RecordCache},
    names::RecordTag,
    query::{DECOY, LookupAnswer, LookupFailed, LookupJob},
    redis::RedisRecords,
};
use crate::auth::{ConsumerQuery, ConsumerTable, ProofDigest};

/// Maximum number of lookups that wait to be read.
const MAX_WAITING: usize = 4_096;
/// Maximum time that a request waits: two calls, and the wait for a turn.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The consumers in Redis, and what is known of them.
pub struct ConsumerStore {
    pub(super) clock: Clock,
    pub(super) records: RedisRecords,
    cache: OnceLock<RecordCache>,
    jobs: mpsc::Sender<LookupJob>,
    /// Taken by the task that reads.
    pub(super) incoming: Mutex<Option<mpsc::Receiver<LookupJob>>>,
    /// The hash of a password that was read last. Passwords of unknown names are compared with it,
    /// which takes as long.
    pub(super) decoy: Mutex<Arc<str>>,
    pub(super) counts: OutcomeCounts,
}

/// What lookups came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LookupOutcome {
    /// A consumer was read.
    Found,
    /// Redis has no such key or name.
    Unknown,
    /// A record in Redis is malformed, and counts as unknown.
    Malformed,
    /// Redis gave no reply.
    Failed,
    /// A request used what was read before, because Redis failed.
    Stale,
}

/// Lookups that were not answered from memory, by outcome.
#[derive(Debug, Default)]
pub(super) struct OutcomeCounts([AtomicU64; LookupOutcome::ALL.len()]);

/// What is known for a query without a wait.
pub enum ConsumerLookup {
    /// The table of the consumer, or of an unknown one.
    Known(Arc<ConsumerTable>),
    /// It is being read.
    Pending(PendingLookup),
}

/// A lookup in Redis.
pub struct PendingLookup {
    answer: oneshot::Receiver<LookupAnswer>,
    /// What was read within the last ten minutes.
    stale: Option<Arc<ConsumerTable>>,
}

impl LookupOutcome {
    /// All outcomes.
    pub const ALL: [Self; 5] =
        [Self::Found, Self::Unknown, Self::Malformed, Self::Failed, Self::Stale];

    /// The name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Unknown => "unknown",
            Self::Malformed => "malformed",
            Self::Failed => "failed",
            Self::Stale => "stale",
        }
    }
}

impl OutcomeCounts {
    pub(super) fn add(&self, outcome: LookupOutcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl ConsumerStore {
    /// The consumers in the Redis of `connector`. Opens no connection yet.
    pub fn new(connector: Connector, clock: Clock) -> Self {
        let (jobs, incoming) = mpsc::channel(MAX_WAITING);
        Self {
            records: RedisRecords::new(connector, clock.clone()),
            clock,
            cache: OnceLock::new(),
            jobs,
            incoming: Mutex::new(Some(incoming)),
            decoy: Mutex::new(DECOY.into()),
            counts: OutcomeCounts::default(),
        }
    }

    pub(super) fn cache(&self) -> &RecordCache {
        self.cache.get_or_init(RecordCache::new)
    }

    /// The table of the consumer of `query`: at once if it was read lately. While Redis fails, what
    /// was read within the last ten minutes is used at once.
    ///
    /// # Errors
    ///
    /// Redis fails, or too many lookups wait, and nothing was read before.
    #[inline]
    pub fn look_up(&self, query: ConsumerQuery<'_>) -> Result<ConsumerLookup, LookupFailed> {
        let cache = self.cache();
        let digest = cache.digest(query);
        let stale = match cache.recall(digest, self.clock.monotonic()) {
            Recalled::Fresh(table) => return Ok(ConsumerLookup::Known(table)),
            Recalled::Stale(table, tag) => Some((table, tag)),
            Recalled::Nothing => None,
        };
        self.ask(query, digest, stale)
    }

    #[cold]
    fn ask(
        &self,
        query: ConsumerQuery<'_>,
        digest: ProofDigest,
        stale: Option<(Arc<ConsumerTable>, RecordTag)>,
    ) -> Result<ConsumerLookup, LookupFailed> {
        let first = match query {
            ConsumerQuery::Key(hash) => RecordTag::of_key(&hash),
            ConsumerQuery::Name(name) => RecordTag::of_name(name),
        };
        let second = stale.as_ref().map_or(first, |(_, tag)| *tag);
        let (reply, answer) = oneshot::channel();
        // While Redis fails, no request waits for it; this one finds out if it is back.
        let is_failing = [first, second].iter().any(|tag| self.records.is_failing(*tag));
        let is_sent = self.jobs.try_send(LookupJob { digest, query: query.into(), reply }).is_ok();
        let stale = stale.map(|(table, _)| table);
        if is_sent && !is_failing {
            return Ok(ConsumerLookup::Pending(PendingLookup { answer, stale }));
        }
        self.use_stale(stale).map(ConsumerLookup::Known)
    }

    /// Waits for a lookup.
    ///
    /// # Errors
    ///
    /// Redis fails, and nothing was read before.
    pub async fn wait(&self, pending: PendingLookup) -> Result<Arc<ConsumerTable>, LookupFailed> {
        let PendingLookup { answer, stale } = pending;
        match self.clock.timeout(TIMEOUT, answer).await {
            Ok(Ok(Ok(table))) => Ok(table),
            _ => self.use_stale(stale),
        }
    }

    fn use_stale(
        &self,
        stale: Option<Arc<ConsumerTable>>,
    ) -> Result<Arc<ConsumerTable>, LookupFailed> {
        let table = stale.ok_or(LookupFailed)?;
        self.counts.add(LookupOutcome::Stale);
        Ok(table)
    }

    /// The table of the consumer called `name`, after a wait if it was not read lately.
    ///
    /// # Errors
    ///
    /// Redis fails, and nothing was read before.
    pub async fn named(&self, name: &str) -> Result<Arc<ConsumerTable>, LookupFailed> {
        match self.look_up(ConsumerQuery::Name(name))? {
            ConsumerLookup::Known(table) => Ok(table),
            ConsumerLookup::Pending(pending) => self.wait(pending).await,
        }
    }

    /// The number of lookups that were not answered from memory, with this outcome.
    pub fn count(&self, outcome: LookupOutcome) -> u64 {
        self.counts.0[outcome as usize].load(Ordering::Relaxed)
    }

    /// The number of calls that were sent to Redis.
    pub fn calls(&self) -> u64 {
        self.records.calls()
    }
}
