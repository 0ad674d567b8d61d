//! How one request is decided, by the same code as a live request; printed as text or JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::request::Request;
use crate::error::GatewayError;
use crate::framing::{BodyLength, Fields, RequestHead};
use crate::identity::{AddressSource, Caller, KeySecret, KeyValues, Subject};
use crate::limit::{Admission, Charge, Key, Millis, Outcome};
use crate::plan::{self, MatchedRoute, RequestAttributes, https_location};
use crate::respond::{self, LimitReport};
use crate::snapshot::{Action, Route, Snapshot};
use crate::store::memory::Memory;
use crate::upstream::{Protocol, Target, UpstreamKind};

/// A fixed secret: no hash leaves this process.
const SECRET: KeySecret = KeySecret(0, 0);

/// What would happen to a request. The field names are those of the JSON: a stable interface.
#[derive(Default, Serialize)]
pub(super) struct Explanation {
    /// The request's method.
    method: String,
    /// The normalized host, as routes match it.
    host: String,
    /// The normalized path, as routes match it.
    path: String,
    /// The client's address: the connection's, or the one that a trusted proxy reports.
    client: String,
    /// Source of the address: `peer`, `forwarded`, or `unverified` if a trusted proxy names no client.
    client_source: &'static str,
    /// The route's name.
    route: Option<String>,
    /// The limits that the request is charged to.
    limits: Vec<LimitExplanation>,
    /// True if the throttle applies.
    throttle: bool,
    /// The decision for a caller with unused quotas: `admitted`, `refused`, `none` without limits, or
    /// `not_checked` if the request ends before its limits are charged.
    decision: &'static str,
    /// The status of the gateway's own response, as in the access log; `None` if an upstream responds.
    status: Option<u16>,
    /// The reason for an error status.
    reason: Option<String>,
    /// Headers that the gateway adds to the response.
    headers: BTreeMap<String, String>,
    /// Name of the upstream.
    upstream: Option<String>,
    /// The upstream's servers; one of them gets the request.
    targets: Vec<String>,
    /// Their protocol: `http1`, `http2`, or `auto` if the TLS handshake chooses it.
    upstream_protocol: Option<UpstreamProtocol>,
    /// The request target that is forwarded.
    forwarded: Option<String>,
    /// Whether the request is of gRPC.
    #[serde(skip)]
    is_grpc: bool,
}

/// The protocol that servers are spoken to.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum UpstreamProtocol {
    Http1,
    Http2,
    Auto,
}

/// The decision of one limit.
#[derive(Serialize)]
struct LimitExplanation {
    name: String,
    algorithm: &'static str,
    quota: u32,
    window_ms: Millis,
    cost: u32,
    /// Index of the caller's tier, from 0.
    tier: Option<u16>,
    /// False if the limit is not enforced.
    enforced: bool,
    /// The parts of the key; empty if all requests are counted together.
    key: Vec<KeyPartValue>,
    /// The client's address: the key that is used if all parts of the configured key are empty.
    fallback: Option<String>,
    admitted: bool,
    remaining: u64,
}

#[derive(Serialize)]
struct KeyPartValue {
    part: String,
    value: String,
}

impl Explanation {
    /// What the gateway would do with `request` at `now`, in ms since the epoch.
    pub(super) fn new(snapshot: &Snapshot, request: &Request, now: Millis) -> Self {
        let mut explanation = Self { decision: Admission::NotChecked.label(), ..Self::default() };
        if let Err(error) = explanation.trace(snapshot, request, now) {
            explanation.set_refusal(&error, &[]);
        }
        explanation
    }

    /// Follows the request until it is refused, answered or forwarded.
    fn trace(
        &mut self,
        snapshot: &Snapshot,
        request: &Request,
        now: Millis,
    ) -> Result<(), GatewayError> {
        let head = &request.read(snapshot.http.head)?;
        self.method = head.method.to_string();
        self.is_grpc = respond::is_grpc(&head.fields);
        plan::check_method_and_expect(head)?;
        if head.is_asterisk_form() {
            self.decision = Admission::Unlimited.label();
            self.status = Some(200);
            return Ok(());
        }
        let listener = request.listener(snapshot);
        if let Some(port) = listener.and_then(|listener| listener.redirect_https) {
            let location = https_location(head, port).ok_or(GatewayError::MalformedTarget)?;
            let reply = respond::redirect_reply(&location);
            self.decision = Admission::Unlimited.label();
            self.status = Some(reply.status.as_u16());
            self.add_headers(&reply.fields);
            return Ok(());
        }
        let attributes = RequestAttributes::read(snapshot, request.peer, head)?;
        self.host = attributes.host.to_string();
        self.path = attributes.path.to_string();
        self.client = attributes.client.ip.to_string();
        self.client_source = attributes.client.source.label();
        if let Some(names) = listener.and_then(|listener| listener.tls.as_ref())
            && !names.select(Some(&attributes.host)).serves(&attributes.host)
        {
            return Err(GatewayError::Misdirected);
        }
        let matched = attributes.find_route(snapshot).map_err(|error| {
            if matches!(error, GatewayError::NoRoute | GatewayError::MethodNotAllowed(_)) {
                self.decision = Admission::Unlimited.label();
            }
            error
        })?;
        let route = &snapshot.routes[matched.index];
        self.route = Some(route.name.to_string());
        self.trace_route(snapshot, &matched, head, now)
    }

    fn trace_route(
        &mut self,
        snapshot: &Snapshot,
        matched: &MatchedRoute<'_>,
        head: &RequestHead,
        now: Millis,
    ) -> Result<(), GatewayError> {
        let route = matched.route;
        self.throttle = route.throttle && snapshot.throttle.is_some();
        let (caller, limits, status) = matched.with_subject(|subject| {
            (
                Caller::of(subject, SECRET),
                limit_charges(route, subject),
                plan::status_requests(route, subject, SECRET),
            )
        });
        if self.throttle {
            caller.map_err(GatewayError::Ambiguous)?;
        }
        status?;
        let mut limits = limits?;
        let path = plan::forwarded_path(&self.path, route.strip_prefix.as_deref());
        let forwarded =
            head.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
        if matches!(head.length, BodyLength::Known(length) if length > route.max_body) {
            return Err(GatewayError::BodyTooLong(route.max_body));
        }
        self.decision = Admission::Unlimited.label();
        if !limits.is_empty() {
            let admitted = charge(&mut limits, now);
            let admission = if admitted { Admission::Admitted } else { Admission::Refused };
            self.decision = admission.label();
            self.add_rate_headers(snapshot, &limits, head.fields.contains("origin"));
            if !admitted {
                self.set_refusal(&GatewayError::LimitExceeded, &limits);
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
        };
        self.upstream = Some(upstream.name.to_string());
        match &upstream.kind {
            UpstreamKind::Fixed(fixed) => self.status = Some(fixed.status.as_u16()),
            UpstreamKind::Servers(servers) => {
                self.forwarded = Some(forwarded);
                self.targets = servers.targets.iter().map(ToString::to_string).collect();
                self.upstream_protocol = servers.targets.first().map(UpstreamProtocol::of);
            }
        }
        Ok(())
    }

    fn add_rate_headers(
        &mut self,
        snapshot: &Snapshot,
        limits: &[LimitCharge<'_>],
        cross_origin: bool,
    ) {
        let mut fields = Fields::new();
        let reports = limits.iter().map(LimitCharge::report);
        respond::write_rate_headers(&mut fields, reports, snapshot.headers, cross_origin);
        self.add_headers(&fields);
    }

    fn set_refusal(&mut self, error: &GatewayError, limits: &[LimitCharge<'_>]) {
        let reports = limits.iter().map(LimitCharge::report);
        let response = if self.is_grpc {
            respond::grpc_refusal(error, reports)
        } else {
            respond::problem(error, reports, "")
        };
        self.status = Some(response.status.as_u16());
        self.reason = Some(error.detail());
        self.add_headers(&response.fields);
    }

    fn add_headers(&mut self, fields: &Fields) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let added = fields.iter().map(|(name, value)| (text(name), text(value)));
        self.headers.extend(added);
    }

    /// Prints the explanation as text.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { method, host, path, client, .. } = self;
        if !path.is_empty() {
            writeln!(out, "request    {method} {path} for host `{host}` from {client}")?;
        }
        if self.client_source == AddressSource::Unverified.label() {
            writeln!(
                out,
                "           a trusted proxy that names no client; tiers by address do not apply"
            )?;
        }
        writeln!(out, "route      {}", self.route.as_deref().unwrap_or("none"))?;
        for limit in &self.limits {
            limit.print(out)?;
        }
        if self.throttle {
            writeln!(out, "throttle   while throttling, only active users are admitted")?;
        }
        let caller = if self.limits.is_empty() { "" } else { " (for a caller with unused quotas)" };
        writeln!(out, "decision   {}{caller}", self.decision)?;
        if let Some(status) = self.status {
            let reason = self.reason.as_deref().unwrap_or("a response of the gateway itself");
            writeln!(out, "response   {status}: {reason}")?;
        }
        for (index, (name, value)) in self.headers.iter().enumerate() {
            let label = if index == 0 { "headers" } else { "" };
            let value = if value.is_empty() { "(empty)" } else { value };
            writeln!(out, "{label:11}{name}: {value}")?;
        }
        if let (Some(upstream), Some(target)) = (&self.upstream, &self.forwarded) {
            let targets = self.targets.join(", ");
            let over = match self.upstream_protocol {
                Some(UpstreamProtocol::Http2) => " over HTTP/2",
                Some(UpstreamProtocol::Auto) => " over HTTP/2, if the server chooses it",
                Some(UpstreamProtocol::Http1) | None => "",
            };
            writeln!(out, "forwarded  {method} {target} to {upstream}{over}: {targets}")?;
        }
        Ok(())
    }
}

impl UpstreamProtocol {
    fn of(target: &Target) -> Self {
        match target.protocol {
            Protocol::Http2 => Self::Http2,
            Protocol::Auto if target.tls.is_some() => Self::Auto,
            // In clear nothing is negotiated.
            Protocol::Http1 | Protocol::Auto => Self::Http1,
        }
    }
}

/// A charge of this request to one limit.
struct LimitCharge<'s> {
    charge: Charge<'s>,
    tier: Option<u16>,
    values: KeyValues,
    outcome: Outcome,
}

impl LimitCharge<'_> {
    fn report(&self) -> LimitReport<'_> {
        LimitReport { limit: self.charge.limit, cost: self.charge.cost, outcome: &self.outcome }
    }
}

/// The charges to the limits of `route`: one for each key of the request.
fn limit_charges<'s>(
    route: &'s Route,
    subject: &Subject<'_>,
) -> Result<Vec<LimitCharge<'s>>, GatewayError> {
    let mut limits = Vec::new();
    for request in plan::limit_requests(route, subject, SECRET)? {
        let Some(charge) = plan::charge_for(route, &request) else { continue };
        let key = &route.limits[usize::from(request.limit_index)].key;
        for subject in key.subjects(subject).map_err(GatewayError::Ambiguous)? {
            let hashed = key.key(&subject, SECRET).map_err(GatewayError::Ambiguous)?;
            if Key(hashed) == request.key {
                let values = key.display_values(&subject).map_err(GatewayError::Ambiguous)?;
                let (tier, outcome) = (request.tier, Outcome::NotCharged);
                limits.push(LimitCharge { charge, tier, values, outcome });
                break;
            }
        }
    }
    Ok(limits)
}

/// Charges the limits with empty counters; true if all admit.
fn charge(limits: &mut [LimitCharge<'_>], now: Millis) -> bool {
    let charges: Vec<Charge<'_>> = limits.iter().map(|limit| limit.charge).collect();
    let verdict = Memory::new(charges.len()).charge(&charges, now);
    for (limit, outcome) in limits.iter_mut().zip(verdict.outcomes) {
        limit.outcome = outcome;
    }
    verdict.admitted
}

impl LimitExplanation {
    fn new(charged: LimitCharge<'_>) -> Self {
        let LimitCharge { charge: Charge { limit, cost, .. }, tier, values, outcome } = charged;
        let parts = values.parts.into_iter();
        Self {
            name: limit.name.to_string(),
            algorithm: limit.algorithm.tag(),
            quota: limit.quota.limit,
            window_ms: limit.quota.window,
            cost,
            tier,
            enforced: limit.enforce,
            key: parts.map(|value| KeyPartValue { part: value.part, value: value.value }).collect(),
            fallback: values.fallback.map(|address| address.to_string()),
            admitted: outcome.admitted().is_some(),
            remaining: outcome.decided().map_or(0, |decided| decided.decision.remaining),
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, algorithm, quota, cost, .. } = self;
        let window = humantime::format_duration(std::time::Duration::from_millis(self.window_ms));
        writeln!(out, "limit      {name}: {algorithm}, {quota} in {window}, cost {cost}")?;
        let key = self.key.iter().map(|key| match &*key.value {
            "" => format!("{} (none)", key.part),
            value => format!("{} {value}", key.part),
        });
        let key = key.collect::<Vec<_>>().join(", ");
        match (&self.fallback, self.key.is_empty()) {
            (Some(address), _) => {
                writeln!(
                    out,
                    "           key: {key}; all empty, so the client's address {address} is counted"
                )
            }
            (None, true) => {
                writeln!(out, "           key: none, all requests are counted together")
            }
            (None, false) => writeln!(out, "           key: {key}"),
        }?;
        if let Some(tier) = self.tier {
            writeln!(out, "           tier {tier}, with its own quota")?;
        }
        let verdict = match (self.admitted, self.enforced) {
            (true, _) => "admits",
            (false, true) => "refuses",
            (false, false) => "would refuse, but is not enforced",
        };
        writeln!(out, "           {verdict}, {} left", self.remaining)
    }
}
