//! One worker's own view of the rules: the snapshot, and beside each of its routes and upstreams what
//! this worker keeps for them.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use ahash::RandomState;
use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use http::HeaderName;
use smallvec::SmallVec;

use crate::{
    identity::{Part, TokenSource},
    live::Live,
    metrics::{LimitCounters, RouteCounters, Shard, UpstreamCounters},
    snapshot::{Action, Cost, Policy, Route, Snapshot, Whose},
    upstream::{Balance, Kind, Pool, Protected, Target},
};

/// The rules as one worker uses them. A request holds one from its first step to its last.
pub(super) struct Rules {
    pub(super) snapshot: Arc<Snapshot>,
    /// One a route, in the snapshot's order.
    pub(super) routes: Vec<RouteView>,
    /// One an upstream, in the snapshot's order; empty where the gateway itself answers.
    pub(super) balances: Vec<Balance>,
}

/// A limit of one route, and what this worker counts of it.
pub(super) struct LimitRule {
    pub(super) policy: Arc<Policy>,
    pub(super) counters: Arc<CachePadded<LimitCounters>>,
}

/// What a worker counts of one route.
pub(super) struct RouteView {
    pub(super) counters: Arc<CachePadded<RouteCounters>>,
    pub(super) limits: SmallVec<[Rc<LimitRule>; 4]>,
    /// Headers that a client can neither strip nor say twice.
    pub(super) protected: Protected,
    /// Of its upstream, if it has one.
    pub(super) upstream: Option<Arc<CachePadded<UpstreamCounters>>>,
}

/// Makes [`Rules`] when the live ones have been replaced, and keeps connections across that.
pub(super) struct RulesCache {
    generation: Cell<u64>,
    rules: RefCell<Rc<Rules>>,
    pools: RefCell<HashMap<Target, Rc<Pool>, RandomState>>,
    clock: Rc<Cell<u64>>,
}

impl RulesCache {
    pub(super) fn new(live: &Live, shard: &Shard, clock: Rc<Cell<u64>>) -> Self {
        let pools = RefCell::default();
        let generation = live.generation();
        let rules = Rules::new(live.snapshot(), shard, &pools, &clock);
        Self {
            generation: Cell::new(generation),
            rules: RefCell::new(Rc::new(rules)),
            pools,
            clock,
        }
    }

    /// The rules now.
    pub(super) fn get(&self, live: &Live, shard: &Shard) -> Rc<Rules> {
        let generation = live.generation();
        if generation != self.generation.get() {
            let rules = Rules::new(live.snapshot(), shard, &self.pools, &self.clock);
            self.generation.set(generation);
            *self.rules.borrow_mut() = Rc::new(rules);
        }
        self.rules.borrow().clone()
    }

    /// Closes connections that were idle too long, and forgets servers that no rule names any more.
    pub(super) fn sweep(&self) {
        let rules = self.rules.borrow().clone();
        for (upstream, balance) in rules.snapshot.upstreams.iter().zip(&rules.balances) {
            if let Kind::Servers(servers) = &upstream.kind {
                let limit = servers.idle_timeout.as_millis() as u64;
                balance.pools().iter().for_each(|pool| pool.sweep(limit));
            }
        }
        self.pools.borrow_mut().retain(|_, pool| Rc::strong_count(pool) > 1);
    }
}

impl Rules {
    fn new(
        snapshot: Arc<Snapshot>,
        shard: &Shard,
        pools: &RefCell<HashMap<Target, Rc<Pool>, RandomState>>,
        clock: &Rc<Cell<u64>>,
    ) -> Self {
        let routes = snapshot.routes.iter().map(|route| RouteView {
            counters: shard.route(&route.name),
            limits: route
                .limits
                .iter()
                .map(|used| {
                    let policy = Arc::clone(&used.policy);
                    let counters = shard.limit(&route.name, &policy.limit.name);
                    Rc::new(LimitRule { policy, counters })
                })
                .collect(),
            protected: Protected::new(&protected(route, &snapshot.identity.token)),
            upstream: match &route.action {
                Action::Upstream(upstream) => Some(shard.upstream(&upstream.name)),
                Action::Status(_) => None,
            },
        });
        let pool_of = |target: &Target| {
            let mut pools = pools.borrow_mut();
            pools
                .entry(target.clone())
                .or_insert_with(|| Pool::new(target.clone(), clock.clone()))
                .clone()
        };
        let balances = snapshot.upstreams.iter().map(|upstream| match &upstream.kind {
            Kind::Servers(servers) => Balance::new(servers.targets.iter().map(pool_of).collect()),
            Kind::Respond(_) => Balance::new(Vec::new()),
        });
        let rules = Self { routes: routes.collect(), balances: balances.collect(), snapshot };
        rules.prune(shard);
        rules
    }

    /// Removes series that these rules do not name from the worker's metrics. Requests in flight on older
    /// rules still count, but no scrape reads it.
    fn prune(&self, shard: &Shard) {
        let routes = &self.snapshot.routes;
        let limits = routes.iter().flat_map(|route| {
            route.limits.iter().map(|limit| (&*route.name, &*limit.policy.limit.name))
        });
        let upstreams = self.snapshot.upstreams.iter().map(|upstream| &*upstream.name);
        shard.retain(
            &routes.iter().map(|route| &*route.name).collect(),
            &limits.collect(),
            &upstreams.collect(),
        );
    }
}

/// The headers that a limit of `route` counts by, or takes a cost or a tier from, or that tokens stand
/// in.
fn protected(route: &Route, tokens: &[TokenSource]) -> Vec<HeaderName> {
    let header = |part: &Part| match part {
        Part::Header(name) => Some(name.clone()),
        Part::Cookie(_) => Some(http::header::COOKIE),
        _ => None,
    };
    let mut names = Vec::new();
    for policy in route.limits.iter().map(|used| &used.policy) {
        names.extend(policy.key.0.iter().filter_map(header));
        if let Cost::Header { name, .. } = &policy.cost {
            names.push(name.clone());
        }
        names.extend(policy.tiers.iter().filter_map(|tier| match &tier.whose {
            Whose::Part(part, _) => header(part),
            Whose::Networks(_) => None,
        }));
    }
    names.extend(tokens.iter().map(|source| match source {
        TokenSource::Header(name) => name.clone(),
        TokenSource::Cookie(_) => http::header::COOKIE,
    }));
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    names
}
