use std::sync::Arc;

use testkit::{redis_server::RedisServer, verdict::VerdictExt as _};
use tidegate::clock::ms;
use tidegate::{
    charge::Limit,
    clock::Clock,
    limit::{Algorithm, Millis, Quota},
};

use super::{LeaseGateway, leased_limit};
use crate::support::{NOW, charge};

/// A limit of one request per window, in ms.
fn one_per_window(name: &str, window: u64, units: u64) -> Arc<Limit> {
    let quota = Quota::new(1, Millis::from_ms(window), Algorithm::FixedWindow);
    Arc::new(Limit { quota, ..Limit::clone(&leased_limit(name, 1, units)) })
}

#[tokio::test]
async fn the_longest_retry_at_of_several_limits_admits() {
    for units in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let (redis, clock) = (RedisServer::start(), Clock::manual(NOW));
        let gateway = LeaseGateway::new(&redis, &clock);
        let (short, long) =
            (one_per_window("short", 2_000, units.0), one_per_window("long", 60_000, units.1));
        for both in [[&short, &long], [&long, &short]] {
            let charges = both.map(|limit| charge(limit, 1));
            assert!(gateway.decide(&charges).await.admitted, "{units:?}");
            // Refused by the store, by the wait queue, or by the deny cache.
            for turn in 0..4 {
                let verdict = gateway.decide(&charges).await;
                let longest = verdict
                    .outcomes
                    .iter()
                    .filter_map(|outcome| outcome.refused()?.decision.retry_at);
                let wait = longest.max().expect("a refusal") - verdict.decided_at();
                assert!(!verdict.admitted && wait > ms(59_000), "{units:?} {turn}: {wait}");
            }
            clock.set(clock.store_time() + ms(60_000));
        }
    }
}
