use tidegate::{
    clock::Clock,
    limit::{Key, Limit, Quota, Reserve},
};
use tokio_util::sync::CancellationToken;

use crate::{
    redis_server::RedisServer,
    support::{charge, eventually, hasty_gateway, limit, lose, now, stores},
    verdict::VerdictExt as _,
};

/// A day, so that nothing ends by itself.
fn daily(name: &str, reserve: Reserve) -> Limit {
    Limit { quota: Quota::new(20, 86_400_000, 1), reserve, ..limit(name, 1) }
}

#[tokio::test]
async fn a_reset_is_felt_at_every_gateway() {
    let redis = RedisServer::start();
    let fleet = [stores(&redis, Clock::system()), stores(&redis, Clock::system())];
    let stop = CancellationToken::new();
    for stores in &fleet {
        tokio::spawn(stores.clone().run(stop.clone()));
    }
    eventually("they hear of Redis", async || fleet.iter().all(|of| of.status().gateways == 2))
        .await;
    let doors = [fleet[0].worker(), fleet[1].worker()];
    for limit in [daily("plain", Reserve::Off), daily("ahead", Reserve::Tokens(5))] {
        let (one, other) = (charge(&limit, 1), charge(&limit, 2));
        for door in &doors {
            let asks = async |charge| door.charge(&[charge], 0).await.expect("Redis decides");
            eventually("everybody is refused", async || {
                !asks(one).await.admitted & !asks(other).await.admitted
            })
            .await;
        }
        let asked = fleet[1].stats().asked;
        assert!(!doors[1].charge(&[one], 0).await.unwrap().admitted);
        assert_eq!(fleet[1].stats().asked, asked, "he is known to be refused");

        fleet[0].reset(&[&limit], Key(1)).await.expect("Redis forgets him");
        assert!(
            doors[0].charge(&[one], 0).await.unwrap().admitted,
            "at once where it was asked for"
        );
        eventually("the other gateway has heard of it", async || {
            doors[1].charge(&[one], 0).await.expect("Redis decides").admitted
        })
        .await;
        for door in &doors {
            let verdict = door.charge(&[other], 0).await.unwrap();
            assert!(!verdict.admitted, "nobody else is let in");
        }
    }
    stop.cancel();
}

#[tokio::test]
async fn who_heard_nothing_for_long_forgets_whom_it_refused() {
    let redis = RedisServer::start();
    let fleet = [stores(&redis, Clock::system()), stores(&redis, Clock::system())];
    let door = fleet[1].worker();
    let limit = Limit { quota: Quota::new(1, 86_400_000, 1), ..limit("daily", 1) };
    let asks = async || door.charge(&[charge(&limit, 1)], 0).await.expect("Redis decides");
    assert!(asks().await.admitted && !asks().await.admitted);

    // The note of the reset is gone when the other gateway hears of Redis again.
    fleet[0].reset(&[&limit], Key(1)).await.expect("Redis forgets him");
    assert_eq!(redis.command::<u64>(&["DEL", "tidegate:resets"]), 1);
    assert!(!asks().await.admitted, "it has not heard of it");
    let stop = CancellationToken::new();
    tokio::spawn(fleet[1].clone().run(stop.clone()));
    eventually("he is asked for anew", async || asks().await.admitted).await;
    stop.cancel();
}

#[tokio::test]
async fn a_reset_without_an_answer_of_redis_changes_nothing_here() {
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
    eventually("what was charged here is told", async || {
        let looked = stores.look(&[charge(&counted, 1)]).await;
        looked.is_ok_and(|verdict| verdict.decision(0).used == 1) && stores.stats().unmerged == 0
    })
    .await;
}
