use std::sync::Arc;

use testkit::{
    override_proxy::OverrideProxy,
    redis_server::RedisServer,
    redis_topology::{SentinelTopology, primary, replica_of},
    verdict::VerdictExt as _,
};
use tidegate::{
    clock::Clock,
    redis::{Credentials, Topology},
    store::CounterStore,
    throttle::{redis::RedisFilterStore, sync::FilterStore},
};
use tokio_util::sync::CancellationToken;

use super::{
    assert_every_algorithm, assert_exactness, counter_store, counter_store_on, decide,
    wait_for_redis,
};
use crate::support::{charge, clock, eventually, limit};

fn topology(redis: &SentinelTopology) -> Topology {
    Topology::Sentinel {
        master: "main".into(),
        nodes: redis.sentinels.iter().map(|sentinel| sentinel.url().into()).collect(),
        credentials: Credentials::default(),
    }
}

#[tokio::test]
async fn the_primary_named_by_sentinel_is_followed() {
    let mut redis = SentinelTopology::start();
    // In real time, like the sentinels' failover.
    let gateways = [0, 1].map(|_| counter_store_on(Clock::system(), topology(&redis)));
    let stop = CancellationToken::new();
    for counter_store in &gateways {
        tokio::spawn(counter_store.clone().run(stop.clone()));
    }
    assert_exactness(&gateways, 0..4).await;

    let (counter_store, handle) = (&gateways[0], gateways[0].worker());
    let limit = limit("failover", 1_000_000);
    wait_for_redis("the primary decides", &handle, &limit, 1).await;
    assert_every_algorithm(&handle, 2).await;
    assert_eq!(&*counter_store.shards()[0].name, "main");
    let charged = |at: usize| {
        let name = format!("tidegate:{{{:032x}}}:after-{at}:*", 1);
        let keys: Vec<String> = redis.servers[at].command(&["KEYS", &name]);
        !keys.is_empty()
    };

    // A failover while all servers are alive: no connection breaks, and the old primary is
    // read-only.
    let _: String = redis.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]);
    eventually("Sentinel names the other", async || redis.primary() == Some(1)).await;
    let after = crate::support::limit("after-1", 1_000_000);
    eventually("the new primary decides", async || {
        !decide(&handle, &[charge(&after, 1)]).await.is_fallback() && charged(1)
    })
    .await;

    // A failover because the primary is dead.
    redis.wait_ready_for_failover();
    redis.servers[1].kill();
    eventually("the outage is detected", async || {
        decide(&handle, &[charge(&limit, 1)]).await.is_fallback()
    })
    .await;
    eventually("Sentinel names the first again", async || redis.primary() == Some(0)).await;
    wait_for_redis("the first decides again", &handle, &limit, 1).await;
    eventually("all breakers are closed", async || counter_store.status().is_healthy()).await;
    stop.cancel();
}

/// Makes a sentinel name this server as the primary in every reply.
fn report_primary(sentinel: &OverrideProxy, server: &RedisServer) {
    let port = server.port().to_string();
    sentinel.reply_with(&format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()));
}

/// A sentinel that names this server as the primary.
fn sentinel_reporting(server: &RedisServer) -> OverrideProxy {
    let sentinel = OverrideProxy::start(&server.url());
    report_primary(&sentinel, server);
    sentinel
}

fn sentinel_store(sentinels: &[OverrideProxy]) -> Arc<CounterStore> {
    counter_store(Topology::Sentinel {
        master: "main".into(),
        nodes: sentinels.iter().map(|sentinel| sentinel.url().into()).collect(),
        credentials: Credentials::default(),
    })
}

/// The number of gateway reports to this server.
fn reports(server: &RedisServer) -> u32 {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let count = stats.split_once("cmdstat_eval:calls=").and_then(|(_, c)| c.split(',').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

#[tokio::test]
async fn the_primary_is_kept_while_sentinels_agree_on_no_other_primary() {
    let first = primary();
    let second = replica_of(&first);
    let sentinels = [sentinel_reporting(&second), sentinel_reporting(&first)];
    let counter_store = sentinel_store(&sentinels);
    let stop = CancellationToken::new();
    tokio::spawn(counter_store.clone().run(stop.clone()));
    let (handle, limit) = (counter_store.worker(), limit("tie", 1_000_000));
    wait_for_redis("the primary is found", &handle, &limit, 1).await;
    // The control task reports, then asks the sentinels.
    for is_agreed in [false, true] {
        if is_agreed {
            // They agree, but on a server whose role is replica.
            report_primary(&sentinels[1], &second);
        }
        let before = reports(&first);
        eventually("the sentinels are asked again", async || {
            assert!(
                !decide(&handle, &[charge(&limit, 1)]).await.is_fallback(),
                "the primary is kept"
            );
            reports(&first) > before + 2
        })
        .await;
    }
    stop.cancel();
}

#[tokio::test]
async fn every_connection_leaves_a_demoted_primary() {
    let (old, new) = (primary(), primary());
    let sentinels = [sentinel_reporting(&old), sentinel_reporting(&old)];
    let counter_store = sentinel_store(&sentinels);
    let stop = CancellationToken::new();
    tokio::spawn(counter_store.clone().run(stop.clone()));
    let (handle, limit) = (counter_store.worker(), limit("left", 1_000_000));
    let connector = counter_store.connector().expect("Redis");
    let mut throttle = RedisFilterStore::new(connector, "throttle", clock(), Arc::default());
    wait_for_redis("the old one decides", &handle, &limit, 1).await;
    throttle.time().await.expect("a reply");
    eventually("the gateway reports there", async || reports(&old) > 0).await;

    for sentinel in &sentinels {
        report_primary(sentinel, &new);
    }
    let scripts = |server: &RedisServer| {
        let stats: String = server.command(&["INFO", "commandstats"]);
        stats.lines().filter(|line| line.starts_with("cmdstat_eval")).collect::<String>()
    };
    eventually("the worker calls the new primary", async || {
        decide(&handle, &[charge(&limit, 1)]).await;
        !scripts(&new).is_empty()
    })
    .await;
    eventually("the gateway reports there", async || reports(&new) > 0).await;
    let before = scripts(&old);
    throttle.time().await.expect("a reply");
    assert_eq!(scripts(&old), before, "the old primary gets no call");
    stop.cancel();
}
