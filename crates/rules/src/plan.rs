//! The decision on a request, made before a limit is charged: whether it is answered, refused or
//! proceeds, on which route, and with which keys and costs for its limits.
//!
//! Pure and stateless. The gateway executes what [`decide`] returns, `explain` prints it and
//! `replay` counts it, so all three decide alike. The files, in the order of a decision:
//!
//! - `decision.rs`: all checks in their order, and what may follow.
//! - `request_view.rs`, `request_source.rs`: the parts of a request, or of a log line, that a
//!   decision reads.
//! - `admission.rs`: what the limits said of a request, as logs report it.
//! - `via.rs`: loop detection.
//! - `asked.rs`: requests that another proxy asks about.
//! - `target.rs`: the host, and the path to forward.
//! - `sent_path.rs`: checks a path that is forwarded as it was sent.
//! - `preflight.rs`: the routes of CORS preflights; `condition.rs`: the conditions of routes.
//! - `route_values.rs`: the values that routes write into messages; `location.rs`,
//!   `public_fields.rs`: rewrite `Location` and other fields of an upstream's response;
//!   `own_urls.rs`: rewrites the URLs of requests, such as `Destination`.
//!
//! ```
//! use tidegate_http1::Fields;
//! use tidegate_rules::plan;
//!
//! let fields: Fields = [("Host", "API.example.com:8080")].into_iter().collect();
//! assert_eq!(plan::host(&fields), "api.example.com");
//! assert_eq!(plan::forwarded_path("/v1/items", Some("/v1")), "/items");
//! ```

mod admission;
mod asked;
mod condition;
mod decision;
mod location;
mod own_urls;
mod preflight;
mod public_fields;
mod request_source;
mod request_view;
mod route_values;
mod sent_path;
mod target;
mod via;

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell},
    sync::Arc,
};

use http::Method;

pub use self::{
    admission::Admission,
    asked::{AskedRequest, AskedSource, QuestionForm},
    decision::{
        BodyAccess, DecisionInput, DecisionProgress, DeferredDecision, LocalAnswer, NextStep,
        PendingDecision, RefusedRoute, RequestDecision, RequestRefusal, RouteDecision,
        check_consumer, decide, refused_admission,
    },
    location::PublicUrl,
    request_source::{CallerBucket, RequestSource},
    request_view::RequestView,
    route_values::RoutedRequest,
    target::{forwarded_path, forwarded_scheme, host, host_bytes, normal_host},
    via::{QUIET_VIA, Via},
};
use tidegate_charge::Charge;
use tidegate_http1::Fields;
use tidegate_identity::{
    ClientAddress, Consumer, CredentialSource, KeyPart, KeyPlan, KeySecret, Subject, TokenHash,
};
use tidegate_route::{
    ConditionResult, ConditionalRoute, Lookup, Params,
    normalize::{Slashes, normalize, routed_form},
};
use tidegate_usage::{MemberValue, RequestMembers};

use crate::error::{DeniedAddress, GatewayError};
use crate::snapshot::{
    Action, ChargeContext, ChargePlanError, LimitPolicy, PlannedCharge, PlannedCharges, Route,
    Snapshot,
};

/// The form of the normalized `path` that routes and keys use; `None` if it is `path` itself. See
/// [`routed_form`].
pub fn routed_path(path: &str, slashes: Slashes) -> Option<Box<str>> {
    match routed_form(path, slashes) {
        Cow::Borrowed(_) => None,
        Cow::Owned(routed) => Some(routed.into_boxed_str()),
    }
}

/// The attributes of a request that routes and keys use.
#[derive(Clone, Debug)]
pub struct RequestAttributes<'r> {
    /// The client's address, behind trusted proxies.
    pub client: ClientAddress,
    /// The requested host: lower case, without port.
    pub host: Cow<'r, str>,
    /// The path as it was sent.
    pub sent_path: &'r str,
    /// The path in normal form.
    pub path: Cow<'r, str>,
    /// The form that routes and keys use, if it differs: see [`routed_path`].
    pub routed_path: Option<Box<str>>,
    /// The method.
    pub method: &'r Method,
    /// The query, without the question mark.
    pub query: Option<&'r str>,
    /// The headers.
    pub headers: &'r Fields,
    /// Where access tokens are looked for, in order.
    pub token_sources: &'r [CredentialSource],
    /// The hash of the token, once a limit's key has read it.
    pub token_hash: Cell<TokenHash>,
    /// True if the peer is a trusted proxy, whose `X-Forwarded-*` are used.
    pub is_from_trusted_proxy: bool,
}

/// What is known of a request only after its route was found.
#[derive(Clone, Copy, Default)]
pub struct SubjectDetails<'a> {
    /// Who sends the request; `None` if that is not known.
    pub consumer: Option<Consumer<'a>>,
    /// The members of its body; `None` if they were not read.
    pub body: Option<&'a RequestMembers>,
}

/// How the conditions of routes on headers are decided.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum HeaderTests {
    /// By the headers of the request.
    Sent,
    /// By what a preflight says of the request that will follow.
    Announced,
}

/// The route that matches a request.
#[derive(Debug)]
pub struct MatchedRoute<'a> {
    /// The route's index in the snapshot.
    pub index: usize,
    /// The route.
    pub route: &'a Route,
    request: &'a RequestAttributes<'a>,
    params: Params<'a>,
    ipv6_prefix: u8,
}

impl<'r> RequestAttributes<'r> {
    /// Reads the attributes of a request.
    ///
    /// # Errors
    /// The path has no normal form.
    #[inline]
    pub fn read(
        snapshot: &'r Snapshot,
        source: &RequestSource<'r>,
        request: RequestView<'r>,
    ) -> Result<Self, GatewayError> {
        let path = normalize(request.path, snapshot.http.slashes).map_err(GatewayError::Path)?;
        Ok(Self::of_normalized(snapshot, source, request, path))
    }

    /// Reads the attributes of a request, of which `path` is the path in normal form.
    #[inline]
    pub fn of_normalized(
        snapshot: &'r Snapshot,
        source: &RequestSource<'r>,
        request: RequestView<'r>,
        path: Cow<'r, str>,
    ) -> Self {
        let identity = &snapshot.identity;
        Self {
            client: source.client(identity, request.headers),
            host: request.host,
            sent_path: request.path,
            routed_path: routed_path(&path, snapshot.http.slashes),
            path,
            method: request.method,
            query: request.query,
            headers: request.headers,
            token_sources: source.token_sources(identity),
            token_hash: Cell::default(),
            is_from_trusted_proxy: source.is_from_trusted_proxy(identity),
        }
    }

    /// The path as routes and keys see it.
    pub fn routed_path(&self) -> &str {
        self.routed_path.as_deref().unwrap_or(&self.path)
    }

    /// Finds the most specific route that matches.
    ///
    /// # Errors
    /// No route matches the host and path, none of them allows the method, or a condition cannot be
    /// decided: the value that it tests can be read in more than one way, or is not in the log.
    #[inline]
    pub fn find_route<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        source: &RequestSource<'_>,
    ) -> Result<MatchedRoute<'a>, RequestRefusal> {
        self.find_route_as(snapshot, source, HeaderTests::Sent)
    }

    /// As [`Self::find_route`], with the conditions on headers decided by `headers`.
    #[inline]
    fn find_route_as<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        source: &RequestSource<'_>,
        headers: HeaderTests,
    ) -> Result<MatchedRoute<'a>, RequestRefusal> {
        let mut ambiguous = None;
        let query = OnceCell::new();
        let decide = |route: &ConditionalRoute| match *source {
            RequestSource::Log { has_query, .. } => {
                self.meets_as_logged(route, has_query.then_some(&query))
            }
            RequestSource::Request { caller, .. } => {
                let met = match headers {
                    HeaderTests::Sent => self.meets(snapshot, route, caller, &query),
                    HeaderTests::Announced => self.may_meet(snapshot, route, caller, &query),
                };
                match met {
                    Ok(true) => ConditionResult::Met,
                    Ok(false) => ConditionResult::Unmet,
                    Err(error) => {
                        ambiguous = Some(error);
                        ConditionResult::Unknown
                    }
                }
            }
        };
        match snapshot.table.find_where(&self.host, self.routed_path(), self.method, decide) {
            Lookup::Found(found) => Ok(MatchedRoute {
                index: found.route,
                route: &snapshot.routes[found.route],
                request: self,
                params: found.params,
                ipv6_prefix: snapshot.identity.ipv6_prefix,
            }),
            Lookup::Undecided(_) => Err(RequestRefusal {
                error: ambiguous.unwrap_or(GatewayError::NoRoute),
                route: RefusedRoute::Undecided,
                caller: None,
            }),
            Lookup::MethodNotAllowed(methods) => {
                Err(GatewayError::MethodNotAllowed(methods).into())
            }
            Lookup::NotFound => Err(GatewayError::NoRoute.into()),
        }
    }
}

impl MatchedRoute<'_> {
    /// Calls `read` with the subject that keys are read from.
    #[inline]
    pub fn with_subject<T>(
        &self,
        body: Option<&RequestMembers>,
        read: impl FnOnce(&Subject<'_>) -> T,
    ) -> T {
        let (request, param) = (self.request, &|name: &str| self.params.get(name));
        read(&Subject { body, ..request.subject(self.route, self.ipv6_prefix, param) })
    }
}

impl RequestAttributes<'_> {
    /// The subject that keys are read from, on `route`, without a consumer.
    #[inline]
    fn subject<'s>(
        &'s self,
        route: &'s Route,
        ipv6_prefix: u8,
        param: &'s dyn Fn(&str) -> Option<&'s str>,
    ) -> Subject<'s> {
        Subject {
            client: self.client,
            host: &self.host,
            method: self.method,
            route: &route.name,
            path: self.routed_path(),
            param,
            query: self.query,
            headers: self.headers,
            token_sources: self.token_sources,
            token_hash: Some(&self.token_hash),
            ipv6_prefix,
            consumer: None,
            body: None,
            descriptor: &[],
        }
    }

    /// Calls `read` with the subject of a request with these `details` on `route`, which was found
    /// before.
    pub fn with_details<T>(
        &self,
        route: &Route,
        ipv6_prefix: u8,
        details: SubjectDetails<'_>,
        read: impl FnOnce(&Subject<'_>) -> T,
    ) -> T {
        let captures = OnceCell::new();
        let param = |name: &str| {
            let captures = captures.get_or_init(|| route.captures(self.routed_path()));
            captures.iter().find(|(param, _)| *param == name).map(|(_, value)| *value)
        };
        let SubjectDetails { consumer, body } = details;
        read(&Subject { consumer, body, ..self.subject(route, ipv6_prefix, &param) })
    }
}

/// Checks that `allow` and `deny` of `route` admit `client`.
#[inline]
fn check_access(route: &Route, client: ClientAddress) -> Result<(), GatewayError> {
    match &route.access {
        Some(access) if !access.admits(client) => {
            Err(GatewayError::AccessDenied(if client.is_verified() {
                DeniedAddress::NotAllowed
            } else {
                DeniedAddress::Unnamed
            }))
        }
        _ => Ok(()),
    }
}

/// Adds the charges of `subject` to the limits of `route` to `charges`.
#[inline]
fn add_charges(
    route: &Route,
    subject: &Subject<'_>,
    context: ChargeContext<'_>,
    charges: &mut PlannedCharges,
) -> Result<(), GatewayError> {
    for (index, policy) in route.limits.iter().enumerate() {
        policy.add_charges(index, subject, context, charges).map_err(|error| match error {
            ChargePlanError::PlanBlocked => GatewayError::PlanBlocked,
            ChargePlanError::OverrideBlocked => GatewayError::OverrideBlocked,
            error => GatewayError::UnreadableCharge(error),
        })?;
    }
    Ok(())
}

/// What a `status` route reports.
#[derive(Clone, Debug)]
pub struct StatusPlan {
    /// The charges to the limits whose counters the request names; they are never made.
    pub charges: Vec<PlannedCharge>,
    /// The indices of the limits that count by a part of which the request does not say the value.
    pub unknown: Vec<usize>,
}

#[inline]
fn status_plan(
    route: &Route,
    subject: &Subject<'_>,
    context: ChargeContext<'_>,
) -> Result<Option<Box<StatusPlan>>, GatewayError> {
    let Action::Status(limits) = &route.action else { return Ok(None) };
    let (mut charges, mut unknown) = (PlannedCharges::new(), Vec::new());
    for (index, policy) in limits.iter().enumerate() {
        if !names_counter(route, policy, subject) {
            unknown.push(index);
            continue;
        }
        policy
            .add_status_charges(index, subject, context, &mut charges)
            .map_err(GatewayError::Ambiguous)?;
    }
    Ok(Some(Box::new(StatusPlan { charges: charges.into_vec(), unknown })))
}

/// True if a request to the status route `route` says which counter of `policy` is meant: by its
/// own parts, or because the route also charges the limit.
fn names_counter(route: &Route, policy: &Arc<LimitPolicy>, subject: &Subject<'_>) -> bool {
    let is_named = |part: &KeyPart| match part {
        KeyPart::Route | KeyPart::Path => false,
        KeyPart::Json(path) => {
            subject.body.is_some_and(|body| *body.get(path) != MemberValue::Missing)
        }
        _ => true,
    };
    route.limits.iter().any(|own| Arc::ptr_eq(own, policy)) || policy.key.0.iter().all(is_named)
}

/// The hash that a target is chosen by: the same on all gateways. `None` if a part of the key is
/// ambiguous.
fn target_key(plan: &KeyPlan, subject: &Subject<'_>) -> Option<u64> {
    // Needs no secret: a caller that can choose its target gains nothing.
    let subject = Subject { token_hash: None, ..*subject };
    plan.key(&subject, KeySecret(0, 0)).ok().map(|key| key as u64)
}

/// The charge for the planned charge `planned`: the limit with the caller's quota, the key and the
/// cost. `None`: the route has no such limit.
#[inline]
pub fn charge_for<'a>(route: &'a Route, planned: &'a PlannedCharge) -> Option<Charge<'a>> {
    let policy = route.limits.get(usize::from(planned.limit_index))?;
    let limit = policy.limit_of(planned);
    Some(Charge { limit, key: planned.key, cost: planned.cost })
}
