//! A client that is alone on its key and waits for the requested time is admitted, even if Redis
//! was lost and came back meanwhile. In real time, because a hung Redis dates late calls by its own
//! clock.

use std::{cell::Cell, sync::Arc, time::Duration};

use futures_util::future::join_all;
use testkit::{redis_server::RedisServer, verdict::VerdictExt as _};
use tidegate::clock::ms;
use tidegate::{
    charge::Limit,
    clock::{Clock, StoreTime, Uptime},
    limit::{Algorithm, Decision, Millis, Quota},
    redis::RedisOptions,
    store::{CounterStore, StoreHandle},
};

use crate::support::{charge, limit, options};

/// The length of every window, in ms.
const WINDOW: Millis = Millis::from_secs(2);

/// The time that a call waits for Redis: longer than a busy machine needs for a reply.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(400);

/// The caller whose first request finds Redis hanging.
const LATE_KEY: u128 = 2;

/// The time after Redis is back at which a late charge has certainly been refunded.
const SETTLED: Duration = Duration::from_millis(400);

/// For each algorithm limits of six and of one in each window. No wait is promised of
/// `concurrency`.
fn limits() -> Vec<Arc<Limit>> {
    let shapes = [
        ("window", Algorithm::SlidingWindow { resolution: 4, strict: false }),
        ("strict", Algorithm::SlidingWindow { resolution: 4, strict: true }),
        ("log", Algorithm::SlidingLog),
        ("fixed", Algorithm::FixedWindow),
        ("token", Algorithm::TokenBucket),
        ("leaky", Algorithm::LeakyBucket { max_wait: Millis::from_ms(900) }),
    ];
    let shape = |limit_of: u64| {
        shapes.map(|(name, algorithm)| {
            let quota = Quota::new(limit_of, WINDOW, algorithm);
            Arc::new(Limit { quota, ..Limit::clone(&limit(&format!("{name}-{limit_of}"), 1)) })
        })
    };
    [shape(6), shape(1)].concat()
}

/// A gateway whose Redis is lost for a while.
struct Gateway {
    handle: StoreHandle,
    clock: Clock,
    /// True once Redis has been lost.
    is_lost: Cell<bool>,
    /// The time at which Redis is back and settled, by [`Clock::uptime`]; `None` before and during
    /// the outage.
    settled_at: Cell<Option<Uptime>>,
    /// The time at which the clients end.
    end: Cell<Uptime>,
}

/// A client's observations.
#[derive(Debug, Default)]
struct Seen {
    waits: u32,
    /// Waits that began while Redis was lost.
    local: u32,
}

impl Gateway {
    async fn decide(&self, limit: &Arc<Limit>, key: u128) -> (Decision, StoreTime, bool) {
        let charges = [charge(limit, key)];
        let verdict =
            self.handle.charge(&charges, self.clock.store_time()).await.expect("a policy");
        (verdict.decision(0), verdict.decided_at(), verdict.is_fallback())
    }

    /// Sends requests until one is refused; waits `Retry-After` or until the reset, in turn; and
    /// again. The client of [`LATE_KEY`] begins when Redis hangs, so that its first charge is made
    /// late.
    async fn client(&self, limit: &Arc<Limit>, key: u128) -> Seen {
        let mut seen = Seen::default();
        while key == LATE_KEY && !self.is_lost.get() {
            self.clock.sleep(Duration::from_millis(5)).await;
        }
        while self.clock.uptime() < self.end.get() {
            let (refused, at, is_local) = self.decide(limit, key).await;
            if refused.admitted {
                self.clock.sleep(Duration::from_millis(30)).await;
                continue;
            }
            let until = if seen.waits.is_multiple_of(2) {
                refused.retry_at.expect("a time to retry")
            } else {
                refused.reset_at
            };
            // One more ms: the clocks of two processes do not begin their ms at the same time.
            self.clock.sleep(Duration::from_millis((until - at + ms(1)).as_ms())).await;
            // A late charge is refunded shortly after Redis is back.
            if let Some(settled) = self.settled_at.get() {
                self.clock.sleep_until(settled).await;
            }
            let (then, ..) = self.decide(limit, key).await;
            assert!(then.admitted, "{}: {refused:?}, then {then:?}", limit.name());
            seen.waits += 1;
            seen.local += u32::from(is_local);
        }
        seen
    }

    /// Loses Redis for `length`, after the clients have begun; ends the clients two windows after
    /// it is back.
    async fn outage(&self, redis: &RedisServer, length: Duration) {
        self.clock.sleep(Duration::from_millis(700)).await;
        redis.suspend();
        self.is_lost.set(true);
        self.clock.sleep(length).await;
        // Set before Redis is back, so that a client that wakes up now waits for the correction.
        let settled = self.clock.uptime() + SETTLED;
        self.settled_at.set(Some(settled));
        redis.resume();
        self.end.set(settled + 2 * WINDOW.as_duration());
    }
}

/// All clients of one gateway, through one outage.
async fn assert_waits_hold(length: Duration) {
    let redis = RedisServer::start();
    let clock = Clock::system();
    let options = RedisOptions { response_timeout: RESPONSE_TIMEOUT, ..options(&redis) };
    let made = CounterStore::redis(options, clock.clone(), 10_000);
    let handle = made.expect("usable options").worker();
    let gateway = Gateway {
        handle,
        clock,
        is_lost: Cell::new(false),
        settled_at: Cell::new(None),
        end: Cell::new(Uptime::MAX),
    };
    let limits = limits();
    let callers = limits.iter().flat_map(|limit| [1, LATE_KEY].map(|key| (limit, key)));
    let clients = join_all(callers.map(|(limit, key)| gateway.client(limit, key)));
    let (seen, ()) = tokio::join!(clients, gateway.outage(&redis, length));
    for (at, seen) in seen.iter().enumerate() {
        let name = limits[at / 2].name();
        assert!(seen.waits > 1, "{name}: {seen:?} in an outage of {length:?}");
    }
    let local = seen.iter().filter(|seen| seen.local > 0).count();
    let is_long = length > RESPONSE_TIMEOUT + Duration::from_secs(1);
    assert!(!is_long || local > limits.len() / 2, "{local} in an outage of {length:?}: {seen:?}");
}

#[tokio::test]
async fn a_client_that_waits_is_admitted_after_outages_of_half_a_second_to_six() {
    let lengths = [500, 1_000, 2_000, 3_500, 6_000].map(Duration::from_millis);
    join_all(lengths.map(assert_waits_hold)).await;
}
