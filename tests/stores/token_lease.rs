//! The deny cache and token leases of a store on a real Redis.

/// Leases are exact with any number of gateways and workers.
mod chunks;
/// The deny cache and its invalidation.
mod deny_cache;
/// Requests with several limits, some with leases.
mod multi_limit;
/// Outages while tokens are leased.
mod outage;
/// Several refusals: the longest `retry_at` is reported.
mod retry_after;
/// Unspent tokens are returned.
mod returns;

use std::sync::Arc;

use testkit::{
    redis_server::RedisServer,
    verdict::{OutcomesExt as _, VerdictExt as _},
    wait::eventually_async,
};
use tidegate::{
    clock::Clock,
    limit::{Adjustment, Change, Charge, Decision, DecisionSource, Key, Limit, Reserve, Verdict},
    store::{CounterStore, StoreHandle},
};

use crate::support::{NOW, charge, limit, stores};

/// A gateway with one worker on a manual clock.
struct Gateway {
    stores: Arc<CounterStore>,
    store: StoreHandle,
}

impl Gateway {
    fn new(redis: &RedisServer, clock: &Clock) -> Self {
        Self::on(stores(redis, clock.clone()))
    }

    fn on(stores: Arc<CounterStore>) -> Self {
        let store = stores.worker();
        Self { stores, store }
    }

    async fn ask(&self, charges: &[Charge<'_>]) -> Verdict {
        self.store.charge(charges, NOW).await.expect("no limit that is closed")
    }

    /// Charges one caller one unit.
    async fn one(&self, limit: &Limit) -> Decision {
        self.cost(limit, 1).await
    }

    async fn cost(&self, limit: &Limit, cost: u32) -> Decision {
        self.ask(&[Charge { cost, ..charge(limit, 1) }]).await.decision(0)
    }

    /// Refunds a unit charged at that time; the state afterwards.
    async fn refund(&self, limit: &Limit, charged_at: u64) -> Decision {
        let change = Change::Refund { charged_at, cost: 1 };
        let adjustment = Adjustment { limit, key: Key(1), change };
        self.store.adjust(&[adjustment], DecisionSource::Store, NOW).await.decision(0)
    }

    /// The caller's usage in Redis.
    async fn used(&self, limit: &Limit) -> u64 {
        self.used_by(limit, 1).await
    }

    async fn used_by(&self, limit: &Limit, key: u128) -> u64 {
        // With `reserve`, local tokens would be counted as remaining.
        let plain = Limit { reserve: Reserve::Off, ..limit.clone() };
        let looked = self.stores.peek(&[charge(&plain, key)]).await.expect("a Redis");
        looked.decision(0).used
    }

    /// The number of local tokens.
    fn outstanding(&self) -> u64 {
        self.stores.stats().tokens.outstanding
    }
}

/// Advances the clock until idle tokens have been returned.
async fn idle(gateway: &Gateway, clock: &Clock) {
    eventually_async("they are given back", async || {
        clock.set(clock.now() + 100);
        gateway.outstanding() == 0
    })
    .await;
}

/// A limit with a reserve of `tokens`; without one if it is 0.
fn reserving(name: &str, quota: u32, tokens: u32) -> Limit {
    let reserve = if tokens > 0 { Reserve::Tokens(tokens) } else { Reserve::Off };
    Limit { reserve, ..limit(name, quota) }
}

/// The number of script calls at Redis, peeks included.
fn calls(redis: &RedisServer) -> u64 {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let of = |name: &str| {
        let rest = stats.lines().find_map(|line| line.strip_prefix(name));
        rest.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    of("cmdstat_evalsha:calls=") + of("cmdstat_eval:calls=")
}
