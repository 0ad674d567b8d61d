//! [`UpstreamRegistry`]: the state of upstreams, which all workers share and which outlives
//! reloads.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use ahash::RandomState;
use arc_swap::ArcSwap;
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use tidegate_base::priority::Priority;
use tidegate_system::clock::{Clock, CoarseTime};

use super::{
    ConnectionBudget, Servers, Upstream, UpstreamKind, endpoint::UpstreamLoad,
    endpoint_address::EndpointAddress, endpoint_set::EndpointSet, retry_budget::RetryBudget,
};

/// The state of all upstreams with servers, by name.
#[derive(Debug)]
pub struct UpstreamRegistry {
    upstreams: Mutex<HashMap<Box<str>, Arc<UpstreamRuntime>, RandomState>>,
    clock: Clock,
    /// The connections of the process to all upstreams.
    pub connection_budget: Arc<ConnectionBudget>,
    /// Wakes the tasks that resolve names and check health after a change of the configuration.
    pub changed: tokio::sync::Notify,
}

/// The state of one upstream.
#[derive(Debug)]
pub struct UpstreamRuntime {
    /// Its name in metrics and logs.
    pub name: Box<str>,
    set: ArcSwap<EndpointSet>,
    generation: AtomicU64,
    budget: AtomicU64,
    pub(super) load: Arc<UpstreamLoad>,
    clock: Clock,
    /// Serializes replacements of the endpoints.
    replacing: Mutex<()>,
    is_removed: AtomicBool,
    /// Wakes the health checks after a replacement of the endpoints.
    pub(super) replaced: tokio::sync::Notify,
    /// Retries.
    pub(super) retries: AtomicU64,
    /// Retries that the budget did not allow.
    pub(super) budget_exhausted: AtomicU64,
    /// Requests refused because no target had room, by priority.
    pub(super) shed: [AtomicU64; Priority::COUNT],
    /// Requests refused because all targets were down.
    pub(super) refused_down: AtomicU64,
}

/// The counters of an upstream's requests, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamCounts {
    /// Retries.
    pub retries: u64,
    /// Retries that the budget did not allow.
    pub budget_exhausted: u64,
    /// Requests refused because no target had room, by priority.
    pub shed: [u64; Priority::COUNT],
    /// Requests refused because all targets were down.
    pub down: u64,
    /// Requests that wait for a target with room.
    pub pending: u32,
}

impl UpstreamCounts {
    /// Requests refused because no target had room.
    pub fn overloaded(&self) -> u64 {
        self.shed.iter().sum()
    }
}

impl UpstreamRegistry {
    /// A registry without upstreams, whose connections `connection_budget` bounds.
    pub fn new(clock: Clock, connection_budget: ConnectionBudget) -> Self {
        Self {
            upstreams: Mutex::default(),
            clock,
            connection_budget: Arc::new(connection_budget),
            changed: tokio::sync::Notify::new(),
        }
    }

    /// Sets the upstreams of a new configuration. Endpoints that stay keep their state; names that
    /// stay keep their addresses until they are resolved again.
    pub fn apply(&self, upstreams: &[Arc<Upstream>]) {
        let mut states = self.upstreams.lock();
        for upstream in upstreams {
            let UpstreamKind::Servers(servers) = &upstream.kind else { continue };
            if let Some(state) = states.get(&upstream.name) {
                state.reconfigure(servers);
                continue;
            }
            let budget = Arc::clone(&self.connection_budget);
            let state = UpstreamRuntime::new(&upstream.name, servers, self.clock.clone(), budget);
            states.insert(upstream.name.clone(), Arc::new(state));
        }
        let servers =
            upstreams.iter().filter(|upstream| matches!(upstream.kind, UpstreamKind::Servers(_)));
        let configured: HashSet<&str, RandomState> =
            servers.map(|upstream| &*upstream.name).collect();
        states.retain(|name, state| {
            let stays = configured.contains(&**name);
            state.is_removed.store(!stays, Ordering::Release);
            stays
        });
        drop(states);
        self.changed.notify_waiters();
    }

    /// The state of the upstream with this name.
    pub fn get(&self, name: &str) -> Option<Arc<UpstreamRuntime>> {
        self.upstreams.lock().get(name).cloned()
    }

    /// The state of all upstreams, by name.
    pub fn all(&self) -> Vec<Arc<UpstreamRuntime>> {
        let mut states: Vec<_> = self.upstreams.lock().values().cloned().collect();
        states.sort_by(|a, b| a.name.cmp(&b.name));
        states
    }

    /// The time for health: see [`UpstreamRuntime::now`].
    pub fn now(&self) -> CoarseTime {
        self.clock.uptime().to_coarse()
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl UpstreamRuntime {
    /// The initial state: endpoints for addresses, but none for names yet.
    pub(super) fn new(
        name: &str,
        servers: &Arc<Servers>,
        clock: Clock,
        connection_budget: Arc<ConnectionBudget>,
    ) -> Self {
        let now = clock.uptime().to_coarse();
        let load = Arc::new(UpstreamLoad { connection_budget, ..UpstreamLoad::default() });
        let addresses = known_addresses(servers, None);
        let set = EndpointSet::first(name, servers, addresses, &load, now);
        Self {
            name: name.into(),
            set: ArcSwap::from_pointee(set),
            generation: AtomicU64::new(1),
            budget: AtomicU64::new(RetryBudget::new(now).to_bits()),
            load,
            clock,
            replacing: Mutex::default(),
            is_removed: AtomicBool::new(false),
            replaced: tokio::sync::Notify::new(),
            retries: AtomicU64::default(),
            budget_exhausted: AtomicU64::default(),
            shed: Default::default(),
            refused_down: AtomicU64::default(),
        }
    }

    /// The time for health: the process's uptime, which only goes forward.
    pub fn now(&self) -> CoarseTime {
        self.clock.uptime().to_coarse()
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The current endpoints.
    pub fn endpoints(&self) -> Arc<EndpointSet> {
        self.set.load_full()
    }

    /// A number that changes with each replacement of the endpoints.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// True if a reload has removed the upstream.
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// The counters, for metrics.
    pub fn counts(&self) -> UpstreamCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        UpstreamCounts {
            retries: load(&self.retries),
            budget_exhausted: load(&self.budget_exhausted),
            shed: self.shed.each_ref().map(load),
            down: load(&self.refused_down),
            pending: self.load.pending.len(),
        }
    }

    /// Applies new settings. Names that stay keep their addresses.
    pub(super) fn reconfigure(&self, servers: &Arc<Servers>) {
        let _replacing = self.replacing.lock();
        let current = self.endpoints();
        let addresses = known_addresses(servers, Some(&current));
        self.replace(&current, servers, addresses);
    }

    /// Replaces the endpoints with `addresses`, to which the names were resolved. Returns false if
    /// the configuration has changed since `servers` was read.
    pub fn set_addresses(&self, servers: &Arc<Servers>, addresses: Vec<EndpointAddress>) -> bool {
        let _replacing = self.replacing.lock();
        let current = self.endpoints();
        if !Arc::ptr_eq(&current.servers, servers) {
            return false;
        }
        if current.addresses != addresses {
            self.replace(&current, servers, addresses);
        }
        true
    }

    fn replace(
        &self,
        current: &EndpointSet,
        servers: &Arc<Servers>,
        addresses: Vec<EndpointAddress>,
    ) {
        let next = current.replaced_by(servers, addresses, &self.load, self.now());
        self.set.store(Arc::new(next));
        self.generation.fetch_add(1, Ordering::Release);
        self.replaced.notify_waiters();
        self.load.pending.wake_next();
    }

    /// Adds `requests` to the retry budget.
    pub(super) fn record_requests(&self, requests: u32, now: CoarseTime) {
        let record = |bits| {
            let budget = RetryBudget::from_bits(bits);
            let budget = (0..requests).fold(budget, |budget, _| budget.record_request(now));
            Some(budget.to_bits())
        };
        let _ = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, record);
    }

    /// Takes a retry from the budget. True if the budget allowed it.
    pub(super) fn try_retry(&self, now: CoarseTime) -> bool {
        let take = |bits| Some(RetryBudget::from_bits(bits).try_retry(now)?.to_bits());
        let is_allowed =
            self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        let counter = if is_allowed { &self.retries } else { &self.budget_exhausted };
        counter.fetch_add(1, Ordering::Relaxed);
        is_allowed
    }
}

/// The addresses of targets that need no resolving, and of names that `current` has resolved.
fn known_addresses(servers: &Servers, current: Option<&EndpointSet>) -> Vec<EndpointAddress> {
    let mut known = Vec::new();
    for configured in &servers.targets {
        let (target, weight) = (&configured.target, configured.weight);
        if !target.needs_resolving() {
            known.push(EndpointAddress::of_target(target, weight));
            continue;
        }
        let resolved = current.into_iter().flat_map(|set| set.addresses.iter());
        known.extend(resolved.filter_map(|known| known.adapted_to(target, weight)));
    }
    known
}
