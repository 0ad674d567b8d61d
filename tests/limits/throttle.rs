//! Active-user admission control, through the gateway. The clients' protocols take turns.

/// Ten thousand clients in the waiting room.
mod crowd;
/// Several gateways on one Redis.
mod fleet;
/// The operator's side: modes, metrics, `check`, reloads.
mod operator;
/// Replies that a partition has swallowed.
mod partition;
/// Places of the waiting room.
mod places;
/// A rush, and its replay.
mod replayed_rush;
/// One gateway: when it throttles, which users it admits, and what denied users receive.
mod single_gateway;
/// The waiting room.
mod waiting_room;

use std::{cell::Cell, io::Write};

use testkit::{
    client::{Response, get},
    gateway::Gateway,
    protocol::{AnyClient, PROTOCOLS, Protocol},
    redis_server::RedisServer,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, ms};

/// The start of the manual clock, 10 s into a minute.
const START: StoreTime = StoreTime::from_unix_ms(1_700_000_050_000);

const MINUTE: u64 = 60_000;

const IN_MEMORY: &str = "
client: {token: [header:authorization, cookie:session]}
upstreams: {api: {targets: ['{target}']}}
limits:
  each: {quota: 1000000, window: 24h, resolution: 1, key: [token]}
  team: {quota: 1000000, window: 24h, resolution: 1, key: ['header:x-team']}
throttle: { {settings} }
routes:
  - {name: api, match: {path: '/{*rest}'}, upstream: api, limits: [each]}
  - {name: free, match: {path: /free}, upstream: api}
  - {name: small, match: {path: /small}, upstream: api, limits: [team], max_body: 10B}
  - {name: health, match: {path: /health}, upstream: api, throttle: false}
";

/// [`IN_MEMORY`] with a store.
const ON_REDIS: &str = "
store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 1s, response_timeout: 1s}}
client: {token: [header:authorization, cookie:session]}
upstreams: {api: {targets: ['{target}']}}
limits:
  each: {quota: 1000000, window: 24h, resolution: 1, key: [token]}
  team: {quota: 1000000, window: 24h, resolution: 1, key: ['header:x-team']}
throttle: { {settings} }
routes:
  - {name: api, match: {path: '/{*rest}'}, upstream: api, limits: [each]}
  - {name: free, match: {path: /free}, upstream: api}
  - {name: small, match: {path: /small}, upstream: api, limits: [team], max_body: 10B}
  - {name: health, match: {path: /health}, upstream: api, throttle: false}
";

/// An upstream that answers tokens with the prefix `bad-` by 401, `poor-` by 403, others by 200.
fn api() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let answer: &[u8] = if text.contains("bad-") {
            b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        } else if text.contains("poor-") {
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        } else {
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        };
        socket.write_all(answer).is_ok()
    })
}

/// Gateways that share an upstream, a clock and, optionally, a Redis. The protocol is another one
/// for each request.
struct ThrottleFleet {
    gateways: Vec<Gateway>,
    clock: Clock,
    upstream: Upstream,
    yaml: String,
    requests: Cell<usize>,
}

impl ThrottleFleet {
    /// Starts a gateway that has its filters for itself. `settings` are those of the throttle.
    fn in_memory(settings: &str) -> Self {
        let upstream = api();
        let yaml = fill(IN_MEMORY, [("target", &*upstream.target()), ("settings", settings)]);
        Self::start(1, upstream, yaml)
    }

    /// Starts `count` gateways that share their filters through `redis`.
    fn on_redis(redis: &RedisServer, count: usize, settings: &str) -> Self {
        let upstream = api();
        let (redis, target) = (redis.url(), upstream.target());
        let values = [("redis", &*redis), ("target", &target), ("settings", settings)];
        let yaml = fill(ON_REDIS, values);
        Self::start(count, upstream, yaml)
    }

    fn start(count: usize, upstream: Upstream, yaml: String) -> Self {
        let clock = Clock::manual(START);
        let mut fleet =
            Self { gateways: Vec::new(), clock, upstream, yaml, requests: Cell::default() };
        for _ in 0..count {
            fleet.add_gateway();
        }
        fleet
    }

    /// Starts a further gateway and waits until it is ready.
    fn add_gateway(&mut self) {
        self.gateways.push(Gateway::for_every_protocol_at(&self.yaml, self.clock.clone()));
        let at = self.gateways.len() - 1;
        eventually("it is ready", || self.is_ready(at));
    }

    fn is_ready(&self, at: usize) -> bool {
        get(self.gateways[at].admin(), "/readyz", "").status == 200
    }

    /// Requests `path` from the gateway `at` with `token`, or without one if it is empty.
    fn ask(&self, at: usize, token: &str, path: &str) -> Response {
        let headers = match token {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        self.next_protocol().get(&self.gateways[at], path, headers)
    }

    fn next_protocol(&self) -> Protocol {
        self.requests.set(self.requests.get() + 1);
        PROTOCOLS[self.requests.get() % PROTOCOLS.len()]
    }

    /// Sends one request per token to the gateways in turn, over one connection of each protocol to
    /// each; every response must have `status`.
    fn ask_all(&self, tokens: impl Iterator<Item = String>, status: u16) {
        let each =
            |protocol: Protocol| self.gateways.iter().map(move |gateway| protocol.connect(gateway));
        let mut clients: Vec<AnyClient> = PROTOCOLS.into_iter().flat_map(each).collect();
        for (turn, token) in tokens.enumerate() {
            let client = turn % clients.len();
            let response = clients[client].get("/a", format!("Authorization: Bearer {token}\r\n"));
            assert_eq!(response.status, status, "{token}: {}", response.head);
        }
    }

    fn state(&self, at: usize) -> serde_json::Value {
        get(self.gateways[at].admin(), "/api/throttle", "").json()
    }

    /// Advances the clock until every gateway has ticked once.
    fn tick(&self) {
        self.advance(2_000);
    }

    /// Advances the clock by `millis` and waits for a tick of every gateway that began after that.
    fn advance(&self, millis: u64) {
        let now = self.clock.store_time() + ms(millis);
        self.clock.set(now);
        for gateway in &self.gateways {
            await_throttle_update(gateway, now);
        }
    }

    /// Ticks until `condition` holds for every gateway's state.
    fn tick_until(&self, what: &str, condition: impl Fn(&serde_json::Value) -> bool) {
        for _ in 0..200 {
            if (0..self.gateways.len()).all(|at| condition(&self.state(at))) {
                return;
            }
            self.tick();
        }
        panic!("never {what}: {:?}", (0..self.gateways.len()).map(|at| self.state(at)));
    }

    /// Records the tokens `name-0` to `name-(count - 1)` at the gateways in turn, and ticks until
    /// every gateway throttles.
    fn fill(&self, name: &str, count: u64) {
        self.ask_all(tokens(name, count), 200);
        self.tick_until("throttling", |state| state["throttling"] == true);
    }
}

/// Waits until the throttle of `gateway` was updated at `now` of a manual clock.
fn await_throttle_update(gateway: &Gateway, now: StoreTime) {
    let state = || get(gateway.admin(), "/api/throttle", "").json();
    eventually("a tick", || state()["updated_at_ms"] == now.as_unix_ms());
}

fn tokens(name: &str, count: u64) -> impl Iterator<Item = String> + use<'_> {
    (0..count).map(move |number| format!("{name}-{number}"))
}

/// Asserts the whole response to a denied user.
fn assert_throttled_response(response: &Response, max_active: u64, now: u64) {
    assert_eq!(response.status, 429, "{}", response.head);
    assert_eq!(response.header("Content-Type"), Some("application/problem+json"));
    assert_eq!(response.number("X-RateLimit-Limit"), max_active);
    assert_eq!(response.number("X-RateLimit-Remaining"), 0);
    assert!(response.number("X-RateLimit-Used") >= max_active);
    assert_eq!(response.header("X-RateLimit-Resource"), Some("active-users"));
    let after = response.number("Retry-After");
    assert!(after >= 1);
    // Both are rounded up to whole seconds.
    let reset = response.number("X-RateLimit-Reset");
    assert!((now / 1000 + after..=now / 1000 + after + 1).contains(&reset), "{}", response.head);
    assert!(response.header("X-Request-Id").is_some());
    let problem = response.json();
    let kind = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    assert_eq!(problem["type"], kind);
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["active-users"]));
    assert_eq!(problem["retry-after"], after);
    assert_eq!(problem["request-id"], response.header("X-Request-Id").unwrap_or_default());
}
