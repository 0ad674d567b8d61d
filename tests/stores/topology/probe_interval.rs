use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use testkit::verdict::VerdictExt as _;
use tidegate::{
    clock,
    store::{ShardUrls, Topology},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{ask, stores};
use crate::support::{charge, limit};

/// The shortest time over which attempts are counted.
const LONG: Duration = Duration::from_secs(4);

#[tokio::test]
async fn all_workers_together_probe_a_lost_server_once_a_second() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tried = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&tried);
    tokio::spawn(async move {
        // A server that accepts and closes.
        while listener.accept().await.is_ok() {
            counting.fetch_add(1, Ordering::Relaxed);
        }
    });
    let url = format!("redis://{address}").into();
    let start: Instant = clock::instant();
    let stores = stores(Topology::Shards(vec![ShardUrls { primary: url, replicas: vec![] }]));
    let workers: Vec<_> = (0..4).map(|_| stores.worker()).collect();
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let limit = limit("down", 1_000_000);
    let all_ask = async || {
        for worker in &workers {
            assert!(ask(worker, &[charge(&limit, 1)]).await.is_fallback());
        }
    };
    // The first attempt is immediate.
    let is_paced = |least| {
        let (tried, elapsed) = (tried.load(Ordering::Relaxed), start.elapsed());
        let most = elapsed.as_secs() as usize + 1;
        assert!((least..=most).contains(&tried), "{tried} attempts in {elapsed:?}");
    };
    all_ask().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    is_paced(1);
    while start.elapsed() < LONG {
        all_ask().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    is_paced(3);
    assert_eq!(stores.status().lost, 4);
    stop.cancel();
}
