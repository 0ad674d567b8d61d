//! [`decide`]: the checks of a request that need no state, in their order.

use std::borrow::Cow;

use tidegate_http1::{BodyLength, DescriptionError};
use tidegate_identity::{Caller, ClientAddress, Consumer, KeySecret, Subject, TokenHash};
use tidegate_tls::SelectedCertificate;
use tidegate_usage::RequestMembers;

use super::{
    Admission, AskedRequest, AskedSource, MatchedRoute, RequestAttributes, RequestSource,
    RequestView, StatusPlan, Via, add_charges,
    asked::{decide_asked, refuse_unrouted},
    check_access, forwarded_scheme, status_plan, target_key,
};
use crate::error::GatewayError;
use crate::snapshot::{ChargeContext, OverridesAt, PlannedCharges, Route, Snapshot};

/// What a decision needs to know beyond the request itself.
pub struct DecisionInput<'a> {
    /// The source of the request: a connection, or a line of a log.
    pub source: RequestSource<'a>,
    /// Detects requests that have already passed through this process; `None` outside a gateway
    /// process.
    pub via: Option<&'a Via>,
    /// See [`ListenerRules::redirect_https`](crate::snapshot::ListenerRules).
    pub redirect_https: Option<u16>,
    /// The certificate of the connection; `None` without TLS.
    pub certificate: Option<&'a SelectedCertificate>,
    /// The secret of the hashes that limits count by.
    pub key_secret: KeySecret,
    /// The secret of the hashes by which the throttle identifies callers; `None` if there is no
    /// throttle.
    pub throttle_secret: Option<KeySecret>,
    /// The overrides of quotas; `None` if there are none.
    pub overrides: Option<OverridesAt>,
    /// The request's body, on a route whose limits read it.
    pub body: BodyAccess<'a>,
    /// Where the request is that a proxy asks about.
    pub asked: AskedSource<'a>,
}

/// What is known of a request's body when the request is decided.
#[derive(Clone, Copy)]
pub enum BodyAccess<'a> {
    /// It is read later: [`DeferredDecision::complete`] then decides on a route whose limits read it.
    Deferred,
    /// It has these members; `None`: it is not known, and has none.
    Known(Option<&'a RequestMembers>),
}

/// What becomes of a request, as far as it can be decided without state.
pub struct RequestDecision {
    /// The client, behind trusted proxies; `None` if the request ended before its path was
    /// accepted.
    pub client: Option<ClientAddress>,
    /// The path in normal form, if it differs from the path that was sent.
    pub path: Option<Box<str>>,
    /// The hash of the access token, if a limit's key has read it.
    pub token_hash: TokenHash,
    /// What follows.
    pub next: NextStep,
    /// The request that a proxy asks about, which is the one that was decided: `client` and `path`
    /// are its own. `None` if the request is no such question, or is refused before.
    pub asked: Option<Box<AskedRequest>>,
}

/// What follows from a decision.
pub enum NextStep {
    /// The gateway answers at once.
    Answer(LocalAnswer),
    /// The gateway refuses the request.
    Refuse(RequestRefusal),
    /// The body of the request is read, because it has the request that Envoy asks about on the
    /// `decide` route with this index; then the request is decided again.
    ReadCheck(usize),
    /// The request goes on to the throttle, its limits and its route's action.
    Proceed(PendingDecision),
}

/// An answer of the gateway for which nothing is charged.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LocalAnswer {
    /// The answer to `OPTIONS *`.
    Options,
    /// A redirect to this URL of an `https` listener.
    RedirectHttps(String),
    /// The answer to a preflight, by the `cors` of the route with this index.
    Preflight(usize),
}

/// The reason for a refusal.
#[derive(Debug)]
pub struct RequestRefusal {
    /// The error.
    pub error: GatewayError,
    /// The route that the request had found.
    pub route: RefusedRoute,
    /// The caller, if it had been read for the throttle.
    pub caller: Option<Caller>,
}

/// The route that a refused request had found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RefusedRoute {
    /// No route.
    None,
    /// No route: a route's conditions could not be decided.
    Undecided,
    /// The route with this index, whose `cors` answers preflights, but whose `allow` or `deny`
    /// refuses this client.
    Preflight(usize),
    /// The route with this index.
    Matched(usize),
}

/// The decision on a request that has found its route, as far as its head decides it. The checks
/// that need state follow; only the [`RouteDecision`] that comes out of it can be carried out.
///
/// What it has decided is not seen before the throttle has admitted the caller:
///
/// ```compile_fail,E0616
/// fn skip_the_throttle(pending: &tidegate_rules::plan::PendingDecision) -> bool {
///     pending.whole.is_some()
/// }
/// ```
pub struct PendingDecision {
    /// The route's index in the snapshot.
    pub route: usize,
    /// The caller; `None` if the throttle does not apply. On a route with `auth` it is found later.
    pub caller: Option<Caller>,
    /// The error that refuses the request once the throttle has admitted its caller.
    refused_after_throttle: Option<GatewayError>,
    /// The decision. It is large: it is made here, and stays here.
    whole: Option<RouteDecision>,
    /// The overrides for a decision that is deferred.
    overrides: Option<OverridesAt>,
}

/// How far the head of a request decides what its route does.
pub enum DecisionProgress<'d> {
    /// It decides all of it.
    Whole(&'d RouteDecision),
    /// It depends on who sends the request, on a route with `auth`, or on the request's body, on a
    /// route whose limits read it.
    Deferred(DeferredDecision<'d>),
}

/// A decision that needs the request's consumer or its body. Before it is complete, it is no
/// decision:
///
/// ```compile_fail,E0308
/// use tidegate_rules::plan::{DeferredDecision, RouteDecision};
///
/// fn charge(_: &RouteDecision) {}
/// fn forget_to_complete(deferred: DeferredDecision<'_>) {
///     charge(&deferred);
/// }
/// ```
///
/// It is completed once:
///
/// ```compile_fail,E0382
/// use tidegate_identity::{KeySecret, Subject};
/// use tidegate_rules::{plan::DeferredDecision, snapshot::Route};
///
/// fn twice(deferred: DeferredDecision<'_>, route: &Route, subject: &Subject, secret: KeySecret) {
///     let _ = deferred.complete(route, subject, secret);
///     let _ = deferred.complete(route, subject, secret);
/// }
/// ```
pub struct DeferredDecision<'d> {
    place: &'d mut Option<RouteDecision>,
    overrides: Option<&'d OverridesAt>,
}

/// What a request does on its route: whole, so that it can be charged and carried out. Only
/// [`decide`] and [`DeferredDecision::complete`] make one; another could charge nothing:
///
/// ```compile_fail,E0639
/// use tidegate_rules::plan::RouteDecision;
///
/// let free = RouteDecision { charges: Default::default(), status: None, target_key: None };
/// ```
///
/// ```compile_fail,E0599
/// let free = tidegate_rules::plan::RouteDecision::default();
/// ```
#[non_exhaustive]
pub struct RouteDecision {
    /// The limits to charge, with their keys and costs.
    pub charges: PlannedCharges,
    /// What a `status` route reports; `None` for other routes.
    pub status: Option<Box<StatusPlan>>,
    /// The hash by which the balancer chooses a target; `None` if it needs no hash, or a part of
    /// the key is ambiguous.
    pub target_key: Option<u64>,
}

impl From<GatewayError> for RequestRefusal {
    fn from(error: GatewayError) -> Self {
        Self { error, route: RefusedRoute::None, caller: None }
    }
}

impl RefusedRoute {
    /// The index of the route.
    pub fn index(self) -> Option<usize> {
        match self {
            Self::None | Self::Undecided => None,
            Self::Preflight(index) | Self::Matched(index) => Some(index),
        }
    }
}

impl RequestRefusal {
    pub(super) fn at(route: RefusedRoute) -> impl FnOnce(GatewayError) -> Self {
        move |error| Self { error, route, caller: None }
    }

    /// The admission that the access log shows for it.
    pub fn admission(&self) -> Admission {
        refused_admission(&self.error)
    }
}

/// The admission that the access log shows for a refusal with `error`, made before a limit was
/// charged.
pub fn refused_admission(error: &GatewayError) -> Admission {
    match error {
        GatewayError::NoRoute | GatewayError::MethodNotAllowed(_) => Admission::Unlimited,
        GatewayError::AccessDenied(_)
        | GatewayError::MissingClaims(_)
        | GatewayError::ConsumerNotAllowed
        | GatewayError::PlanBlocked
        | GatewayError::OverrideBlocked => Admission::Denied,
        GatewayError::Throttled(_) => Admission::Throttled,
        _ => Admission::NotChecked,
    }
}

impl NextStep {
    /// The index of the request's route, if one was found.
    pub fn route(&self) -> Option<usize> {
        match self {
            Self::Answer(LocalAnswer::Preflight(route)) | Self::ReadCheck(route) => Some(*route),
            Self::Answer(_) => None,
            Self::Refuse(refusal) => refusal.route.index(),
            Self::Proceed(pending) => Some(pending.route),
        }
    }
}

/// Decides a request: what the gateway does, `explain` prints and `replay` counts.
///
/// These are the checks that need no state; a new one belongs here. If the request proceeds, the
/// gateway then makes the checks that need state: see `Gateway::enter_route`.
#[inline]
pub fn decide(
    snapshot: &Snapshot,
    input: &DecisionInput<'_>,
    request: RequestView<'_>,
) -> RequestDecision {
    match check_before_routing(snapshot, input, &request) {
        Ok(None) => {}
        Ok(Some(answer)) => return RequestDecision::unread(NextStep::Answer(answer)),
        Err(error) => return refused_unread(snapshot, &request.host, request.path, error),
    }
    let (length, sent) = (request.length, request.path);
    let asked_host = snapshot.doors.as_ref().map(|_| request.host.clone());
    let attributes = match RequestAttributes::read(snapshot, &input.source, request) {
        Ok(attributes) => attributes,
        Err(error) => {
            return refused_unread(
                snapshot,
                asked_host.as_deref().unwrap_or_default(),
                sent,
                error,
            );
        }
    };
    if let Some(doors) = &snapshot.doors
        && let Some(decision) = decide_asked(snapshot, doors, input, &attributes, sent)
    {
        return decision;
    }
    let next = decide_on_route(snapshot, input, &attributes, length);
    let path = match attributes.path {
        Cow::Borrowed(_) => None,
        Cow::Owned(path) => Some(path.into_boxed_str()),
    };
    let client = Some(attributes.client);
    let token_hash = attributes.token_hash.get();
    let next = next.unwrap_or_else(NextStep::Refuse);
    RequestDecision { client, path, token_hash, next, asked: None }
}

#[cold]
fn refused_unread(
    snapshot: &Snapshot,
    host: &str,
    sent: &str,
    error: GatewayError,
) -> RequestDecision {
    RequestDecision::unread(NextStep::Refuse(refuse_unrouted(snapshot, host, sent, error)))
}

impl RequestDecision {
    fn unread(next: NextStep) -> Self {
        Self { client: None, path: None, token_hash: TokenHash::Unread, next, asked: None }
    }
}

/// The checks before the path is read.
#[inline]
fn check_before_routing(
    snapshot: &Snapshot,
    input: &DecisionInput<'_>,
    request: &RequestView<'_>,
) -> Result<Option<LocalAnswer>, GatewayError> {
    request.check_method_and_expect()?;
    if request.rare.via && input.via.is_some_and(|via| via.is_listed_in(request.headers)) {
        return Err(GatewayError::LoopDetected);
    }
    if request.is_asterisk_form {
        return Ok(Some(LocalAnswer::Options));
    }
    let Some(port) = input.redirect_https else { return Ok(None) };
    // A trusted proxy has ended TLS: the client uses https already, and a redirect would lead it
    // here again.
    let is_trusted = input.source.is_from_trusted_proxy(&snapshot.identity);
    if is_trusted && forwarded_scheme(request.headers) == Some("https") {
        return Ok(None);
    }
    let location = request.https_location(port).ok_or(GatewayError::MalformedTarget)?;
    Ok(Some(LocalAnswer::RedirectHttps(location)))
}

/// The checks that depend on the host and the path.
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
    if let Some(index) = attributes.find_preflight(snapshot, &input.source) {
        check_access(&snapshot.routes[index], attributes.client)
            .map_err(RequestRefusal::at(RefusedRoute::Preflight(index)))?;
        return Ok(NextStep::Answer(LocalAnswer::Preflight(index)));
    }
    let matched = attributes.find_route(snapshot, &input.source)?;
    let refused = RefusedRoute::Matched(matched.index);
    if matched.route.decide().is_some() {
        // `decide_asked` decides every question. Without one, nothing is decided for anyone.
        let error = if attributes.is_from_trusted_proxy {
            GatewayError::Undescribed(DescriptionError::Missing)
        } else {
            GatewayError::UntrustedAsker
        };
        return Err(RequestRefusal::at(refused)(error));
    }
    check_access(matched.route, attributes.client).map_err(RequestRefusal::at(refused))?;
    matched.check_sent_path(snapshot, &input.source)?;
    matched.check_destination(snapshot).map_err(RequestRefusal::at(refused))?;
    PendingDecision::read(&matched, input, length).map(NextStep::Proceed)
}

impl PendingDecision {
    /// Decides a request on the route that it has found, and checks the length of its body.
    ///
    /// # Errors
    ///
    /// A part of the request that identifies its caller is ambiguous, or a limit refuses it without
    /// a charge.
    #[inline]
    pub(super) fn read(
        matched: &MatchedRoute<'_>,
        input: &DecisionInput<'_>,
        length: BodyLength,
    ) -> Result<Self, RequestRefusal> {
        let route = matched.route;
        let body = match input.body {
            BodyAccess::Deferred => None,
            BodyAccess::Known(body) => body,
        };
        let awaits_body = route.inspection.is_some() && matches!(input.body, BodyAccess::Deferred);
        let mut pending = Self::of_route(matched.index);
        let read = if route.auth.is_some() {
            pending.overrides.clone_from(&input.overrides);
            Ok(())
        } else {
            matched.with_subject(body, |subject| {
                if let Some(secret) = input.throttle_secret.filter(|_| route.throttle) {
                    let caller = Caller::of(subject, secret, input.key_secret)
                        .map_err(GatewayError::Ambiguous)?;
                    pending.caller = Some(caller);
                }
                if awaits_body {
                    pending.overrides.clone_from(&input.overrides);
                    return Ok(());
                }
                let (secret, overrides) = (input.key_secret, input.overrides.as_ref());
                let context = ChargeContext::new(secret, overrides);
                RouteDecision::read_into(&mut pending.whole, route, subject, context).map(drop)
            })
        };
        if let Err(error) = read {
            let (route, caller) = (RefusedRoute::Matched(matched.index), pending.caller.take());
            return Err(RequestRefusal { error, route, caller });
        }
        if matches!(length, BodyLength::Known(length) if length > route.max_body) {
            pending.refused_after_throttle = Some(GatewayError::BodyTooLong(route.max_body));
        }
        Ok(pending)
    }

    #[inline]
    fn of_route(route: usize) -> Self {
        Self { route, caller: None, refused_after_throttle: None, whole: None, overrides: None }
    }

    /// Goes on once the throttle has admitted the caller.
    ///
    /// # Errors
    ///
    /// The request is refused, as the head has decided: its body is too long.
    #[inline]
    pub fn after_throttle(&mut self) -> Result<DecisionProgress<'_>, GatewayError> {
        if let Some(error) = self.refused_after_throttle.take() {
            return Err(error);
        }
        Ok(match &mut self.whole {
            Some(decision) => DecisionProgress::Whole(decision),
            place => {
                let overrides = self.overrides.as_ref();
                DecisionProgress::Deferred(DeferredDecision { place, overrides })
            }
        })
    }
}

impl<'d> DeferredDecision<'d> {
    /// Completes the decision on `route`: `subject` has the request's consumer, and its body on a
    /// route whose limits read it.
    ///
    /// # Errors
    ///
    /// The consumer may not use the route, its plan or an override blocks a limit, or a limit's key
    /// or cost cannot be read.
    pub fn complete(
        self,
        route: &Route,
        subject: &Subject<'_>,
        secret: KeySecret,
    ) -> Result<&'d RouteDecision, GatewayError> {
        check_consumer(route, subject.consumer)?;
        let context = ChargeContext::new(secret, self.overrides);
        RouteDecision::read_into(self.place, route, subject, context)
    }
}

impl RouteDecision {
    /// Makes the decision in `place`, where nothing is left after an error.
    #[inline]
    fn read_into<'d>(
        place: &'d mut Option<Self>,
        route: &Route,
        subject: &Subject<'_>,
        context: ChargeContext<'_>,
    ) -> Result<&'d Self, GatewayError> {
        let empty = Self { charges: PlannedCharges::default(), status: None, target_key: None };
        if let Err(error) = place.insert(empty).read(route, subject, context) {
            *place = None;
            return Err(error);
        }
        place.as_ref().ok_or(GatewayError::Bug("a decision that was made is lost"))
    }

    /// Reads the charges and the target's key.
    #[inline]
    fn read(
        &mut self,
        route: &Route,
        subject: &Subject<'_>,
        context: ChargeContext<'_>,
    ) -> Result<(), GatewayError> {
        add_charges(route, subject, context, &mut self.charges)?;
        self.status = status_plan(route, subject, context)?;
        self.target_key = route.hash_key.as_ref().and_then(|plan| target_key(plan, subject));
        Ok(())
    }
}

/// Checks that `route` admits the consumer.
///
/// # Errors
///
/// The consumer may not use the route.
pub fn check_consumer(route: &Route, consumer: Option<Consumer<'_>>) -> Result<(), GatewayError> {
    if route.auth.as_ref().is_some_and(|auth| !auth.allows(consumer)) {
        return Err(GatewayError::ConsumerNotAllowed);
    }
    Ok(())
}
