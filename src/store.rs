//! Where limits keep their counters: this process, or Redis.
//!
//! [`Stores`] is the process's one store; it outlives every reload. Each worker has its own [`Store`], a
//! handle to it. With Redis behind it, `local_admission` decides first, by the deny cache and from leased
//! tokens, `multi_limit` where a request has several limits. What has to be asked for goes to `redis`, by
//! `scatter` where it lives at several places; and `fallback` decides where no answer comes. What no
//! request waits for goes through `corrections`.

mod corrections;
pub mod deny_cache;
mod fallback;
mod handle;
mod local_admission;
mod maintenance;
pub mod memory;
mod merged;
mod multi_limit;
mod outage;
mod record_id;
mod redis;
mod remaining;
mod scatter;
mod stats;
pub mod token_lease;

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub(crate) use self::redis::NodeConnection;
pub use self::{
    corrections::Correction,
    handle::Store,
    redis::{Connector, Credentials, Failure, RedisOptions, Shard, ShardStatus, Topology},
    stats::Stats,
};
use self::{
    corrections::CorrectionQueue,
    deny_cache::DenyCache,
    local_admission::Leases,
    memory::Memory,
    outage::{OutageLedger, OutageRecorder},
    record_id::{local_record, record},
    redis::{Presence, Reporter, Shared},
    stats::Register,
};
use crate::{
    clock::Clock,
    limit::{Charge, Key, Limit, Verdict},
    secret::SharedSecret,
};

/// How often the control task expires records and reports to Redis.
const TICK: Duration = Duration::from_secs(1);

/// No decision: the shared store is lost, and a limit's policy is to refuse then.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum StoreError {
    /// The shared store gave no answer, and this limit is closed without one.
    #[error("the store of limit number {limit} cannot be asked")]
    Unavailable {
        /// [`crate::limit::Limit::index`] of the first such limit.
        limit: usize,
    },
}

/// A store that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The URL is not one of Redis. It is not repeated here: it may hold a password.
    #[error("the URL of Redis is not usable: {0}")]
    Url(&'static str),
    /// The certificates that Redis' is to be checked against are not certificates.
    #[error("the certificates for TLS to Redis are not usable: expected PEM")]
    Ca,
    /// The operating system gave no thread.
    #[error("the thread that connects to Redis cannot be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The operating system gave no random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// What `/readyz` and metrics tell of the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Status {
    /// Whether counters are in Redis.
    pub shared: bool,
    /// Workers that have lost Redis and decide by their limits' failure policy; with several servers,
    /// those that have lost the one that the most have lost.
    pub lost: usize,
    /// Whether Redis, and every shard of it, answered the control task last; true without Redis.
    pub reachable: bool,
    /// Gateways alive as last known, this one included.
    pub gateways: u32,
    /// Of them, those that hash under another secret: their counts are apart.
    pub other_secrets: u32,
}

impl Status {
    /// Whether every worker decides where the counters are, or would if a request came.
    pub fn is_healthy(&self) -> bool {
        self.lost == 0 && self.reachable
    }
}

/// The counters of all limits, for the life of the process.
pub struct Stores {
    /// All counters; with Redis, those of the time without it.
    memory: Memory,
    secret: SharedSecret,
    /// [`SharedSecret::for_keys`].
    key_secret: (u64, u64),
    redis: Option<Arc<Shared>>,
    /// What was charged in memory while Redis could not be asked, until it is charged there.
    outage: OutageLedger,
    corrections: Arc<CorrectionQueue>,
    presence: Presence,
    register: Register,
    leases: Arc<Leases>,
    deny_cache: Arc<DenyCache>,
    /// Held by the worker that looks after what is the process's.
    maintaining: Mutex<()>,
    clock: Clock,
}

impl Stores {
    /// Counters in this process, at most `max_keys` records.
    pub fn memory(clock: Clock, max_keys: usize) -> Result<Arc<Self>, SetupError> {
        Self::new(None, SharedSecret::random()?, clock, max_keys)
    }

    /// Counters in Redis; at most `max_keys` records in this process while Redis is lost. Connects
    /// nothing yet, and does not fail if Redis is not there. A manual `clock` gives Redis its time too.
    pub fn redis(
        options: RedisOptions,
        clock: Clock,
        max_keys: usize,
    ) -> Result<Arc<Self>, SetupError> {
        let secret = options.secret;
        let shared = Shared::new(options)?;
        Self::new(Some(Arc::new(shared)), secret, clock, max_keys)
    }

    fn new(
        redis: Option<Arc<Shared>>,
        secret: SharedSecret,
        clock: Clock,
        max_keys: usize,
    ) -> Result<Arc<Self>, SetupError> {
        let deny_cache: Arc<DenyCache> = Arc::default();
        Ok(Arc::new(Self {
            memory: Memory::new(max_keys),
            secret,
            key_secret: secret.for_keys(),
            redis,
            outage: OutageLedger::default(),
            corrections: Arc::new(CorrectionQueue::new(Arc::clone(&deny_cache), clock.clone())),
            presence: Presence::new(&secret, getrandom::u64()?),
            register: Register::default(),
            leases: Arc::default(),
            deny_cache,
            maintaining: Mutex::default(),
            clock,
        }))
    }

    /// A worker's handle. Call it on the worker's runtime: its connections live there.
    pub fn worker(self: &Arc<Self>) -> Store {
        Store::new(self, self.register.enter())
    }

    /// The secret of the keyed hash that makes keys. It never changes: of a process without Redis it is
    /// random, and else the same at all gateways with the same configuration.
    pub fn secret(&self) -> (u64, u64) {
        self.key_secret
    }

    /// What that follows from, for what else is hashed.
    pub fn shared_secret(&self) -> &SharedSecret {
        &self.secret
    }

    /// The control task: once a second, expires records in memory and reports to Redis. Returns when
    /// `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut reporter = self.redis.as_ref().map(|shared| Reporter::new(&self.presence, shared));
        let mut sentinels = self.redis.as_ref().and_then(|shared| shared.watch());
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.memory.tick(self.clock.now());
            self.outage.expire(self.clock.ticks());
            self.corrections.expire();
            let heard = async {
                if let Some(reporter) = &mut reporter {
                    self.report(reporter).await;
                }
            };
            let looked = async {
                if let Some(shared) = &self.redis {
                    shared.look_out(sentinels.as_mut()).await;
                }
            };
            // Beside each other: a Sentinel that hangs delays no report, and neither delays a stop.
            stop.run_until_cancelled(async { tokio::join!(heard, looked) }).await;
        }
        if let Some(reporter) = reporter {
            reporter.leave().await;
        }
    }

    /// Reports that this gateway is alive, and does as it hears.
    async fn report(&self, reporter: &mut Reporter<'_>) {
        let deleted = reporter.report().await;
        for record in deleted.records.into_iter().map(local_record) {
            self.leases.forget(record);
            self.deny_cache.invalidate(record, self.clock.ticks());
        }
        if deleted.more {
            // Records may have been deleted that this gateway did not hear of: no cached refusal is trusted.
            self.deny_cache.clear();
        }
        self.leases.set_gateways(self.presence.gateways());
    }

    /// What each of these charges would meet by itself at this gateway, charging nothing: for the operator,
    /// who asks seldom. Needs no handle, and opens a connection of its own.
    pub async fn look(&self, charges: &[Charge<'_>]) -> Result<Verdict, Failure> {
        match &self.redis {
            Some(shared) => {
                let now = self.clock.manual_now().unwrap_or(0);
                let mut verdict = scatter::look_each(shared, charges, now).await?;
                remaining::add_to_looks(self, charges, &mut verdict);
                Ok(verdict)
            }
            None => Ok(self.memory.look(charges, self.clock.now())),
        }
    }

    /// Forgets what these limits remember of a caller, in this process and in Redis. Like
    /// [`Self::look`], for the operator.
    ///
    /// # Errors
    ///
    /// What Redis did not do. If it has not said that its records are gone, nothing is forgotten here.
    pub async fn reset(&self, limits: &[&Limit], key: Key) -> Result<(), Failure> {
        if let Some(shared) = &self.redis {
            shared.delete(limits, key).await?;
        }
        for limit in limits {
            self.memory.reset(limit, key);
            self.outage.forget(limit, key);
        }
        let Some(shared) = &self.redis else { return Ok(()) };
        for limit in limits {
            self.corrections.forget(shared.place(key), limit, key);
            let record = record(limit, key);
            self.leases.forget(record);
            self.deny_cache.invalidate(record, self.clock.ticks());
        }
        shared.note_deletion(limits, key).await
    }

    /// Empties the deny cache, so that the next request is decided by Redis: for tests of what Redis
    /// decides. A gateway never does.
    pub fn clear_deny_cache(&self) {
        self.deny_cache.clear();
    }

    /// Writes to the outage ledger now.
    fn outage_recorder(&self) -> OutageRecorder<'_> {
        OutageRecorder { ledger: &self.outage, ticks: self.clock.ticks() }
    }

    /// The same for charges that the shared store has certainly not made.
    fn recorder_after(&self, failure: Failure) -> Option<OutageRecorder<'_>> {
        matches!(failure, Failure::Open | Failure::Server).then(|| self.outage_recorder())
    }

    /// Opens connections to the shared store for what is exchanged there besides counters: bulk
    /// traffic that must not share a connection with decisions. `None` without Redis.
    pub fn connector(&self) -> Option<Connector> {
        self.redis.as_ref().map(|shared| Connector::new(Arc::clone(shared)))
    }

    /// Whether limits are decided where the counters are.
    pub fn status(&self) -> Status {
        Status {
            shared: self.redis.is_some(),
            lost: self.redis.as_ref().map_or(0, |shared| shared.lost()),
            reachable: self.presence.arrived(),
            gateways: self.presence.gateways(),
            other_secrets: self.presence.others(),
        }
    }

    /// The servers of the shared store, as far as they are known, and whether they are there.
    pub fn shards(&self) -> Vec<ShardStatus> {
        self.redis.as_ref().map(|shared| shared.shards()).unwrap_or_default()
    }

    /// What the store has done since the process began. Takes every lock of the memory store, one
    /// after the other.
    pub fn stats(&self) -> Stats {
        let mut stats = self.register.total();
        stats.evictions = self.memory.evictions();
        stats.keys = self.memory.len();
        stats.gateways = self.presence.gateways();
        stats.denials = self.deny_cache.stats(self.clock.ticks());
        stats.tokens = self.leases.numbers();
        // In this order: a sum is in the queue before it leaves the ledger.
        stats.unmerged = self.outage.len();
        let queue = self.corrections.stats();
        stats.unmerged += queue.unmerged;
        stats.merged = queue.merged;
        stats.merge_drops = self.outage.dropped() + queue.dropped;
        stats.tokens.given_back = stats.tokens.given_back.saturating_sub(queue.lost_tokens);
        stats.tokens.lost += queue.lost_tokens;
        stats
    }
}
