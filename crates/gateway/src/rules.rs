//! A worker's view of the live snapshot: each route with the worker's counters, and the balancer of
//! its upstream.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use ahash::RandomState;
use arc_swap::Guard;
use crossbeam_utils::CachePadded;
use hashbrown::{HashMap, HashSet};
use http::HeaderName;
use smallvec::SmallVec;
use tidegate_access::auth::ConsumerTable;
use tidegate_identity::CredentialSource;
use tidegate_route::ValueSource;
use tidegate_rules::live::CurrentRules;
use tidegate_rules::snapshot::{
    Action, LimitPolicy, RateLimitDomain, Route, Snapshot, counted_headers,
};
use tidegate_system::clock::CoarseClock;
use tidegate_template::HeaderRules;
use tidegate_upstream::{LoadBalancer, PoolTable, ProtectedHeaders, UpstreamKind};

use super::Shared;
use crate::metrics::{LimitCounters, PlanCounters, RouteCounters, UpstreamCounters, WorkerMetrics};

/// A snapshot with a worker's state. A request uses the same one to its end, even across a reload.
pub(super) struct WorkerRules {
    pub(super) snapshot: Arc<Snapshot>,
    /// The snapshot, with its consumers.
    current: Arc<CurrentRules>,
    /// One for each route, in the snapshot's order.
    pub(super) routes: Vec<Rc<WorkerRoute>>,
    /// The counters of requests without a route.
    pub(super) unrouted: Arc<CachePadded<RouteCounters>>,
    /// The domains of the rate limit service, by name.
    domains: HashMap<Box<str>, Rc<WorkerDomain>, RandomState>,
    /// The counters of each plan, by its name.
    plans: HashMap<Box<str>, Arc<CachePadded<PlanCounters>>, RandomState>,
    /// One for each upstream with targets.
    load_balancers: Vec<Rc<LoadBalancer>>,
}

/// A limit of one route, with the worker's counters.
pub(super) struct LimitRule {
    pub(super) policy: Arc<LimitPolicy>,
    pub(super) counters: Arc<CachePadded<LimitCounters>>,
}

/// A domain of the rate limit service, with a worker's state for it.
pub(super) struct WorkerDomain {
    pub(super) settings: Arc<RateLimitDomain>,
    pub(super) counters: Arc<CachePadded<RouteCounters>>,
    /// In the order of the domain's limits.
    pub(super) limits: Vec<Rc<LimitRule>>,
}

/// A route, with a worker's state for it.
pub(super) struct WorkerRoute {
    pub(super) settings: Arc<Route>,
    pub(super) counters: Arc<CachePadded<RouteCounters>>,
    pub(super) limits: SmallVec<[Rc<LimitRule>; 4]>,
    /// The headers that limits or conditions of routes depend on, or that the route removes,
    /// replaces or changes: a client can neither remove them with `Connection` nor add a second one
    /// under an alias.
    pub(super) protected_headers: ProtectedHeaders,
    /// The upstream of the route's action; `None` for another action.
    pub(super) upstream: Option<WorkerUpstream>,
    /// The balancer of the upstream that receives copies; `None` without a mirror.
    pub(super) mirror: Option<Rc<LoadBalancer>>,
}

/// The upstream of a route, with a worker's state for it.
pub(super) struct WorkerUpstream {
    pub(super) counters: Arc<CachePadded<UpstreamCounters>>,
    /// `None` for a fixed response.
    pub(super) balancer: Option<Rc<LoadBalancer>>,
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
        rules.load_balancers.iter().for_each(|balancer| balancer.sweep());
        self.pools.sweep();
    }

    /// Closes idle connections to servers where other workers need the room. Near the process's
    /// maximum of upstream connections, closes all idle ones.
    pub(super) fn yield_connections(&self) {
        let rules = self.rules.borrow().clone();
        rules.load_balancers.iter().for_each(|balancer| balancer.yield_connections());
    }
}

impl WorkerRules {
    fn new(shared: &Shared, metrics: &WorkerMetrics, pools: &Rc<PoolTable>) -> Self {
        let current = shared.live.rules();
        let snapshot = Arc::clone(&current.snapshot);
        let balancers = snapshot.upstreams.iter().map(|upstream| {
            let UpstreamKind::Servers(_) = &upstream.kind else { return None };
            let state = shared.upstreams.get(&upstream.name)?;
            Some(Rc::new(LoadBalancer::new(state, Rc::clone(pools))))
        });
        // In the order of the snapshot's upstreams.
        let balancers: Vec<Option<Rc<LoadBalancer>>> = balancers.collect();
        let tested = tested_headers(&snapshot.routes);
        let routes = snapshot.routes.iter().map(|route| {
            let protected = protected_names(route, &snapshot.identity.token);
            let protected_headers = ProtectedHeaders::new(&protected).with_tested(&tested);
            Rc::new(WorkerRoute::new(route, protected_headers, metrics, &balancers))
        });
        let routes = routes.collect();
        let plans = snapshot.plans.iter().map(|name| (name.clone(), metrics.plan(name)));
        let plans = plans.collect();
        let service = snapshot.rate_limit_service.iter();
        let domains = service
            .flat_map(|service| &service.domains)
            .map(|(name, domain)| (name.clone(), Rc::new(WorkerDomain::new(domain, metrics))));
        let domains = domains.collect();
        let rules = Self {
            snapshot,
            current,
            domains,
            routes,
            unrouted: metrics.route(""),
            plans,
            load_balancers: balancers.into_iter().flatten().collect(),
        };
        rules.prune(metrics);
        rules
    }

    /// The snapshot's consumers, for the time of a lookup.
    #[inline]
    pub(super) fn consumers(&self) -> Guard<Arc<ConsumerTable>> {
        self.current.consumers.load()
    }

    /// The domain of this name.
    pub(super) fn domain(&self, name: &str) -> Option<Rc<WorkerDomain>> {
        self.domains.get(name).map(Rc::clone)
    }

    /// The counters of a plan.
    pub(super) fn plan(&self, name: &str) -> Option<&PlanCounters> {
        self.plans.get(name).map(|counters| &***counters)
    }

    /// Removes the metrics of routes, plans, limits and upstreams that are no longer configured.
    /// Requests in flight under older rules still update their counters, which are not exported.
    fn prune(&self, metrics: &WorkerMetrics) {
        let routes = &self.snapshot.routes;
        let limits = routes.iter().flat_map(|route| {
            route.limits.iter().map(|policy| (&*route.name, policy.limit.name()))
        });
        let domains = self.domains.values().map(|domain| &domain.settings);
        let limits_of_domains = domains.clone().flat_map(|domain| {
            domain.limits.iter().map(|policy| (&*domain.label, policy.limit.name()))
        });
        let upstreams = self.snapshot.upstreams.iter().map(|upstream| &*upstream.name);
        let labels = domains.map(|domain| &*domain.label);
        metrics.retain(
            &routes.iter().map(|route| &*route.name).chain(labels).collect(),
            &limits.chain(limits_of_domains).collect(),
            &upstreams.collect(),
        );
        metrics.retain_plans(&self.snapshot.plans.iter().map(|plan| &**plan).collect());
    }
}

impl WorkerDomain {
    fn new(settings: &Arc<RateLimitDomain>, metrics: &WorkerMetrics) -> Self {
        let limits = settings.limits.iter().map(|policy| {
            let counters = metrics.limit(&settings.label, policy.limit.name());
            Rc::new(LimitRule { policy: Arc::clone(policy), counters })
        });
        Self {
            settings: Arc::clone(settings),
            counters: metrics.route(&settings.label),
            limits: limits.collect(),
        }
    }
}

impl WorkerRoute {
    /// `balancers` has the balancer of each of the snapshot's upstreams, in their order.
    fn new(
        settings: &Arc<Route>,
        protected_headers: ProtectedHeaders,
        metrics: &WorkerMetrics,
        balancers: &[Option<Rc<LoadBalancer>>],
    ) -> Self {
        let limits = settings.limits.iter().map(|policy| {
            let counters = metrics.limit(&settings.name, policy.limit.name());
            Rc::new(LimitRule { policy: Arc::clone(policy), counters })
        });
        let upstream = match &settings.action {
            Action::Upstream(upstream) => Some(WorkerUpstream {
                counters: metrics.upstream(&upstream.name),
                balancer: balancers[upstream.index].clone(),
            }),
            Action::Status(_) | Action::Redirect(_) | Action::Respond(_) | Action::Decide(_) => {
                None
            }
        };
        let mirror = settings.mirror.as_ref();
        Self {
            settings: Arc::clone(settings),
            counters: metrics.route(&settings.name),
            limits: limits.collect(),
            protected_headers,
            upstream,
            mirror: mirror.and_then(|mirror| balancers[mirror.upstream.index].clone()),
        }
    }
}

/// The headers that limits and authentication of `route` depend on, and the headers that it
/// removes, replaces or changes. Sorted, without duplicates.
fn protected_names(route: &Route, tokens: &[CredentialSource]) -> Vec<HeaderName> {
    let mut names = counted_headers(&route.limits, tokens);
    // A client could send one key to the gateway, and under an alias another one to the upstream.
    names.extend(route.auth.iter().flat_map(|auth| auth.headers()).cloned());
    let rules = route.edits.request_headers.iter();
    names.extend(rules.clone().flat_map(HeaderRules::dropped).cloned());
    let replacements = rules.flat_map(HeaderRules::replacements);
    names.extend(replacements.map(|(name, _)| name.clone()));
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    names
}

/// The headers that conditions of routes test.
fn tested_headers(routes: &[Arc<Route>]) -> Rc<[HeaderName]> {
    let tests = routes.iter().flat_map(|route| route.edits.conditions.tests());
    let names = tests.filter_map(|test| match &test.source {
        ValueSource::Header(name) => Some(name.clone()),
        ValueSource::Query(_) => None,
    });
    let names: HashSet<HeaderName, RandomState> = names.collect();
    names.into_iter().collect()
}
