use testkit::{redis_server::RedisServer, verdict::VerdictExt as _};

use crate::support::{charge, clock, counter_store, eventually, limit};

use tidegate::clock::StoreTime;

/// Number of calls of a command.
fn calls(redis: &RedisServer, command: &str) -> u32 {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let before = format!("cmdstat_{command}:calls=");
    let count = stats.split_once(&before).and_then(|(_, rest)| rest.split(',').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

/// The ids of the connections, except the test's own.
fn connections(redis: &RedisServer) -> Vec<String> {
    let list: String = redis.command(&["CLIENT", "LIST"]);
    let others = list.lines().filter(|line| {
        // A closed connection may still be listed.
        !["cmd=client|list", "cmd=client|kill"].iter().any(|own| line.contains(own))
    });
    others.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_connection_loads_only_missing_scripts() {
    let redis = RedisServer::start();
    let limit = limit("loaded", 1_000);
    let first = counter_store(&redis, clock());
    let workers = [first.worker(), first.worker()];
    for worker in &workers {
        assert!(
            !worker
                .charge(&[charge(&limit, 1)], StoreTime::from_unix_ms(0))
                .await
                .unwrap()
                .is_fallback()
        );
    }
    assert_eq!(calls(&redis, "script|load"), 4, "by the first worker");

    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    assert!(
        !workers[0]
            .charge(&[charge(&limit, 1)], StoreTime::from_unix_ms(0))
            .await
            .unwrap()
            .is_fallback()
    );
    assert_eq!(calls(&redis, "eval"), 1, "a flushed script is sent with the call");
    let second = counter_store(&redis, clock());
    assert!(
        !second
            .worker()
            .charge(&[charge(&limit, 1)], StoreTime::from_unix_ms(0))
            .await
            .unwrap()
            .is_fallback()
    );
    assert_eq!(calls(&redis, "script|load"), 7, "the three other scripts");
    assert_eq!(calls(&redis, "eval"), 1);
}

#[tokio::test]
async fn a_dead_idle_connection_is_replaced_before_the_next_request() {
    let redis = RedisServer::start();
    let counter_store = counter_store(&redis, clock());
    let worker = counter_store.worker();
    let limit = limit("idle", 1_000);
    eventually("Redis decides", async || {
        !worker
            .charge(&[charge(&limit, 1)], StoreTime::from_unix_ms(0))
            .await
            .unwrap()
            .is_fallback()
    })
    .await;
    let failures = counter_store.stats().failures;
    let before = connections(&redis);
    assert_eq!(before.len(), 1);
    redis.command::<u32>(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("the connection is replaced", async || {
        let now = connections(&redis);
        !now.is_empty() && !now.contains(&before[0])
    })
    .await;
    eventually("the breaker is closed", async || counter_store.status().is_healthy()).await;
    assert!(
        !worker
            .charge(&[charge(&limit, 1)], StoreTime::from_unix_ms(0))
            .await
            .unwrap()
            .is_fallback()
    );
    assert_eq!(counter_store.stats().failures, failures, "no request failed");
}
