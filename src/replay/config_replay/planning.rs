//! How a logged request is planned under a configuration: its route, its caller, and what it
//! charges.

use std::{borrow::Cow, sync::Arc};

use http::Method;

use super::ConfigReplay;
use crate::{
    auth::{RouteAuth, WithoutCredentials},
    error::GatewayError,
    http1::{BodyLength, Fields, RareFields, RequestHead, is_origin_form},
    identity::{Caller, Consumer, CredentialSource},
    plan::{
        self, Admission, AskedSource, BodyAccess, DecisionInput, DecisionProgress, LocalAnswer,
        NextStep, PendingDecision, RefusedRoute, RequestAttributes, RequestSource, RequestView,
        RouteDecision, SubjectDetails,
    },
    replay::{
        line::LogLine,
        waiting::{QueuedCaller, WaitingReplay},
    },
    snapshot::{PlannedCharges, Route},
    throttle::waiting_room::HeadStart,
};

/// The part of a logged request that does not depend on a configuration.
pub(in crate::replay) struct LoggedRequest<'r> {
    pub(in crate::replay) line: &'r LogLine<'r>,
    /// `None` if the line has no request, or a malformed method.
    pub(in crate::replay) method: Option<&'r Method>,
    pub(in crate::replay) host: &'r str,
    /// True if the log has queries.
    pub(in crate::replay) has_query: bool,
    /// Empty: a log has no headers.
    pub(in crate::replay) headers: &'r Fields,
    /// The logged token.
    pub(in crate::replay) sources: &'r [CredentialSource],
}

/// The decision on a logged request on its route.
struct LoggedDecision<'d> {
    /// The route's index in the snapshot.
    route: usize,
    /// The caller, if the throttle applies.
    caller: Option<Caller>,
    decision: &'d RouteDecision,
}

/// A request planned under one configuration. Its charges are stored separately, together with
/// those under the other configuration.
#[derive(Clone, Copy)]
pub(in crate::replay) enum PlannedRequest {
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
        /// Who sent it, on a route to which a throttle with a waiting room applies.
        caller: Option<QueuedCaller>,
    },
}

/// Where the costs of a planned request come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::replay) enum CostSource {
    /// From its line and the configuration.
    Complete,
    /// From the configuration, because its line lacks a variable cost.
    Estimated,
}

impl ConfigReplay {
    /// Plans a request, and appends its charges to `planned_charges`.
    pub(in crate::replay) fn plan(
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
            rare: RareFields::default(),
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
            throttle_secret: self.room.as_ref().map(WaitingReplay::token_secret),
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
                let (route, costs, caller) = (route as u32, CostSource::Complete, None);
                PlannedRequest::Routed { route, planned_charges: 0, status, costs, caller }
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
            NextStep::Proceed(mut pending) => {
                match self.decide_on_route(request, view, path, &mut pending, &input) {
                    Err(refused) => refused,
                    Ok(own) => self.plan_routed(request, &own, planned_charges),
                }
            }
        }
    }

    /// The `decide` route of a logged request: its path and host are those of the asked request,
    /// which find no route.
    fn asked(&self, route: &str) -> AskedSource<'static> {
        if self.snapshot.doors.is_none() {
            return AskedSource::Question;
        }
        let is_named = |own: &Arc<Route>| *own.name == *route && own.decide().is_some();
        let found = self.snapshot.routes.iter().position(is_named);
        found.map_or(AskedSource::Question, AskedSource::Logged)
    }

    /// Plans a request that its route admits, with the costs of the line.
    fn plan_routed(
        &self,
        request: &LoggedRequest<'_>,
        own: &LoggedDecision<'_>,
        planned_charges: &mut PlannedCharges,
    ) -> PlannedRequest {
        let mut charges = own.decision.charges.clone();
        let route = &self.snapshot.routes[own.route];
        let costs = apply_costs(route, request, &mut charges);
        let caller = own.caller.as_ref().map(|caller| {
            QueuedCaller::new(caller, self.head_start(route, &request.line.consumer))
        });
        let (route, planned) = (own.route as u32, charges.len() as u32);
        planned_charges.append(&mut charges);
        let status = request.line.status;
        PlannedRequest::Routed { route, planned_charges: planned, status, costs, caller }
    }

    /// Decides on the route for the logged consumer; returns what becomes of the request if it is
    /// refused.
    fn decide_on_route<'d>(
        &self,
        request: &LoggedRequest<'_>,
        view: RequestView<'_>,
        path: Option<Box<str>>,
        pending: &'d mut PendingDecision,
        input: &DecisionInput<'_>,
    ) -> Result<LoggedDecision<'d>, PlannedRequest> {
        let index = pending.route;
        let route = &self.snapshot.routes[index];
        let refused = |error: GatewayError| match plan::refused_admission(&error) {
            Admission::Denied => PlannedRequest::Denied(index as u32),
            _ => PlannedRequest::AnsweredByGateway(error.status().as_u16()),
        };
        let consumer = match &route.auth {
            Some(auth) => self.logged_consumer(auth, &request.line.consumer)?,
            None => None,
        };
        let path = path.map_or(Cow::Borrowed(view.path), |path| Cow::Owned(path.into()));
        let attributes =
            RequestAttributes::of_normalized(&self.snapshot, &input.source, view, path);
        let prefix = self.snapshot.identity.ipv6_prefix;
        if route.auth.is_some() {
            let secret = input.throttle_secret.filter(|_| route.throttle);
            pending.caller = secret.map(|secret| {
                Caller::authenticated(consumer, attributes.client.ip, prefix, secret)
            });
        }
        let caller = pending.caller.take();
        let decision = match pending.after_throttle().map_err(refused)? {
            DecisionProgress::Whole(decision) => decision,
            DecisionProgress::Deferred(deferred) => {
                let details = SubjectDetails { consumer, body: None };
                let completed = attributes.with_details(route, prefix, details, |subject| {
                    deferred.complete(route, subject, self.secret)
                });
                completed.map_err(refused)?
            }
        };
        Ok(LoggedDecision { route: index, caller, decision })
    }

    /// The consumer of a line on a route with `auth`; returns what becomes of the request if there
    /// is none. Credentials are not in the log, so a request without a consumer is undecided if it
    /// needs one.
    fn logged_consumer<'a>(
        &'a self,
        auth: &'a RouteAuth,
        name: &'a str,
    ) -> Result<Option<Consumer<'a>>, PlannedRequest> {
        match (name, auth.without_credentials()) {
            ("", WithoutCredentials::Proceed) => Ok(None),
            ("", WithoutCredentials::Refuse) => Err(PlannedRequest::Undecided),
            _ => match auth.named(name, &self.consumers) {
                Ok(consumer) => Ok(Some(consumer)),
                Err(_) => Err(PlannedRequest::AnsweredByGateway(401)),
            },
        }
    }

    /// The head start of the logged consumer in the waiting room.
    fn head_start(&self, route: &Route, consumer: &str) -> HeadStart {
        let consumer =
            route.auth.as_ref().and_then(|auth| auth.named(consumer, &self.consumers).ok());
        self.snapshot.head_start(consumer.and_then(|consumer| consumer.plan))
    }
}

/// Replaces variable costs by those of the line.
fn apply_costs(
    route: &Route,
    request: &LoggedRequest<'_>,
    charges: &mut PlannedCharges,
) -> CostSource {
    let mut source = CostSource::Complete;
    if !route.has_variable_cost {
        return source;
    }
    for charge in charges {
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
