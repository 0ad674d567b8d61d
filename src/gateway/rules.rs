//! A worker's view of the live snapshot: each route and upstream with the worker's counters and
//! connection pools.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use ahash::RandomState;
use crossbeam_utils::CachePadded;
use hashbrown::HashSet;
use http::HeaderName;
use smallvec::SmallVec;

use super::Shared;
use crate::{
    clock::CoarseClock,
    identity::CredentialSource,
    metrics::{LimitCounters, RouteCounters, UpstreamCounters, WorkerMetrics},
    route::ValueSource,
    snapshot::{Action, LimitPolicy, Route, Snapshot, counted_headers},
    template::HeaderRules,
    upstream::{LoadBalancer, PoolTable, ProtectedHeaders, UpstreamKind},
};

/// A snapshot with a worker's state. A request uses the same one to its end, even across a reload.
pub(super) struct WorkerRules {
    pub(super) snapshot: Arc<Snapshot>,
    /// One for each route, in the snapshot's order.
    pub(super) routes: Vec<RouteState>,
    /// One for each upstream, in the snapshot's order; `None` for a fixed response.
    pub(super) load_balancers: Vec<Option<LoadBalancer>>,
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
    pools: Rc<PoolTable>,
}

impl RulesCache {
    pub(super) fn new(shared: &Shared, metrics: &WorkerMetrics, coarse_clock: CoarseClock) -> Self {
        let pools = PoolTable::new(coarse_clock);
        let generation = shared.live.generation();
        let rules = WorkerRules::new(shared, metrics, &pools);
        Self { generation: Cell::new(generation), rules: RefCell::new(Rc::new(rules)), pools }
    }

    /// The current rules, rebuilt first if the configuration was reloaded.
    pub(super) fn get(&self, shared: &Shared, metrics: &WorkerMetrics) -> Rc<WorkerRules> {
        let generation = shared.live.generation();
        if generation != self.generation.get() {
            let rules = WorkerRules::new(shared, metrics, &self.pools);
            self.generation.set(generation);
            *self.rules.borrow_mut() = Rc::new(rules);
        }
        self.rules.borrow().clone()
    }

    /// Closes upstream connections that were idle too long, and removes the pools of servers that
    /// are no longer configured.
    pub(super) fn sweep_pools(&self) {
        let rules = self.rules.borrow().clone();
        rules.load_balancers.iter().flatten().for_each(LoadBalancer::sweep);
        self.pools.sweep();
    }

    /// Closes idle connections to servers to which another worker may open none.
    pub(super) fn yield_connections(&self) {
        let rules = self.rules.borrow().clone();
        rules.load_balancers.iter().flatten().for_each(LoadBalancer::yield_connections);
    }
}

impl WorkerRules {
    fn new(shared: &Shared, metrics: &WorkerMetrics, pools: &Rc<PoolTable>) -> Self {
        let snapshot = shared.live.snapshot();
        let tested = tested_headers(&snapshot.routes);
        let routes = snapshot.routes.iter().map(|route| RouteState {
            counters: metrics.route(&route.name),
            limits: route
                .limits
                .iter()
                .map(|policy| {
                    let policy = Arc::clone(policy);
                    let counters = metrics.limit(&route.name, policy.limit.name());
                    Rc::new(LimitRule { policy, counters })
                })
                .collect(),
            protected_headers: ProtectedHeaders::new(&protected_names(
                route,
                &snapshot.identity.token,
            ))
            .with_tested(&tested),
            upstream: match &route.action {
                Action::Upstream(upstream) => Some(metrics.upstream(&upstream.name)),
                Action::Status(_) | Action::Redirect(_) | Action::Respond(_) => None,
            },
        });
        let load_balancers = snapshot.upstreams.iter().map(|upstream| {
            let UpstreamKind::Servers(_) = &upstream.kind else { return None };
            let state = shared.upstreams.get(&upstream.name)?;
            Some(LoadBalancer::new(state, Rc::clone(pools)))
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
            route.limits.iter().map(|policy| (&*route.name, policy.limit.name()))
        });
        let upstreams = self.snapshot.upstreams.iter().map(|upstream| &*upstream.name);
        metrics.retain(
            &routes.iter().map(|route| &*route.name).collect(),
            &limits.collect(),
            &upstreams.collect(),
        );
    }
}

/// The headers that limits of `route` depend on, and headers that it removes or replaces. Sorted, without duplicates.
fn protected_names(route: &Route, tokens: &[CredentialSource]) -> Vec<HeaderName> {
    let mut names = counted_headers(&route.limits, tokens);
    let rules = route.edits.request_headers.iter();
    names.extend(rules.flat_map(HeaderRules::dropped).cloned());
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    names
}

/// The headers that routes test.
fn tested_headers(routes: &[Route]) -> Rc<[HeaderName]> {
    let tests = routes.iter().flat_map(|route| route.edits.conditions.tests());
    let names = tests.filter_map(|test| match &test.source {
        ValueSource::Header(name) => Some(name.clone()),
        ValueSource::Query(_) => None,
    });
    let names: HashSet<HeaderName, RandomState> = names.collect();
    names.into_iter().collect()
}
