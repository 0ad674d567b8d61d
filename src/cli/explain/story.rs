use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::request::Request;
use crate::error::GatewayError;
use crate::framing::{Fields, Length, RequestHead};
use crate::identity::{AddressSource, Caller, KeyValues, Secret, Subject};
use crate::limit::{Admission, Charge, Key, Millis, Outcome};
use crate::plan::{self, Asked, Matched};
use crate::respond::{self, LimitReport};
use crate::snapshot::{Action, Route, Snapshot};
use crate::store::memory::Memory;
use crate::upstream::Kind;

/// Nothing that is hashed here is kept or told.
const SECRET: Secret = Secret(0, 0);

/// What would become of a request. Names of fields are promises.
#[derive(Default, Serialize)]
pub(super) struct Story {
    /// The method.
    method: String,
    /// The host, as routes know it.
    host: String,
    /// The path, in normal form.
    path: String,
    /// The client, behind trusted proxies.
    client: String,
    /// How its address is known: `peer`, `forwarded`, or `unverified` where a trusted proxy names none.
    client_source: &'static str,
    /// The route.
    route: Option<String>,
    /// Its limits.
    limits: Vec<LimitStory>,
    /// Whether the throttle asks who comes.
    throttle: bool,
    /// `admitted`, `refused`, `none` where nothing limits it, or `unasked` where it ends before; for a
    /// caller who has used nothing.
    decision: &'static str,
    /// The status that the gateway itself answers with; none where an upstream answers.
    status: Option<u16>,
    /// Why, where it is an error.
    reason: Option<String>,
    /// What the gateway adds to the answer.
    headers: BTreeMap<String, String>,
    /// Who answers.
    upstream: Option<String>,
    /// The servers, one of which is asked.
    targets: Vec<String>,
    /// The target that is asked for there.
    forwarded: Option<String>,
}

/// One limit of the route.
#[derive(Serialize)]
struct LimitStory {
    name: String,
    algorithm: &'static str,
    quota: u32,
    window_ms: Millis,
    cost: u32,
    /// Which of its tiers the caller is in, from 0.
    tier: Option<u16>,
    /// Whether it may refuse.
    enforced: bool,
    /// What it counts by; empty: everyone together.
    key: Vec<KeyStory>,
    /// The client's address, where it is counted because the key is wholly empty.
    fallback: Option<String>,
    admitted: bool,
    remaining: u64,
}

#[derive(Serialize)]
struct KeyStory {
    part: String,
    value: String,
}

impl Story {
    /// What the gateway would do with `request` at `now`, step by step as it does.
    pub(super) fn of(snapshot: &Snapshot, request: &Request, now: Millis) -> Self {
        let mut story = Self { decision: Admission::Unasked.label(), ..Self::default() };
        if let Err(error) = story.follow(snapshot, request, now) {
            story.refused(&error, &[]);
        }
        story
    }

    /// Follows the request as far as it comes.
    fn follow(
        &mut self,
        snapshot: &Snapshot,
        request: &Request,
        now: Millis,
    ) -> Result<(), GatewayError> {
        let head = &request.read(snapshot.http.head)?;
        self.method = head.method.to_string();
        plan::screen(head)?;
        if head.is_about_server() {
            self.decision = Admission::Unlimited.label();
            self.status = Some(200);
            return Ok(());
        }
        let asked = Asked::read(snapshot, request.peer, head)?;
        self.host = asked.host.to_string();
        self.path = asked.path.to_string();
        self.client = asked.client.ip.to_string();
        self.client_source = asked.client.source.label();
        let matched = asked.find(snapshot).map_err(|error| {
            if matches!(error, GatewayError::NoRoute | GatewayError::OtherMethods(_)) {
                self.decision = Admission::Unlimited.label();
            }
            error
        })?;
        let route = &snapshot.routes[matched.index];
        self.route = Some(route.name.to_string());
        self.routed(snapshot, &matched, head, now)
    }

    fn routed(
        &mut self,
        snapshot: &Snapshot,
        matched: &Matched<'_>,
        head: &RequestHead,
        now: Millis,
    ) -> Result<(), GatewayError> {
        let route = matched.route;
        self.throttle = route.throttle && snapshot.throttle.is_some();
        let (caller, limits, told) = matched.subject(|subject| {
            (
                Caller::of(subject, SECRET),
                limits_of(route, subject),
                plan::status_requests(route, subject, SECRET),
            )
        });
        if self.throttle {
            caller.map_err(GatewayError::Ambiguous)?;
        }
        told?;
        let mut limits = limits?;
        let path = plan::forwarded_path(&self.path, route.strip_prefix.as_deref());
        let forwarded =
            head.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
        if matches!(head.body, Length::Known(length) if length > route.max_body) {
            return Err(GatewayError::BodyTooLong);
        }
        self.decision = Admission::Unlimited.label();
        if !limits.is_empty() {
            let admitted = charge(&mut limits, now);
            let admission = if admitted { Admission::Admitted } else { Admission::Refused };
            self.decision = admission.label();
            self.rate_headers(snapshot, &limits, head.fields.contains("origin"));
            if !admitted {
                self.refused(&GatewayError::Refused, &limits);
            }
            self.limits = limits.into_iter().map(LimitStory::new).collect();
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
            Kind::Respond(fixed) => self.status = Some(fixed.status.as_u16()),
            Kind::Servers(servers) => {
                self.forwarded = Some(forwarded);
                let targets = servers.targets.iter();
                self.targets = targets.map(|at| format!("http://{}", at.authority())).collect();
            }
        }
        Ok(())
    }

    fn rate_headers(
        &mut self,
        snapshot: &Snapshot,
        limits: &[ExplainedLimit<'_>],
        cross_origin: bool,
    ) {
        let mut fields = Fields::new();
        let reports = limits.iter().map(ExplainedLimit::report);
        respond::rate_headers(&mut fields, reports, snapshot.headers, cross_origin);
        self.add_headers(&fields);
    }

    fn refused(&mut self, error: &GatewayError, limits: &[ExplainedLimit<'_>]) {
        let reply = respond::error(error, limits.iter().map(ExplainedLimit::report), "");
        self.status = Some(reply.status.as_u16());
        self.reason = Some(error.detail());
        self.add_headers(&reply.fields);
    }

    fn add_headers(&mut self, fields: &Fields) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let told = fields.iter().map(|(name, value)| (text(name), text(value)));
        self.headers.extend(told);
    }

    /// Tells it to a person.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { method, host, path, client, .. } = self;
        if !path.is_empty() {
            writeln!(out, "request    {method} {path} for host `{host}` from {client}")?;
        }
        if self.client_source == AddressSource::Unverified.label() {
            writeln!(out, "           a trusted proxy that names no client: no tier by address")?;
        }
        writeln!(out, "route      {}", self.route.as_deref().unwrap_or("none"))?;
        for limit in &self.limits {
            limit.print(out)?;
        }
        if self.throttle {
            writeln!(out, "throttle   while it is on, only an active user passes")?;
        }
        let caller = if self.limits.is_empty() { "" } else { " (a caller who has used nothing)" };
        writeln!(out, "decision   {}{caller}", self.decision)?;
        if let Some(status) = self.status {
            let reason = self.reason.as_deref().unwrap_or("the gateway answers by itself");
            writeln!(out, "answer     {status}: {reason}")?;
        }
        for (place, (name, value)) in self.headers.iter().enumerate() {
            let label = if place == 0 { "headers" } else { "" };
            writeln!(out, "{label:11}{name}: {value}")?;
        }
        if let (Some(upstream), Some(target)) = (&self.upstream, &self.forwarded) {
            let targets = self.targets.join(", ");
            writeln!(out, "forwarded  {method} {target} to {upstream}: {targets}")?;
        }
        Ok(())
    }
}

/// One limit of the route as this request meets it.
struct ExplainedLimit<'s> {
    charge: Charge<'s>,
    tier: Option<u16>,
    values: KeyValues,
    outcome: Outcome,
}

impl ExplainedLimit<'_> {
    fn report(&self) -> LimitReport<'_> {
        LimitReport { limit: self.charge.limit, cost: self.charge.cost, outcome: &self.outcome }
    }
}

/// The limits of `route`, once for each caller that the request counts as.
fn limits_of<'s>(
    route: &'s Route,
    subject: &Subject<'_>,
) -> Result<Vec<ExplainedLimit<'s>>, GatewayError> {
    let mut limits = Vec::new();
    for request in plan::limit_requests(route, subject, SECRET)? {
        let Some(charge) = plan::charge(route, &request) else { continue };
        let key = &route.limits[usize::from(request.limit)].policy.key;
        for subject in key.subjects(subject).map_err(GatewayError::Ambiguous)? {
            let own = key.key(&subject, SECRET).map_err(GatewayError::Ambiguous)?;
            if Key(own) == request.key {
                let values = key.values(&subject).map_err(GatewayError::Ambiguous)?;
                let (tier, outcome) = (request.tier, Outcome::NotCharged);
                limits.push(ExplainedLimit { charge, tier, values, outcome });
                break;
            }
        }
    }
    Ok(limits)
}

/// Charges a caller that has used nothing; says whether all limits admit.
fn charge(limits: &mut [ExplainedLimit<'_>], now: Millis) -> bool {
    let charges: Vec<Charge<'_>> = limits.iter().map(|limit| limit.charge).collect();
    let verdict = Memory::new(charges.len()).charge(&charges, now);
    for (limit, outcome) in limits.iter_mut().zip(verdict.outcomes) {
        limit.outcome = outcome;
    }
    verdict.admitted
}

impl LimitStory {
    fn new(explained: ExplainedLimit<'_>) -> Self {
        let ExplainedLimit { charge: Charge { limit, cost, .. }, tier, values, outcome } =
            explained;
        let parts = values.parts.into_iter();
        Self {
            name: limit.name.to_string(),
            algorithm: limit.algorithm.tag(),
            quota: limit.quota.limit,
            window_ms: limit.quota.window,
            cost,
            tier,
            enforced: limit.enforce,
            key: parts.map(|value| KeyStory { part: value.part, value: value.value }).collect(),
            fallback: values.fallback.map(|address| address.to_string()),
            admitted: outcome.admitted().is_some(),
            remaining: outcome.decided().map_or(0, |decided| decided.decision.remaining),
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, algorithm, quota, cost, .. } = self;
        let window = humantime::format_duration(std::time::Duration::from_millis(self.window_ms));
        writeln!(out, "limit      {name}: {algorithm}, {quota} in {window}, costs {cost}")?;
        let key = self.key.iter().map(|key| match &*key.value {
            "" => format!("{} (none)", key.part),
            value => format!("{} {value}", key.part),
        });
        let key = key.collect::<Vec<_>>().join(", ");
        match (&self.fallback, self.key.is_empty()) {
            (Some(address), _) => {
                writeln!(out, "           key: {key}; so the client's address {address}")
            }
            (None, true) => writeln!(out, "           key: none, everyone is counted together"),
            (None, false) => writeln!(out, "           key: {key}"),
        }?;
        if let Some(tier) = self.tier {
            writeln!(out, "           tier {tier}: another quota than its own")?;
        }
        let fate = match (self.admitted, self.enforced) {
            (true, _) => "admits",
            (false, true) => "refuses",
            (false, false) => "would refuse, and is not enforced",
        };
        writeln!(out, "           {fate}, {} left", self.remaining)
    }
}
