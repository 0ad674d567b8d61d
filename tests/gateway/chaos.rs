//! An hour of virtual time in which clients leave at every point and Redis comes and goes: at its end
//! nothing is held.

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

use tidegate::clock::Clock;

use crate::{
    client::{Client, get},
    gateway::Gateway,
    redis_server::RedisServer,
    upstream::Upstream,
    wait::{eventually, pause},
};

const NOW: u64 = 1_700_000_000_000;
const MINUTE: u64 = 60_000;
/// Of the virtual hour, so many minutes with every fault, and the last ten with stalls alone.
const WILD: u64 = 50;
const STALLS: u64 = 10;
/// Virtual time passes in such steps.
const STEP: u64 = 6_000;
const CLIENTS: u64 = 8;
const CALLERS: u64 = 3;
/// Longer than the hour, so that no lease ends by itself before it is looked at.
const LEASE: u64 = 2 * 60 * MINUTE;

/// The numbers of one thread, from its seed: the end of `SplitMix64`.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// Answers at once, late, in two halves, or never; now and then with what is refunded.
fn upstream() -> Upstream {
    Upstream::with(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let answer: &[u8] = b"HTTP/1.1 200 OK\r\nX-Cost: 3\r\nContent-Length: 4\r\n\r\nhalf";
        if path.ends_with("/late") {
            pause(Duration::from_millis(20));
        }
        if path.ends_with("/halves") {
            let (first, last) = answer.split_at(answer.len() - 2);
            let _ = socket.write_all(first);
            pause(Duration::from_millis(20));
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
const ROUTES: [&str; 4] = ["flying", "line", "all", "spread"];

fn configuration(redis: &RedisServer, upstream: &Upstream) -> String {
    let mut yaml = format!(
        "client: {{token: [header:authorization]}}
store: {{redis: {{shards: [{{primary: \"{}\"}}], connect_timeout: 200ms, response_timeout: 50ms}}}}
upstreams: {{app: {{targets: [\"{}\"], retries: 0}}}}
limits:
  flying: {{algorithm: concurrency, quota: 6, window: {LEASE}ms, key: [token]}}
  crew: {{algorithm: concurrency, quota: 12, window: {LEASE}ms, key: []}}
  line: {{algorithm: leaky_bucket, quota: 50, window: 1s, max_wait: 400ms, key: [token], refund: [304]}}
  leased: {{quota: 100000, window: 1h, key: [token], reserve: auto, refund: [304]}}
  fixed: {{algorithm: fixed_window, quota: 100000, window: 1h, key: [], reserve: 20, refund: [304]}}
  log: {{algorithm: sliding_log, quota: 9000, window: 1m, key: [token], cost: 'response:X-Cost'}}
  bucket: {{algorithm: token_bucket, quota: 100000, window: 1h, key: [], refund: [304, 502]}}
routes:\n",
        redis.url(),
        upstream.target()
    );
    for (route, limits) in ROUTES.iter().zip([
        "flying",
        "line, log",
        "flying, line, leased, crew, bucket",
        "leased, fixed, log, crew",
    ]) {
        let _ = writeln!(
            yaml,
            "  - {{name: {route}, match: {{path: '/{route}/{{*rest}}'}}, upstream: app, limits: [{limits}]}}"
        );
    }
    yaml
}

/// One request after the other, until it is to stop; many are left at some point.
fn roam(address: std::net::SocketAddr, seed: u64, over: &AtomicBool) {
    let mut dice = Dice(seed);
    while !over.load(Ordering::Relaxed) {
        let route = ROUTES[dice.roll(4) as usize];
        let path = PATHS[dice.roll(5) as usize];
        let token = dice.roll(CALLERS);
        let head =
            format!("GET /{route}/{path} HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\n\r\n");
        let mut client = Client::connect(address);
        let cut = dice.roll(head.len() as u64) as usize;
        match dice.roll(6) {
            0 => drop(client.send(&head[..cut])),
            1 => drop(client.send(&head)),
            2 => {
                client.send(&head);
                pause(Duration::from_millis(dice.roll(60)));
            }
            3 => {
                client.send(&head);
                let _ = client.head();
            }
            _ => {
                client.send(&head);
                let _ = client.try_reply();
            }
        }
    }
}

/// What can happen to Redis.
fn disturb(redis: &mut RedisServer, dice: &mut Dice, stalls_only: bool) {
    match dice.roll(if stalls_only { 1 } else { 5 }) {
        0 => {
            redis.suspend();
            pause(Duration::from_millis(20 + dice.roll(250)));
            redis.resume();
        }
        1 => {
            redis.kill();
            pause(Duration::from_millis(dice.roll(200)));
            redis.restart();
        }
        2 => drop(redis.try_command(&["CLIENT", "KILL", "TYPE", "normal"])),
        3 => drop(redis.try_command(&["SCRIPT", "FLUSH"])),
        _ => drop(redis.try_command(&["FLUSHALL"])),
    }
}

/// What Redis counts as used of a limit by each caller.
fn used(gateway: &Gateway, limit: &str) -> Option<u64> {
    let keys = match limit {
        "crew" => vec![String::new()],
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
    dice: Dice,
}

impl Chaos {
    fn clients(&self, over: &Arc<AtomicBool>, seed: u64) -> Vec<JoinHandle<()>> {
        let client = |number: u64| {
            let address = self.gateways[number as usize % self.gateways.len()].address();
            let over = Arc::clone(over);
            thread::spawn(move || roam(address, seed + number, &over))
        };
        (0..CLIENTS).map(client).collect()
    }

    /// Lets so many virtual minutes pass with clients and faults; then all clients leave.
    fn run(&mut self, minutes: u64, stalls_only: bool) {
        let over = Arc::new(AtomicBool::new(false));
        let clients = self.clients(&over, minutes);
        for step in 0..minutes * MINUTE / STEP {
            self.clock.set(self.clock.now() + STEP);
            pause(Duration::from_millis(15));
            if step % 10 == 9 {
                disturb(&mut self.redis, &mut self.dice, stalls_only);
            }
        }
        over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client that does not panic");
        }
    }

    /// The virtual time stands still: what is free now was given back.
    fn nothing_is_held(&self, what: &str) {
        for gateway in &self.gateways {
            gateway.wait_for("tidegate_connections ", 0);
            for limit in ["flying", "crew", "line"] {
                eventually(&format!("{what}: no slot of {limit} is held"), || {
                    used(gateway, limit) == Some(0)
                });
            }
        }
    }
}

#[test]
fn after_an_hour_of_chaos_nothing_is_held() {
    let redis = RedisServer::start();
    let (upstream, clock) = (upstream(), Clock::manual(NOW));
    let yaml = configuration(&redis, &upstream);
    let gateways: Vec<_> = (0..2).map(|_| Gateway::start_at(&yaml, clock.clone())).collect();
    let mut chaos = Chaos { clock, redis, gateways, dice: Dice(7) };

    chaos.run(WILD, false);
    // A charge whose connection broke may have been made: its lease ends by itself.
    chaos.clock.set(chaos.clock.now() + LEASE + LEASE / 32);
    chaos.nothing_is_held("after every fault");

    chaos.run(STALLS, true);
    chaos.nothing_is_held("after stalls");

    // Tokens that are not used go back to Redis.
    for gateway in &chaos.gateways {
        eventually("no token is kept", || {
            chaos.clock.set(chaos.clock.now() + 100);
            gateway.metric("tidegate_store_tokens_outstanding") == 0
        });
    }
    // Without Redis each gateway has its whole share of the slots.
    chaos.redis.kill();
    for gateway in &chaos.gateways {
        let mut flying: Vec<_> = (0..3).map(|_| Client::connect(gateway.address())).collect();
        for client in &mut flying {
            client.send("GET /flying/late HTTP/1.1\r\nHost: a\r\nAuthorization: 0\r\n\r\n");
        }
        for client in &mut flying {
            assert_eq!(client.reply().status, 200, "a slot is held in memory");
        }
    }
}
