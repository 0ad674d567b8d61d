//! [`decide`]: every check of a request that needs no state, in their order.

use std::borrow::Cow;

use super::{
    Evidence, LimitRequests, MatchedRoute, RequestAttributes, RequestView, Via, check_access,
    limit_requests, status_requests, target_key,
};
use crate::{
    error::GatewayError,
    http1::BodyLength,
    identity::{Caller, ClientAddress, KeySecret},
    limit::Admission,
    snapshot::{LimitRequest, Snapshot},
    tls::SelectedName,
};

/// What a decision needs to know beyond the request itself.
pub struct DecisionInput<'a> {
    /// What is known of the request.
    pub evidence: Evidence<'a>,
    /// Finds requests that have passed this process before; `None` if there is no process.
    pub via: Option<&'a Via>,
    /// See [`ListenerRules::redirect_https`](crate::snapshot::ListenerRules).
    pub redirect_https: Option<u16>,
    /// The certificate of the connection; `None` in clear.
    pub certificate: Option<&'a SelectedName>,
    /// Keys the hashes that limits count by.
    pub key_secret: KeySecret,
    /// Keys the hash of the throttle's caller; `None` if there is no throttle.
    pub throttle_secret: Option<KeySecret>,
}

/// What becomes of a request, as far as it can be decided without state.
pub struct RequestDecision {
    /// The client, behind trusted proxies; `None` if the request ended before its path was accepted.
    pub client: Option<ClientAddress>,
    /// The path in normal form, if it differs from the path that was sent.
    pub path: Option<Box<str>>,
    /// What follows.
    pub next: NextStep,
}

/// What follows from a decision.
pub enum NextStep {
    /// The gateway answers at once.
    Answer(LocalAnswer),
    /// The gateway refuses the request.
    Refuse(RequestRefusal),
    /// The request is admitted by the throttle, charged to its limits, and passed to its route's action.
    Proceed(RoutePlan),
}

/// An answer of the gateway for which nothing is charged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LocalAnswer {
    /// To `OPTIONS *`.
    Options,
    /// A redirect to this URL of an `https` listener.
    RedirectHttps(String),
    /// By the `cors` of the route with this index.
    Preflight(usize),
}

/// The reason for a refusal.
#[derive(Debug)]
pub struct RequestRefusal {
    /// The error.
    pub error: GatewayError,
    /// The index of the route that the request had found.
    pub route: Option<usize>,
    /// True if conditions of routes could not be decided.
    pub is_undecided: bool,
}

/// The plan of a request on its route.
pub struct RoutePlan {
    /// The route's index in the snapshot.
    pub route: usize,
    /// The caller; `None` if the throttle does not apply.
    pub caller: Option<Caller>,
    /// The limits to charge, with their keys and costs.
    pub charges: LimitRequests,
    /// The limits that a `status` route reports; empty for other routes.
    pub status_requests: Vec<LimitRequest>,
    /// The hash that the upstream chooses a target by; `None` for other policies, and for ambiguous parts.
    pub target_key: Option<u64>,
}

impl From<GatewayError> for RequestRefusal {
    fn from(error: GatewayError) -> Self {
        Self { error, route: None, is_undecided: false }
    }
}

impl RequestRefusal {
    fn on_route(index: usize) -> impl FnOnce(GatewayError) -> Self {
        move |error| Self { error, route: Some(index), is_undecided: false }
    }

    /// How the access log calls it.
    pub fn admission(&self) -> Admission {
        match self.error {
            GatewayError::NoRoute | GatewayError::MethodNotAllowed(_) => Admission::Unlimited,
            GatewayError::AccessDenied => Admission::Denied,
            _ => Admission::NotChecked,
        }
    }
}

impl NextStep {
    /// The index of the request's route, if one was found.
    pub fn route(&self) -> Option<usize> {
        match self {
            Self::Answer(LocalAnswer::Preflight(route)) => Some(*route),
            Self::Answer(_) => None,
            Self::Refuse(refusal) => refusal.route,
            Self::Proceed(plan) => Some(plan.route),
        }
    }
}

/// Decides a request: what the gateway does, `explain` prints and `replay` counts.
///
/// These are the checks that need no state; a new one belongs here. Of a request that proceeds, the gateway
/// then checks what needs state: see `Gateway::proceed`.
#[inline]
pub fn decide(
    snapshot: &Snapshot,
    input: &DecisionInput<'_>,
    request: RequestView<'_>,
) -> RequestDecision {
    match answer_on_any_route(input, &request) {
        Ok(None) => {}
        Ok(Some(answer)) => return RequestDecision::unread(NextStep::Answer(answer)),
        Err(error) => return RequestDecision::unread(NextStep::Refuse(error.into())),
    }
    let length = request.length;
    let attributes = match RequestAttributes::read(snapshot, &input.evidence, request) {
        Ok(attributes) => attributes,
        Err(error) => return RequestDecision::unread(NextStep::Refuse(error.into())),
    };
    let next = decide_on_route(snapshot, input, &attributes, length);
    let path = match attributes.path {
        Cow::Borrowed(_) => None,
        Cow::Owned(path) => Some(path.into_boxed_str()),
    };
    let client = Some(attributes.client);
    RequestDecision { client, path, next: next.unwrap_or_else(NextStep::Refuse) }
}

impl RequestDecision {
    fn unread(next: NextStep) -> Self {
        Self { client: None, path: None, next }
    }
}

/// The checks before the path is read.
#[inline]
fn answer_on_any_route(
    input: &DecisionInput<'_>,
    request: &RequestView<'_>,
) -> Result<Option<LocalAnswer>, GatewayError> {
    request.check_method_and_expect()?;
    if input.via.is_some_and(|via| via.is_listed_in(request.headers)) {
        return Err(GatewayError::LoopDetected);
    }
    if request.is_asterisk_form {
        return Ok(Some(LocalAnswer::Options));
    }
    let Some(port) = input.redirect_https else { return Ok(None) };
    let location = request.https_location(port).ok_or(GatewayError::MalformedTarget)?;
    Ok(Some(LocalAnswer::RedirectHttps(location)))
}

/// The checks that go by the host and the path.
#[inline]
fn decide_on_route(
    snapshot: &Snapshot,
    input: &DecisionInput<'_>,
    attributes: &RequestAttributes<'_>,
    length: BodyLength,
) -> Result<NextStep, RequestRefusal> {
    if input.certificate.is_some_and(|name| !name.serves(&attributes.host)) {
        return Err(GatewayError::Misdirected.into());
    }
    if let Some(index) = attributes.find_preflight(snapshot, &input.evidence) {
        check_access(&snapshot.routes[index], attributes.client)
            .map_err(RequestRefusal::on_route(index))?;
        return Ok(NextStep::Answer(LocalAnswer::Preflight(index)));
    }
    let matched = attributes.find_route(snapshot, &input.evidence)?;
    let (index, route) = (matched.index, matched.route);
    check_access(route, attributes.client).map_err(RequestRefusal::on_route(index))?;
    let plan = plan_route(&matched, input).map_err(RequestRefusal::on_route(index))?;
    match length {
        BodyLength::Known(length) if length > route.max_body => {
            Err(RequestRefusal::on_route(index)(GatewayError::BodyTooLong(route.max_body)))
        }
        _ => Ok(NextStep::Proceed(plan)),
    }
}

/// Reads the caller, the charges and the target's key.
#[inline]
fn plan_route(
    matched: &MatchedRoute<'_>,
    input: &DecisionInput<'_>,
) -> Result<RoutePlan, GatewayError> {
    let route = matched.route;
    matched.with_subject(|subject| {
        let caller = match input.throttle_secret {
            Some(secret) if route.throttle => {
                Some(Caller::of(subject, secret).map_err(GatewayError::Ambiguous)?)
            }
            _ => None,
        };
        Ok(RoutePlan {
            route: matched.index,
            caller,
            charges: limit_requests(route, subject, input.key_secret)?,
            status_requests: status_requests(route, subject, input.key_secret)?,
            target_key: route.hash_key.as_ref().and_then(|plan| target_key(plan, subject)),
        })
    })
}
