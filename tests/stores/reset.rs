use std::sync::Arc;

use testkit::{redis_server::RedisServer, verdict::OutcomesExt as _, wait::while_clock_advances};
use tidegate::{
    charge::{Adjustment, DecisionSource, Key, LeaseSize, Limit},
    clock::StoreTime,
    limit::{Change, Millis, Quota},
    store::CounterStore,
};
use tokio_util::sync::CancellationToken;

use crate::support::{
    charge, clock, counter_store, eventually, limit, now, short_timeout_options, wait_for_outage,
};

/// A limit of 20 a day, so that nothing expires.
fn daily_limit(name: &str, lease_size: LeaseSize) -> Arc<Limit> {
    Arc::new(Limit {
        quota: Quota::sliding(20, Millis::from_secs(86_400), 1),
        lease_size,
        ..Limit::clone(&limit(name, 1))
    })
}

#[tokio::test]
async fn a_reset_reaches_every_gateway() {
    let redis = RedisServer::start();
    let fleet = [counter_store(&redis, clock()), counter_store(&redis, clock())];
    let stop = CancellationToken::new();
    for counter_store in &fleet {
        tokio::spawn(counter_store.clone().run(stop.clone()));
    }
    eventually("each counts both", async || fleet.iter().all(|of| of.status().gateways == 2)).await;
    let handles = [fleet[0].worker(), fleet[1].worker()];
    for limit in [daily_limit("plain", LeaseSize::Off), daily_limit("leased", LeaseSize::Units(5))]
    {
        let (one, other) = (charge(&limit, 1), charge(&limit, 2));
        for handle in &handles {
            let decide = async |charge| {
                handle.charge(&[charge], StoreTime::ZERO).await.expect("Redis decides")
            };
            eventually("both callers are refused", async || {
                !decide(one).await.admitted & !decide(other).await.admitted
            })
            .await;
        }
        let calls = fleet[1].stats().store_calls;
        assert!(!handles[1].charge(&[one], StoreTime::from_unix_ms(0)).await.unwrap().admitted);
        assert_eq!(fleet[1].stats().store_calls, calls, "the refusal is cached");

        fleet[0].reset(&[&limit], Key(1)).await.expect("Redis resets the caller");
        assert!(
            handles[0].charge(&[one], StoreTime::from_unix_ms(0)).await.unwrap().admitted,
            "at once where the reset was requested"
        );
        eventually("the reset reaches the other gateway", async || {
            handles[1]
                .charge(&[one], StoreTime::from_unix_ms(0))
                .await
                .expect("Redis decides")
                .admitted
        })
        .await;
        for handle in &handles {
            let verdict = handle.charge(&[other], StoreTime::ZERO).await.unwrap();
            assert!(!verdict.admitted, "other callers stay refused");
        }
    }
    stop.cancel();
}

#[tokio::test]
async fn a_gateway_that_missed_resets_clears_its_deny_cache() {
    let redis = RedisServer::start();
    let fleet = [counter_store(&redis, clock()), counter_store(&redis, clock())];
    let handle = fleet[1].worker();
    let limit = Arc::new(Limit {
        quota: Quota::sliding(1, Millis::from_secs(86_400), 1),
        ..Limit::clone(&limit("daily", 1))
    });
    let decide =
        async || handle.charge(&[charge(&limit, 1)], StoreTime::ZERO).await.expect("Redis decides");
    assert!(decide().await.admitted && !decide().await.admitted);

    // Simulates that the reset's entry expires before the other gateway reports.
    fleet[0].reset(&[&limit], Key(1)).await.expect("Redis resets the caller");
    assert_eq!(redis.command::<u64>(&["DEL", "tidegate:resets"]), 1);
    assert!(!decide().await.admitted, "the reset is unknown there");
    let stop = CancellationToken::new();
    tokio::spawn(fleet[1].clone().run(stop.clone()));
    eventually("the caller is admitted", async || decide().await.admitted).await;
    stop.cancel();
}

#[tokio::test]
async fn an_unanswered_reset_changes_nothing_locally() {
    let redis = RedisServer::start();
    let made = CounterStore::redis(short_timeout_options(&redis), clock(), 10_000);
    let counter_store = made.expect("usable options");
    let handle = counter_store.worker();
    let (blocked, leased) =
        (daily_limit("blocked", LeaseSize::Off), daily_limit("leased", LeaseSize::Units(10)));
    let counted = limit("counted", 1_000);
    let admits = async |limit| {
        handle.charge(&[charge(limit, 1)], now()).await.expect("a local policy").admitted
    };
    while admits(&blocked).await {}
    assert!(admits(&leased).await);
    let outstanding = counter_store.stats().leases.outstanding;
    assert!(outstanding > 0);
    redis.suspend();
    wait_for_outage(&counter_store, &handle).await;
    assert!(admits(&counted).await);

    let all = [&*blocked, &*leased, &*counted];
    let reset = counter_store.reset(&all, Key(1));
    assert!(while_clock_advances(&clock(), reset).await.0.is_err());
    assert!(!admits(&blocked).await, "Redis had refused it");
    assert_eq!(counter_store.stats().leases.outstanding, outstanding);
    redis.resume();
    let local = [Adjustment { limit: &counted, key: Key(1), change: Change::Overdraw { cost: 1 } }];
    let adjusted = handle.adjust(&local, DecisionSource::Fallback, now()).await;
    assert_eq!(adjusted.decision(0).used, 2, "the local count stays");
}
