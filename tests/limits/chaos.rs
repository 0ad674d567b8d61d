//! One hour of virtual time in which clients disconnect at every point and Redis fails and
//! recovers: no slot is leaked.

use std::{
    fmt::Write as _,
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    random::SplitMix64,
    redis_server::RedisServer,
    upstream::Upstream,
    wait::{eventually, sleep},
};
use tidegate::clock::{Clock, StoreTime, ms};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);
const MINUTE: u64 = 60_000;
/// Minutes with every kind of fault. [`STALL_MINUTES`] with stalls only follow: together the
/// virtual hour.
const FAULT_MINUTES: u64 = 50;
const STALL_MINUTES: u64 = 10;
/// A step of virtual time, in ms.
const CLOCK_STEP: u64 = 6_000;
const CLIENTS: u64 = 8;
const CALLERS: u64 = 3;
/// Longer than the hour, so that no lease expires before it is checked.
const LEASE: u64 = 2 * 60 * MINUTE;

/// Responds at once, late, in two halves, truncated, or with a refunded status.
fn upstream() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let answer: &[u8] = b"HTTP/1.1 200 OK\r\nX-Cost: 3\r\nContent-Length: 4\r\n\r\nhalf";
        if path.ends_with("/late") {
            sleep(Duration::from_millis(20));
        }
        if path.ends_with("/halves") {
            let (first, last) = answer.split_at(answer.len() - 2);
            let _ = socket.write_all(first);
            sleep(Duration::from_millis(20));
            return socket.write_all(last).is_ok();
        }
        if path.ends_with("/refunded") {
            return socket.write_all(b"HTTP/1.1 304 Not Modified\r\n\r\n").is_ok();
        }
        if path.ends_with("/broken") {
            let _ = socket.write_all(&answer[..answer.len() - 2]);
            return false;
        }
        socket.write_all(answer).is_ok()
    })
}

const PATHS: [&str; 5] = ["now", "late", "halves", "refunded", "broken"];
const ROUTES: [&str; 4] = ["in_flight", "delayed", "all", "mixed"];

fn configuration(redis: &RedisServer, upstream: &Upstream) -> String {
    let mut yaml = format!(
        "client: {{token: [header:authorization]}}
store: {{redis: {{shards: [{{primary: \"{}\"}}], connect_timeout: 200ms, response_timeout: 50ms}}}}
upstreams: {{app: {{targets: [\"{}\"], retries: 0}}}}
limits:
  in_flight: {{algorithm: concurrency, quota: 6, window: {LEASE}ms, key: [token]}}
  in_flight_total: {{algorithm: concurrency, quota: 12, window: {LEASE}ms, key: []}}
  delayed: {{algorithm: leaky_bucket, quota: 50, window: 1s, max_wait: 400ms, key: [token], refund: [304]}}
  leased: {{quota: 100000, window: 1h, key: [token], reserve: auto, refund: [304]}}
  fixed: {{algorithm: fixed_window, quota: 100000, window: 1h, key: [], reserve: 20, refund: [304]}}
  log: {{algorithm: sliding_log, quota: 9000, window: 1m, key: [token], cost: 'response:X-Cost'}}
  bucket: {{algorithm: token_bucket, quota: 100000, window: 1h, key: [], refund: [304, 502]}}
routes:\n",
        redis.url(),
        upstream.target()
    );
    for (route, limits) in ROUTES.iter().zip([
        "in_flight",
        "delayed, log",
        "in_flight, delayed, leased, in_flight_total, bucket",
        "leased, fixed, log, in_flight_total",
    ]) {
        let _ = writeln!(
            yaml,
            "  - {{name: {route}, match: {{path: '/{route}/{{*rest}}'}}, upstream: app, limits: [{limits}]}}"
        );
    }
    yaml
}

/// Sends requests until `stop`, and abandons many of them at some point.
fn send_requests(address: std::net::SocketAddr, seed: u64, stop: &AtomicBool) {
    let mut rng = SplitMix64(seed);
    while !stop.load(Ordering::Relaxed) {
        let route = ROUTES[rng.below(4) as usize];
        let path = PATHS[rng.below(5) as usize];
        let token = rng.below(CALLERS);
        let head =
            format!("GET /{route}/{path} HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\n\r\n");
        let mut client = Client::connect(address);
        let cut = rng.below(head.len() as u64) as usize;
        match rng.below(6) {
            0 => drop(client.send(&head[..cut])),
            1 => drop(client.send(&head)),
            2 => {
                client.send(&head);
                sleep(Duration::from_millis(rng.below(60)));
            }
            3 => {
                client.send(&head);
                let _ = client.read_head();
            }
            _ => {
                client.send(&head);
                let _ = client.try_read_response();
            }
        }
    }
}

/// Injects one fault into Redis.
fn inject_fault(redis: &mut RedisServer, rng: &mut SplitMix64, stalls_only: bool) {
    match rng.below(if stalls_only { 1 } else { 5 }) {
        0 => {
            redis.suspend();
            sleep(Duration::from_millis(20 + rng.below(250)));
            redis.resume();
        }
        1 => {
            redis.kill();
            sleep(Duration::from_millis(rng.below(200)));
            redis.restart();
        }
        2 => drop(redis.try_command(&["CLIENT", "KILL", "TYPE", "normal"])),
        3 => drop(redis.try_command(&["SCRIPT", "FLUSH"])),
        _ => drop(redis.try_command(&["FLUSHALL"])),
    }
}

/// The usage of a limit by caller, as Redis counts it.
fn used(gateway: &Gateway, limit: &str) -> Option<u64> {
    let keys = match limit {
        "in_flight_total" => vec![String::new()],
        _ => (0..CALLERS).map(|token| format!("?key={token}")).collect(),
    };
    let each = keys.iter().map(|key| {
        get(gateway.admin(), &format!("/api/limits/{limit}{key}"), "").json()["used"].as_u64()
    });
    each.sum()
}

struct Chaos {
    clock: Clock,
    redis: RedisServer,
    gateways: Vec<Gateway>,
    rng: SplitMix64,
}

impl Chaos {
    fn clients(&self, stop: &Arc<AtomicBool>, seed: u64) -> Vec<JoinHandle<()>> {
        let client = |number: u64| {
            let address = self.gateways[number as usize % self.gateways.len()].address();
            let stop = Arc::clone(stop);
            thread::spawn(move || send_requests(address, seed + number, &stop))
        };
        (0..CLIENTS).map(client).collect()
    }

    /// Lets `minutes` of virtual time pass with clients and faults. Then all clients disconnect.
    fn run(&mut self, minutes: u64, stalls_only: bool) {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = self.clients(&stop, minutes);
        for step in 0..minutes * MINUTE / CLOCK_STEP {
            self.clock.set(self.clock.store_time() + ms(CLOCK_STEP));
            // Time for the clients, which send in real time.
            sleep(Duration::from_millis(15));
            if step % 10 == 9 {
                inject_fault(&mut self.redis, &mut self.rng, stalls_only);
            }
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("no client panics");
        }
    }

    /// Asserts that every slot is free. The virtual time stands still: none of them has expired.
    fn assert_no_slot_in_use(&self, what: &str) {
        for gateway in &self.gateways {
            gateway.wait_for_metric("tidegate_connections ", 0);
            for limit in ["in_flight", "in_flight_total", "delayed"] {
                eventually(&format!("{what}: no slot of {limit} is in use"), || {
                    used(gateway, limit) == Some(0)
                });
            }
        }
    }
}

#[test]
fn no_slot_leaks_after_an_hour_of_chaos() {
    let redis = RedisServer::start();
    let (upstream, clock) = (upstream(), Clock::manual(NOW));
    let yaml = configuration(&redis, &upstream);
    let gateways: Vec<_> = (0..2).map(|_| Gateway::start_at(&yaml, clock.clone())).collect();
    let mut chaos = Chaos { clock, redis, gateways, rng: SplitMix64(7) };

    chaos.run(FAULT_MINUTES, false);
    // Redis may have made a charge whose connection broke: its lease expires.
    chaos.clock.set(chaos.clock.store_time() + ms(LEASE) + ms(LEASE / 32));
    chaos.assert_no_slot_in_use("after every fault");

    chaos.run(STALL_MINUTES, true);
    chaos.assert_no_slot_in_use("after stalls");

    // Idle units are returned to Redis.
    for gateway in &chaos.gateways {
        eventually("all leased units are returned", || {
            chaos.clock.set(chaos.clock.store_time() + ms(100));
            gateway.metric("tidegate_store_tokens_outstanding") == 0
        });
    }
    // Without Redis each gateway has its full local share of the slots.
    chaos.redis.kill();
    for gateway in &chaos.gateways {
        let mut in_flight: Vec<_> = (0..3).map(|_| Client::connect(gateway.address())).collect();
        for client in &mut in_flight {
            client.send("GET /in_flight/late HTTP/1.1\r\nHost: a\r\nAuthorization: 0\r\n\r\n");
        }
        for client in &mut in_flight {
            assert_eq!(client.read_response().status, 200, "the whole local share is free");
        }
    }
}
