//! The deny cache and leases with a real Redis.

/// Leases are exact with any number of gateways and workers.
mod chunks;
/// The deny cache and its invalidation.
mod deny_cache;
/// Requests with several limits, some with leases.
mod multi_limit;
/// Outages while units are leased.
mod outage;
/// The longest `retry_at` of several refusals.
mod retry_after;
/// Unspent units are returned.
mod returns;
/// Several quotas of one record: tiers and reloads.
mod several_quotas;

use std::sync::Arc;

use testkit::{
    redis_server::RedisServer,
    verdict::{OutcomesExt as _, VerdictExt as _},
    wait::eventually_async,
};
use tidegate::clock::ms;
use tidegate::{
    charge::{Adjustment, Charge, DecisionSource, Key, LeaseSize, Limit, Verdict},
    clock::{Clock, StoreTime},
    limit::{Change, Decision},
    store::{CounterStore, StoreHandle},
};

use crate::support::{NOW, charge, counter_store, limit};

/// A gateway with one worker, usually on a manual clock.
struct LeaseGateway {
    counter_store: Arc<CounterStore>,
    handle: StoreHandle,
}

impl LeaseGateway {
    fn new(redis: &RedisServer, clock: &Clock) -> Self {
        Self::on(counter_store(redis, clock.clone()))
    }

    fn on(counter_store: Arc<CounterStore>) -> Self {
        let handle = counter_store.worker();
        Self { counter_store, handle }
    }

    async fn decide(&self, charges: &[Charge<'_>]) -> Verdict {
        self.handle.charge(charges, NOW).await.expect("no `closed` policy")
    }

    /// Charges caller 1 one unit.
    async fn charge_one(&self, limit: &Arc<Limit>) -> Decision {
        self.charge_cost(limit, 1).await
    }

    /// Charges caller 1 this cost.
    async fn charge_cost(&self, limit: &Arc<Limit>, cost: u64) -> Decision {
        self.decide(&[Charge { cost, ..charge(limit, 1) }]).await.decision(0)
    }

    /// Refunds a unit charged at that time. Returns the state after it.
    async fn refund(&self, limit: &Arc<Limit>, charged_at: StoreTime) -> Decision {
        let change = Change::Refund { charged_at, cost: 1 };
        let adjustment = Adjustment { limit, key: Key(1), change };
        self.handle.adjust(&[adjustment], DecisionSource::Store, NOW).await.decision(0)
    }

    /// The usage of caller 1 in Redis.
    async fn used(&self, limit: &Arc<Limit>) -> u64 {
        self.used_by(limit, 1).await
    }

    async fn used_by(&self, limit: &Arc<Limit>, key: u128) -> u64 {
        // With `reserve`, a peek counts local units as remaining.
        let plain = Arc::new(Limit { lease_size: LeaseSize::Off, ..Limit::clone(limit) });
        let peeked = self.counter_store.peek(&[charge(&plain, key)]).await.expect("a Redis");
        peeked.decision(0).used
    }

    /// The number of units leased to the gateway.
    fn outstanding(&self) -> u64 {
        self.counter_store.stats().leases.outstanding
    }
}

/// Advances the clock until all leased units are returned as idle.
async fn return_idle(gateway: &LeaseGateway, clock: &Clock) {
    eventually_async("the units are returned", async || {
        clock.set(clock.store_time() + ms(100));
        gateway.outstanding() == 0
    })
    .await;
}

/// A limit with a reserve of `units`; without one if that is 0.
fn leased_limit(name: &str, quota: u64, units: u64) -> Arc<Limit> {
    let lease_size = if units > 0 { LeaseSize::Units(units) } else { LeaseSize::Off };
    Arc::new(Limit { lease_size, ..Limit::clone(&limit(name, quota)) })
}

/// Number of script calls at Redis, including peeks.
fn calls(redis: &RedisServer) -> u64 {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let of = |name: &str| {
        let rest = stats.lines().find_map(|line| line.strip_prefix(name));
        rest.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    of("cmdstat_evalsha:calls=") + of("cmdstat_eval:calls=")
}
