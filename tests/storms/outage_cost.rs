//! What an outage costs: probes of lost servers, and memory in a flood.

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
    yaml::fill,
};
use tidegate::clock::instant;

use crate::load::{CALLERS, request};

/// Time over which connection attempts are counted: real time, since the real rate is under test.
const MIN_OBSERVATION: Duration = Duration::from_secs(4);

/// Callers during the outage, each with two limits: many times as many counters as memory holds.
const FLOOD_CALLERS: u64 = 9_000;

/// Starts a server that counts connections and closes them at once. Returns its URL and the count.
fn start_closing_server() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("a bound address"));
    let attempts = Arc::<AtomicU64>::default();
    let counting = Arc::clone(&attempts);
    // The thread ends with the test's process.
    thread::spawn(move || {
        while listener.accept().is_ok() {
            counting.fetch_add(1, Relaxed);
        }
    });
    (url, attempts)
}

fn start_gateway(shards: &str) -> Gateway {
    Gateway::start(&fill(
        "
        workers: 4
        store:
          memory: {max_keys: 1000}
          redis: {shards: {shards}, response_timeout: 150ms}
        upstreams: {hello: {respond: {body: hello}}}
        limits:
          small_quota: {quota: 5, window: 24h, resolution: 1, key: ['header:x-caller']}
          leased:
            quota: 50000000
            window: 24h
            resolution: 1
            key: ['header:x-caller']
            reserve: auto
        throttle: {max_active: 1000000}
        routes: [{name: all, match: {path: /}, upstream: hello, limits: [small_quota, leased]}]
        ",
        [("shards", shards)],
    ))
}

/// `tests/stores` tests the same without throttle, leases and heartbeats.
#[test]
fn each_lost_server_is_probed_twice_a_second() {
    let start = instant();
    let [(a, at_a), (b, at_b)] = [start_closing_server(), start_closing_server()];
    let shards = fill("[{primary: '{a}'}, {primary: '{b}'}]", [("a", a), ("b", b)]);
    let gateways = [0, 1].map(|_| start_gateway(&shards));
    let mut clients = gateways.each_ref().map(|gateway| Client::connect(gateway.address()));
    let mut request_all = |turn| {
        for client in &mut clients {
            let response = client.send(request("/", turn)).read_response();
            assert_eq!(response.status, 200, "{}", response.text());
        }
    };
    let attempts = || [at_a.load(Relaxed), at_b.load(Relaxed)];
    // At most one per gateway at its start, then one in each half second.
    let assert_paced = || {
        let (attempts, elapsed) = (attempts(), start.elapsed());
        let most = 2 * (elapsed.as_millis() as u64 / 500 + 1);
        assert!(attempts.iter().all(|attempts| *attempts <= most), "{attempts:?} in {elapsed:?}");
    };
    (0..CALLERS).for_each(&mut request_all);
    assert_paced();
    let mut turn = 0;
    eventually("probes go on", || {
        request_all(turn);
        turn += 1;
        sleep(Duration::from_millis(20));
        start.elapsed() > MIN_OBSERVATION && attempts().iter().all(|attempts| *attempts >= 4)
    });
    assert_paced();
}

#[test]
fn memory_is_bounded_in_a_flood_during_an_outage() {
    let redis = RedisServer::start();
    // A port that is merely free could be taken by another test's server.
    let proxy = TruncatingProxy::start(redis.port());
    proxy.truncate();
    let gateway = start_gateway(&fill("[{primary: '{proxy}'}]", [("proxy", proxy.url())]));
    let mut client = Client::connect(gateway.address());
    let assert_bounded = || {
        let keys = gateway.metric("tidegate_store_keys");
        assert!((1..=1_000).contains(&keys), "{keys} counters");
    };
    for first in (0..FLOOD_CALLERS).step_by(100) {
        let many: String =
            (first..first + 100).map(|caller| request("/", caller as usize)).collect();
        client.send(many);
        for _ in 0..100 {
            let response = client.read_response();
            assert_eq!(response.status, 200, "{}", response.text());
        }
        if first % 2_000 == 0 {
            assert_bounded();
        }
    }
    assert_bounded();
    proxy.forward();
    let workers_without_redis = "tidegate_store_workers_without_redis";
    eventually("every worker uses Redis again", || gateway.metric(workers_without_redis) == 0);
    let fallbacks = || gateway.metric("tidegate_store_fallbacks_total");
    eventually("Redis decides", || {
        let before = fallbacks();
        client.send(request("/", 0)).read_response();
        fallbacks() == before
    });
    // Nothing of the flood reaches Redis.
    let records: Vec<String> = redis.command(&["KEYS", "*small_quota*"]);
    assert!(records.len() < 10, "{} records", records.len());
}
