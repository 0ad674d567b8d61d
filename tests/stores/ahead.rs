//! Refusals that are remembered, and tokens taken ahead, at a store with a real Redis behind it.

/// Several refusals at once: the longest is told.
mod obeyed;
/// What is refused from memory, and when it no longer is.
mod refusals;
/// Tokens of limits that reserve: exact, however many take them.
mod reserved;
/// What is not spent goes back.
mod returned;
/// Requests with several limits, some of which reserve.
mod together;
/// Redis lost while tokens are here.
mod without;

use crate::verdict::{OutcomesExt as _, VerdictExt as _};
use std::sync::Arc;

use tidegate::{
    clock::Clock,
    limit::{Change, Charge, Decider, Decision, Key, Limit, Reserve, Settlement, Verdict},
    store::{Store, Stores},
};

use crate::{
    redis_server::RedisServer,
    support::{NOW, charge, eventually, limit, stores},
};

/// A gateway with one worker, on a clock that the test moves.
struct Gateway {
    stores: Arc<Stores>,
    store: Store,
}

impl Gateway {
    fn new(redis: &RedisServer, clock: &Clock) -> Self {
        Self::on(stores(redis, clock.clone()))
    }

    fn on(stores: Arc<Stores>) -> Self {
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

    /// Gives a unit back that was charged then; what holds after it.
    async fn refund(&self, limit: &Limit, charged_at: u64) -> Decision {
        let change = Change::Refund { charged_at, cost: 1 };
        let settlement = Settlement { limit, key: Key(1), change };
        self.store.settle(&[settlement], Decider::Store, NOW).await.decision(0)
    }

    /// What Redis has counted of the caller.
    async fn used(&self, limit: &Limit) -> u64 {
        self.used_by(limit, 1).await
    }

    async fn used_by(&self, limit: &Limit, key: u128) -> u64 {
        // Of a limit that reserves, tokens that are kept here would be told as left.
        let plain = Limit { reserve: Reserve::Off, ..limit.clone() };
        let looked = self.stores.look(&[charge(&plain, key)]).await.expect("a Redis");
        looked.decision(0).used
    }

    /// Tokens that are kept here.
    fn outstanding(&self) -> u64 {
        self.stores.stats().tokens.outstanding
    }
}

/// Lets time pass until no tokens are here: nobody uses them.
async fn idle(gateway: &Gateway, clock: &Clock) {
    eventually("they are given back", async || {
        clock.set(clock.now() + 100);
        gateway.outstanding() == 0
    })
    .await;
}

/// A limit that takes so many tokens ahead; one that does not reserve, where they are none.
fn reserving(name: &str, quota: u32, tokens: u32) -> Limit {
    let reserve = if tokens > 0 { Reserve::Tokens(tokens) } else { Reserve::Off };
    Limit { reserve, ..limit(name, quota) }
}

/// How many calls of a script Redis has had, those that only look included.
fn calls(redis: &RedisServer) -> u64 {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let of = |name: &str| {
        let rest = stats.lines().find_map(|line| line.strip_prefix(name));
        rest.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    of("cmdstat_evalsha:calls=") + of("cmdstat_eval:calls=")
}
