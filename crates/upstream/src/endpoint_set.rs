//! [`EndpointSet`]: the current endpoints of an upstream, with their health and the choice among
//! them.

use std::{
    fmt::Write as _,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tidegate_balance::{
    AttemptOutcome, Balancer, EndpointView, Pick, PickRequest, Policy, WeightedEndpoint,
};
use tidegate_system::clock::{Clock, CoarseTime};

use super::{
    Servers, Target,
    endpoint::{EndpointState, LastChange, UpstreamLoad},
    endpoint_address::EndpointAddress,
    target_health::{
        AttemptKind, Availability, Changes, CheckFailure, FailedAttempt, HealthChange, HealthEvent,
        HealthView, ServiceLevel, TargetHealth, UpstreamHealth,
    },
};

/// The endpoints of an upstream. A reload or a name server replaces the whole set.
#[derive(Debug)]
pub struct EndpointSet {
    /// The settings that it was built from.
    pub servers: Arc<Servers>,
    /// The endpoints, each once, in a stable order.
    pub members: Vec<Member>,
    /// The addresses that it was built from.
    pub(super) addresses: Vec<EndpointAddress>,
    upstream: Box<str>,
    /// One for each priority, the lowest number first.
    groups: Vec<PriorityGroup>,
    health: Mutex<SetHealth>,
    load: Arc<UpstreamLoad>,
}

/// An endpoint of a set.
#[derive(Debug)]
pub struct Member {
    /// Its state.
    pub state: Arc<EndpointState>,
    /// Its weight; 0: it gets no requests.
    pub weight: u32,
    /// See [`EndpointAddress::priority`].
    pub priority: u16,
}

/// The endpoints of one priority.
#[derive(Debug)]
struct PriorityGroup {
    priority: u16,
    /// Over all endpoints of the set; endpoints of other priorities have weight 0 in it.
    balancer: Balancer,
    /// The weight of its endpoints that are in service.
    weight_in_service: AtomicU64,
}

#[derive(Debug)]
struct SetHealth {
    machine: UpstreamHealth,
    /// True if another set has taken over: changes recorded here would overwrite the new set's
    /// views.
    is_replaced: bool,
}

/// The parts that all sets of an upstream share.
struct SharedParts<'a> {
    upstream: &'a str,
    servers: &'a Arc<Servers>,
    load: &'a Arc<UpstreamLoad>,
}

impl EndpointSet {
    pub(super) fn first(
        upstream: &str,
        servers: &Arc<Servers>,
        addresses: Vec<EndpointAddress>,
        load: &Arc<UpstreamLoad>,
        now: CoarseTime,
    ) -> Self {
        let new = |target: &Target| Arc::new(EndpointState::new(target.clone(), Arc::clone(load)));
        let health = |_: &Arc<EndpointState>| TargetHealth::new();
        Self::build(&SharedParts { upstream, servers, load }, addresses, new, health, now)
    }

    /// The next set, which keeps the state of endpoints that stay.
    pub(super) fn replaced_by(
        &self,
        servers: &Arc<Servers>,
        addresses: Vec<EndpointAddress>,
        load: &Arc<UpstreamLoad>,
        now: CoarseTime,
    ) -> Self {
        let mut health = self.health.lock();
        health.is_replaced = true;
        let member =
            |target: &Target| self.members.iter().find(|member| member.state.target == *target);
        let state = |target: &Target| match member(target) {
            Some(member) => Arc::clone(&member.state),
            None => Arc::new(EndpointState::new(target.clone(), Arc::clone(load))),
        };
        let health_of = |state: &Arc<EndpointState>| {
            let has_state = |member: &Member| Arc::ptr_eq(&member.state, state);
            match self.members.iter().position(has_state) {
                Some(index) => health.machine.targets()[index].clone(),
                // The first endpoints of a name must take its whole load at once, without slow
                // start.
                None if self.members.is_empty() => TargetHealth::new(),
                None => TargetHealth::appearing(now),
            }
        };
        let upstream = &self.upstream;
        Self::build(&SharedParts { upstream, servers, load }, addresses, state, health_of, now)
    }

    fn build(
        parts: &SharedParts<'_>,
        addresses: Vec<EndpointAddress>,
        state: impl Fn(&Target) -> Arc<EndpointState>,
        health: impl Fn(&Arc<EndpointState>) -> TargetHealth,
        now: CoarseTime,
    ) -> Self {
        let SharedParts { upstream, servers, load } = *parts;
        let mut members: Vec<Member> = Vec::new();
        for EndpointAddress { target, weight, priority, .. } in &addresses {
            // A target that is listed twice gets a share for each entry.
            match members.iter_mut().find(|member| member.state.target == *target) {
                Some(member) => member.weight = member.weight.saturating_add(*weight),
                None => members.push(Member {
                    state: state(target),
                    weight: *weight,
                    priority: *priority,
                }),
            }
        }
        let random = ahash::RandomState::new().hash_one(now.as_ms());
        for (index, member) in members.iter().enumerate() {
            // Stagger the measurements of the base latency.
            let random = random.wrapping_add((index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            member.state.set_adaptive(servers.bounds.adaptive, random, now);
        }
        let targets =
            members.iter().map(|own| health(&own.state).with_weight(own.weight)).collect();
        let machine = UpstreamHealth::new(servers.health, targets, now);
        for (index, member) in members.iter().enumerate() {
            member.state.publish(machine.view(index));
        }
        let mut priorities: Vec<u16> = members
            .iter()
            .filter(|member| member.weight > 0)
            .map(|member| member.priority)
            .collect();
        priorities.sort_unstable();
        priorities.dedup();
        let groups = priorities.into_iter().map(|priority| {
            let weight =
                |member: &Member| if member.priority == priority { member.weight } else { 0 };
            let endpoints: Vec<WeightedEndpoint<'_>> = members
                .iter()
                .map(|member| WeightedEndpoint { name: &member.state.name, weight: weight(member) })
                .collect();
            let balancer = Balancer::new(servers.policy, &endpoints);
            PriorityGroup { priority, balancer, weight_in_service: AtomicU64::new(0) }
        });
        let set = Self {
            servers: Arc::clone(servers),
            groups: groups.collect(),
            members,
            addresses,
            upstream: upstream.into(),
            health: Mutex::new(SetHealth { machine, is_replaced: false }),
            load: Arc::clone(load),
        };
        set.sum_weights(now);
        set
    }

    /// Sums the weights in service, after a change of health.
    fn sum_weights(&self, now: CoarseTime) {
        for group in &self.groups {
            let members = self.members.iter().filter(|member| {
                member.priority == group.priority
                    && member.state.view().availability(now) == Availability::Available
            });
            let sum = members.map(|member| u64::from(member.weight)).sum();
            group.weight_in_service.store(sum, Relaxed);
        }
    }

    /// True if the policy needs the total of requests in flight; otherwise it is not counted.
    pub(super) fn counts_total(&self) -> bool {
        self.servers.policy == Policy::Hash
    }

    /// Chooses an endpoint for an attempt at `now`, in uptime; `None` if all endpoints outside of
    /// `input.excluded` are down, ejected or full.
    pub fn choose(&self, input: &PickRequest<'_>, now: CoarseTime) -> Option<Pick> {
        self.groups.iter().find_map(|group| {
            let view = SetView { set: self, group, now };
            group.balancer.choose(input, &view)
        })
    }

    /// True if an endpoint outside of `excluded` is in service, but full.
    pub(super) fn has_full_endpoint(&self, excluded: &[usize], now: CoarseTime) -> bool {
        let bounds = &self.servers.bounds;
        if !bounds.bounds_requests() {
            return false;
        }
        self.members.iter().enumerate().any(|(index, own)| {
            own.weight > 0
                && !excluded.contains(&index)
                && own.state.view().availability(now) == Availability::Available
                && !own.state.has_room(bounds.max_requests)
        })
    }

    /// The upstream's state, from the published views.
    pub fn state(&self, now: CoarseTime) -> ServiceLevel {
        let views = self.members.iter().map(|own| own.state.view());
        ServiceLevel::of(views, now, self.servers.health.check_interval)
    }

    /// An endpoint in service with the same name and the other address family.
    pub(super) fn sibling(&self, index: usize, now: CoarseTime) -> Option<usize> {
        let own = &self.members[index].state.target;
        let address = own.resolved?;
        self.members.iter().position(|other| {
            let target = &other.state.target;
            other.weight > 0
                && target.address == own.address
                && target.resolved.is_some_and(|other| other.is_ipv4() != address.is_ipv4())
                && other.state.view().availability(now) == Availability::Available
        })
    }

    /// Claims the trial of an endpoint whose ejection has ended, for a request of `client`. False
    /// if another attempt has it, or other clients come first.
    pub(super) fn begin_trial(&self, index: usize, client: IpAddr, now: CoarseTime) -> bool {
        let mut health = self.health.lock();
        let is_claimed = health.machine.begin_trial(index, client, now);
        if !health.is_replaced {
            self.members[index].state.publish(health.machine.view(index));
        }
        is_claimed
    }

    /// Records a response.
    pub(super) fn record_success(
        &self,
        index: usize,
        kind: AttemptKind,
        now: CoarseTime,
        clock: &Clock,
    ) {
        self.members[index].state.set_last_success(now);
        // Without earlier failures, a success changes nothing else.
        if kind == AttemptKind::Regular && !self.members[index].state.view().has_failures() {
            return;
        }
        self.record(index, clock, |machine| machine.record_success(index, kind, now));
    }

    /// Records a failed attempt.
    #[cold]
    pub(super) fn record_failure(
        &self,
        index: usize,
        attempt: FailedAttempt,
        now: CoarseTime,
        clock: &Clock,
    ) {
        let state = &self.members[index].state;
        state.count_failure(attempt.failure);
        state.observe_result(AttemptOutcome::Error, now);
        self.record(index, clock, |machine| {
            machine.note_success(index, state.last_success());
            machine.record_failure(index, attempt, now)
        });
    }

    /// Records a health check of `endpoint`.
    pub fn record_check(
        &self,
        endpoint: &Arc<EndpointState>,
        result: Result<(), CheckFailure>,
        now: CoarseTime,
        clock: &Clock,
    ) {
        let has_state = |member: &Member| Arc::ptr_eq(&member.state, endpoint);
        if let Some(index) = self.members.iter().position(has_state) {
            self.record(index, clock, |machine| machine.record_check(index, result, now));
        }
    }

    fn record(
        &self,
        index: usize,
        clock: &Clock,
        event: impl FnOnce(&mut UpstreamHealth) -> Changes,
    ) {
        let changes = {
            let mut health = self.health.lock();
            if health.is_replaced {
                return;
            }
            let changes = event(&mut health.machine);
            if changes.is_empty() {
                self.members[index].state.publish(health.machine.view(index));
            } else {
                for (index, member) in self.members.iter().enumerate() {
                    member.state.publish(health.machine.view(index));
                }
                self.sum_weights(clock.uptime().to_coarse());
            }
            changes
        };
        for change in &changes {
            self.log(change, clock);
        }
        if !changes.is_empty() {
            self.load.pending.wake_next();
        }
        if changes.iter().any(|change| change.event.is_failure()) {
            self.load.resolve_now.notify_one();
        }
    }

    /// Logs a change of health in one line.
    #[cold]
    fn log(&self, change: &HealthChange, clock: &Clock) {
        let endpoint = &self.members[change.index].state;
        let mut reason = String::new();
        // Writing to a `String` cannot fail.
        let _ = write!(reason, "{change}");
        let (upstream, server, event) = (&*self.upstream, &*endpoint.name, change.event.as_str());
        match change.event {
            HealthEvent::Returned(_) | HealthEvent::Up { .. } => {
                tracing::info!(upstream, server, event, reason, "upstream server is in service");
            }
            HealthEvent::Ejected { duration, .. } => {
                endpoint.count_ejection();
                let ejected_ms = duration.as_ms();
                tracing::warn!(
                    upstream,
                    server,
                    event,
                    reason,
                    ejected_ms,
                    "upstream server ejected"
                );
            }
            HealthEvent::AllDown => {
                tracing::error!(upstream, event, reason, "no server of the upstream is in service");
                return;
            }
            HealthEvent::KeptInService { .. } => {
                tracing::warn!(
                    upstream,
                    server,
                    event,
                    reason,
                    "upstream server fails, but stays in service"
                );
            }
            HealthEvent::Down { .. } => {
                tracing::warn!(upstream, server, event, reason, "upstream server is down");
            }
        }
        endpoint.set_last_change(LastChange { at: Some(clock.store_time()), reason });
    }
}

/// The endpoints' state at a time, for a choice.
struct SetView<'a> {
    set: &'a EndpointSet,
    group: &'a PriorityGroup,
    now: CoarseTime,
}

impl SetView<'_> {
    fn health(&self, index: usize) -> HealthView {
        self.set.members[index].state.view()
    }
}

impl EndpointView for SetView<'_> {
    fn is_available(&self, index: usize) -> bool {
        let bounds = &self.set.servers.bounds;
        self.health(index).availability(self.now) != Availability::Unavailable
            && (!bounds.bounds_requests()
                || self.set.members[index].state.has_room(bounds.max_requests))
    }

    fn ramp(&self, index: usize) -> u32 {
        self.health(index).ramp(self.now, self.set.servers.health.slow_start)
    }

    fn success_share(&self, index: usize) -> u32 {
        self.set.members[index].state.success_share(self.now)
    }

    fn in_flight(&self, index: usize) -> u32 {
        self.set.members[index].state.in_flight()
    }

    fn cost(&self, index: usize) -> u64 {
        self.set.members[index].state.latency(self.now)
    }

    fn total_in_flight(&self) -> u64 {
        self.set.load.in_flight.load(Relaxed)
    }

    fn weight_in_service(&self) -> Option<u64> {
        Some(self.group.weight_in_service.load(Relaxed)).filter(|weight| *weight > 0)
    }
}
