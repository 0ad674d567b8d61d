use tidegate::store::{Credentials, Topology};
use tokio_util::sync::CancellationToken;

use super::{CHANGE, ask, every_algorithm_counts, is_exact, shared, stores};
use crate::{
    redis_topology::SentinelTrio,
    support::{charge, eventually, limit},
};

fn topology(trio: &SentinelTrio) -> Topology {
    Topology::Sentinel {
        master: "main".into(),
        nodes: trio.sentinels.iter().map(|sentinel| sentinel.url().into()).collect(),
        credentials: Credentials::default(),
    }
}

#[tokio::test]
async fn a_primary_is_followed_wherever_sentinel_says_that_it_is() {
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

    // A failover while all are alive: nothing breaks, but the old primary only reads.
    let _: String = trio.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]);
    eventually("Sentinel names the other", CHANGE, async || trio.primary() == Some(1)).await;
    let after = crate::support::limit("after-1", 1_000_000);
    eventually("the new primary decides", CHANGE, async || {
        !ask(&store, &[charge(&after, 1)]).await.fallback && charged(1)
    })
    .await;

    // And one because it is dead.
    trio.whole();
    trio.servers[1].kill();
    eventually("it is noticed", CHANGE, async || ask(&store, &[charge(&limit, 1)]).await.fallback)
        .await;
    eventually("Sentinel names the first again", CHANGE, async || trio.primary() == Some(0)).await;
    shared("the first decides again", &store, &limit, 1).await;
    eventually("all is well", CHANGE, async || stores.status().is_healthy()).await;
    stop.cancel();
}
