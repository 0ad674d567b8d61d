//! A worker's view of the live snapshot: each route and upstream with the worker's counters and
//! connection pools.

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
    live::LiveSnapshot,
    metrics::{LimitCounters, RouteCounters, UpstreamCounters, WorkerMetrics},
    snapshot::{Action, Cost, LimitPolicy, Route, Snapshot, TierMatch},
    upstream::{LoadBalancer, Pool, ProtectedHeaders, Target, UpstreamKind},
};

/// A snapshot with a worker's state. A request uses the same one to its end, even across a reload.
pub(super) struct WorkerRules {
    pub(super) snapshot: Arc<Snapshot>,
    /// One for each route, in the snapshot's order.
    pub(super) routes: Vec<RouteState>,
    /// One for each upstream, in the snapshot's order; without servers for a fixed response.
    pub(super) load_balancers: Vec<LoadBalancer>,
}

/// A limit of one route, with the worker's counters.
pub(super) struct LimitRule {
    pub(super) policy: Arc<LimitPolicy>,
    pub(super) counters: Arc<CachePadded<LimitCounters>>,
}

/// A worker's state of one route.
pub(super) struct RouteState {
    pub(super) counters: Arc<CachePadded<RouteCounters>>,
    pub(super) limits: SmallVec<[Rc<LimitRule>; 4]>,
    /// The headers that limits depend on: a client can neither remove them with `Connection` nor
    /// add a second one under an alias.
    pub(super) protected_headers: ProtectedHeaders,
    /// The counters of its upstream, if it has one.
    pub(super) upstream: Option<Arc<CachePadded<UpstreamCounters>>>,
}

/// The current [`WorkerRules`], rebuilt after a reload. Connection pools are kept across reloads.
pub(super) struct RulesCache {
    generation: Cell<u64>,
    rules: RefCell<Rc<WorkerRules>>,
    pools: RefCell<HashMap<Target, Rc<Pool>, RandomState>>,
    /// The worker's coarse clock, in ms.
    coarse_clock: Rc<Cell<u64>>,
}

impl RulesCache {
    pub(super) fn new(
        live: &LiveSnapshot,
        metrics: &WorkerMetrics,
        coarse_clock: Rc<Cell<u64>>,
    ) -> Self {
        let pools = RefCell::default();
        let generation = live.generation();
        let rules = WorkerRules::new(live.snapshot(), metrics, &pools, &coarse_clock);
        Self {
            generation: Cell::new(generation),
            rules: RefCell::new(Rc::new(rules)),
            pools,
            coarse_clock,
        }
    }

    /// The current rules, rebuilt first if the configuration was reloaded.
    pub(super) fn get(&self, live: &LiveSnapshot, metrics: &WorkerMetrics) -> Rc<WorkerRules> {
        let generation = live.generation();
        if generation != self.generation.get() {
            let rules = WorkerRules::new(live.snapshot(), metrics, &self.pools, &self.coarse_clock);
            self.generation.set(generation);
            *self.rules.borrow_mut() = Rc::new(rules);
        }
        self.rules.borrow().clone()
    }

    /// Closes upstream connections that were idle too long, and removes the pools of servers that
    /// are no longer configured.
    pub(super) fn sweep_pools(&self) {
        let rules = self.rules.borrow().clone();
        for (upstream, balancer) in rules.snapshot.upstreams.iter().zip(&rules.load_balancers) {
            if let UpstreamKind::Servers(servers) = &upstream.kind {
                let idle_timeout = servers.idle_timeout.as_millis() as u64;
                balancer.pools().iter().for_each(|pool| pool.sweep(idle_timeout));
            }
        }
        self.pools.borrow_mut().retain(|_, pool| Rc::strong_count(pool) > 1);
    }
}

impl WorkerRules {
    fn new(
        snapshot: Arc<Snapshot>,
        metrics: &WorkerMetrics,
        pools: &RefCell<HashMap<Target, Rc<Pool>, RandomState>>,
        coarse_clock: &Rc<Cell<u64>>,
    ) -> Self {
        let routes = snapshot.routes.iter().map(|route| RouteState {
            counters: metrics.route(&route.name),
            limits: route
                .limits
                .iter()
                .map(|policy| {
                    let policy = Arc::clone(policy);
                    let counters = metrics.limit(&route.name, &policy.limit.name);
                    Rc::new(LimitRule { policy, counters })
                })
                .collect(),
            protected_headers: ProtectedHeaders::new(&protected_names(
                route,
                &snapshot.identity.token,
            )),
            upstream: match &route.action {
                Action::Upstream(upstream) => Some(metrics.upstream(&upstream.name)),
                Action::Status(_) => None,
            },
        });
        let pool_of = |target: &Target| {
            let mut pools = pools.borrow_mut();
            pools
                .entry(target.clone())
                .or_insert_with(|| Pool::new(target.clone(), coarse_clock.clone()))
                .clone()
        };
        let load_balancers = snapshot.upstreams.iter().map(|upstream| match &upstream.kind {
            UpstreamKind::Servers(servers) => {
                LoadBalancer::new(servers.targets.iter().map(pool_of).collect())
            }
            UpstreamKind::Fixed(_) => LoadBalancer::new(Vec::new()),
        });
        let (routes, load_balancers) = (routes.collect(), load_balancers.collect());
        let rules = Self { snapshot, routes, load_balancers };
        rules.prune(metrics);
        rules
    }

    /// Removes the metrics of routes, limits and upstreams that are no longer configured. Requests
    /// in flight under older rules still update their counters, which are not exported.
    fn prune(&self, metrics: &WorkerMetrics) {
        let routes = &self.snapshot.routes;
        let limits = routes.iter().flat_map(|route| {
            route.limits.iter().map(|policy| (&*route.name, &*policy.limit.name))
        });
        let upstreams = self.snapshot.upstreams.iter().map(|upstream| &*upstream.name);
        metrics.retain(
            &routes.iter().map(|route| &*route.name).collect(),
            &limits.collect(),
            &upstreams.collect(),
        );
    }
}

/// The headers that the limits of `route` read keys, costs or tiers from, and those that carry
/// tokens. Sorted, without duplicates.
fn protected_names(route: &Route, tokens: &[TokenSource]) -> Vec<HeaderName> {
    let header = |part: &Part| match part {
        Part::Header(name) => Some(name.clone()),
        Part::Cookie(_) => Some(http::header::COOKIE),
        _ => None,
    };
    let mut names = Vec::new();
    for policy in &route.limits {
        names.extend(policy.key.0.iter().filter_map(header));
        if let Cost::Header { name, .. } = &policy.cost {
            names.push(name.clone());
        }
        names.extend(policy.tiers.iter().filter_map(|tier| match &tier.matches {
            TierMatch::Part(part, _) => header(part),
            TierMatch::Networks(_) => None,
        }));
    }
    names.extend(tokens.iter().filter_map(|source| match source {
        TokenSource::Header(name) => Some(name.clone()),
        TokenSource::Cookie(_) => Some(http::header::COOKIE),
        TokenSource::Recorded(_) => None,
    }));
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    names
}
