use std::sync::Arc;

use testkit::{
    override_proxy::OverrideProxy,
    redis_server::RedisServer,
    redis_topology::{SentinelTrio, primary, replica_of},
    verdict::VerdictExt as _,
    wait::eventually_async,
};
use tidegate::{
    clock::Clock,
    store::{CounterStore, Credentials, Topology},
    throttle::{redis::RedisFilterStore, sync::FilterStore},
};
use tokio_util::sync::CancellationToken;

use super::{ask, every_algorithm_counts, is_exact, shared, stores};
use crate::support::{charge, limit};

fn topology(trio: &SentinelTrio) -> Topology {
    Topology::Sentinel {
        master: "main".into(),
        nodes: trio.sentinels.iter().map(|sentinel| sentinel.url().into()).collect(),
        credentials: Credentials::default(),
    }
}

#[tokio::test]
async fn the_primary_named_by_sentinel_is_followed() {
    let mut trio = SentinelTrio::start();
    let gateways = [0, 1].map(|_| stores(topology(&trio)));
    let stop = CancellationToken::new();
    for stores in &gateways {
        tokio::spawn(stores.clone().run(stop.clone()));
    }
    is_exact(&gateways, 0..4).await;

    let (stores, store) = (&gateways[0], gateways[0].worker());
    let limit = limit("over", 1_000_000);
    shared("it is there", &store, &limit, 1).await;
    every_algorithm_counts(&store, 2).await;
    assert_eq!(&*stores.shards()[0].name, "main");
    let charged = |at: usize| {
        let name = format!("tidegate:{{{:032x}}}:after-{at}:*", 1);
        let keys: Vec<String> = trio.servers[at].command(&["KEYS", &name]);
        !keys.is_empty()
    };

    // A failover while all servers are alive: no connection breaks, and the old primary is read-only.
    let _: String = trio.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]);
    eventually_async("Sentinel names the other", async || trio.primary() == Some(1)).await;
    let after = crate::support::limit("after-1", 1_000_000);
    eventually_async("the new primary decides", async || {
        !ask(&store, &[charge(&after, 1)]).await.is_fallback() && charged(1)
    })
    .await;

    // And a failover because the primary is dead.
    trio.wait_ready_for_failover();
    trio.servers[1].kill();
    eventually_async("it is noticed", async || {
        ask(&store, &[charge(&limit, 1)]).await.is_fallback()
    })
    .await;
    eventually_async("Sentinel names the first again", async || trio.primary() == Some(0)).await;
    shared("the first decides again", &store, &limit, 1).await;
    eventually_async("all is well", async || stores.status().is_healthy()).await;
    stop.cancel();
}

/// Makes a sentinel name this server in every reply.
fn name(sentinel: &OverrideProxy, server: &RedisServer) {
    let port = server.port().to_string();
    sentinel.reply_with(&format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()));
}

/// A sentinel that names this server.
fn naming(server: &RedisServer) -> OverrideProxy {
    let sentinel = OverrideProxy::start(&server.url());
    name(&sentinel, server);
    sentinel
}

fn watched(sentinels: &[OverrideProxy]) -> Arc<CounterStore> {
    stores(Topology::Sentinel {
        master: "main".into(),
        nodes: sentinels.iter().map(|sentinel| sentinel.url().into()).collect(),
        credentials: Credentials::default(),
    })
}

/// The number of heartbeats at this server.
fn reports(server: &RedisServer) -> u32 {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let count = stats.split_once("cmdstat_eval:calls=").and_then(|(_, c)| c.split(',').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

#[tokio::test]
async fn the_primary_is_kept_while_sentinels_name_no_usable_other() {
    let first = primary();
    let second = replica_of(&first);
    let sentinels = [naming(&second), naming(&first)];
    let stores = watched(&sentinels);
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let (store, limit) = (stores.worker(), limit("tie", 1_000_000));
    shared("the primary is found", &store, &limit, 1).await;
    // The control task sends a heartbeat, then queries the sentinels.
    for is_agreed in [false, true] {
        if is_agreed {
            // They agree on a server whose own role is replica.
            name(&sentinels[1], &second);
        }
        let before = reports(&first);
        eventually_async("the sentinels were asked again", async || {
            assert!(!ask(&store, &[charge(&limit, 1)]).await.is_fallback(), "it is not taken away");
            reports(&first) > before + 2
        })
        .await;
    }
    stop.cancel();
}

#[tokio::test]
async fn every_connection_leaves_a_demoted_primary() {
    let (old, new) = (primary(), primary());
    let sentinels = [naming(&old), naming(&old)];
    let stores = watched(&sentinels);
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let (store, limit) = (stores.worker(), limit("left", 1_000_000));
    let connector = stores.connector().expect("a Redis");
    let mut throttle =
        RedisFilterStore::new(connector, "throttle", Clock::system(), Arc::default());
    shared("the old one decides", &store, &limit, 1).await;
    throttle.time().await.expect("an answer");
    eventually_async("it is reported there", async || reports(&old) > 0).await;

    for sentinel in &sentinels {
        name(sentinel, &new);
    }
    let scripts = |server: &RedisServer| {
        let stats: String = server.command(&["INFO", "commandstats"]);
        stats.lines().filter(|line| line.starts_with("cmdstat_eval")).collect::<String>()
    };
    eventually_async("the worker asks the new one", async || {
        ask(&store, &[charge(&limit, 1)]).await;
        !scripts(&new).is_empty()
    })
    .await;
    eventually_async("it is reported there", async || reports(&new) > 0).await;
    let before = scripts(&old);
    throttle.time().await.expect("an answer");
    assert_eq!(scripts(&old), before, "the old primary gets no call");
    stop.cancel();
}
