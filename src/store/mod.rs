//! Where limits keep their counters: this process, or Redis.
//!
//! [`Stores`] is the process's one store; it outlives every reload. Each worker has its own [`Store`],
//! a door to it. Next come, behind the same door: a cache of refusals and reservations (in front of
//! `redis`'s worker) and several shards (each one such worker).

mod fallback;
mod journal;
pub mod memory;
mod merge;
mod record_id;
mod redis;
pub mod refusals;
mod stats;

use std::{sync::Arc, time::Duration};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::{
    journal::{Journal, Noting},
    memory::Memory,
    redis::{Presence, Reporter, Shared, Worker},
    stats::{Register, WorkerCounts},
};
pub use self::{
    redis::{Connector, Failure, RedisOptions},
    stats::Stats,
};
use crate::{
    clock::Clock,
    limit::{Charge, Key, Limit, Millis, OnFailure, Settlement, Verdict},
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
    /// The operating system gave no random numbers.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// What `/readyz` and metrics tell of the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Status {
    /// Whether counters are in Redis.
    pub shared: bool,
    /// Workers that use Redis.
    pub workers: usize,
    /// Those among them that have lost it and decide by their limits' failure policy.
    pub lost: usize,
    /// Whether Redis answered the control task last; true without Redis.
    pub reachable: bool,
    /// Gateways alive as last known, this one included.
    pub gateways: u32,
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
    redis: Option<Arc<Shared>>,
    /// What was charged in memory while Redis was lost, until Redis has heard of it.
    journal: Journal,
    presence: Presence,
    register: Register,
    clock: Clock,
}

impl Stores {
    /// Counters in this process, at most `max_keys` records.
    pub fn memory(clock: Clock, max_keys: usize) -> Result<Arc<Self>, SetupError> {
        Self::new(None, clock, max_keys)
    }

    /// Counters in Redis; at most `max_keys` records in this process while Redis is lost. Connects
    /// nothing yet, and does not fail if Redis is not there. A manual `clock` gives Redis its time too.
    pub fn redis(
        options: RedisOptions,
        clock: Clock,
        max_keys: usize,
    ) -> Result<Arc<Self>, SetupError> {
        let shared = Shared::new(options).map_err(|_| {
            SetupError::Url("expected redis://[user:password@]host[:port][/database]")
        })?;
        Self::new(Some(Arc::new(shared)), clock, max_keys)
    }

    fn new(
        redis: Option<Arc<Shared>>,
        clock: Clock,
        max_keys: usize,
    ) -> Result<Arc<Self>, SetupError> {
        let seed = (getrandom::u64()?, getrandom::u64()?);
        Ok(Arc::new(Self {
            memory: Memory::new(max_keys),
            redis,
            journal: Journal::default(),
            presence: Presence::new(seed, getrandom::u64()?),
            register: Register::default(),
            clock,
        }))
    }

    /// A worker's own door. Call it on the worker's runtime: its connection lives there.
    pub fn worker(self: &Arc<Self>) -> Store {
        let worker = |shared: &Arc<Shared>| Worker::new(Arc::clone(shared), self.clock.clone());
        let redis = self.redis.as_ref().map(worker).map(Arc::new);
        let merging = redis.as_ref().map(|worker| {
            let merging = merge::run(Arc::clone(worker), Arc::clone(self));
            AbortOnDropHandle::new(tokio::spawn(merging))
        });
        Store { redis, _merging: merging, counts: self.register.enter(), stores: Arc::clone(self) }
    }

    /// The secret of the keyed hash that makes keys: random, and with Redis the same for all gateways
    /// from [`Self::prepared`] on. Read it for each request: it may change when Redis is lost and comes
    /// back.
    pub fn seed(&self) -> (u64, u64) {
        self.presence.seed()
    }

    /// Returns once the first exchange with Redis is over, well or badly: so that a gateway's first
    /// requests already count under the keys that the other gateways use. Needs [`Self::run`] to run;
    /// without it, returns when the timeouts are over.
    pub async fn prepared(&self) {
        if let Some(shared) = &self.redis {
            // Too late is no worse than a Redis that is not there.
            let _ = tokio::time::timeout(shared.patience(), self.presence.reported()).await;
        }
    }

    /// The control task: once a second, expires records in memory and reports to Redis. Returns when
    /// `stop` is cancelled.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut reporter = self.redis.as_ref().map(|shared| Reporter::new(&self.presence, shared));
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.memory.tick(self.clock.now());
            self.journal.expire(self.clock.ticks());
            self.journal.wake();
            if let Some(reporter) = &mut reporter {
                reporter.report().await;
            }
        }
        if let Some(reporter) = reporter {
            reporter.leave().await;
        }
    }

    /// What each of these charges would meet by itself, charging nothing: for the operator, who asks
    /// seldom. Needs no door, and opens a connection of its own.
    pub async fn look(&self, charges: &[Charge<'_>]) -> Result<Verdict, Failure> {
        match &self.redis {
            Some(shared) => shared.look(charges, self.clock.manual_now().unwrap_or(0)).await,
            None => Ok(self.memory.look(charges, self.clock.now())),
        }
    }

    /// Forgets what these limits remember of a caller, in this process and in Redis. Like
    /// [`Self::look`], for the operator.
    pub async fn reset(&self, limits: &[&Limit], key: Key) -> Result<(), Failure> {
        for limit in limits {
            self.memory.reset(limit, key);
            self.journal.forget(limit, key);
        }
        match &self.redis {
            Some(shared) => shared.reset(limits, key).await,
            None => Ok(()),
        }
    }

    /// The journal, and what its times are made of.
    fn noting(&self) -> Noting<'_> {
        Noting { journal: &self.journal, ticks: self.clock.ticks() }
    }

    /// Opens connections to the shared store for what is exchanged there besides counters: bulk
    /// traffic that must not share a connection with decisions. `None` without Redis.
    pub fn connector(&self) -> Option<Connector> {
        self.redis.as_ref().map(|shared| shared.connector())
    }

    /// Whether limits are decided where the counters are.
    pub fn status(&self) -> Status {
        let (workers, lost) = self.redis.as_ref().map_or((0, 0), |shared| shared.workers());
        Status {
            shared: self.redis.is_some(),
            workers,
            lost,
            reachable: self.presence.arrived(),
            gateways: self.presence.gateways(),
        }
    }

    /// What the store has done since the process began. Takes every lock of the memory store, one
    /// after the other.
    pub fn stats(&self) -> Stats {
        let mut stats = self.register.total();
        stats.evictions = self.memory.evictions();
        stats.keys = self.memory.len();
        stats.unmerged = self.journal.len();
        (stats.merged, stats.merge_drops) = self.journal.told();
        stats.gateways = self.presence.gateways();
        stats
    }
}

/// One worker's door to the counters.
pub struct Store {
    redis: Option<Arc<Worker>>,
    /// Brings what was charged here to Redis, when it is back.
    _merging: Option<AbortOnDropHandle<()>>,
    counts: Arc<CachePadded<WorkerCounts>>,
    stores: Arc<Stores>,
}

impl Store {
    /// Decides all charges of a request, and charges all or none. `now` is the gateway's time; Redis
    /// reads its own. Without Redis this never waits.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] if Redis gave no answer and a limit's policy is to refuse then.
    pub async fn charge(&self, charges: &[Charge<'_>], now: Millis) -> Result<Verdict, StoreError> {
        self.counts.called();
        let memory = &self.stores.memory;
        let Some(worker) = self.redis.as_ref().filter(|_| !charges.is_empty()) else {
            return Ok(memory.charge(charges, now));
        };
        match worker.charge(charges).await {
            Ok(verdict) => {
                self.stores.journal.wake();
                Ok(verdict)
            }
            Err(failure) => {
                self.counts.failed(failure);
                let gateways = self.stores.presence.gateways();
                // One whose outcome is unknown may count there already.
                let uncharged = matches!(failure, Failure::Open | Failure::Server);
                let noting = uncharged.then(|| self.stores.noting());
                fallback::decide(charges, now, memory, gateways, &self.counts, noting)
            }
        }
    }

    /// Corrects what a request was charged, and tells what holds after it; `None` where nothing could
    /// be corrected. `fallback` is that of the request's verdict: a correction is made where the charge
    /// was. Nobody has to wait for it: it is over within the store's response timeout, and one whose
    /// outcome is unknown is never repeated.
    pub async fn settle(
        &self,
        settlements: &[Settlement<'_>],
        fallback: bool,
        now: Millis,
    ) -> Option<Verdict> {
        let settled = |settlements: &[Settlement<'_>], gateways| {
            let decisions = self.stores.memory.settle(settlements, now, gateways);
            Some(Verdict { fallback, decisions, ..Verdict::empty(now) })
        };
        if settlements.is_empty() {
            return None;
        }
        let Some(worker) = &self.redis else { return settled(settlements, 1) };
        if fallback {
            let local = |of: &&Settlement<'_>| of.limit.on_failure == OnFailure::Local;
            let local: SmallVec<[Settlement<'_>; 4]> =
                settlements.iter().filter(local).copied().collect();
            let gateways = self.stores.presence.gateways();
            let noting = self.stores.noting();
            local.iter().for_each(|settlement| noting.settled(settlement, now, gateways));
            return settled(&local, gateways);
        }
        let settled = worker.settle(settlements).await;
        settled.inspect_err(|&failure| self.counts.failed(failure)).ok()
    }

    /// What each of these charges would meet by itself now; charges nothing. A record that has expired is
    /// a caller never seen. Without an answer of Redis it tells what would be decided without one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`] as [`Self::charge`].
    pub async fn look(&self, charges: &[Charge<'_>], now: Millis) -> Result<Verdict, StoreError> {
        let memory = &self.stores.memory;
        let Some(worker) = self.redis.as_ref().filter(|_| !charges.is_empty()) else {
            return Ok(memory.look(charges, now));
        };
        match worker.look(charges).await {
            Ok(verdict) => Ok(verdict),
            Err(failure) => {
                self.counts.failed(failure);
                fallback::look(charges, now, memory, self.stores.presence.gateways())
            }
        }
    }
}
