//! Outages while requests are sent: none fails, and none waits longer than the timeout.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use testkit::{
    client::Client,
    gateway::Gateway,
    redis_server::RedisServer,
    wait::{eventually, timed},
};

use super::{
    GRACE, RESPONSE_TIMEOUT, has_rate_limit_headers, metric, start, start_with, store,
    wait_recovered,
};

/// The outcome of a load.
#[derive(Default)]
struct PolicyLoad {
    stop: AtomicBool,
    sent: AtomicU64,
    slowest_us: AtomicU64,
    unlimited: AtomicU64,
}

/// Requests `/local` and `/open` from both gateways while `act` runs; every response must be a 200.
fn under_load(gateways: &[Gateway], act: impl FnOnce(&PolicyLoad)) -> PolicyLoad {
    let load = PolicyLoad::default();
    thread::scope(|scope| {
        for number in 0..8 {
            let address = gateways[number % 2].address();
            let (load, path) = (&load, ["/local", "/open"][number / 2 % 2]);
            scope.spawn(move || {
                let mut client = Client::connect(address);
                while !load.stop.load(Ordering::Relaxed) {
                    let (response, took) = timed(|| client.get(path, ""));
                    assert_eq!(response.status, 200, "{path}: {}", response.text());
                    if !has_rate_limit_headers(&response) {
                        assert_eq!(path, "/open", "only an `open` limit may omit the headers");
                        load.unlimited.fetch_add(1, Ordering::Relaxed);
                    }
                    load.slowest_us.fetch_max(took.as_micros() as u64, Ordering::Relaxed);
                    load.sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Stops the load even if `act` panics.
        let _stop = StopOnDrop(&load.stop);
        act(&load);
    });
    load
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl PolicyLoad {
    /// Waits for `more` responses.
    fn wait_for_traffic(&self, more: u64) {
        let before = self.sent.load(Ordering::Relaxed);
        eventually("requests continue", || self.sent.load(Ordering::Relaxed) >= before + more);
    }

    fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest_us.load(Ordering::Relaxed))
    }
}

fn has_lost_redis(gateways: &[Gateway]) -> bool {
    gateways.iter().all(|gateway| store(gateway)["workers_without_redis"] != 0)
}

#[test]
fn a_kill_under_load_fails_and_delays_no_request() {
    let mut redis = RedisServer::start();
    let gateways = [start(&redis, 50_000_000), start(&redis, 50_000_000)];
    let load = under_load(&gateways, |load| {
        load.wait_for_traffic(500);
        redis.kill();
        eventually("the outage is detected", || has_lost_redis(&gateways));
        load.wait_for_traffic(500);
        redis.restart();
        eventually("Redis is reconnected", || gateways.iter().all(|g| store(g)["healthy"] == true));
        load.wait_for_traffic(200);
    });
    assert!(load.slowest() < RESPONSE_TIMEOUT + GRACE, "the slowest took {:?}", load.slowest());
    assert!(load.unlimited.load(Ordering::Relaxed) > 0, "some requests are admitted without Redis");
    wait_recovered(&gateways);
    assert!(metric(&gateways[0], "tidegate_store_failures_total{kind=\"open\"}") > 0);
}

#[test]
fn a_hung_redis_holds_no_request_longer_than_the_timeout() {
    let redis = RedisServer::start();
    let gateways = [0; 2].map(|_| start_with(&redis, 50_000_000, RESPONSE_TIMEOUT));
    let load = under_load(&gateways, |load| {
        load.wait_for_traffic(500);
        redis.suspend();
        eventually("the outage is detected", || has_lost_redis(&gateways));
        load.wait_for_traffic(2_000);
        redis.resume();
        eventually("Redis is reconnected", || gateways.iter().all(|g| store(g)["healthy"] == true));
        load.wait_for_traffic(200);
    });
    assert!(load.slowest() < RESPONSE_TIMEOUT + GRACE, "the slowest took {:?}", load.slowest());
    assert!(metric(&gateways[0], "tidegate_store_failures_total{kind=\"timeout\"}") > 0);
    wait_recovered(&gateways);
}

#[test]
fn a_flushed_redis_keeps_counting() {
    let redis = RedisServer::start();
    let gateways = [start(&redis, 50_000_000), start(&redis, 50_000_000)];
    let load = under_load(&gateways, |load| {
        load.wait_for_traffic(300);
        for flush in [&["SCRIPT", "FLUSH"][..], &["FLUSHALL"], &["SCRIPT", "FLUSH"]] {
            let _: String = redis.command(flush);
            load.wait_for_traffic(300);
        }
    });
    assert_eq!(load.unlimited.load(Ordering::Relaxed), 0, "Redis decides every request");
    for gateway in &gateways {
        for kind in ["open", "timeout", "io", "server", "reply"] {
            let line = format!("tidegate_store_failures_total{{kind=\"{kind}\"}}");
            assert_eq!(metric(gateway, &line), 0, "{kind}");
        }
    }
    wait_recovered(&gateways);
}
