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

use super::{decide, stores};
use crate::support::{charge, limit};

/// The time over which attempts are counted.
const DURATION: Duration = Duration::from_secs(4);

#[tokio::test]
async fn all_workers_together_probe_a_lost_server_once_a_second() {
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
    let start: Instant = clock::instant();
    let stores = stores(Topology::Shards(vec![ShardUrls { primary: url, replicas: vec![] }]));
    let workers: Vec<_> = (0..4).map(|_| stores.worker()).collect();
    let stop = CancellationToken::new();
    tokio::spawn(stores.clone().run(stop.clone()));
    let limit = limit("down", 1_000_000);
    let charge_all = async || {
        for worker in &workers {
            assert!(decide(worker, &[charge(&limit, 1)]).await.is_fallback());
        }
    };
    // The first attempt is immediate.
    let check_attempts = |least| {
        let (attempts, elapsed) = (attempts.load(Ordering::Relaxed), start.elapsed());
        let most = elapsed.as_secs() as usize + 1;
        assert!((least..=most).contains(&attempts), "{attempts} attempts in {elapsed:?}");
    };
    charge_all().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    check_attempts(1);
    while start.elapsed() < DURATION {
        charge_all().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    check_attempts(3);
    assert_eq!(stores.status().lost, 4);
    stop.cancel();
}
