use std::{sync::Arc, time::Duration};

use testkit::{options::redis_options, redis_server::RedisServer, wait::eventually_async};
use tidegate::clock::ms;
use tidegate::{
    clock::Clock,
    redis::Topology,
    secret::SharedSecret,
    store::CounterStore,
    throttle::{
        FilterSharing, Geometry, Throttle, ThrottleSettings,
        geometry::Sizing,
        mode::{ThrottleMode, Watermarks},
        redis::RedisFilterStore,
    },
    time::Millis,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::hash;

/// The throttle of one gateway, whose control loop runs until it is dropped.
pub(crate) struct RunningThrottle {
    pub(crate) throttle: Arc<Throttle>,
    _stop: DropGuard,
}

impl RunningThrottle {
    /// A loaded throttle for 1,000 tokens a minute, whose filters may become `max_growth` times as
    /// large. Needs a local set.
    pub(crate) async fn start(redis: &RedisServer, clock: &Clock, max_growth: u32) -> Self {
        let sizing =
            Sizing { capacity: 1_000, false_positive: 0.001, memory: Millis::from_mins(30) };
        let geometry = Geometry::new(&sizing).expect("sizes that fit");
        let settings = ThrottleSettings {
            watermarks: Watermarks { max_active: 10, resume_below: 9 },
            mode: ThrottleMode::Auto,
            forget_status: tidegate::status::StatusSet::of([401..=401]),
            sizing,
            geometry,
            max_memory: geometry.grown(max_growth).bytes(),
            waiting_room: None,
            head_start: Millis::ZERO,
        };
        let secret = SharedSecret::from_namespace("test");
        let throttle = Throttle::new(settings, &secret, FilterSharing::Shared, clock.store_time());
        let options = redis_options(Topology::one(redis.url()));
        let counters = CounterStore::redis(options, clock.clone(), 10).expect("usable options");
        let connector = counters.connector().expect("a Redis");
        let stats = Arc::clone(&throttle.stats);
        let store = RedisFilterStore::new(connector, "active", clock.clone(), stats)
            .with_timeout(Duration::from_secs(5));
        let stop = CancellationToken::new();
        let running = Arc::clone(&throttle).run(Some(store), clock.clone(), stop.clone());
        tokio::task::spawn_local(running);
        eventually_async("it is loaded", async || throttle.status().loaded).await;
        Self { throttle, _stop: stop.drop_guard() }
    }

    /// Records the tokens, as after successful responses.
    pub(crate) fn record(&self, tokens: impl IntoIterator<Item = u64>) {
        let (gate, settings) = (self.throttle.gate(), self.throttle.settings());
        for token in tokens {
            gate.record_response(hash(token), 200, &settings);
        }
    }

    /// True if its filters contain the token.
    pub(crate) fn is_active(&self, token: u64) -> bool {
        self.throttle.gate().is_active(hash(token))
    }

    /// The size of its filters as a multiple of the configured one.
    pub(crate) fn growth(&self) -> u64 {
        self.throttle.status().memory_bytes / self.throttle.settings().geometry.bytes()
    }
}

/// The longest interval between two ticks, in ms.
const LONGEST_INTERVAL: u64 = 1_200;

/// Moves the clock by the longest interval, and waits until each of the throttles has ticked.
pub(crate) async fn tick(clock: &Clock, gateways: &[RunningThrottle]) {
    let ticks = || gateways.iter().map(|gateway| gateway.throttle.status().ticks);
    let before: Vec<_> = ticks().collect();
    clock.set(clock.store_time() + ms(LONGEST_INTERVAL));
    eventually_async("a tick", async || ticks().zip(&before).all(|(now, before)| now > *before))
        .await;
}
