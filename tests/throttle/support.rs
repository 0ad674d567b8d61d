use std::{sync::Arc, time::Duration};

use tidegate::{
    clock::Clock,
    secret::SharedSecret,
    store::{Credentials, Failure, RedisOptions, Stores, Topology},
    throttle::{
        Filter, Geometry, Seed,
        geometry::Sizing,
        redis::RedisLink,
        sync::{Stats, Sync, Synced},
    },
};

use crate::redis_server::RedisServer;

/// 2023, on a whole minute.
pub(crate) const NOW: u64 = 1_699_999_980_000;

/// A whole minute in ms.
pub(crate) const MINUTE: u64 = 60_000;

/// Numbers that look random, the same in each run: `SplitMix64`.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.roll() % end
    }

    /// Never, if `count` is 0.
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }
}

/// Filters for `capacity` tokens a minute that remember `minutes`.
pub(crate) fn geometry(capacity: u64, minutes: u64) -> Geometry {
    let memory = minutes * MINUTE;
    Geometry::new(&Sizing { capacity, false_positive: 0.001, memory }).expect("sizes that fit")
}

/// What the tests' gateways hash under.
pub(crate) fn seed() -> Seed {
    Seed { secret: (1, 2), positions: [7; 32] }
}

/// Another one.
pub(crate) fn other_seed() -> Seed {
    Seed { secret: (3, 4), positions: [8; 32] }
}

/// The key of a minute, as the specification has it.
pub(crate) fn key(index: u64) -> String {
    format!("tidegate:{{active}}:{index}")
}

/// What a gateway has of the throttle, below the gateway.
pub(crate) struct Gateway {
    pub(crate) filter: Filter,
    pub(crate) sync: Sync,
    pub(crate) link: RedisLink,
    pub(crate) stats: Arc<Stats>,
    pub(crate) clock: Clock,
}

impl Gateway {
    /// Not loaded yet. Its time, and that of Redis' scripts, is `clock`'s.
    pub(crate) fn new(redis: &RedisServer, clock: &Clock) -> Self {
        Self::with(redis, clock, geometry(1_000, 30), seed())
    }

    pub(crate) fn with(redis: &RedisServer, clock: &Clock, geometry: Geometry, seed: Seed) -> Self {
        let options = RedisOptions {
            topology: Topology::one(redis.url()),
            credentials: Credentials::default(),
            tls_ca: None,
            namespace: "tidegate".into(),
            secret: SharedSecret::of_namespace("tidegate"),
            connect_timeout: Duration::from_millis(500),
            response_timeout: Duration::from_millis(50),
        };
        let stores = Stores::redis(options, clock.clone(), 10).expect("usable options");
        let stats = Arc::new(Stats::default());
        let connector = stores.connector().expect("a Redis");
        Self {
            filter: Filter::new(geometry, seed, clock.now()),
            sync: Sync::new(Arc::clone(&stats)),
            link: RedisLink::new(connector, "active", clock.clone(), Arc::clone(&stats))
                .with_timeout(Duration::from_secs(1)),
            stats,
            clock: clock.clone(),
        }
    }

    /// A loaded one.
    pub(crate) async fn loaded(redis: &RedisServer, clock: &Clock) -> Self {
        let mut gateway = Self::new(redis, clock);
        assert!(gateway.load().await.is_ok());
        gateway
    }

    pub(crate) async fn load(&mut self) -> Result<Synced, Failure> {
        self.sync.load(&self.filter, &mut self.link).await
    }

    pub(crate) async fn tick(&mut self) -> Result<Synced, Failure> {
        self.filter.turn(self.clock.now());
        self.sync.tick(&self.filter, &mut self.link).await
    }

    /// Ticks that must do all they have to, a second apart.
    pub(crate) async fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.clock.set(self.clock.now() + 1_000);
            let report = self.tick().await;
            assert!(report.is_ok(), "{report:?}");
        }
    }

    /// The live minutes of which something is not written yet, after a tick.
    pub(crate) async fn pending(&mut self) -> usize {
        self.tick().await.expect("an answer").pending
    }

    pub(crate) fn record(&self, tokens: impl IntoIterator<Item = u64>) {
        for token in tokens {
            self.filter.record(spread(token));
        }
    }

    /// Which of `tokens` it does not know.
    pub(crate) fn unknown(&self, tokens: impl IntoIterator<Item = u64>) -> Vec<u64> {
        tokens.into_iter().filter(|&token| !self.filter.knows(spread(token))).collect()
    }

    pub(crate) fn complete(&self) -> bool {
        self.sync.is_complete(&self.filter)
    }

    /// The index of the current generation.
    pub(crate) fn current(&self) -> u64 {
        *self.filter.live().end()
    }
}

/// The hash of a token.
pub(crate) fn spread(token: u64) -> u64 {
    Dice(token).roll()
}
