//! The throttles of several gateways, each on its own thread as in a gateway.

use std::{sync::Arc, thread};

use testkit::redis_server::RedisServer;
use tidegate::{
    clock::Clock,
    redis::{Connector, Credentials, RedisOptions, Topology},
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
use tokio_util::sync::CancellationToken;

/// Running throttles.
pub(crate) struct Gateways {
    pub(crate) throttles: Vec<Arc<Throttle>>,
    pub(crate) settings: ThrottleSettings,
    stop: CancellationToken,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Gateways {
    /// Starts `count` throttles on `redis` and waits until all are loaded. They deny unknown
    /// tokens, so that a decision shows whether a token is active.
    pub(crate) fn start(count: usize, redis: &RedisServer, capacity: u64) -> Self {
        let sizing = Sizing { capacity, false_positive: 0.001, memory: Millis::from_mins(30) };
        let settings = ThrottleSettings {
            watermarks: Watermarks { max_active: 100, resume_below: 90 },
            mode: ThrottleMode::On,
            forget_status: tidegate::status::StatusSet::of([401..=401]),
            sizing,
            max_memory: 0,
            geometry: Geometry::new(&sizing).expect("a valid geometry"),
            waiting_room: None,
            head_start: Millis::ZERO,
        };
        let stop = CancellationToken::new();
        let (mut throttles, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (connector, clock) = connector(redis);
            let secret = SharedSecret::from_namespace("bench");
            let throttle =
                Throttle::new(settings.clone(), &secret, FilterSharing::Shared, clock.store_time());
            let store =
                RedisFilterStore::new(connector, "throttle", clock.clone(), throttle.stats.clone());
            let (running, stop) = (throttle.clone(), stop.clone());
            threads.push(thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.expect("a runtime");
                runtime.block_on(running.run(Some(store), clock, stop));
            }));
            throttles.push(throttle);
        }
        while !throttles.iter().all(|throttle| throttle.status().is_throttling()) {
            pause(10);
        }
        Self { throttles, settings, stop, threads }
    }

    /// The sum of a counter over all gateways.
    pub(crate) fn sum(&self, read: impl Fn(&tidegate::throttle::sync::SyncStats) -> u64) -> u64 {
        self.throttles.iter().map(|throttle| read(&throttle.stats)).sum()
    }
}

impl Drop for Gateways {
    fn drop(&mut self) {
        self.stop.cancel();
        for thread in self.threads.drain(..) {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

/// Connects a gateway.
pub(crate) fn connector(redis: &RedisServer) -> (Connector, Clock) {
    let clock = Clock::system();
    let options = RedisOptions {
        topology: Topology::one(redis.url()),
        credentials: Credentials::default(),
        tls_ca: None,
        namespace: "bench".into(),
        secret: SharedSecret::from_namespace("bench"),
        connect_timeout: std::time::Duration::from_secs(1),
        response_timeout: std::time::Duration::from_secs(1),
    };
    let counter_store = CounterStore::redis(options, clock.clone(), 1).expect("valid options");
    (counter_store.connector().expect("a Redis"), clock)
}

/// Sleeps for `millis` ms.
#[expect(clippy::disallowed_methods, reason = "the benchmark's own thread; it measures real time")]
pub(crate) fn pause(millis: u64) {
    thread::sleep(std::time::Duration::from_millis(millis));
}
