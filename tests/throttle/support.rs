use std::{sync::Arc, time::Duration};

use testkit::{options::redis_options, random::SplitMix64, redis_server::RedisServer};
use tidegate::clock::ms;
use tidegate::{
    clock::{Clock, StoreTime},
    redis::{RedisFailure, Topology},
    secret::KeySecret,
    store::CounterStore,
    throttle::{
        Filter, Geometry, HashKeys,
        geometry::Sizing,
        redis::RedisFilterStore,
        sync::{FilterSync, SyncReport, SyncStats},
    },
    time::Millis,
};

/// 2023, on a whole minute.
pub(crate) const NOW: StoreTime = StoreTime::from_unix_ms(1_699_999_980_000);

/// A whole minute in ms.
pub(crate) const MINUTE: u64 = 60_000;

/// The geometry of filters for `capacity` tokens a minute over `minutes`.
pub(crate) fn geometry(capacity: u64, minutes: u64) -> Geometry {
    let memory = Millis::from_mins(minutes);
    Geometry::new(&Sizing { capacity, false_positive: 0.001, memory }).expect("sizes that fit")
}

/// The hash keys that the gateways share.
pub(crate) fn hash_keys() -> HashKeys {
    HashKeys { token_secret: KeySecret(1, 2), positions: [7; 32] }
}

/// Different hash keys.
pub(crate) fn other_hash_keys() -> HashKeys {
    HashKeys { token_secret: KeySecret(3, 4), positions: [8; 32] }
}

/// The Redis key of a minute, as the specification defines it.
pub(crate) fn key(index: u64) -> String {
    format!("tidegate:{{active}}:{index}")
}

/// The filter of one gateway and its synchronisation with Redis.
pub(crate) struct FilterGateway {
    pub(crate) filter: Filter,
    pub(crate) sync: FilterSync,
    pub(crate) store: RedisFilterStore,
    pub(crate) stats: Arc<SyncStats>,
    pub(crate) clock: Clock,
}

impl FilterGateway {
    /// A gateway that has not loaded the filter. It and the scripts use `clock`.
    pub(crate) fn new(redis: &RedisServer, clock: &Clock) -> Self {
        Self::with(redis, clock, geometry(1_000, 30), hash_keys())
    }

    pub(crate) fn with(
        redis: &RedisServer,
        clock: &Clock,
        geometry: Geometry,
        hash_keys: HashKeys,
    ) -> Self {
        Self::at(&redis.url(), clock, geometry, hash_keys)
    }

    /// A gateway whose Redis is at this URL.
    pub(crate) fn at(url: &str, clock: &Clock, geometry: Geometry, hash_keys: HashKeys) -> Self {
        let options = redis_options(Topology::one(url));
        let counter_store =
            CounterStore::redis(options, clock.clone(), 10).expect("usable options");
        let stats = Arc::new(SyncStats::default());
        let connector = counter_store.connector().expect("a Redis");
        Self {
            filter: Filter::new(geometry, hash_keys, clock.store_time()),
            sync: FilterSync::new(Arc::clone(&stats)),
            store: RedisFilterStore::new(connector, "active", clock.clone(), Arc::clone(&stats))
                .with_timeout(Duration::from_secs(1)),
            stats,
            clock: clock.clone(),
        }
    }

    /// A gateway that has loaded the filter.
    pub(crate) async fn loaded(redis: &RedisServer, clock: &Clock) -> Self {
        let mut gateway = Self::new(redis, clock);
        assert!(gateway.load().await.is_ok());
        gateway
    }

    pub(crate) async fn load(&mut self) -> Result<SyncReport, RedisFailure> {
        self.sync.load(&self.filter, &mut self.store).await
    }

    pub(crate) async fn tick(&mut self) -> Result<SyncReport, RedisFailure> {
        self.filter.rotate(self.clock.store_time());
        self.sync.tick(&self.filter, &mut self.store).await
    }

    /// Ticks a second apart, each of which must succeed.
    pub(crate) async fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.clock.set(self.clock.store_time() + ms(1_000));
            let report = self.tick().await;
            assert!(report.is_ok(), "{report:?}");
        }
    }

    /// The number of live minutes with unwritten tokens, after a tick.
    pub(crate) async fn tick_pending(&mut self) -> usize {
        self.tick().await.expect("a reply").pending
    }

    pub(crate) fn record(&self, tokens: impl IntoIterator<Item = u64>) {
        for token in tokens {
            self.filter.record(hash(token));
        }
    }

    /// The `tokens` that its filter does not contain.
    pub(crate) fn missing(&self, tokens: impl IntoIterator<Item = u64>) -> Vec<u64> {
        tokens.into_iter().filter(|&token| !self.filter.contains(hash(token))).collect()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.sync.is_complete(&self.filter)
    }

    /// The index of the current generation.
    pub(crate) fn current(&self) -> u64 {
        *self.filter.live_generations().end()
    }
}

/// The hash of a token.
pub(crate) fn hash(token: u64) -> u64 {
    SplitMix64(token).next_u64()
}
