use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use testkit::{
    client::Client,
    gateway::Gateway,
    redis_server::RedisServer,
    truncating_proxy::TruncatingProxy,
    wait::{eventually, sleep},
};
use tidegate::clock::instant;

use crate::load::{CALLERS, request};

/// The shortest time over which connection attempts are counted.
const LONG: Duration = Duration::from_secs(4);

/// Callers during the outage, each with two limits: more than the outage ledger holds.
const FLOOD: u64 = 9_000;

/// The most callers in an outage ledger, as the README says.
const LEDGER: u64 = 16_384;

/// Counts connections and closes them.
fn closes_at_once() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("a bound address"));
    let tried = Arc::<AtomicU64>::default();
    let counting = Arc::clone(&tried);
    // The thread ends with the test's process.
    thread::spawn(move || {
        while listener.accept().is_ok() {
            counting.fetch_add(1, Relaxed);
        }
    });
    (url, tried)
}

fn gateway(redis: &str) -> Gateway {
    Gateway::start(&format!(
        "workers: 4
store: {{memory: {{max_keys: 1000}}, redis: {{{redis}, response_timeout: 150ms}}}}
upstreams: {{hello: {{respond: {{body: hello}}}}}}
limits:
  few: {{quota: 5, window: 24h, resolution: 1, key: ['header:x-caller']}}
  ahead: {{quota: 50000000, window: 24h, resolution: 1, key: ['header:x-caller'], reserve: auto}}
throttle: {{max_active: 1000000}}
routes: [{{name: all, match: {{path: /}}, upstream: hello, limits: [few, ahead]}}]
"
    ))
}

/// The store-level test of the same has no throttle, no leases and no heartbeats.
#[test]
fn each_lost_server_is_probed_once_a_second() {
    let start = instant();
    let [(a, at_a), (b, at_b)] = [closes_at_once(), closes_at_once()];
    let gateways =
        [0, 1].map(|_| gateway(&format!("shards: [{{primary: '{a}'}}, {{primary: '{b}'}}]")));
    let mut clients = gateways.each_ref().map(|gateway| Client::connect(gateway.address()));
    let mut all_ask = |turn| {
        for client in &mut clients {
            let reply = client.send(request("/", turn)).read_response();
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    };
    // One per gateway at its start, then one a second.
    let is_paced = |least| {
        let (tried, elapsed) = ([at_a.load(Relaxed), at_b.load(Relaxed)], start.elapsed());
        let most = 2 * (elapsed.as_secs() + 1);
        for tried in tried {
            assert!((least..=most).contains(&tried), "{tried} attempts in {elapsed:?}");
        }
    };
    (0..CALLERS).for_each(&mut all_ask);
    is_paced(2);
    for turn in 0.. {
        if start.elapsed() > LONG {
            break;
        }
        all_ask(turn);
        sleep(Duration::from_millis(20));
    }
    is_paced(6);
}

#[test]
fn memory_is_bounded_in_a_flood_during_an_outage() {
    let redis = RedisServer::start();
    // A port that is merely free could be taken by another test's server.
    let proxy = TruncatingProxy::start(redis.port());
    proxy.truncate();
    let gateway = gateway(&format!("shards: [{{primary: '{}'}}]", proxy.url()));
    let mut client = Client::connect(gateway.address());
    let unmerged = || gateway.metric("tidegate_store_unmerged");
    let is_bounded = || {
        let keys = gateway.metric("tidegate_store_keys");
        let unmerged = unmerged();
        assert!(keys <= 1_000 && unmerged <= LEDGER, "{keys} counters, {unmerged} unmerged");
    };
    for first in (0..FLOOD).step_by(100) {
        let many: String =
            (first..first + 100).map(|caller| request("/", caller as usize)).collect();
        client.send(many);
        for _ in 0..100 {
            let reply = client.read_response();
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
        if first % 2_000 == 0 {
            is_bounded();
        }
    }
    is_bounded();
    let (before, drops) = (unmerged(), || gateway.metric("tidegate_store_merge_drops_total"));
    let kinds = ["open", "timeout", "io", "server", "reply"];
    let failures = kinds
        .map(|kind| gateway.metric(&format!("tidegate_store_failures_total{{kind=\"{kind}\"")));
    assert!(before > LEDGER / 2, "{before} unmerged, {} dropped, {failures:?}", drops());
    // Two limits per caller: more than the capacity.
    assert_eq!(before + drops(), 2 * FLOOD);

    proxy.forward();
    let without = "tidegate_store_workers_without";
    eventually("limits are shared again", || gateway.metric(without) == 0);
    eventually("everything is merged", || {
        client.send(request("/", 0)).read_response();
        unmerged() == 0
    });
    // All that found room, except calls without a reply on a busy machine.
    let merged = gateway.metric("tidegate_store_merged_total");
    assert!(merged + drops() >= 2 * FLOOD, "{merged} of {before}");
}
