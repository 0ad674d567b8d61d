use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use testkit::{redis_server::RedisServer, verdict::VerdictExt as _};
use tidegate::{
    charge::Limit,
    clock::{Clock, StoreTime},
    limit::{Algorithm, Millis, Quota},
    redis::RedisOptions,
    secret::SharedSecret,
    store::CounterStore,
};
use tokio_util::sync::CancellationToken;

use crate::support::{charge, clock, counter_store, eventually, gateway, limit, options};

/// A limit whose window does not end during a test.
fn daily_limit(name: &str, quota: u64) -> Arc<Limit> {
    let day = Millis::from_secs(86_400);
    Arc::new(Limit { quota: Quota::sliding(quota, day, 1), ..Limit::clone(&limit(name, quota)) })
}

#[test]
fn two_gateways_on_one_redis_admit_the_quota_exactly() {
    let redis = RedisServer::start();
    // The 800th slot is within the longest wait; the next one, 108 s later, is not.
    for algorithm in Algorithm::all(1, Millis::from_secs(86_292)) {
        let mut limit = daily_limit(algorithm.tag(), QUOTA);
        Arc::make_mut(&mut limit).quota.algorithm = algorithm;
        assert_eq!(
            u64::from(admitted_by_two_gateways(&redis, &limit)),
            QUOTA,
            "{}",
            algorithm.tag()
        );
    }
}

const QUOTA: u64 = 800;

/// Returns how many requests two concurrent gateways admit, of 400 more than the quota.
fn admitted_by_two_gateways(redis: &RedisServer, limit: &Arc<Limit>) -> u32 {
    let admitted = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                runtime.block_on(async {
                    let (counter_store, handle) = gateway(redis);
                    let charges = [charge(limit, 1)];
                    for _ in 0..QUOTA / 2 + 200 {
                        let is_admitted = handle
                            .charge(&charges, StoreTime::ZERO)
                            .await
                            .is_ok_and(|verdict| verdict.admitted);
                        admitted.fetch_add(u32::from(is_admitted), Ordering::Relaxed);
                    }
                    assert_eq!(counter_store.stats().failures, [0; 5]);
                });
            });
        }
    });
    admitted.into_inner()
}

#[tokio::test]
async fn a_refusal_by_one_limit_charges_none() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let (narrow, broad) = (daily_limit("narrow", 1), daily_limit("broad", 1_000));
    let both = [charge(&broad, 1), charge(&narrow, 1)];
    assert!(handle.charge(&both, StoreTime::ZERO).await.unwrap().admitted);
    for _ in 0..100 {
        counter_store.clear_deny_cache();
        // A refusal of the same ms is not trusted.
        clock().advance(Duration::from_millis(1));
        let verdict = handle.charge(&both, StoreTime::ZERO).await.unwrap();
        assert!(!verdict.admitted);
        assert_eq!(verdict.decision(0).remaining, 999);
    }
    // The cached refusal is reported, and no decision of the other limit.
    let verdict = handle.charge(&both, StoreTime::ZERO).await.unwrap();
    assert!(!verdict.admitted && verdict.decided(0).is_none());
    assert_eq!(verdict.decision(1).remaining, 0);
}

#[tokio::test]
async fn redis_time_is_used_and_returned() {
    let redis = RedisServer::start();
    let handle = counter_store(&redis, Clock::system()).worker();
    let limit = limit("a", 10);
    let verdict = handle.charge(&[charge(&limit, 1)], StoreTime::from_unix_ms(5)).await.unwrap();
    let difference = verdict.decided_at().ms_since(Clock::system().store_time()).unsigned_abs();
    assert!(difference < 5_000, "{difference} ms");
    assert!(verdict.decision(0).reset_at > verdict.decided_at());
}

#[tokio::test]
async fn every_key_in_redis_expires_and_has_the_specified_form() {
    let redis = RedisServer::start();
    let (counter_store, handle) = gateway(&redis);
    let stop = CancellationToken::new();
    let control = tokio::spawn(counter_store.clone().run(stop.clone()));
    eventually("the gateway has reported", async || {
        redis.command::<bool>(&["EXISTS", "tidegate:gateways"])
    })
    .await;
    let (one, other) = (limit("one", 3), limit("other", 100));
    for key in 0..20 {
        for _ in 0..5 {
            handle
                .charge(&[charge(&one, key), charge(&other, key)], StoreTime::ZERO)
                .await
                .unwrap();
        }
    }
    let keys: Vec<String> = redis.command(&["KEYS", "*"]);
    assert!(keys.len() >= 41, "{keys:?}");
    for key in &keys {
        let ttl: i64 = redis.command(&["PTTL", key]);
        // The probe's key may have expired since `KEYS`.
        let is_expired = ttl == -2 && key.ends_with(":probe");
        assert!(ttl > 0 || is_expired, "{key} does not expire: {ttl}");
        assert!(key.starts_with("tidegate:"), "{key}");
    }
    let expected = "tidegate:{00000000000000000000000000000007}:one:000000000000feed";
    assert!(keys.iter().any(|key| key == expected), "{keys:?}");
    let ttl: i64 = redis.command(&["PTTL", expected]);
    assert!((60_000..=80_000).contains(&ttl), "{ttl} ms for a window of 60 s and 10 s of slack");
    stop.cancel();
    control.await.unwrap();
}

#[tokio::test]
async fn gateways_count_each_other_under_the_secret_of_their_configuration() {
    let redis = RedisServer::start();
    let (one, other) = (counter_store(&redis, clock()), counter_store(&redis, clock()));
    assert_eq!(one.key_secret(), other.key_secret());
    let (stop_one, stop_other) = (CancellationToken::new(), CancellationToken::new());
    tokio::spawn(one.clone().run(stop_one.clone()));
    let other_control = tokio::spawn(other.clone().run(stop_other.clone()));
    for counter_store in [&one, &other] {
        eventually("each counts both", async || counter_store.status().gateways == 2).await;
        assert_eq!(counter_store.status().other_secrets, 0);
    }
    let reported = async || {
        redis
            .try_command(&["ZCARD", "tidegate:gateways"])
            .is_ok_and(|count| count == redis::Value::Int(2))
    };
    let _: String = redis.command(&["FLUSHALL"]);
    eventually("they report again", reported).await;
    let _: String = redis.command(&["SET", "tidegate:gateways", "overwritten"]);
    let _: String = redis.command(&["SET", "tidegate:resets", "overwritten"]);
    eventually("they replace keys of another type", reported).await;

    stop_other.cancel();
    other_control.await.unwrap();
    // The count decreases only after 5 s of successful reports.
    eventually("the other has left", async || one.status().gateways == 1).await;
    stop_one.cancel();
}

/// Gateways with different secrets count a limit separately; each detects the others.
#[tokio::test]
async fn a_secret_mismatch_is_detected_by_all() {
    let redis = RedisServer::start();
    let secret = SharedSecret::from_text("0123456789abcdef", "tidegate");
    let with = |secret| {
        let options = RedisOptions { secret, ..options(&redis) };
        CounterStore::redis(options, clock(), 100).expect("usable options")
    };
    let fleet = [counter_store(&redis, clock()), with(secret), with(secret)];
    assert_ne!(fleet[0].key_secret(), fleet[1].key_secret());
    assert_eq!(fleet[1].key_secret(), fleet[2].key_secret());
    let stop = CancellationToken::new();
    let stop_first = CancellationToken::new();
    let first = tokio::spawn(fleet[0].clone().run(stop_first.clone()));
    for counter_store in &fleet[1..] {
        tokio::spawn(counter_store.clone().run(stop.clone()));
    }
    let others = || fleet.each_ref().map(|counter_store| counter_store.status().other_secrets);
    eventually("the first counts two, and each of them the first", async || others() == [2, 1, 1])
        .await;
    stop_first.cancel();
    first.await.unwrap();
    eventually("it has left", async || others()[1..] == [0, 0]).await;
    stop.cancel();
}
