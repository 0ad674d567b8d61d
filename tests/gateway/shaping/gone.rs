use std::{thread, time::Duration};

use tidegate::clock::{self, Clock};

use super::{Arrivals, get, limited};
use crate::{
    client::Client,
    gateway::Gateway,
    policies::NOW,
    redis_server::RedisServer,
    stage::{Stage, on_every_store},
    wait::{eventually, pause},
};

/// One in each [`SLOT`].
const LIMIT: &str =
    "algorithm: leaky_bucket, quota: 1, window: 3s, max_wait: 21s, key: ['header:x-who']";

const SLOT: Duration = Duration::from_secs(3);

const EXPECTING: &str = "Content-Length: 5\r\nExpect: 100-continue\r\n";

/// Sends a request that is held, and waits until it stands in line.
fn stand_in_line(gateway: &Gateway, who: &str, path: &str, more: &str) -> Client {
    let waiting = gateway.metric("tidegate_limit_waiting ");
    let mut client = Client::connect(gateway.address());
    let method = if more.is_empty() { "GET" } else { "POST" };
    client.send(format!("{method} {path} HTTP/1.1\r\nHost: a\r\nX-Who: {who}\r\n{more}\r\n"));
    gateway.wait_for("tidegate_limit_waiting ", waiting + 1);
    client
}

/// How many slots of the limit are taken, as the operator reads it. `target` names the caller.
fn used(gateway: &Gateway, target: &str) -> Option<u64> {
    get(gateway.admin(), &format!("/api/limits/calls{target}"), "").json()["used"].as_u64()
}

/// The first in line goes away; the next two move up, and whoever comes then is behind them.
fn leave(stage: &Stage, kind: &str, more: &str, body: usize) {
    let arrivals = Arrivals::default();
    let upstream = arrivals.upstream();
    let yaml = limited(&upstream, LIMIT, "", "");
    let fleet = stage.start(&yaml, &Clock::system());
    let gateway = &fleet.gateways[0];
    let start = clock::instant();
    let who = format!("X-Who: {kind}\r\n");
    assert_eq!(Client::connect(gateway.address()).get("/a", &who).status, 200);
    let mut gone = stand_in_line(gateway, kind, "/b", more);
    gone.send(vec![b'x'; body]);
    let mut others: Vec<_> =
        ["/c", "/d"].iter().map(|path| stand_in_line(gateway, kind, path, "")).collect();
    let caller = format!("?key={}", kind.replace(' ', "+"));
    assert_eq!(used(gateway, &caller), Some(4), "{kind}");
    drop(gone);
    gateway.wait_for("tidegate_limit_waiting ", 2);
    // Redis is told beside that; who came sooner would find the slot still taken.
    eventually("it is given back", || used(gateway, &caller) == Some(3));
    others.push(stand_in_line(gateway, kind, "/e", ""));
    for client in &mut others {
        assert_eq!(client.reply().status, 200, "{kind}");
    }
    assert!(arrivals.of("/b", start).is_empty(), "{kind}");
    for (slot, path) in [(1, "/c"), (2, "/d"), (3, "/e")] {
        let [came] = arrivals.of(path, start)[..] else {
            panic!("{kind} {path}: not released once")
        };
        let came = came + Duration::from_millis(2);
        let slot = SLOT * slot;
        assert!(came >= slot && came < slot + SLOT * 29 / 30, "{kind} {path} {came:?}");
    }
}

#[test]
fn a_place_that_is_left_goes_to_the_next_in_line() {
    on_every_store(|stage| {
        thread::scope(|scope| {
            let long = "Content-Length: 5000000\r\n";
            for (kind, more, body) in [
                ("nothing more", "", 0),
                ("expects", EXPECTING, 0),
                ("began its body", "Content-Length: 500\r\n", 100),
                ("much of a body", long, 100_000),
                ("whole body", "Content-Length: 5\r\n", 5),
            ] {
                scope.spawn(move || leave(stage, kind, more, body));
            }
        });
    });
}

/// Fifty of one bucket are there together and leave together: once all are `held`, or before. Redis hangs
/// while they leave, so that the order of what it is told is not that of the moments.
fn leave_together(workers: usize, held: bool) {
    const CROWD: u64 = 50;
    let redis = RedisServer::start();
    let arrivals = Arrivals::default();
    let upstream = arrivals.upstream();
    let more = format!(
        "workers: {workers}\nstore: {{redis: {{shards: [{{primary: \"{}\"}}], connect_timeout: 5s, \
         response_timeout: 5s}}}}",
        redis.url()
    );
    let limit = "algorithm: leaky_bucket, quota: 1, window: 60s, max_wait: 6000s, key: []";
    let gateway = Gateway::start(&limited(&upstream, limit, ", request_timeout: 7200s", &more));
    assert_eq!(get(gateway.address(), "/first", "").status, 200);
    let mut clients: Vec<_> = (0..CROWD).map(|_| Client::connect(gateway.address())).collect();
    let calls = gateway.metric("tidegate_store_calls_total");
    if !held {
        redis.suspend();
    }
    for client in &mut clients {
        client.send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    if held {
        gateway.wait_for("tidegate_limit_waiting ", CROWD);
        redis.suspend();
    } else {
        gateway.wait_for("tidegate_store_calls_total", calls + CROWD);
    }
    drop(clients);
    gateway.wait_for("tidegate_connections ", 0);
    redis.resume();
    eventually("every slot but the first is free", || {
        gateway.metric("tidegate_limit_waiting ") == 0 && used(&gateway, "") == Some(1)
    });
    assert_eq!(upstream.count(), 1);
}

#[test]
fn slots_of_clients_that_leave_together_are_free() {
    for workers in [1, 4] {
        leave_together(workers, true);
    }
}

#[test]
fn slots_of_clients_that_leave_before_they_are_held_are_free() {
    for workers in [1, 4] {
        leave_together(workers, false);
    }
}

#[test]
fn what_is_cut_off_at_the_end_gives_its_slots_back() {
    let stage = Stage::Redis(RedisServer::start());
    let arrivals = Arrivals::default();
    let upstream = arrivals.upstream();
    let limit = "algorithm: leaky_bucket, quota: 1, window: 20s, max_wait: 40s, key: []";
    let yaml = limited(&upstream, limit, "", "drain_timeout: 200ms");
    let fleet = stage.start(&yaml, &Clock::system());
    let [stopping, staying] = &fleet.gateways[..] else { panic!("two gateways") };
    assert_eq!(fleet.get("/a", "").status, 200);
    let mut held: Vec<_> =
        ["/b", "/c"].iter().map(|path| stand_in_line(stopping, "", path, "")).collect();
    // Of three. Nobody is refused here before: that would be remembered for a while.
    assert_eq!(used(staying, ""), Some(3));
    stopping.server.stop();
    assert!(held.iter_mut().all(|client| client.try_reply().is_none()));
    eventually("there is room again", || used(staying, "") == Some(1));
    stand_in_line(staying, "", "/e", "");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_slot_before_anothers_is_the_next_ones_and_nobody_elses() {
    let stage = Stage::Redis(RedisServer::start());
    let arrivals = Arrivals::default();
    let upstream = arrivals.upstream();
    let fleet = stage.start(&limited(&upstream, LIMIT, "", ""), &Clock::system());
    let [one, other] = &fleet.gateways[..] else { panic!("two gateways") };
    let start = clock::instant();
    assert_eq!(Client::connect(one.address()).get("/a", "X-Who: me\r\n").status, 200);
    let gone = stand_in_line(one, "me", "/b", "");
    let mut next = stand_in_line(other, "me", "/c", "");
    drop(gone);
    one.wait_for("tidegate_limit_waiting ", 0);
    eventually("the store has it", || used(other, "?key=me") == Some(2));
    let mut second = stand_in_line(one, "me", "/d", "");
    let mut last = stand_in_line(one, "me", "/e", "");
    let statuses = [&mut next, &mut second, &mut last].map(|client| client.reply().status);
    assert_eq!(statuses, [200; 3]);
    for (slot, path) in [(1, "/d"), (2, "/c"), (3, "/e")] {
        let [came] = arrivals.of(path, start)[..] else { panic!("{path}: not released once") };
        assert!(came + Duration::from_millis(2) >= SLOT * slot, "{path} {came:?}");
        assert!(came < SLOT * slot + SLOT / 2, "{path} {came:?}");
    }
}

#[test]
fn whose_time_is_over_before_the_slot_gets_a_503_and_gives_it_back() {
    let redis = RedisServer::start();
    let url = redis.url();
    let store = format!(
        "store: {{redis: {{shards: [{{primary: \"{url}\"}}], connect_timeout: 5s, response_timeout: 5s}}}}"
    );
    let arrivals = Arrivals::default();
    let upstream = arrivals.upstream();
    let limit = "algorithm: leaky_bucket, quota: 1, window: 3s, key: []";
    let yaml = limited(&upstream, limit, ", request_timeout: 4s", &store);
    // Slots pass only when the test says so; what is waited for them is real.
    let clock = Clock::manual(NOW);
    let gateway = Gateway::start_at(&yaml, clock.clone());
    let mut clients = [Client::connect(gateway.address()), Client::connect(gateway.address())];
    for (client, later) in clients.iter_mut().zip([3_000, 6_000]) {
        // Their workers are connected to Redis after this.
        assert_eq!(client.get("/", "").status, 200);
        clock.set(NOW + later);
    }
    // Both are decided only when Redis goes on: then half of their time is left, and less than a slot.
    redis.suspend();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    pause(Duration::from_secs(2));
    redis.resume();
    let mut statuses = clients.each_mut().map(|client| client.reply().status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503]);
    eventually("Redis has the slot again", || used(&gateway, "") == Some(1));
    // Now it is the next one's turn, and nobody stands before it.
    clock.set(NOW + 9_000);
    assert_eq!(get(gateway.address(), "/next", "").status, 200);
    assert_eq!(gateway.metric("tidegate_limit_delayed_total"), 1);
}

#[test]
fn who_leaves_before_its_turn_has_used_nothing_of_any_limit() {
    let upstream = crate::upstream::Upstream::hello();
    let gateway = Gateway::start(&format!(
        "upstreams: {{app: {{targets: [\"{}\"]}}}}
limits:
  daily: {{algorithm: fixed_window, quota: 100, window: 24h, key: []}}
  smooth: {{algorithm: leaky_bucket, quota: 1, window: 2s, key: []}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: app, limits: [daily, smooth]}}]
",
        upstream.target()
    ));
    assert_eq!(get(gateway.address(), "/a", "").status, 200);
    let mut held = Client::connect(gateway.address());
    held.send("GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    gateway.wait_for("tidegate_limit_waiting ", 1);
    let used = || get(gateway.admin(), "/api/limits/daily", "").json()["used"].as_u64();
    assert_eq!(used(), Some(2));
    drop(held);
    crate::wait::eventually("it is given back", || used() == Some(1));
    assert_eq!(upstream.count(), 1);
}
