use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use testkit::verdict::VerdictExt as _;
use tidegate::redis::{ShardUrls, Topology};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{counter_store, decide};
use crate::support::{charge, clock, eventually, limit};

#[tokio::test]
async fn all_workers_together_probe_a_lost_server_twice_a_second() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&attempts);
    tokio::spawn(async move {
        // A server that accepts and closes.
        while listener.accept().await.is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let url = format!("redis://{address}").into();
    let counter_store =
        counter_store(Topology::Shards(vec![ShardUrls { primary: url, replicas: vec![] }]));
    let workers: Vec<_> = (0..4).map(|_| counter_store.worker()).collect();
    let stop = CancellationToken::new();
    tokio::spawn(counter_store.clone().run(stop.clone()));
    let limit = limit("down", 1_000_000);
    let charge_all = async || {
        for worker in &workers {
            assert!(decide(worker, &[charge(&limit, 1)]).await.is_fallback());
        }
    };
    // The first attempt is immediate.
    for count in 1..=5 {
        eventually("the server is probed", async || {
            charge_all().await;
            let probes = attempts.load(Ordering::Relaxed);
            let time = clock().uptime().as_duration();
            assert!(probes <= time.as_millis() as usize / 500 + 1, "{probes} attempts in {time:?}");
            probes >= count
        })
        .await;
    }
    assert_eq!(counter_store.status().lost_workers, 4);
    stop.cancel();
}
