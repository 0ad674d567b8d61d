//! Requests in flight hold slots, and give them back however they end.

mod interrupted;

use std::{
    collections::BTreeSet,
    io::Write,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tidegate::clock::{self, Clock};

use crate::{
    client::{Client, get},
    gateway::Gateway,
    redis_server::RedisServer,
    stage::{Fleet, Stage, on_every_store},
    upstream::Upstream,
    wait::{eventually, pause, timed},
};

const NOW: u64 = 1_700_000_000_000;

/// Which paths are answered; others wait until they are.
#[derive(Clone, Default)]
struct Doors(Arc<Mutex<BTreeSet<String>>>);

impl Doors {
    fn open(&self, path: &str) {
        self.0.lock().expect("no test panics with it").insert(path.to_owned());
    }

    fn is_open(&self, path: &str) -> bool {
        self.0.lock().expect("no test panics with it").contains(path)
    }

    /// An upstream whose answers end when their path is opened: `/half...` begin before. `/now`
    /// and `/other` are answered at once.
    fn upstream(&self) -> Upstream {
        let doors = self.clone();
        for path in ["/now", "/refused", "/other"] {
            doors.open(path);
        }
        Upstream::with(move |request, socket| {
            let text = String::from_utf8_lossy(request);
            let path = text.split(' ').nth(1).unwrap_or_default();
            let head: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no";
            let (first, last) =
                head.split_at(if path.starts_with("/half") { head.len() } else { 0 });
            let _ = socket.write_all(first);
            let start: Instant = clock::instant();
            while !doors.is_open(path) && start.elapsed() < Duration::from_secs(20) {
                pause(Duration::from_millis(5));
            }
            socket.write_all(&[last, b"k"].concat()).is_ok()
        })
    }
}

fn limited(upstream: &Upstream, limit: &str, more: &str) -> String {
    format!(
        "{more}
upstreams: {{app: {{targets: [\"{}\"], retries: 0}}, gone: {{targets: ['http://127.0.0.1:1'], retries: 0}}}}
limits:
  flying: {{algorithm: concurrency, {limit}, key: []}}
  other: {{algorithm: concurrency, quota: 5, window: 300s, key: []}}
  hourly: {{quota: 100, window: 1h, key: []}}
  none: {{quota: 1, cost: 1, window: 1h, key: []}}
routes:
  - {{name: gone, match: {{path: /gone}}, upstream: gone, limits: [flying]}}
  - {{name: refused, match: {{path: /refused}}, upstream: app, limits: [none, flying]}}
  - {{name: other, match: {{path: /other}}, upstream: app, limits: [other]}}
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: app, limits: [flying, hourly]}}
",
        upstream.target()
    )
}

/// How many slots of a limit are taken, as the operator reads it.
fn taken(gateway: &Gateway, limit: &str) -> Option<u64> {
    get(gateway.admin(), &format!("/api/limits/{limit}"), "").json()["used"].as_u64()
}

/// Waits until no slot is taken: the last one is given back after its answer.
fn all_are_free(fleet: &Fleet) {
    for gateway in &fleet.gateways {
        eventually("every slot is free", || taken(gateway, "flying") == Some(0));
    }
}

/// Sends requests for these paths, one to each gateway in turn, and waits until the upstream has them.
/// Before them, nobody has a slot.
fn fly(fleet: &Fleet, upstream: &Upstream, paths: &[&str]) -> Vec<Client> {
    all_are_free(fleet);
    let before = upstream.count();
    let each = paths.iter().zip(fleet.gateways.iter().cycle()).map(|(path, gateway)| {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    });
    let clients = each.collect();
    eventually("all are in flight", || upstream.count() == before + paths.len());
    clients
}

fn status(gateway: &Gateway) -> u16 {
    Client::connect(gateway.address()).get("/now", "").status
}

fn all_refuse(fleet: &Fleet) -> bool {
    fleet.gateways.iter().all(|gateway| status(gateway) == 429)
}

#[test]
fn as_many_as_there_are_slots_are_in_flight() {
    on_every_store(|stage| {
        let doors = Doors::default();
        let upstream = doors.upstream();
        let yaml = limited(&upstream, "quota: 3, window: 60s", "");
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        let mut flying = fly(&fleet, &upstream, &["/a", "/half", "/c"]);
        for gateway in &fleet.gateways {
            let refused = Client::connect(gateway.address()).get("/now", "");
            assert_eq!((refused.status, refused.number("retry-after")), (429, 1));
            assert_eq!(refused.header("x-ratelimit-resource"), Some("flying"));
            assert_eq!(refused.number("x-ratelimit-limit"), 3);
            assert_eq!(refused.number("x-ratelimit-used"), 3);
        }
        assert_eq!(upstream.count(), 3);
        for (at, path) in [(1, "/half"), (0, "/a")] {
            doors.open(path);
            assert_eq!(flying[at].reply().status, 200);
            eventually("one more may come", || status(&fleet.gateways[0]) == 200);
        }
        // What was refused was charged nowhere else.
        eventually("one more may come", || {
            let told = fleet.get("/now", "");
            told.status == 200 && told.header("x-ratelimit-resource") == Some("hourly")
        });
        doors.open("/c");
        assert_eq!(flying[2].reply().status, 200);
        // All are free again, and not one more than that.
        all_are_free(&fleet);
        let more = fly(&fleet, &upstream, &["/d", "/e", "/f"]);
        assert!(all_refuse(&fleet));
        for path in ["/d", "/e", "/f"] {
            doors.open(path);
        }
        drop(more);
    });
}

/// Free slots say nothing of how many requests may follow: a client that obeyed them would come once a
/// lease.
#[test]
fn headers_tell_of_slots_only_where_there_is_none() {
    on_every_store(|stage| {
        let doors = Doors::default();
        let upstream = doors.upstream();
        let more = "headers: {x_ratelimit: true, standard: draft-11}";
        let yaml = limited(&upstream, "quota: 2, window: 60s", more);
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        let alone = fleet.get("/other", "");
        assert_eq!((alone.status, alone.header("x-ratelimit-limit")), (200, None));
        assert_eq!(alone.header("ratelimit"), None);
        let beside = fleet.get("/now", "");
        assert_eq!(beside.header("x-ratelimit-resource"), Some("hourly"));
        assert_eq!(beside.number("x-ratelimit-remaining"), 99);
        assert!(beside.header("ratelimit").is_some_and(|text| !text.contains("flying")));
        let flying = fly(&fleet, &upstream, &["/a", "/b"]);
        let refused = fleet.get("/now", "");
        assert_eq!(refused.header("x-ratelimit-resource"), Some("flying"));
        assert!(refused.header("ratelimit").is_some_and(|text| text.contains("flying")));
        drop(flying);
    });
}

#[test]
fn whoever_is_gone_holds_no_slot() {
    on_every_store(|stage| {
        let doors = Doors::default();
        let upstream = doors.upstream();
        let yaml = limited(&upstream, "quota: 2, window: 60s", "");
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        for paths in [["/a", "/b"], ["/half-a", "/half-b"]] {
            let flying = fly(&fleet, &upstream, &paths);
            assert!(all_refuse(&fleet));
            drop(flying);
            all_are_free(&fleet);
        }
        // Neither does a request that fails, or that another limit refuses.
        for path in ["/gone", "/refused"] {
            for _ in 0..5 {
                eventually("it is not the slots", || {
                    let reply = fleet.get_in_order(path, "");
                    reply.header("x-ratelimit-resource") != Some("flying") || reply.status == 502
                });
            }
        }
        all_are_free(&fleet);
    });
}

#[test]
fn slots_that_nobody_renews_come_back_after_the_lease() {
    on_every_store(|stage| {
        let doors = Doors::default();
        let upstream = doors.upstream();
        let clock = Clock::manual(NOW);
        let fleet = stage.start(&limited(&upstream, "quota: 2, window: 300s", ""), &clock);
        // Renewed after 100 s of the machine's own time: not while this test runs.
        let mut flying = fly(&fleet, &upstream, &["/a", "/b"]);
        clock.set(NOW + 299_999);
        assert!(all_refuse(&fleet));
        // A lease ends up to a 64th of its window later.
        clock.set(NOW + 300_000 + 4_688);
        all_are_free(&fleet);
        // Who held them gives back nothing of others.
        let others = fly(&fleet, &upstream, &["/c", "/d"]);
        doors.open("/a");
        doors.open("/b");
        assert!(flying.iter_mut().all(|client| client.reply().status == 200));
        // What their connections gave back after that has arrived.
        assert!(flying.iter_mut().all(|client| client.get("/other", "").status == 200));
        for gateway in &fleet.gateways {
            eventually("the others' slots are free", || taken(gateway, "other") == Some(0));
            assert_eq!(taken(gateway, "flying"), Some(2));
        }
        assert!(all_refuse(&fleet));
        drop(others);
    });
}

#[test]
fn a_long_request_keeps_its_slot_and_gives_it_back() {
    on_every_store(|stage| {
        let doors = Doors::default();
        let upstream = doors.upstream();
        let yaml = limited(&upstream, "quota: 2, window: 2s", "");
        let fleet = stage.start(&yaml, &Clock::system());
        let mut flying = fly(&fleet, &upstream, &["/a", "/half"]);
        let start: Instant = clock::instant();
        while start.elapsed() < Duration::from_secs(5) {
            assert!(all_refuse(&fleet), "{:?}", start.elapsed());
            pause(Duration::from_millis(50));
        }
        doors.open("/a");
        doors.open("/half");
        assert!(flying.iter_mut().all(|client| client.reply().status == 200));
        let ((), took) = timed(|| all_are_free(&fleet));
        assert!(took < Duration::from_secs(1), "given back, not run out: {took:?}");
    });
}

#[test]
fn who_goes_away_while_redis_is_asked_holds_no_slot() {
    let redis = RedisServer::start();
    let doors = Doors::default();
    let upstream = doors.upstream();
    let store = format!(
        "store: {{redis: {{shards: [{{primary: \"{}\"}}], connect_timeout: 5s, response_timeout: 5s}}}}",
        redis.url()
    );
    let gateway = Gateway::start(&limited(&upstream, "quota: 2, window: 300s", &store));
    let asked = || {
        let mut client = Client::connect(gateway.address());
        assert_eq!(client.get("/now", "").status, 200);
        client
    };
    let mut clients: Vec<_> = (0..2).map(|_| asked()).collect();
    eventually("both are free", || taken(&gateway, "flying") == Some(0));
    let asked = gateway.metric("tidegate_store_calls_total");
    redis.suspend();
    for client in &mut clients {
        client.send("GET /never HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    gateway.wait_for("tidegate_store_calls_total", asked + 2);
    drop(clients);
    gateway.wait_for("tidegate_connections ", 0);
    redis.resume();
    eventually("both are free", || taken(&gateway, "flying") == Some(0));
    assert!(upstream.texts().iter().all(|text| !text.contains("/never")));
}

/// Redis hangs while requests end: their slots are given back when it is there again, long before their
/// leases end.
#[test]
fn slots_whose_release_could_not_be_sent_are_free_when_redis_is_back() {
    let redis = RedisServer::start();
    let doors = Doors::default();
    let upstream = doors.upstream();
    let store = format!(
        "workers: 1\nstore: {{redis: {{shards: [{{primary: \"{}\"}}], connect_timeout: 5s, \
         response_timeout: 500ms}}}}",
        redis.url()
    );
    let gateway = Gateway::start(&limited(&upstream, "quota: 9, window: 300s", &store));
    let mut clients: Vec<_> = (0..3).map(|_| Client::connect(gateway.address())).collect();
    eventually("Redis decides", || {
        clients[0].get("/now", "").status == 200 && taken(&gateway, "flying") == Some(0)
    });
    for client in &mut clients {
        client.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually("all are in flight", || taken(&gateway, "flying") == Some(3));
    redis.suspend();
    let not_asked = "tidegate_store_failures_total{kind=\"open\"}";
    eventually("Redis is lost", || {
        get(gateway.address(), "/other", "").status == 200 && gateway.metric(not_asked) > 0
    });
    doors.open("/long");
    assert!(clients.iter_mut().all(|client| client.reply().status == 200));
    redis.resume();
    for limit in ["flying", "other"] {
        eventually("every slot is free", || taken(&gateway, limit) == Some(0));
    }
}

#[test]
fn what_is_cut_off_at_the_end_gives_its_slots_back() {
    let stage = Stage::Redis(RedisServer::start());
    let doors = Doors::default();
    let upstream = doors.upstream();
    let yaml = limited(&upstream, "quota: 2, window: 300s", "drain_timeout: 200ms");
    let fleet = stage.start(&yaml, &Clock::system());
    let [stopping, staying] = &fleet.gateways[..] else { panic!("two gateways") };
    let mut flying: Vec<_> = ["/a", "/half"]
        .iter()
        .map(|path| {
            let mut client = Client::connect(stopping.address());
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            client
        })
        .collect();
    eventually("both are in flight", || upstream.count() == 2);
    assert_eq!(status(staying), 429);
    stopping.server.stop();
    assert!(flying.iter_mut().all(|client| client.try_reply().is_none()));
    eventually("both are free", || taken(staying, "flying") == Some(0));
}
