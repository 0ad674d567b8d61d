use std::{sync::Arc, time::Duration};

use testkit::{
    redis_server::RedisServer,
    verdict::VerdictExt as _,
    wait::{TIMEOUT, eventually_async, while_clock_advances},
};
use tidegate::clock::ms;
use tidegate::{
    charge::{Adjustment, Charge, DecisionSource, Limit, OnFailure},
    clock::Clock,
    limit::{Change, Millis, Quota},
    redis::{RedisOptions, ShardUrls, Topology},
    store::CounterStore,
};

use super::{LeaseGateway, leased_limit};
use crate::support::{NOW, charge, limit, options, short_timeout_options};

/// A gateway with several shards, and the first key on each.
pub(super) async fn sharded_gateway(
    servers: &[&RedisServer],
    clock: &Clock,
) -> (LeaseGateway, Vec<u128>) {
    let shard =
        |server: &&RedisServer| ShardUrls { primary: server.url().into(), replicas: vec![] };
    let topology = Topology::Shards(servers.iter().map(shard).collect());
    let options = RedisOptions { topology, ..options(servers[0]) };
    let counter_store =
        CounterStore::redis(options, clock.clone(), 10_000).expect("usable options");
    let gateway = LeaseGateway::on(counter_store);
    let (placement, mut keys) = (limit("placement", 1_000), vec![0; servers.len()]);
    for key in 1..100 {
        assert!(!gateway.decide(&[charge(&placement, key)]).await.is_fallback());
        let name = format!("tidegate:{{{key:032x}}}:placement:*");
        let has =
            |server: &&RedisServer| !server.command::<Vec<String>>(&["KEYS", &name]).is_empty();
        let at = servers.iter().position(has).expect("a server with the record");
        if keys[at] == 0 {
            keys[at] = key;
        }
    }
    (gateway, keys)
}

/// Charges a broad and a narrow limit together, in both orders, far more often than the narrow
/// quota. Checks that both limits have counted exactly the admitted requests.
async fn assert_all_or_none(
    gateway: &LeaseGateway,
    broad: (&Arc<Limit>, u128),
    narrow: (&Arc<Limit>, u128),
) {
    let (mut admitted, before) = (0, gateway.outstanding());
    for turn in 0..40 {
        let mut both = [charge(broad.0, broad.1), charge(narrow.0, narrow.1)];
        both.rotate_left(turn % 2);
        admitted += u64::from(gateway.decide(&both).await.admitted);
        if turn % 3 == 0 {
            gateway.counter_store.clear_deny_cache();
        }
    }
    assert_eq!(admitted, 5, "{} {}", broad.0.name(), narrow.0.name());
    let counted = async || {
        let outstanding = gateway.outstanding() - before;
        let used = gateway.used_by(broad.0, broad.1).await;
        used + gateway.used_by(narrow.0, narrow.1).await == 10 + outstanding
    };
    eventually_async("refused requests are not charged", counted).await;
}

#[tokio::test]
async fn all_are_charged_or_none_on_one_server() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    for (number, (broad, narrow)) in [(100, 0), (0, 100), (100, 100)].into_iter().enumerate() {
        let gateway = LeaseGateway::new(&redis, &clock);
        let broad = leased_limit(&format!("broad{number}"), 200, broad);
        let narrow = leased_limit(&format!("narrow{number}"), 5, narrow);
        assert_all_or_none(&gateway, (&broad, 1), (&narrow, 1)).await;
        gateway.handle.shut_down(TIMEOUT).await;
        assert_eq!((gateway.used(&broad).await, gateway.used(&narrow).await), (5, 5));
    }
}

#[tokio::test]
async fn all_are_charged_or_none_on_two_servers() {
    let (servers, clock) = ([RedisServer::start(), RedisServer::start()], Clock::manual(NOW));
    let (gateway, keys) = sharded_gateway(&[&servers[0], &servers[1]], &clock).await;
    for (number, (broad, narrow)) in [(100, 0), (0, 100), (100, 100)].into_iter().enumerate() {
        let broad = leased_limit(&format!("broad{number}"), 200, broad);
        let narrow = leased_limit(&format!("narrow{number}"), 5, narrow);
        assert_all_or_none(&gateway, (&broad, keys[0]), (&narrow, keys[1])).await;
    }
    gateway.handle.shut_down(TIMEOUT).await;
    assert_eq!(gateway.counter_store.stats().failures, [0; 5]);
}

#[tokio::test]
async fn two_gateways_admit_the_narrower_quota_exactly() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateways = [0, 1].map(|_| LeaseGateway::new(&redis, &clock));
    let (broad, narrow) = (leased_limit("broad", 500, 40), leased_limit("narrow", 100, 10));
    let mut admitted = 0;
    for turn in 0..400 {
        let both = [charge(&broad, 1), charge(&narrow, 1)];
        let reversed = [both[1], both[0]];
        let at = &gateways[turn % 2];
        let (one, other) = tokio::join!(at.decide(&both), at.decide(&reversed));
        admitted += u64::from(one.admitted) + u64::from(other.admitted);
    }
    assert_eq!(admitted, 100);
    let outstanding: u64 = gateways.iter().map(LeaseGateway::outstanding).sum();
    assert_eq!(gateways[0].used(&broad).await + gateways[0].used(&narrow).await, 200 + outstanding);
}

/// Checks a request with two limits while Redis is lost: the first has leased units, the second
/// falls back.
async fn assert_fallback_of_second(hangs: bool, policy: OnFailure, has_reserve: bool) {
    let (mut redis, clock) = (RedisServer::start(), Clock::simulated(NOW));
    let options = if hangs { short_timeout_options(&redis) } else { options(&redis) };
    let counter_store = CounterStore::redis(options, clock.clone(), 1_000).expect("usable options");
    let gateway = LeaseGateway::on(counter_store);
    let first = leased_limit("first", 1_000, 50);
    let second = if has_reserve { leased_limit("second", 2, 10) } else { limit("second", 2) };
    let second = Arc::new(Limit { on_failure: policy, index: 1, ..Limit::clone(&second) });
    eventually_async("units are leased", async || {
        !gateway.decide(&[charge(&first, 1)]).await.is_fallback() && gateway.outstanding() > 0
    })
    .await;
    let outstanding = gateway.outstanding();
    if hangs {
        redis.suspend();
    } else {
        redis.kill();
    }
    let both = [charge(&first, 1), charge(&second, 1)];
    let case = format!("hangs {hangs}, {policy:?}, has_reserve {has_reserve}");
    let mut admitted = 0;
    for _ in 0..5 {
        let charging = gateway.handle.charge(&both, NOW);
        match while_clock_advances(&clock, charging).await.0 {
            Ok(verdict) => {
                let is_shared =
                    |at| verdict.decided(at).is_some_and(|d| d.source == DecisionSource::Store);
                assert!(is_shared(0) == verdict.admitted && !is_shared(1), "{case}");
                assert_eq!(verdict.decided(1).is_some(), policy == OnFailure::Local, "{case}");
                admitted += u64::from(verdict.admitted);
            }
            Err(_) => assert_eq!(policy, OnFailure::Closed, "{case}"),
        }
    }
    let expected = match policy {
        OnFailure::Local => 2,
        OnFailure::Open => 5,
        OnFailure::Closed => 0,
    };
    assert_eq!(admitted, expected, "{case}");
    assert_eq!(
        gateway.outstanding(),
        outstanding - expected,
        "{case}: units of refused requests are put back"
    );
    if hangs {
        redis.resume();
    }
}

#[tokio::test]
async fn an_unreachable_limit_follows_its_policy_and_the_others_keep_their_units() {
    for hangs in [false, true] {
        for policy in [OnFailure::Local, OnFailure::Open, OnFailure::Closed] {
            for has_reserve in [false, true] {
                assert_fallback_of_second(hangs, policy, has_reserve).await;
            }
        }
    }
}

#[tokio::test]
async fn a_caller_cancelled_during_the_second_fetch_spends_no_unit_of_the_first() {
    let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
    let gateway = LeaseGateway::new(&redis, &clock);
    let (first, second) = (leased_limit("first", 1_000, 50), limit("second", 100));
    assert!(
        gateway.charge_one(&first).await.admitted && gateway.charge_one(&second).await.admitted
    );
    redis.suspend();
    let both: [Charge<'_>; 2] = [charge(&first, 1), charge(&second, 1)];
    let charging = gateway.handle.charge(&both, NOW);
    assert!(tokio::time::timeout(Duration::from_millis(20), charging).await.is_err());
    assert_eq!(gateway.outstanding(), 50);
    redis.resume();
    assert_eq!(gateway.charge_one(&first).await.remaining, 998);
}

/// A request refused at one server is refunded at the other in the background. Until then, its
/// charge may cause refusals of other requests.
#[tokio::test]
async fn a_caller_refused_because_of_a_refunded_charge_is_admitted() {
    let (servers, clock) = ([RedisServer::start(), RedisServer::start()], Clock::manual(NOW));
    let (gateway, keys) = sharded_gateway(&[&servers[0], &servers[1]], &clock).await;
    let (first, second) = (limit("first", 1), limit("second", 1));
    assert!(gateway.decide(&[charge(&second, keys[1])]).await.admitted);
    let (on_first, on_second) = (charge(&first, keys[0]), charge(&second, keys[1]));
    let (both, first_only) = ([on_first, on_second], [on_first]);
    let (refused, other) = tokio::join!(gateway.decide(&both), gateway.decide(&first_only));
    assert!(!refused.admitted && !other.admitted);
    eventually_async("the caller is admitted", async || gateway.decide(&first_only).await.admitted)
        .await;
}

/// The request is cancelled after one server has charged, while it waits for the other.
#[tokio::test]
async fn a_caller_cancelled_before_all_replies_is_charged_nowhere() {
    let (servers, clock) = ([RedisServer::start(), RedisServer::start()], Clock::manual(NOW));
    let (gateway, keys) = sharded_gateway(&[&servers[0], &servers[1]], &clock).await;
    let (first, second) = (limit("first", 10), limit("second", 10));
    let both = [charge(&first, keys[0]), charge(&second, keys[1])];
    servers[1].suspend();
    let used = async |count| gateway.used_by(&first, keys[0]).await == count;
    tokio::select! {
        _ = gateway.decide(&both) => panic!("the second server hangs"),
        () = eventually_async("the first has charged", async || used(1).await) => {}
    }
    eventually_async("the charge is refunded", async || used(0).await).await;
    servers[1].resume();
}

/// Another gateway refunds a unit of one of two limits.
#[tokio::test]
async fn a_refund_at_another_gateway_takes_effect_across_two_servers() {
    let (servers, clock) = ([RedisServer::start(), RedisServer::start()], Clock::manual(NOW));
    let servers = [&servers[0], &servers[1]];
    let (here, keys) = sharded_gateway(&servers, &clock).await;
    let (other, _) = sharded_gateway(&servers, &clock).await;
    let [broad, narrow] = [("broad", 100), ("narrow", 2)].map(|(name, count)| {
        Arc::new(Limit {
            quota: Quota::sliding(count, Millis::from_secs(3_600), 1),
            ..Limit::clone(&limit(name, count))
        })
    });
    let both = [charge(&broad, keys[0]), charge(&narrow, keys[1])];
    assert!(other.decide(&both).await.admitted && other.decide(&both).await.admitted);
    assert!(!here.decide(&both).await.admitted);
    let change = Change::Refund { charged_at: NOW, cost: 1 };
    let adjustment = Adjustment { limit: &narrow, key: both[1].key, change };
    assert!(
        other.handle.adjust(&[adjustment], DecisionSource::Store, NOW).await[0].decided().is_some()
    );
    clock.set(NOW + ms(1_999));
    assert!(!here.decide(&both).await.admitted, "the cached refusal is trusted");
    clock.set(NOW + ms(2_000));
    assert!(here.decide(&both).await.admitted);
}

/// The server that refused is lost, so the refusal cannot be revalidated; the other server charges
/// nothing.
#[tokio::test]
async fn a_cached_refusal_outlives_its_server() {
    let (mut servers, clock) = ([RedisServer::start(), RedisServer::start()], Clock::manual(NOW));
    let (gateway, keys) = sharded_gateway(&[&servers[0], &servers[1]], &clock).await;
    let [broad, narrow] = [("broad", 100), ("narrow", 1)].map(|(name, count)| {
        Arc::new(Limit {
            quota: Quota::sliding(count, Millis::from_secs(3_600), 1),
            ..Limit::clone(&limit(name, count))
        })
    });
    let both = [charge(&broad, keys[0]), charge(&narrow, keys[1])];
    assert!(gateway.decide(&both).await.admitted);
    let refused = gateway.decide(&both).await;
    assert!(!refused.admitted);
    servers[1].kill();
    clock.set(NOW + ms(60_000));
    let verdict = gateway.decide(&both).await;
    assert!(!verdict.admitted);
    assert_eq!(verdict.decision(1).retry_at, refused.decision(1).retry_at);
    eventually_async("nothing is charged", async || gateway.used_by(&broad, keys[0]).await == 1)
        .await;
}
