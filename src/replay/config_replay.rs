//! One configuration in a replay: its rules, its counters, and the outcomes of the requests.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use http::Method;
use smallvec::SmallVec;

use super::{
    counts::{DecisionCounts, LogEvent},
    line::LogLine,
};
use crate::{
    auth::{ConsumerTable, WithoutCredentials},
    clock::StoreTime,
    error::GatewayError,
    http1::{BodyLength, Fields, RequestHead, is_origin_form},
    identity::{CredentialSource, KeySecret},
    limit::{Adjustment, Admission, BlockEffect, Change, Charge},
    plan::{
        self, AskedSource, BodyAccess, DecisionInput, LocalAnswer, NextStep, RefusedRoute,
        RequestAttributes, RequestSource, RequestView, RoutePlan, SubjectDetails,
    },
    snapshot::{LimitPolicy, PlannedCharge, PlannedCharges, Route, Snapshot},
    store::{charge_in_memory, memory::MemoryStore},
};

/// The minimum number of requests between two removals of expired counters, which are also at least one virtual
/// second apart. Scanning a part of the table more often would cost more than the requests.
const REQUESTS_PER_TICK: u32 = 1 << 16;

/// One configuration in a replay.
pub struct ConfigReplay {
    /// Name of the configuration's file.
    pub name: String,
    /// The compiled configuration.
    pub snapshot: Snapshot,
    /// Decisions by route, in the snapshot's order.
    pub routes: Vec<DecisionCounts>,
    /// Decisions by limit, in the snapshot's order.
    pub limits: Vec<DecisionCounts>,
    /// Refusals by limit, in the snapshot's order. Only for requests that the other configuration decides
    /// differently.
    pub differing_refusals: Vec<u64>,
    /// Number of requests that the limits of their route admitted.
    pub admitted: u64,
    /// Number of requests that a limit refused.
    pub refused: u64,
    /// Number of requests of routes without limits.
    pub unlimited: u64,
    /// Number of requests refused by `allow` or `deny`, by route, in the snapshot's order.
    pub denied: Vec<u64>,
    /// Number of requests that the gateway itself would have answered before any limit, by status.
    pub unmatched: BTreeMap<u16, u64>,
    /// Number of requests whose route depends on data that the log lacks: a header, a query, a weight.
    pub undecided: u64,
    /// Number of requests whose line lacks the cost of a limit whose cost depends on the request or its response.
    pub without_cost: u64,
    consumers: Arc<ConsumerTable>,
    memory: MemoryStore,
    secret: KeySecret,
    /// Virtual time of the last removal of expired counters, in ms, and number of requests since then.
    last_tick: (StoreTime, u32),
}

/// The part of a logged request that does not depend on a configuration.
pub(super) struct LoggedRequest<'r> {
    pub(super) line: &'r LogLine<'r>,
    /// `None` if the line has no request, or a malformed method.
    pub(super) method: Option<&'r Method>,
    pub(super) host: &'r str,
    /// True if the log has queries.
    pub(super) has_query: bool,
    /// Empty: a log has no headers.
    pub(super) headers: &'r Fields,
    /// The logged token.
    pub(super) sources: &'r [CredentialSource],
}

/// A request planned under one configuration. Its charges are stored separately, together with those under
/// the other configuration.
#[derive(Clone, Copy)]
pub(super) enum PlannedRequest {
    /// The logging gateway ended it before any limit was charged.
    NotChecked,
    /// The gateway itself answers it with this status.
    AnsweredByGateway(u16),
    /// Its route depends on data that the log lacks.
    Undecided,
    /// `allow` or `deny` of the route with this index refuses it.
    Denied(u32),
    /// It has a route.
    Routed {
        /// The route's index in the snapshot.
        route: u32,
        /// Number of its charges.
        planned_charges: u32,
        /// Status of the logged response.
        status: u16,
        /// Where its costs come from.
        costs: CostSource,
    },
}

/// Where the costs of a planned request come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum CostSource {
    /// From its line and the configuration.
    Complete,
    /// From the configuration, because its line lacks a variable cost.
    Estimated,
}

/// The outcome of a request. Routes and limits are indices in the snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RequestOutcome {
    /// The logging gateway ended it before any limit was charged.
    NotChecked,
    /// The gateway itself answers it with this status.
    AnsweredByGateway(u16),
    /// Its route depends on data that the log lacks.
    Undecided,
    /// Its route has no limits.
    Unlimited {
        /// The route.
        route: usize,
    },
    /// All limits admit it.
    Admitted {
        /// The route.
        route: usize,
    },
    /// `allow` or `deny` of its route refuses it.
    Denied {
        /// The route.
        route: usize,
    },
    /// These limits refuse it.
    Refused {
        /// The route.
        route: usize,
        /// The limits; at least one.
        limits: SmallVec<[u32; 4]>,
        /// `Refused`, or `Blocked` if the block of a limit refused it.
        admission: Admission,
    },
}

impl RequestOutcome {
    /// True if a limit refused it, or `allow` or `deny` of its route.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Denied { .. })
    }

    /// The limits that refused it.
    pub fn refusing(&self) -> &[u32] {
        match self {
            Self::Refused { limits, .. } => limits,
            _ => &[],
        }
    }
}

impl ConfigReplay {
    /// A configuration with empty counters, at most `max_keys` of them. `secret` is the key of the
    /// hash that counters are stored under.
    pub fn new(name: &str, snapshot: Snapshot, max_keys: usize, secret: KeySecret) -> Self {
        Self {
            name: name.to_owned(),
            routes: vec![DecisionCounts::default(); snapshot.routes.len()],
            limits: vec![DecisionCounts::default(); snapshot.limits.len()],
            differing_refusals: vec![0; snapshot.limits.len()],
            admitted: 0,
            refused: 0,
            unlimited: 0,
            denied: vec![0; snapshot.routes.len()],
            unmatched: BTreeMap::new(),
            undecided: 0,
            without_cost: 0,
            consumers: Arc::default(),
            memory: MemoryStore::new(max_keys),
            secret,
            last_tick: (StoreTime::ZERO, 0),
            snapshot,
        }
    }

    /// The same configuration with these consumers.
    #[must_use]
    pub fn with_consumers(self, consumers: Arc<ConsumerTable>) -> Self {
        Self { consumers, ..self }
    }

    /// Number of counters that were evicted because memory was full.
    pub fn evictions(&self) -> u64 {
        self.memory.evictions()
    }

    /// Plans a request, and appends its charges to `planned_charges`.
    pub(super) fn plan(
        &self,
        request: &LoggedRequest<'_>,
        planned_charges: &mut PlannedCharges,
    ) -> PlannedRequest {
        if request.line.not_checked {
            return PlannedRequest::NotChecked;
        }
        let planned = match request.method {
            Some(method) => self.plan_target(request, method, planned_charges),
            // The gateway answers a malformed request line itself.
            None => Err(GatewayError::MalformedTarget),
        };
        planned.unwrap_or_else(|error| PlannedRequest::AnsweredByGateway(error.status().as_u16()))
    }

    fn plan_target(
        &self,
        request: &LoggedRequest<'_>,
        method: &Method,
        planned_charges: &mut PlannedCharges,
    ) -> Result<PlannedRequest, GatewayError> {
        let target = &*request.line.target;
        if !is_origin_form(target) {
            return self.plan_non_path(request, method, target, planned_charges);
        }
        // A valid target is ASCII.
        let text = std::str::from_utf8(target).map_err(|_| GatewayError::MalformedTarget)?;
        let (path, query) = match memchr::memchr(b'?', target) {
            Some(mark) => (&text[..mark], Some(&text[mark + 1..])),
            None => (text, None),
        };
        let view = RequestView {
            method,
            host: request.host.into(),
            path,
            query,
            headers: request.headers,
            has_expect: false,
            is_asterisk_form: false,
            length: BodyLength::Known(0),
        };
        Ok(self.plan_view(request, view, planned_charges))
    }

    /// Plans a request whose target is not a path, such as `http://host/path`.
    #[cold]
    fn plan_non_path(
        &self,
        request: &LoggedRequest<'_>,
        method: &Method,
        target: &[u8],
        planned_charges: &mut PlannedCharges,
    ) -> Result<PlannedRequest, GatewayError> {
        if matches!(*method, Method::CONNECT | Method::TRACE) {
            // Refused whatever the target is: that of a `CONNECT` is a host, which a log may lack.
            return Err(GatewayError::MethodNotSupported(method.clone()));
        }
        let host = if request.host.is_empty() { "localhost" } else { request.host };
        let parts = [method.as_str().as_bytes(), b" ", target, b" HTTP/1.1\r\nHost: "];
        let head = [&parts.concat(), host.as_bytes(), b"\r\n\r\n"].concat();
        let read =
            RequestHead::read(&head, self.snapshot.http.head).map_err(GatewayError::Framing)?;
        let (head, _) = read.ok_or(GatewayError::MalformedTarget)?;
        let view = RequestView { headers: request.headers, ..RequestView::of(&head) };
        Ok(self.plan_view(request, view, planned_charges))
    }

    /// Decides the request from the data in the log.
    fn plan_view(
        &self,
        request: &LoggedRequest<'_>,
        view: RequestView<'_>,
        planned_charges: &mut PlannedCharges,
    ) -> PlannedRequest {
        let source = RequestSource::Log {
            client: request.line.client,
            token: request.sources,
            has_query: request.has_query,
        };
        let input = DecisionInput {
            source,
            via: None,
            redirect_https: None,
            certificate: None,
            key_secret: self.secret,
            throttle_secret: None,
            overrides: None,
            body: BodyAccess::Known(None),
            asked: self.asked(&request.line.route),
        };
        let status = request.line.status;
        let decision = plan::decide(&self.snapshot, &input, view.clone());
        let path = decision.path;
        match decision.next {
            NextStep::Answer(LocalAnswer::Options) => PlannedRequest::AnsweredByGateway(200),
            NextStep::Answer(LocalAnswer::RedirectHttps(_)) => {
                PlannedRequest::AnsweredByGateway(308)
            }
            NextStep::Answer(LocalAnswer::Preflight(route)) => {
                let costs = CostSource::Complete;
                PlannedRequest::Routed { route: route as u32, planned_charges: 0, status, costs }
            }
            // A line of a log has no body.
            NextStep::ReadCheck(_) => PlannedRequest::Undecided,
            NextStep::Refuse(refusal) => match refusal.route {
                RefusedRoute::Undecided => PlannedRequest::Undecided,
                RefusedRoute::Preflight(route) | RefusedRoute::Matched(route)
                    if refusal.admission() == Admission::Denied =>
                {
                    PlannedRequest::Denied(route as u32)
                }
                _ => PlannedRequest::AnsweredByGateway(refusal.error.status().as_u16()),
            },
            NextStep::Proceed(mut plan) => {
                if let Some(refused) = self.authenticate(request, view, path, &mut plan, &input) {
                    return refused;
                }
                let costs = self.apply_costs(request, &mut plan);
                let (route, count) = (plan.route as u32, plan.charges.len() as u32);
                planned_charges.append(&mut plan.charges);
                let planned_charges = count;
                PlannedRequest::Routed { route, planned_charges, status, costs }
            }
        }
    }

    /// The `decide` route of a logged request: its path and host are those of the asked request, which find no route.
    fn asked(&self, route: &str) -> AskedSource<'static> {
        if self.snapshot.doors.is_none() {
            return AskedSource::Question;
        }
        let is_named = |own: &Arc<Route>| *own.name == *route && own.decide().is_some();
        let found = self.snapshot.routes.iter().position(is_named);
        found.map_or(AskedSource::Question, AskedSource::Logged)
    }

    /// Completes the plan on a route with `auth` for the logged consumer; returns what becomes of the request if it is
    /// refused. Credentials are not in the log, so a request without a consumer is undecided if it needs one.
    fn authenticate(
        &self,
        request: &LoggedRequest<'_>,
        view: RequestView<'_>,
        path: Option<Box<str>>,
        plan: &mut RoutePlan,
        input: &DecisionInput<'_>,
    ) -> Option<PlannedRequest> {
        let route = &self.snapshot.routes[plan.route];
        let auth = route.auth.as_ref()?;
        let name = &*request.line.consumer;
        let consumer = match (name, auth.without_credentials()) {
            ("", WithoutCredentials::Proceed) => None,
            ("", WithoutCredentials::Refuse) => return Some(PlannedRequest::Undecided),
            _ => match auth.named(name, &self.consumers) {
                Ok(consumer) => Some(consumer),
                Err(_) => return Some(PlannedRequest::AnsweredByGateway(401)),
            },
        };
        let path = path.map_or(Cow::Borrowed(view.path), |path| Cow::Owned(path.into()));
        let attributes =
            RequestAttributes::of_normalized(&self.snapshot, &input.source, view, path);
        let prefix = self.snapshot.identity.ipv6_prefix;
        let completed = attributes.with_details(
            route,
            prefix,
            SubjectDetails { consumer, body: None },
            |subject| plan.complete(route, subject, self.secret),
        );
        let error = completed.err()?;
        Some(match plan::refused_admission(&error) {
            Admission::Denied => PlannedRequest::Denied(plan.route as u32),
            _ => PlannedRequest::AnsweredByGateway(error.status().as_u16()),
        })
    }

    /// Replaces variable costs by those of the line.
    fn apply_costs(&self, request: &LoggedRequest<'_>, plan: &mut RoutePlan) -> CostSource {
        let route = &self.snapshot.routes[plan.route];
        let mut source = CostSource::Complete;
        if !route.has_variable_cost {
            return source;
        }
        for charge in &mut plan.charges {
            let policy = &route.limits[usize::from(charge.limit_index)];
            if !policy.cost.is_variable() {
                continue;
            }
            let logged = request.line.costs.get(policy.base_name());
            match logged.and_then(|units| policy.cost.logged(units)) {
                Some(cost) => charge.cost = cost,
                None => source = CostSource::Estimated,
            }
        }
        source
    }

    /// Charges a request at the virtual time `at`, which never decreases. Takes the request's charges
    /// from the front of `planned_charges`.
    pub(super) fn decide(
        &mut self,
        plan: PlannedRequest,
        planned_charges: &mut &[PlannedCharge],
        at: LogEvent,
    ) -> RequestOutcome {
        let (index, requests, status) = match plan {
            PlannedRequest::NotChecked => return RequestOutcome::NotChecked,
            PlannedRequest::AnsweredByGateway(status) => {
                *self.unmatched.entry(status).or_default() += 1;
                return RequestOutcome::AnsweredByGateway(status);
            }
            PlannedRequest::Undecided => {
                self.undecided += 1;
                return RequestOutcome::Undecided;
            }
            PlannedRequest::Denied(route) => {
                let route = route as usize;
                self.denied[route] += 1;
                return RequestOutcome::Denied { route };
            }
            PlannedRequest::Routed { route, planned_charges: count, status, costs } => {
                self.without_cost += u64::from(costs == CostSource::Estimated);
                let (own, rest) = planned_charges.split_at(count as usize);
                *planned_charges = rest;
                (route as usize, own, status)
            }
        };
        if requests.is_empty() {
            self.unlimited += 1;
            self.routes[index].add_admitted();
            return RequestOutcome::Unlimited { route: index };
        }
        self.tick(at.time);
        let route = &self.snapshot.routes[index];
        let charges: SmallVec<[Charge<'_>; 4]> =
            requests.iter().filter_map(|request| plan::charge_for(route, request)).collect();
        let verdict = charge_in_memory(&self.memory, &charges, at.time);
        let mut admission = Admission::Refused;
        let (mut refusing, mut refunds) = (SmallVec::new(), SmallVec::<[Adjustment<'_>; 2]>::new());
        for ((request, charge), outcome) in requests.iter().zip(&charges).zip(&verdict.outcomes) {
            let Some(decided) = outcome.decided() else { continue };
            let (decision, limit) = (&decided.decision, charge.limit.index);
            // A candidate has its limit's index, but does not count among the limit's decisions.
            if charge.limit.name() == self.snapshot.limits[limit].limit.name() {
                let counts = &mut self.limits[limit];
                if decision.admitted {
                    counts.add_admitted();
                } else {
                    counts.add_refused(at);
                }
            }
            if !decision.admitted && charge.limit.enforce {
                refusing.push(limit as u32);
                if let BlockEffect::Refused { .. } = decided.block {
                    admission = Admission::Blocked;
                }
            }
            let policy = &route.limits[usize::from(request.limit_index)];
            if decision.admitted && is_refunded(policy, status) {
                let change = Change::Refund { charged_at: decided.charged_at(), cost: charge.cost };
                refunds.push(Adjustment { limit: charge.limit, key: charge.key, change });
            }
        }
        if verdict.admitted {
            self.routes[index].add_admitted();
            for refund in &refunds {
                self.memory.adjust(refund, at.time, 1);
            }
            self.admitted += 1;
            RequestOutcome::Admitted { route: index }
        } else {
            self.routes[index].add_refused(at);
            self.refused += 1;
            RequestOutcome::Refused { route: index, limits: refusing, admission }
        }
    }

    /// Removes expired counters if a removal is due.
    fn tick(&mut self, now: StoreTime) {
        let (last, requests) = &mut self.last_tick;
        *requests += 1;
        if *requests >= REQUESTS_PER_TICK && now.saturating_sub(*last) >= 1_000 {
            (*last, *requests) = (now, 0);
            self.memory.expire(now);
        }
    }
}

/// True if a response with this status refunds the charge to this limit.
fn is_refunded(policy: &LimitPolicy, status: u16) -> bool {
    // A log does not show which requests were in flight together, so each counts as ended before the next.
    let is_released = policy.limit.algorithm().holds_permit();
    is_released || policy.refunds.include(status)
}
