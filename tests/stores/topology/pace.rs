use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crate::verdict::VerdictExt as _;
use tidegate::{
    clock,
    store::{Shard, Topology},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{ask, stores};
use crate::support::{charge, limit};

/// How long attempts are counted, at the least.
const LONG: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_server_that_is_down_is_tried_once_a_second_by_all_workers_together() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tried = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&tried);
    tokio::spawn(async move {
        // Accepts and closes.
        while listener.accept().await.is_ok() {
            counting.fetch_add(1, Ordering::Relaxed);
        }
    });
    let url = format!("redis://{address}").into();
    let start: Instant = clock::instant();
    let stores = stores(Topology::Shards(vec![Shard { primary: url, replicas: vec![] }]));
    let workers: Vec<_> = (0..4).map(|_| stores.worker()).collect();
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let limit = limit("down", 1_000_000);
    let all_ask = async || {
        for worker in &workers {
            assert!(ask(worker, &[charge(&limit, 1)]).await.is_fallback());
        }
    };
    // The first is made at once.
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
