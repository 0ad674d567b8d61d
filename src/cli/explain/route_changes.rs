//! A route's conditions beyond its pattern, and its changes of messages, for `explain`.

use std::io::{self, Write};
use std::net::IpAddr;

use http::HeaderName;
use serde::Serialize;

use crate::http1::RequestHead;
use crate::identity::OwnedConsumer;
use crate::plan::{CallerBucket, RequestAttributes, RequestSource, RoutedRequest};
use crate::sensitive::{MASK, mask_forms, shows_field, shows_pattern};
use crate::snapshot::{Route, Snapshot};
use crate::template::{HeaderRules, Replacement, Template, TemplateValues};
use crate::upstream::HostRule;

/// A route's conditions beyond its pattern, and its changes of messages. The field names are those
/// of the JSON.
#[derive(Default, Serialize)]
pub(super) struct RouteChanges {
    /// The conditions of the route that the request meets.
    conditions: Vec<String>,
    /// Routes that serve this request for a share of the callers instead.
    shares: Vec<Share>,
    /// Changes of the forwarded request's header fields.
    request: HeaderChanges,
    /// Changes of the response's header fields.
    response: HeaderChanges,
    /// The upstream that gets copies of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    mirror: Option<MirrorShare>,
}

/// An upstream that gets copies of requests.
#[derive(Serialize)]
struct MirrorShare {
    upstream: String,
    /// The share of the requests, in per cent.
    share: u8,
}

/// A route that serves a share of the callers.
#[derive(Serialize)]
struct Share {
    route: String,
    /// In per cent.
    callers: u8,
}

/// Changes of header fields.
#[derive(Default, Serialize)]
struct HeaderChanges {
    /// Fields that are set or added, as lines.
    written: Vec<String>,
    /// Names of the fields that are removed.
    removed: Vec<String>,
    /// Fields in which parts are replaced, as `name: pattern -> text`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    replaced: Vec<String>,
}

impl RouteChanges {
    /// The routes by which other callers are served. `index` is the route of the explained request.
    pub(super) fn of_others(
        snapshot: &Snapshot,
        attributes: &RequestAttributes<'_>,
        peer: IpAddr,
        index: Option<usize>,
    ) -> Self {
        let mut shares: Vec<Share> = Vec::new();
        for caller in 0..100 {
            let source = RequestSource::Request { peer, caller: CallerBucket::Fixed(caller) };
            let found = attributes.find_route(snapshot, &source);
            let Some(other) = found.ok().filter(|found| Some(found.index) != index) else {
                continue;
            };
            match shares.iter_mut().find(|share| *share.route == *other.route.name) {
                Some(share) => share.callers += 1,
                None => shares.push(Share { route: other.route.name.to_string(), callers: 1 }),
            }
        }
        Self { shares, ..Self::default() }
    }

    /// Adds the conditions of the route.
    pub(super) fn add_conditions(&mut self, route: &Route) {
        let conditions = &route.edits.conditions;
        let weight = conditions.weight().map(|weight| format!("{weight} % of callers"));
        let tests = conditions.tests().iter().map(ToString::to_string);
        self.conditions = tests.chain(weight).collect();
    }

    /// Adds the changes of the forwarded request.
    pub(super) fn add_request(&mut self, request: RoutedRequest<'_>) {
        let route = request.route;
        self.request = HeaderChanges::of(route.edits.request_headers.as_ref(), request);
        match &route.edits.host {
            HostRule::Preserve => {}
            HostRule::Upstream => self.request.written.push("host: that of the server".to_owned()),
            HostRule::Name(name) => self.request.written.push(format!("host: {name}")),
        }
        self.mirror = route.mirror.as_ref().map(|mirror| MirrorShare {
            upstream: mirror.upstream.name.to_string(),
            share: mirror.share,
        });
    }

    /// Adds the changes of the response.
    pub(super) fn add_response(&mut self, request: RoutedRequest<'_>) {
        let rules = request.route.edits.response_headers.as_ref();
        self.response = HeaderChanges::of(rules, request);
    }

    /// Prints the conditions and the routes of other callers.
    pub(super) fn print_match(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.conditions.is_empty() {
            writeln!(out, "           matched by {}", self.conditions.join(", "))?;
        }
        for Share { route, callers } in &self.shares {
            writeln!(out, "           {callers} % of callers get route {route} instead")?;
        }
        Ok(())
    }

    /// Prints the changes of header fields.
    pub(super) fn print_changes(&self, out: &mut dyn Write) -> io::Result<()> {
        self.request.print("request", out)?;
        self.response.print("response", out)?;
        match &self.mirror {
            Some(MirrorShare { upstream, share }) => {
                writeln!(out, "mirror     {share} % of requests are copied to {upstream}")
            }
            None => Ok(()),
        }
    }
}

impl HeaderChanges {
    fn of(rules: Option<&HeaderRules>, request: RoutedRequest<'_>) -> Self {
        let Some(rules) = rules else { return Self::default() };
        let written: Vec<String> = request.with_values(|values| {
            let lines = rules.written().iter();
            lines.filter_map(|(name, template)| line(name, template, values)).collect()
        });
        let is_written =
            |name: &str| written.iter().any(|line| line.split(':').next() == Some(name));
        let names = rules.dropped().iter().map(http::HeaderName::as_str);
        let removed = names.filter(|name| !is_written(name)).map(str::to_owned).collect();
        let replaced = rules.replacements().iter().map(|(name, one)| replaced(name, one)).collect();
        Self { written, removed, replaced }
    }

    fn print(&self, message: &str, out: &mut dyn Write) -> io::Result<()> {
        for line in &self.replaced {
            writeln!(out, "changes    {message} {line}")?;
        }
        for line in &self.written {
            writeln!(out, "changes    {message} {line}")?;
        }
        for name in &self.removed {
            writeln!(out, "changes    {message} without {name}")?;
        }
        Ok(())
    }
}

/// The field that a rule writes, as a line; `None` if its value is empty. A possible credential is
/// masked.
fn line(name: &HeaderName, template: &Template, values: &TemplateValues<'_>) -> Option<String> {
    let mut value = Vec::new();
    template.write_value(values, &mut value);
    let value = value.trim_ascii();
    let is_shown = shows_field(name.as_str(), &template.to_string());
    let shown = if is_shown { String::from_utf8_lossy(value) } else { MASK.into() };
    (!value.is_empty()).then(|| format!("{name}: {}", mask_forms(&shown)))
}

/// What is replaced in a field, and the text for it. Possible credentials are masked.
fn replaced(name: &HeaderName, replacement: &Replacement) -> String {
    let pattern = replacement.pattern();
    let pattern = if shows_pattern(name.as_str(), pattern) { pattern } else { MASK };
    let with = replacement.with();
    let with = if shows_field(name.as_str(), with) { with } else { MASK };
    mask_forms(&format!("{name}: {pattern} -> {with}")).into_owned()
}

/// The request of `explain` on its route. The request's id is unknown, so its variable stays.
pub(super) fn routed<'r>(
    snapshot: &Snapshot,
    route: &'r Route,
    head: &'r RequestHead,
    attributes: &'r RequestAttributes<'r>,
    connection_scheme: &'static str,
    consumer: Option<&'r OwnedConsumer>,
) -> RoutedRequest<'r> {
    RoutedRequest {
        route,
        head,
        path: &attributes.path,
        client_ip: attributes.client.ip,
        request_id: b"{request_id}",
        consumer,
        connection_scheme,
        from_trusted_proxy: attributes.is_from_trusted_proxy,
        slashes: snapshot.http.slashes,
    }
}
