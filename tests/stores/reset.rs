use testkit::{redis_server::RedisServer, verdict::VerdictExt as _, wait::eventually_async};
use tidegate::{
    clock::Clock,
    limit::{Key, Limit, Quota, Reserve},
};
use tokio_util::sync::CancellationToken;

use crate::support::{charge, hasty_gateway, limit, lose, now, stores};

/// A day, so that nothing expires.
fn daily(name: &str, reserve: Reserve) -> Limit {
    Limit { quota: Quota::new(20, 86_400_000, 1), reserve, ..limit(name, 1) }
}

#[tokio::test]
async fn a_reset_reaches_every_gateway() {
    let redis = RedisServer::start();
    let fleet = [stores(&redis, Clock::system()), stores(&redis, Clock::system())];
    let stop = CancellationToken::new();
    for stores in &fleet {
        tokio::spawn(stores.clone().run(stop.clone()));
    }
    eventually_async("they hear of Redis", async || {
        fleet.iter().all(|of| of.status().gateways == 2)
    })
    .await;
    let handles = [fleet[0].worker(), fleet[1].worker()];
    for limit in [daily("plain", Reserve::Off), daily("ahead", Reserve::Tokens(5))] {
        let (one, other) = (charge(&limit, 1), charge(&limit, 2));
        for handle in &handles {
            let asks = async |charge| handle.charge(&[charge], 0).await.expect("Redis decides");
            eventually_async("the caller is refused everywhere", async || {
                !asks(one).await.admitted & !asks(other).await.admitted
            })
            .await;
        }
        let asked = fleet[1].stats().store_calls;
        assert!(!handles[1].charge(&[one], 0).await.unwrap().admitted);
        assert_eq!(fleet[1].stats().store_calls, asked, "the refusal is cached");

        fleet[0].reset(&[&limit], Key(1)).await.expect("Redis resets the caller");
        assert!(
            handles[0].charge(&[one], 0).await.unwrap().admitted,
            "at once where the reset was requested"
        );
        eventually_async("the other gateway has heard of it", async || {
            handles[1].charge(&[one], 0).await.expect("Redis decides").admitted
        })
        .await;
        for handle in &handles {
            let verdict = handle.charge(&[other], 0).await.unwrap();
            assert!(!verdict.admitted, "other callers stay refused");
        }
    }
    stop.cancel();
}

#[tokio::test]
async fn a_gateway_without_heartbeats_drops_its_deny_cache() {
    let redis = RedisServer::start();
    let fleet = [stores(&redis, Clock::system()), stores(&redis, Clock::system())];
    let handle = fleet[1].worker();
    let limit = Limit { quota: Quota::new(1, 86_400_000, 1), ..limit("daily", 1) };
    let asks = async || handle.charge(&[charge(&limit, 1)], 0).await.expect("Redis decides");
    assert!(asks().await.admitted && !asks().await.admitted);

    // The notification of the reset has expired when the other gateway reaches Redis again.
    fleet[0].reset(&[&limit], Key(1)).await.expect("Redis resets the caller");
    assert_eq!(redis.command::<u64>(&["DEL", "tidegate:resets"]), 1);
    assert!(!asks().await.admitted, "it has not heard of it");
    let stop = CancellationToken::new();
    tokio::spawn(fleet[1].clone().run(stop.clone()));
    eventually_async("the caller is charged anew", async || asks().await.admitted).await;
    stop.cancel();
}

#[tokio::test]
async fn an_unanswered_reset_changes_nothing_locally() {
    let redis = RedisServer::start();
    let (stores, store) = hasty_gateway(&redis).await;
    let (blocked, ahead) = (daily("blocked", Reserve::Off), daily("ahead", Reserve::Tokens(10)));
    let counted = limit("counted", 1_000);
    let admits = async |limit| {
        store.charge(&[charge(limit, 1)], now()).await.expect("a local policy").admitted
    };
    while admits(&blocked).await {}
    assert!(admits(&ahead).await);
    let kept = stores.stats().tokens.outstanding;
    assert!(kept > 0);
    redis.suspend();
    lose(&stores, &store).await;
    assert!(admits(&counted).await);

    let all = [&blocked, &ahead, &counted];
    assert!(stores.reset(&all, Key(1)).await.is_err());
    assert!(!admits(&blocked).await, "Redis had refused it");
    assert_eq!(stores.stats().tokens.outstanding, kept);
    redis.resume();
    eventually_async("local charges are merged", async || {
        let looked = stores.peek(&[charge(&counted, 1)]).await;
        looked.is_ok_and(|verdict| verdict.decision(0).used == 1) && stores.stats().unmerged == 0
    })
    .await;
}
