//! Keeps the counters of all limits, in this process or in Redis, and charges requests to them.
//!
//! It decides by `tidegate-limit` and the scripts; it knows no route and makes no response.
//!
//! # What it promises
//!
//! - A request is charged to all of its limits or to none.
//! - If Redis fails, a request waits at most for the response timeout; each limit's
//!   [`OnFailure`](tidegate_charge::OnFailure) policy then decides.
//! - Memory is bounded: counters, leases, cached denials and queued corrections.
//! - A charge is counted where it was decided: requests that this process admits while Redis gives
//!   no answer are counted in its memory, and never charged in Redis.
//! - Leased units admit at most as many requests as the store would have, and a cached denial never
//!   refuses beyond its own retry time.
//!
//! # Terms
//!
//! The process has one [`CounterStore`], which outlives every reload. Each worker has its own
//! [`StoreHandle`] to it. Without Redis a handle charges records in [`memory`], and nothing else
//! here is used. With Redis it calls scripts through [`tidegate_redis`], and four mechanisms
//! surround these calls:
//!
//! - A **lease** holds units that were charged to a quota in Redis in advance, so that requests are
//!   admitted without a call. Its opposite, a **cached denial**, refuses them without a call.
//! - A **fan-out** charges one request on several Redis shards at the same time.
//! - A **fallback** decides a request to which Redis gave no answer.
//! - A **correction** is a refund or a later charge. If no request waits for it, it is queued until
//!   its shard can be reached.
//!
//! # Which file does what
//!
//! In reading order:
//!
//! | file | content |
//! |---|---|
//! | [`memory`] | counters in this process |
//! | `record_id` | ids of records |
//! | `handle` | a worker's handle: the order of the steps that decide a request |
//! | `local_admission` | decides without a call: from leases and cached denials; fetches units |
//! | [`unit_lease`] | the leases, as a pure state machine |
//! | [`deny_cache`] | caches denials until their retry time |
//! | `multi_limit` | requests with several limits: all charged or none |
//! | `shard_fanout` | requests whose records live on several Redis shards |
//! | `fallback` | decides when Redis gives no answer |
//! | `remaining` | adds leased units to the `remaining` that Redis reports |
//! | `blocks` | charges a limit together with its block; counts its refusals |
//! | `corrections` | queues and sends refunds and charges that no request waits for |
//! | `maintenance` | each worker's periodic work: returns of leased units, queued corrections |
//! | `stats` | counts for metrics |
//!
//! # Example
//!
//! The second request exceeds a quota of one per minute:
//!
//! ```
//! use std::sync::Arc;
//!
//! use tidegate_charge::{Charge, Key, Limit, LimitIdentity};
//! use tidegate_limit::{Millis, Algorithm, Quota};
//! use tidegate_store::memory::MemoryStore;
//! use tidegate_system::clock::StoreTime;
//!
//! let quota = Quota::new(1, Millis::from_secs(60), Algorithm::FixedWindow);
//! let limit = Arc::new(Limit::new(LimitIdentity::new("per-client", 0), quota));
//! let memory = MemoryStore::new(1_000);
//! let charges = [Charge { limit: &limit, key: Key(7), cost: 1 }];
//! let now = StoreTime::from_unix_ms(1_700_000_000_000);
//! assert!(memory.charge(&charges, now).admitted);
//! assert!(!memory.charge(&charges, now + Millis::from_ms(1)).admitted);
//! ```

mod blocks;
mod corrections;
pub mod deny_cache;
mod fallback;
mod handle;
mod local_admission;
mod maintenance;
pub mod memory;
mod multi_limit;
mod record_id;
mod remaining;
mod shard_fanout;
mod stats;
pub mod unit_lease;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::{
    blocks::BlockTracker,
    corrections::CorrectionQueue,
    deny_cache::DenyCache,
    local_admission::QuotaLeases,
    memory::MemoryStore,
    record_id::{local_record_id, record_id, shared_record_id},
    stats::CountsRegistry,
};
pub use self::{
    blocks::{KnownBlock, charge_in_memory},
    corrections::Correction,
    handle::StoreHandle,
    stats::StoreStats,
};
use tidegate_charge::{Charge, Key, Limit, Verdict};
use tidegate_redis::{
    Connector, Presence, RedisBackend, RedisFailure, RedisOptions, RedisSetupError, Reporter,
    ShardStatus,
};
use tidegate_system::clock::Clock;
use tidegate_system::secret::{KeySecret, SharedSecret};

/// Interval at which the control task expires records and reports to Redis.
const CONTROL_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why there is no decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// Redis gave no answer, and this limit's failure policy is `closed`.
    #[error("the shared store gave no answer, and limit number {limit} has `on_failure: closed`")]
    Unavailable {
        /// [`tidegate_charge::Limit::index`] of the first such limit.
        limit: usize,
    },
}

/// The reason why a store cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The Redis backend cannot be created.
    #[error(transparent)]
    Redis(#[from] RedisSetupError),
    /// The operating system's random number generator failed.
    #[error("cannot get random numbers from the operating system: {0}")]
    Random(#[from] getrandom::Error),
}

/// The store's health, for `/readyz` and metrics.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StoreStatus {
    /// True if counters are in Redis.
    pub uses_redis: bool,
    /// Number of workers that have lost Redis and decide by their limits' failure policies. With
    /// several servers, the count for the server that the most workers have lost.
    pub lost_workers: usize,
    /// True if every Redis server answered the control task's last report; always true without
    /// Redis.
    pub is_reachable: bool,
    /// Live gateways at the last report, including this one.
    pub gateways: u32,
    /// Number of `gateways` that hash keys with another secret, so that their counts are separate.
    pub other_secrets: u32,
}

impl StoreStatus {
    /// True if no worker has lost Redis and the last report reached every server.
    pub fn is_healthy(&self) -> bool {
        self.lost_workers == 0 && self.is_reachable
    }
}

/// The counters of all limits, for the life of the process.
pub struct CounterStore {
    /// All counters; with Redis, only those charged while Redis gave no answer.
    memory: MemoryStore,
    secret: SharedSecret,
    /// [`SharedSecret::for_keys`].
    key_secret: KeySecret,
    redis: Option<Arc<RedisBackend>>,
    corrections: Arc<CorrectionQueue>,
    presence: Presence,
    counts: CountsRegistry,
    leases: Arc<QuotaLeases>,
    deny_cache: Arc<DenyCache>,
    blocks: Arc<BlockTracker>,
    /// Held by the worker that does the process-wide maintenance.
    maintenance_lock: Mutex<()>,
    clock: Clock,
}

impl CounterStore {
    /// A store that keeps its counters in this process, at most `max_keys` records.
    ///
    /// # Errors
    ///
    /// [`SetupError::Random`].
    pub fn memory(clock: Clock, max_keys: usize) -> Result<Arc<Self>, SetupError> {
        Self::new(None, SharedSecret::random()?, clock, max_keys)
    }

    /// Like [`Self::memory`], but hashes keys under `secret`.
    ///
    /// # Errors
    ///
    /// [`SetupError::Random`].
    pub fn memory_with_secret(
        secret: SharedSecret,
        clock: Clock,
        max_keys: usize,
    ) -> Result<Arc<Self>, SetupError> {
        Self::new(None, secret, clock, max_keys)
    }

    /// A store that keeps its counters in Redis, and at most `max_keys` records in this process
    /// while Redis gives no answer. It opens no connection yet, so it succeeds while Redis is down.
    /// With a manual `clock`, Redis also decides by that clock.
    ///
    /// # Errors
    ///
    /// Any [`SetupError`].
    pub fn redis(
        options: RedisOptions,
        clock: Clock,
        max_keys: usize,
    ) -> Result<Arc<Self>, SetupError> {
        let secret = options.secret;
        let backend = RedisBackend::new(options, clock.clone())?;
        Self::new(Some(Arc::new(backend)), secret, clock, max_keys)
    }

    fn new(
        redis: Option<Arc<RedisBackend>>,
        secret: SharedSecret,
        clock: Clock,
        max_keys: usize,
    ) -> Result<Arc<Self>, SetupError> {
        let deny_cache: Arc<DenyCache> = Arc::default();
        let blocks = Arc::new(BlockTracker::new(Arc::clone(&deny_cache)));
        let corrections =
            CorrectionQueue::new(Arc::clone(&deny_cache), Arc::clone(&blocks), clock.clone());
        Ok(Arc::new(Self {
            memory: MemoryStore::new(max_keys),
            secret,
            key_secret: secret.for_keys(),
            redis,
            corrections: Arc::new(corrections),
            presence: Presence::new(&secret, getrandom::u64()?),
            counts: CountsRegistry::default(),
            leases: Arc::default(),
            deny_cache,
            blocks,
            maintenance_lock: Mutex::default(),
            clock,
        }))
    }

    /// Creates a worker's handle. Call it on the worker's runtime, where its connections live.
    ///
    /// # Panics
    ///
    /// With Redis, outside of a Tokio runtime.
    pub fn worker(self: &Arc<Self>) -> StoreHandle {
        StoreHandle::new(self, self.counts.add_worker())
    }

    /// The secret that hashes key parts to [`Key`]s; constant for the life of the process. With
    /// Redis it is the same on all gateways with the same configuration, and without Redis it is
    /// random.
    pub fn key_secret(&self) -> KeySecret {
        self.key_secret
    }

    /// The secret from which [`Self::key_secret`] and the secrets of other hashes are derived.
    pub fn shared_secret(&self) -> &SharedSecret {
        &self.secret
    }

    /// Runs the control task: once a second it expires records in memory and reports to Redis.
    /// Returns when `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut reporter =
            self.redis.as_ref().map(|backend| Reporter::new(&self.presence, backend));
        let mut sentinels = self.redis.as_ref().and_then(|backend| backend.sentinel_watch());
        let mut interval = self.clock.background_interval(CONTROL_INTERVAL);
        while stop.run_until_cancelled(interval.tick()).await.is_some() {
            self.memory.expire(self.clock.store_time());
            self.blocks.known().expire(self.clock.store_time());
            let report = async {
                if let Some(reporter) = &mut reporter {
                    self.report(reporter).await;
                }
            };
            let watch = async {
                if let Some(backend) = &self.redis {
                    backend.check_topology(sentinels.as_mut()).await;
                }
            };
            // Concurrently: a hung Sentinel must not delay reports, and neither may delay a stop.
            stop.run_until_cancelled(Box::pin(async { tokio::join!(report, watch) })).await;
        }
        if let Some(reporter) = reporter {
            reporter.leave().await;
        }
    }

    /// Reports that this gateway is alive, and applies the reply: records that were deleted, and
    /// the number of gateways.
    async fn report(&self, reporter: &mut Reporter<'_>) {
        let deleted = reporter.report().await;
        for record in deleted.records.into_iter().map(local_record_id) {
            self.leases.discard(record);
            self.blocks.discard(record);
            self.deny_cache.invalidate(record, self.clock.monotonic());
        }
        if deleted.is_partial {
            // The reply does not list every deleted record, so no cached denial can be trusted.
            self.deny_cache.clear(self.clock.monotonic());
        }
        self.leases.set_gateways(self.presence.gateways());
    }

    /// Decides each charge independently, as this gateway would, and charges nothing. For the
    /// operator: it opens its own connection, so it needs no [`StoreHandle`].
    ///
    /// # Errors
    ///
    /// The [`RedisFailure`] of the first Redis server that gave no answer.
    pub async fn peek(&self, charges: &[Charge<'_>]) -> Result<Verdict, RedisFailure> {
        let verdict = self.peek_each(&blocks::expand(charges)).await?;
        Ok(blocks::fold_peek(charges, &verdict))
    }

    async fn peek_each(&self, charges: &[Charge<'_>]) -> Result<Verdict, RedisFailure> {
        match &self.redis {
            Some(backend) => {
                let mut verdict = shard_fanout::peek_each(backend, charges).await?;
                remaining::add_to_peeked(self, charges, &mut verdict);
                Ok(verdict)
            }
            None => Ok(self.memory.peek(charges, self.clock.store_time())),
        }
    }

    /// Deletes the records of a caller under these limits and their blocks, in this process and in
    /// Redis. For the operator, like [`Self::peek`].
    ///
    /// # Errors
    ///
    /// The [`RedisFailure`] of the call to Redis. Records in this process are deleted only after
    /// Redis confirmed the deletion.
    pub async fn reset(&self, limits: &[&Limit], key: Key) -> Result<(), RedisFailure> {
        let blocks = limits.iter().filter_map(|limit| limit.block.as_deref());
        let limits: Vec<&Limit> = limits.iter().copied().chain(blocks).collect();
        if let Some(backend) = &self.redis {
            backend.delete(&limits, key).await?;
        }
        for limit in &limits {
            self.memory.reset(limit, key);
            self.blocks.discard(record_id(limit, key));
        }
        let Some(backend) = &self.redis else { return Ok(()) };
        for limit in &limits {
            self.corrections.remove(backend.shard_of(key), limit, key);
            let record = record_id(limit, key);
            self.leases.discard(record);
            self.deny_cache.invalidate(record, self.clock.monotonic());
        }
        let records: Vec<u128> = limits.iter().map(|limit| shared_record_id(limit, key)).collect();
        backend.announce_deletion(key, &records).await
    }

    /// The blocks in force that this process began or met, a bounded number, by limit and end. With
    /// Redis, other gateways may have begun others.
    pub fn blocks(&self) -> Vec<KnownBlock> {
        self.blocks.known().list(self.clock.store_time())
    }

    /// The number of blocks that began with a request of this process, by the name of their limit.
    pub fn blocks_begun(&self) -> BTreeMap<Box<str>, u64> {
        self.blocks.known().begun()
    }

    /// Empties the deny cache, so that Redis decides the next request. Only for tests.
    pub fn clear_deny_cache(&self) {
        self.deny_cache.clear(self.clock.monotonic());
    }

    /// A connector for traffic other than counters: bulk traffic must not share a connection with
    /// decisions. `None` without Redis.
    pub fn connector(&self) -> Option<Connector> {
        self.redis.as_ref().map(|backend| Connector::new(Arc::clone(backend)))
    }

    /// The store's health.
    pub fn status(&self) -> StoreStatus {
        StoreStatus {
            uses_redis: self.redis.is_some(),
            lost_workers: self.redis.as_ref().map_or(0, |backend| backend.lost_workers()),
            is_reachable: self.presence.is_reporting(),
            gateways: self.presence.gateways(),
            other_secrets: self.presence.other_secrets(),
        }
    }

    /// The known Redis servers and their health; empty without Redis.
    pub fn shards(&self) -> Vec<ShardStatus> {
        self.redis.as_ref().map(|backend| backend.shards()).unwrap_or_default()
    }

    /// Counts since the process started, and current sizes. Takes every lock of the store's parts,
    /// one after the other.
    pub fn stats(&self) -> StoreStats {
        let mut stats = self.counts.total();
        stats.evictions = self.memory.evictions();
        stats.keys = self.memory.len();
        stats.gateways = self.presence.gateways();
        stats.denials = self.deny_cache.stats(self.clock.monotonic());
        stats.leases = self.leases.stats();
        let queue = self.corrections.stats();
        stats.dropped_corrections = queue.dropped;
        stats.leases.returned = stats.leases.returned.saturating_sub(queue.lost_units);
        stats.leases.lost += queue.lost_units;
        stats
    }
}
