use futures_util::future::join_all;
use testkit::{override_proxy::OverrideProxy, redis_server::RedisServer, verdict::VerdictExt as _};
use tidegate::{
    clock::StoreTime,
    redis::{RedisFailure, RedisOptions, Topology},
    store::CounterStore,
};

use crate::support::{charge, clock, eventually, gateway, limit, options};

/// Replies that are not valid for the call, as RESP.
const REPLIES: [&str; 14] = [
    "-LOADING Redis is loading the dataset in memory\r\n",
    "-CLUSTERDOWN The cluster is down\r\n",
    "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
    "-READONLY You can't write against a read only replica.\r\n",
    "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "-BUSY Redis is busy running a script.\r\n",
    "-MISCONF Redis is configured to save RDB snapshots, but is unable to persist to disk.\r\n",
    "-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
    "-MOVED 1 127.0.0.1:1\r\n",
    "-nonsense\r\n",
    ":1\r\n",
    "$-1\r\n",
    "*2\r\n:1\r\n$3\r\nabc\r\n",
    "*3\r\n:9223372036854775807\r\n:-1\r\n:-1\r\n",
];

/// Checks that the breaker opens at this reply, and that Redis decides again after it.
async fn assert_recovery(redis: &RedisServer, number: usize, reply: &str) {
    let proxy = OverrideProxy::start(&redis.url());
    let topology = Topology::one(proxy.url());
    let options = RedisOptions { topology, ..options(redis) };
    let counter_store = CounterStore::redis(options, clock(), 1_000).expect("usable options");
    let handle = counter_store.worker();
    let limit = limit(&format!("fault-{number}"), 1_000);
    let decide = async || {
        handle.charge(&[charge(&limit, 1)], StoreTime::ZERO).await.expect("a local policy")
    };
    eventually("Redis decides", async || !decide().await.is_fallback()).await;
    let used = decide().await.decision(0).used;

    proxy.reply_with(reply);
    let timeouts = || counter_store.stats().failures[RedisFailure::Timeout.index()];
    let before = timeouts();
    let verdict = decide().await;
    assert!(verdict.is_fallback() && verdict.admitted, "{reply}: {verdict:?}");
    for _ in 0..100 {
        assert!(decide().await.is_fallback(), "{reply}: the breaker is open");
    }
    assert_eq!(timeouts(), before, "{reply}: no request waits");

    proxy.forward();
    let mut then = None;
    eventually("Redis decides again", async || {
        then = Some(decide().await).filter(|verdict| !verdict.is_fallback());
        then.is_some()
    })
    .await;
    // The call with that reply may have been charged; requests decided locally are not.
    let used_then = then.expect("a decision").decision(0).used;
    assert!(used_then - used <= 2, "{reply}: {used} before, {used_then} after");
}

#[tokio::test]
async fn malformed_replies_delay_nothing_and_redis_recovers() {
    let redis = RedisServer::start();
    let all =
        REPLIES.iter().enumerate().map(|(number, reply)| assert_recovery(&redis, number, reply));
    join_all(all).await;
}

#[tokio::test]
async fn an_evicted_record_equals_a_new_one() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let limit = limit("evicted", 3);
    let decide =
        async || handle.charge(&[charge(&limit, 1)], StoreTime::ZERO).await.expect("Redis decides");
    for left in [2, 1] {
        assert_eq!(decide().await.decision(0).remaining, left);
    }
    let records: Vec<String> = redis.command(&["KEYS", "*:evicted:*"]);
    let [record] = &records[..] else { panic!("expected one record: {records:?}") };
    let _: u64 = redis.command(&["DEL", record]);
    let verdict = decide().await;
    let decision = verdict.decision(0);
    assert_eq!((decision.remaining, decision.used), (2, 1));
    assert!(decision.reset_at > verdict.decided_at(), "a new window");
    assert_eq!(counter_store.stats().failures, [0; 5]);
}
