//! How one request is decided, by the same code as a live request; printed as text or JSON.

mod text;

use std::collections::BTreeMap;

use serde::Serialize;

use super::caller::{ExplainedCaller, ExplainedIdentity};
use super::chosen_target::chosen_target;
use super::limit_explanation::{LimitCharge, LimitExplanation, charge, limit_charges};
use super::overridden::{ExplainedOverrides, OverrideExplanation};
use super::request::Request;
use super::route_changes::{RouteChanges, routed};
use super::waiting_turn::WaitingTurn;
use crate::balance::TargetKey;
use crate::clock::StoreTime;
use crate::error::GatewayError;
use crate::grpc;
use crate::http1::{DescriptionError, Fields, RequestHead};
use crate::identity::{Consumer, OwnedConsumer};
use crate::plan::{
    self, Admission, AskedRequest, AskedSource, BodyAccess, CallerBucket, DecisionInput,
    DecisionProgress, NextStep, QuestionForm, RefusedRoute, RequestAttributes, RequestDecision,
    RequestRefusal, RequestSource, RequestView, RoutedRequest, SubjectDetails,
};
use crate::respond::{self, ApiError, ErrorForm, ErrorStyle, HeaderReader};
use crate::sensitive::mask_url;
use crate::snapshot::{Action, Route, Snapshot};
use crate::upstream::{Protocol, Target, UpstreamKind};

/// The last of 100 callers: routes with weights serve it only if their weights add up to 100. The
/// place of the real caller is unknown here, because it depends on the gateway's secret.
const EXAMPLE_CALLER: CallerBucket = CallerBucket::Fixed(99);

/// What would happen to a request. The field names are those of the JSON: a stable interface.
#[derive(Default, Serialize)]
pub(super) struct Explanation {
    /// The method and path of the question, if another proxy asks about the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    question: Option<String>,
    /// The request's method.
    method: String,
    /// The normalized host, as routes match it.
    host: String,
    /// The normalized path, as routes match it.
    path: String,
    /// The path as it was sent, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_path: Option<String>,
    /// The client's address: the connection's, or the one that a trusted proxy reports.
    client: String,
    /// Source of the address: `peer`, `forwarded`, or `unverified` if a trusted proxy names no
    /// client.
    client_source: &'static str,
    /// The route's name.
    route: Option<String>,
    /// The route's conditions beyond its pattern, and its changes of messages.
    changes: RouteChanges,
    /// The route's path prefix, with `/...` appended.
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    /// The name of the consumer.
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer: Option<String>,
    /// The consumer's plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    /// Why the consumer is not known, though the request may have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer_undecided: Option<&'static str>,
    /// True if the consumers are in Redis, where `explain` reads no record.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    consumers_in_redis: bool,
    /// The overrides that apply to the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<OverrideExplanation>,
    /// The limits that apply to the request.
    limits: Vec<LimitExplanation>,
    /// Names of the route's limits in which the caller has an unlimited tier.
    unlimited: Vec<String>,
    /// True if the throttle applies.
    throttle: bool,
    /// What the waiting room does with the request; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_room: Option<WaitingTurn>,
    /// The decision for a caller with unused quotas: `admitted`, `refused`, `none` without limits,
    /// `denied` by the route's `allow` or `deny`, or `not_checked` if the request ends before its
    /// limits are charged.
    decision: &'static str,
    /// The status of the gateway's own response, as in the access log; `None` if an upstream
    /// responds.
    status: Option<u16>,
    /// The status that the asking proxy gets instead, with `status` in `X-Tidegate-Status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_status: Option<u16>,
    /// The reason for an error status.
    reason: Option<String>,
    /// Headers that the gateway adds to the response.
    headers: BTreeMap<String, String>,
    /// Name of the upstream.
    upstream: Option<String>,
    /// The upstream's servers; one of them gets the request.
    targets: Vec<String>,
    /// The target that would be chosen if all were in service and had no load.
    target: Option<String>,
    /// The reason for this target.
    target_reason: Option<String>,
    /// The servers' protocol: `http1`, `http2`, or `auto` if the TLS handshake chooses it.
    upstream_protocol: Option<UpstreamProtocol>,
    /// The request target that is forwarded.
    forwarded: Option<String>,
    /// How important the request is while all servers are full, from 0 to 9; `None` if no request
    /// waits for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip)]
    question_form: QuestionForm,
    #[serde(skip)]
    is_grpc: bool,
    /// The form of an error's body.
    #[serde(skip)]
    form: ErrorForm,
    /// The route's index in the snapshot.
    #[serde(skip)]
    route_index: Option<usize>,
}

/// The protocol towards the upstream's servers.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum UpstreamProtocol {
    Http1,
    Http2,
    Auto,
}

impl Explanation {
    /// Explains what the gateway would do with `request` at `now`.
    pub(super) fn new(
        snapshot: &Snapshot,
        request: &Request,
        caller: ExplainedCaller<'_>,
        overrides: &ExplainedOverrides,
        now: StoreTime,
    ) -> Self {
        let mut explanation = Self { decision: Admission::NotChecked.label(), ..Self::default() };
        if let Err(error) = explanation.trace(snapshot, request, (caller, overrides), now) {
            let route = explanation.route_index.map(|index| &*snapshot.routes[index]);
            explanation.set_refusal(&error, &[], route);
        }
        explanation
    }

    /// Follows the request until it is refused, answered or forwarded.
    fn trace(
        &mut self,
        snapshot: &Snapshot,
        request: &Request,
        (caller, overrides): (ExplainedCaller<'_>, &ExplainedOverrides),
        now: StoreTime,
    ) -> Result<(), GatewayError> {
        let head = &request.read(snapshot.http.head)?;
        self.method = head.method.to_string();
        self.is_grpc = grpc::is_grpc(&head.fields);
        self.form = ErrorForm::of(&head.fields);
        let view = RequestView::of(head);
        let listener = request.listener(snapshot);
        let names = listener.and_then(|listener| listener.tls.as_ref());
        let certificate = names.map(|names| names.load().select(Some(&view.host)));
        let source = RequestSource::Request { peer: request.peer, caller: EXAMPLE_CALLER };
        let has_throttle = snapshot.throttle.is_some();
        let input = DecisionInput {
            source,
            via: None,
            redirect_https: listener.and_then(|listener| listener.redirect_https),
            certificate: certificate.as_ref(),
            key_secret: overrides.secret,
            throttle_secret: has_throttle.then_some(overrides.secret),
            overrides: overrides.at.clone(),
            body: BodyAccess::Deferred,
            asked: AskedSource::Question,
        };
        let decision = plan::decide(snapshot, &input, view);
        let RequestDecision { client, next, asked, .. } = decision;
        let asked = asked.map(|asked| self.enter_question(head, *asked));
        let head = asked.as_ref().unwrap_or(head);
        let view = RequestView::of(head);
        if client.is_none() {
            return self.follow(next, snapshot, head);
        }
        let attributes = RequestAttributes::read(snapshot, &source, view)?;
        self.set_attributes(&attributes);
        let index = next.route();
        if let Some(index) = index {
            self.enter_route(snapshot, index, head);
        }
        if matches!(
            next,
            NextStep::Answer(_)
                | NextStep::Refuse(
                    RequestRefusal { error: GatewayError::Misdirected, .. }
                        | RequestRefusal { route: RefusedRoute::Preflight(_), .. }
                )
        ) {
            return self.follow(next, snapshot, head);
        }
        if self.question.is_none() {
            self.changes = RouteChanges::of_others(snapshot, &attributes, request.peer, index);
        }
        let Some(index) = index else { return self.follow(next, snapshot, head) };
        let route = &snapshot.routes[index];
        self.changes.add_conditions(route);
        let identified = match (&route.auth, &next) {
            (Some(auth), NextStep::Proceed(_)) => caller.identify(auth, head, now),
            _ => Ok(ExplainedIdentity::default()),
        };
        self.consumers_in_redis = route.auth.is_some() && caller.consumers.is_in_store();
        let (identity, unauthenticated) = match identified {
            Ok(identity) => (identity, None),
            Err(error) => (ExplainedIdentity::default(), Some(error)),
        };
        self.consumer_undecided = identity.undecided;
        let consumer = identity.consumer.as_ref();
        self.set_consumer(consumer.map(OwnedConsumer::view));
        let prefix = snapshot.identity.ipv6_prefix;
        let details = SubjectDetails { consumer: consumer.map(OwnedConsumer::view), body: None };
        let found = attributes
            .with_details(route, prefix, details, |subject| overrides.of_route(route, subject));
        // An ambiguous part is reported with the decision.
        self.overrides = found.unwrap_or_default();
        let routed = routed(snapshot, route, head, &attributes, request.scheme(), consumer);
        self.changes.add_response(routed);
        let is_denied = matches!(
            next,
            NextStep::Refuse(RequestRefusal { error: GatewayError::AccessDenied(_), .. })
        );
        self.throttle = route.throttle && has_throttle && !is_denied;
        let waiting_room = WaitingTurn::of(snapshot, &next, details.consumer);
        self.waiting_room = waiting_room.filter(|_| self.throttle);
        let NextStep::Proceed(mut pending) = next else { return self.follow(next, snapshot, head) };
        let progress = pending.after_throttle()?;
        if let Some(error) = unauthenticated {
            return Err(error);
        }
        let members = request.members(route, &head.fields).map_err(GatewayError::UnreadableBody)?;
        let details = SubjectDetails { body: Some(&members), ..details };
        let decided = match progress {
            DecisionProgress::Whole(decision) => Ok(decision),
            DecisionProgress::Deferred(deferred) => {
                attributes.with_details(route, prefix, details, |subject| {
                    deferred.complete(route, subject, overrides.secret)
                })
            }
        };
        let decision = self.noted(decided)?;
        let limits = attributes.with_details(route, prefix, details, |subject| {
            limit_charges(route, subject, &decision.charges, overrides.secret)
        });
        let limits = self.noted(limits)?;
        self.trace_route(snapshot, decision.target_key, limits, routed, now)
    }

    /// Records what the access log would say of a refusal.
    fn noted<T>(&mut self, decided: Result<T, GatewayError>) -> Result<T, GatewayError> {
        decided.inspect_err(|error| self.decision = plan::refused_admission(error).label())
    }

    /// Records that a proxy asks about a request. Returns the head of that one.
    fn enter_question(&mut self, question: &RequestHead, asked: AskedRequest) -> RequestHead {
        self.question = Some(format!("{} {}", question.method, question.path()));
        self.question_form = asked.form;
        let head = question.about(asked.described);
        self.method = head.method.to_string();
        head
    }

    /// Records the decision, unless the request proceeds on its route.
    fn follow(
        &mut self,
        next: NextStep,
        snapshot: &Snapshot,
        head: &RequestHead,
    ) -> Result<(), GatewayError> {
        match next {
            NextStep::Answer(answer) => {
                self.decision = Admission::Unlimited.label();
                let cors = self.route_index.and_then(|index| snapshot.routes[index].cors.as_ref());
                self.set_reply(&respond::answer(&answer, cors, &head.fields));
                Ok(())
            }
            NextStep::Refuse(refusal) => {
                self.decision = refusal.admission().label();
                Err(refusal.error)
            }
            // It is in a message, which `explain` does not take: a question's fields also name it.
            NextStep::ReadCheck(_) => Err(GatewayError::Undescribed(DescriptionError::Missing)),
            NextStep::Proceed(_) => Ok(()),
        }
    }

    /// Records the attributes that routes and keys use.
    fn set_attributes(&mut self, attributes: &RequestAttributes<'_>) {
        self.host = attributes.host.to_string();
        self.path = attributes.path.to_string();
        let is_normal = *attributes.path == *attributes.sent_path;
        self.sent_path = (!is_normal).then(|| attributes.sent_path.to_owned());
        self.client = attributes.client.ip.to_string();
        self.client_source = attributes.client.source.label();
    }

    /// Records who sends the request.
    fn set_consumer(&mut self, consumer: Option<Consumer<'_>>) {
        self.consumer = consumer.map(|consumer| consumer.name.to_owned());
        self.plan = consumer.and_then(|consumer| consumer.plan).map(str::to_owned);
    }

    /// Records the route, and the fields of its `cors`.
    fn enter_route(&mut self, snapshot: &Snapshot, index: usize, head: &RequestHead) {
        let route = &snapshot.routes[index];
        self.route_index = Some(index);
        self.route = Some(route.name.to_string());
        self.is_grpc &= route.decide().is_none();
        let pattern = &route.edits.pattern;
        self.prefix = pattern.is_prefix().then(|| pattern.as_str().to_owned());
        if let Some(policy) = &route.cors {
            let mut fields = Fields::new();
            respond::write_cors_fields(&mut fields, policy, &head.fields, None);
            self.add_headers(&fields);
        }
    }

    /// Follows a request that proceeds on its route.
    fn trace_route(
        &mut self,
        snapshot: &Snapshot,
        target_key: Option<u64>,
        mut limits: Vec<LimitCharge<'_>>,
        routed: RoutedRequest<'_>,
        now: StoreTime,
    ) -> Result<(), GatewayError> {
        let RoutedRequest { route, head, .. } = routed;
        let names = route.limits.iter().map(|policy| policy.limit.name());
        let uncounted =
            names.filter(|name| limits.iter().all(|own| own.charge.limit.name() != *name));
        self.unlimited = uncounted.map(ToString::to_string).collect();
        self.decision = Admission::Unlimited.label();
        if !limits.is_empty() {
            let admitted = charge(&mut limits, now);
            let admission = if admitted { Admission::Admitted } else { Admission::Refused };
            self.decision = admission.label();
            let reader = HeaderReader::of(&head.fields, route.cors.as_ref());
            self.add_rate_headers(snapshot, &limits, reader);
            if !admitted {
                self.set_refusal(&GatewayError::LimitExceeded, &limits, Some(route));
            }
            self.limits = limits.into_iter().map(LimitExplanation::new).collect();
            if !admitted {
                return Ok(());
            }
        }
        let upstream = match &route.action {
            Action::Upstream(upstream) => upstream,
            Action::Status(_) => {
                self.status = Some(200);
                return Ok(());
            }
            Action::Redirect(redirect) => {
                let location = routed.with_values(|values| redirect.to.render(values));
                let location = location.ok_or(GatewayError::MalformedTarget)?;
                self.set_reply(&respond::redirect_reply(&location, redirect.status));
                return Ok(());
            }
            Action::Respond(fixed) => {
                self.set_reply(&respond::fixed_reply(fixed));
                return Ok(());
            }
            Action::Decide(_) => {
                let consumer = routed.consumer.map(OwnedConsumer::view);
                let fields = consumer.into_iter().flat_map(Consumer::fields).collect();
                self.set_reply(&respond::decision_reply(self.question_form, fields));
                return Ok(());
            }
        };
        self.upstream = Some(upstream.name.to_string());
        match &upstream.kind {
            UpstreamKind::Fixed(fixed) => self.status = Some(fixed.status.as_u16()),
            UpstreamKind::Servers(servers) => {
                let path = routed.forwarded_path()?;
                let removed = routed.route.auth.as_ref().map(|auth| auth.removed_credentials());
                let query = head.query().and_then(|query| match removed {
                    Some(removed) => removed.other_parameters(query),
                    None => Some(query.into()),
                });
                let query = query.map(|query| format!("?{query}"));
                self.forwarded = Some(path.into_owned() + &query.unwrap_or_default());
                self.changes.add_request(routed);
                let priority = snapshot.priority(route, self.plan.as_deref());
                let has_queue = servers.bounds.max_pending > 0;
                self.priority = has_queue.then_some(priority.number());
                self.targets = servers.targets.iter().map(|own| own.target.to_string()).collect();
                if let Some((target, reason)) =
                    chosen_target(servers, TargetKey(target_key.unwrap_or_default()))
                {
                    (self.target, self.target_reason) = (Some(target), Some(reason));
                }
                self.upstream_protocol =
                    servers.targets.first().map(|own| UpstreamProtocol::of(&own.target));
            }
        }
        Ok(())
    }

    fn add_rate_headers(
        &mut self,
        snapshot: &Snapshot,
        limits: &[LimitCharge<'_>],
        reader: HeaderReader,
    ) {
        let mut fields = Fields::new();
        let reports = limits.iter().map(LimitCharge::report);
        respond::write_rate_headers(&mut fields, reports, snapshot.headers, reader);
        self.add_headers(&fields);
    }

    fn set_refusal(
        &mut self,
        error: &GatewayError,
        limits: &[LimitCharge<'_>],
        route: Option<&Route>,
    ) {
        let reports = limits.iter().map(LimitCharge::report);
        let bodies = route.and_then(|route| route.error_bodies.as_ref());
        let own = bodies.and_then(|bodies| bodies.get(error.status()));
        let response = if self.is_grpc {
            respond::grpc_refusal(error, reports)
        } else {
            let format = route.map(|route| route.error_format).unwrap_or_default();
            let api = ApiError { format, call_id: None };
            respond::error_reply(error, reports, "", ErrorStyle { form: self.form, api, own })
        };
        self.status = Some(response.status.as_u16());
        self.reason = Some(error.detail().into_owned());
        self.add_headers(&response.fields);
        let rules = route.and_then(Route::decide);
        let sent = rules.map_or(response.status, |rules| rules.sent_status(response.status));
        if sent != response.status {
            self.sent_status = Some(sent.as_u16());
        }
    }

    /// Records a response of the gateway itself.
    fn set_reply(&mut self, reply: &respond::LocalReply) {
        self.status = Some(reply.status.as_u16());
        self.add_headers(&reply.fields);
    }

    fn add_headers(&mut self, fields: &Fields) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for (name, value) in fields.iter().map(|(name, value)| (text(name), text(value))) {
            // A redirect's URL may have a credential.
            let value = if name == "location" { mask_url(&value).into_owned() } else { value };
            match self.headers.get_mut(&name) {
                Some(values) if name == "vary" => *values = format!("{values}, {value}"),
                _ => _ = self.headers.insert(name, value),
            }
        }
    }
}

impl UpstreamProtocol {
    fn of(target: &Target) -> Self {
        match target.protocol {
            Protocol::Http2 => Self::Http2,
            Protocol::Auto if target.tls.is_some() => Self::Auto,
            // Without TLS, nothing is negotiated.
            Protocol::Http1 | Protocol::Auto => Self::Http1,
        }
    }
}
