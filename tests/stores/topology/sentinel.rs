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

use super::{check_every_algorithm, check_exactness, decide, stores, wait_for_redis};
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
    check_exactness(&gateways, 0..4).await;

    let (stores, store) = (&gateways[0], gateways[0].worker());
    let limit = limit("failover", 1_000_000);
    wait_for_redis("the primary decides", &store, &limit, 1).await;
    check_every_algorithm(&store, 2).await;
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
        !decide(&store, &[charge(&after, 1)]).await.is_fallback() && charged(1)
    })
    .await;

    // A failover because the primary is dead.
    trio.wait_ready_for_failover();
    trio.servers[1].kill();
    eventually_async("the outage is detected", async || {
        decide(&store, &[charge(&limit, 1)]).await.is_fallback()
    })
    .await;
    eventually_async("Sentinel names the first again", async || trio.primary() == Some(0)).await;
    wait_for_redis("the first decides again", &store, &limit, 1).await;
    eventually_async("all breakers are closed", async || stores.status().is_healthy()).await;
    stop.cancel();
}

/// Makes a sentinel name this server as the primary in every reply.
fn name_primary(sentinel: &OverrideProxy, server: &RedisServer) {
    let port = server.port().to_string();
    sentinel.reply_with(&format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()));
}

/// A sentinel that names this server as the primary.
fn sentinel_naming(server: &RedisServer) -> OverrideProxy {
    let sentinel = OverrideProxy::start(&server.url());
    name_primary(&sentinel, server);
    sentinel
}

fn sentinel_stores(sentinels: &[OverrideProxy]) -> Arc<CounterStore> {
    stores(Topology::Sentinel {
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
    let sentinels = [sentinel_naming(&second), sentinel_naming(&first)];
    let stores = sentinel_stores(&sentinels);
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let (store, limit) = (stores.worker(), limit("tie", 1_000_000));
    wait_for_redis("the primary is found", &store, &limit, 1).await;
    // The control task reports, then asks the sentinels.
    for is_agreed in [false, true] {
        if is_agreed {
            // They agree, but on a server whose role is replica.
            name_primary(&sentinels[1], &second);
        }
        let before = reports(&first);
        eventually_async("the sentinels are asked again", async || {
            assert!(
                !decide(&store, &[charge(&limit, 1)]).await.is_fallback(),
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
    let sentinels = [sentinel_naming(&old), sentinel_naming(&old)];
    let stores = sentinel_stores(&sentinels);
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let (store, limit) = (stores.worker(), limit("left", 1_000_000));
    let connector = stores.connector().expect("Redis");
    let mut throttle =
        RedisFilterStore::new(connector, "throttle", Clock::system(), Arc::default());
    wait_for_redis("the old one decides", &store, &limit, 1).await;
    throttle.time().await.expect("a reply");
    eventually_async("the gateway reports there", async || reports(&old) > 0).await;

    for sentinel in &sentinels {
        name_primary(sentinel, &new);
    }
    let scripts = |server: &RedisServer| {
        let stats: String = server.command(&["INFO", "commandstats"]);
        stats.lines().filter(|line| line.starts_with("cmdstat_eval")).collect::<String>()
    };
    eventually_async("the worker calls the new primary", async || {
        decide(&store, &[charge(&limit, 1)]).await;
        !scripts(&new).is_empty()
    })
    .await;
    eventually_async("the gateway reports there", async || reports(&new) > 0).await;
    let before = scripts(&old);
    throttle.time().await.expect("a reply");
    assert_eq!(scripts(&old), before, "the old primary gets no call");
    stop.cancel();
}
