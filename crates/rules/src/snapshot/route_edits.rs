//! Compiles a route's changes to messages: header rules, `host`, `rewrite`.

use std::collections::BTreeMap;

use http::{HeaderName, header};
use tidegate_access::auth::RouteAuth;
use tidegate_config::{self as config, Config, ForwardedPath, HeaderReplacementConfig, HostHeader};
use tidegate_http1 as http1;
use tidegate_route::{Conditions, PathPattern, Rule};
use tidegate_template::{
    HeaderRules, PathTemplate, ReplacedPattern, Replacement, Template, VARIABLES, Variable,
    is_framing_field,
};
use tidegate_upstream::{HostRule, dashed_alias, is_forwarded_as_sent};

use super::RouteDetails;
use super::parts;
use super::section::Section;

/// The headers of requests that a route reads before it changes them.
pub(super) struct ReadHeaders {
    /// The headers by which its limits count.
    pub(super) counted: Vec<HeaderName>,
    /// The headers that say who sends a request.
    pub(super) identifying: Vec<HeaderName>,
}

impl ReadHeaders {
    /// The headers that limits with these `counted` headers and `auth` read.
    pub(super) fn new(counted: Vec<HeaderName>, auth: Option<&RouteAuth>) -> Self {
        let headers = auth.into_iter().flat_map(RouteAuth::headers).cloned();
        let cookie = auth.filter(|auth| auth.removed_credentials().has_cookies());
        let identifying = headers.chain(cookie.map(|_| header::COOKIE)).collect();
        Self { counted, identifying }
    }
}

/// Compiles the changes of the route at `section`. `read` are the headers that it reads.
pub(super) fn compile(
    section: &Section<'_>,
    route: &config::RouteConfig,
    rule: Option<&Rule>,
    read: &ReadHeaders,
    config: &Config,
) -> RouteDetails {
    check_forwarding(section, route, config);
    let pattern = rule.map(|rule| &rule.path);
    let mut rules = RuleCompiler { pattern, read, is_request: true };
    let request = rules.compile(&section.at("headers").at("request"), &route.headers.request);
    rules.is_request = false;
    let response = rules.compile(&section.at("headers").at("response"), &route.headers.response);
    RouteDetails {
        pattern: pattern.cloned().unwrap_or_default(),
        conditions: rule.map_or_else(Conditions::default, |rule| rule.conditions.clone()),
        path: route.path,
        host: host(section, &route.host),
        rewrite: rewrite(section, route, pattern),
        request_headers: Some(request).filter(|rules| !rules.is_empty()),
        response_headers: Some(response).filter(|rules| !rules.is_empty()),
    }
}

/// Reports changes to forwarded requests on a route that forwards none. If the route's upstream has
/// a fixed response, they are noted instead.
fn check_forwarding(section: &Section<'_>, route: &config::RouteConfig, config: &Config) {
    if !section.can_read(&["upstream"]) {
        return;
    }
    let upstream = route.upstream.as_ref().map(|name| config.upstreams.get(name));
    let is_fixed = upstream.flatten().is_some_and(|upstream| upstream.respond.is_some());
    if upstream.is_some() && !is_fixed {
        return;
    }
    let keys = [
        ("path", section.at("path"), route.path != ForwardedPath::default()),
        ("rewrite", section.at("rewrite"), route.rewrite.is_some()),
        ("host", section.at("host"), route.host != HostHeader::Preserve),
        (
            "headers.request",
            section.at("headers").at("request"),
            route.headers.request != config::HeaderRulesConfig::default(),
        ),
    ];
    for (key, section, _) in keys.into_iter().filter(|(_, _, is_set)| *is_set) {
        if is_fixed {
            let what = format!("`{key}` without effect: the upstream has a fixed response");
            section.note(what, "an upstream with targets");
            continue;
        }
        let what = format!("`{key}` on a route that forwards no request");
        let expected = format!("`upstream`, or no `{key}`");
        section.fault_at_key(what, &expected);
    }
}

fn host(section: &Section<'_>, host: &HostHeader) -> HostRule {
    match host {
        HostHeader::Preserve => HostRule::Preserve,
        HostHeader::Upstream => HostRule::Upstream,
        HostHeader::Name(name) => {
            let is_host = http1::host::check(name.as_bytes()).is_ok();
            let expected = "preserve, upstream, or a host such as api.example.com";
            section.at("host").ensure(is_host, &format!("`{name}`"), expected);
            HostRule::Name(name.as_str().into())
        }
    }
}

fn rewrite(
    section: &Section<'_>,
    route: &config::RouteConfig,
    pattern: Option<&PathPattern>,
) -> Option<PathTemplate> {
    let text = route.rewrite.as_deref()?;
    let section = section.at("rewrite");
    if route.strip_prefix.is_some() {
        section.fault_at_key("both `rewrite` and `strip_prefix`", "one of them");
    }
    if route.path == ForwardedPath::AsSent {
        section.fault_at_key("both `rewrite` and `path: as_sent`", "one of them");
    }
    match PathTemplate::parse(text) {
        Ok(template) => {
            check_captures(&section, template.variables(), pattern);
            Some(template)
        }
        Err(why) => {
            let expected = "a path such as /v2/things/{path.id}";
            section.fault(format!("`{}` ({why})", excerpt(text)), expected);
            None
        }
    }
}

/// Reports parameters that the route's path does not have.
pub(super) fn check_captures<'v>(
    section: &Section<'_>,
    variables: impl Iterator<Item = &'v Variable>,
    pattern: Option<&PathPattern>,
) {
    let Some(pattern) = pattern else { return };
    for variable in variables {
        let Variable::PathParam(name) = variable else { continue };
        if !pattern.params().iter().any(|param| **param == **name) {
            let what = format!("`{variable}`, which `{}` does not have", excerpt(pattern.as_str()));
            section.fault(what, &format!("a path with `{{{}}}`", excerpt(name)));
        }
    }
}

/// Compiles the header rules of one route.
struct RuleCompiler<'r> {
    pattern: Option<&'r PathPattern>,
    read: &'r ReadHeaders,
    is_request: bool,
}

/// The place of a header's name in the configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum NamePlace {
    /// The key of an entry.
    Key,
    /// A value.
    Value,
}

impl RuleCompiler<'_> {
    fn compile(&self, section: &Section<'_>, rules: &config::HeaderRulesConfig) -> HeaderRules {
        let set = self.fields(&section.at("set"), &rules.set);
        let add = self.fields(&section.at("add"), &rules.add);
        let mut removed = Vec::new();
        for (index, name) in rules.remove.iter().enumerate() {
            let section = section.at("remove").index(index);
            let Some(name) = Self::name(&section, name, NamePlace::Value) else { continue };
            let is_set = set.iter().any(|(other, _)| *other == name);
            let what = format!("`{name}` is also in `set`, which replaces it");
            section.ensure(!is_set, &what, "a name that is not in `set`");
            removed.push(name);
        }
        let written: Vec<&HeaderName> = set.iter().map(|(name, _)| name).chain(&removed).collect();
        let replacements = self.replacements(&section.at("replace"), &rules.replace, &written);
        if self.is_request {
            self.check_counted(section, &set, &add);
            // CGI-like upstreams also read the spelling with dashes as this name.
            let dropped = removed.iter().chain(set.iter().map(|(name, _)| name));
            let aliases: Vec<HeaderName> = dropped.filter_map(dashed_alias).collect();
            removed.extend(aliases);
        }
        HeaderRules::new(removed, set, add).with_replacements(replacements)
    }

    /// Compiles the changes of values. `written` are the fields that other rules set or remove.
    fn replacements(
        &self,
        section: &Section<'_>,
        fields: &BTreeMap<String, HeaderReplacementConfig>,
        written: &[&HeaderName],
    ) -> Vec<(HeaderName, Replacement)> {
        let mut compiled: Vec<(HeaderName, Replacement)> = Vec::new();
        for (name, replacement) in fields {
            let section = section.entry(name);
            let Some(name) = Self::name(&section, name, NamePlace::Key) else { continue };
            if compiled.iter().any(|(other, _)| *other == name) {
                let what = format!("duplicate header `{name}`");
                section.fault_at_key(what, "each name once, in any case");
            }
            if written.contains(&&name) {
                let what = format!("`{name}` is also in `set` or `remove`");
                section.fault_at_key(what, "one rule for what was sent");
            }
            if self.is_request {
                self.check_replaced(&section, &name);
            }
            let replacement = replacement_of(&section, replacement);
            compiled.extend(replacement.map(|replacement| (name, replacement)));
        }
        compiled
    }

    /// Reports a change of a request's field that the gateway reads or writes itself.
    fn check_replaced(&self, section: &Section<'_>, name: &HeaderName) {
        if is_among(&self.read.counted, name) {
            // Clients could be counted as many callers, and served as one.
            let what = format!("`{name}` is changed, and limits count by it");
            section.fault_at_key(what, "a header that no limit of the route reads");
        } else if is_among(&self.read.identifying, name) {
            let what = format!("`{name}` is changed, and `auth` reads it");
            section.fault_at_key(what, "a header that says nothing about the sender");
        } else if !is_forwarded_as_sent(name) {
            let what = format!("`{name}` of a client is not forwarded as it is");
            section.fault_at_key(what, "`set` for a value of your own");
        }
    }

    fn fields(
        &self,
        section: &Section<'_>,
        fields: &BTreeMap<String, String>,
    ) -> Vec<(HeaderName, Template)> {
        let mut compiled: Vec<(HeaderName, Template)> = Vec::new();
        for (name, text) in fields {
            let section = section.entry(name);
            let Some(name) = Self::name(&section, name, NamePlace::Key) else { continue };
            if compiled.iter().any(|(other, _)| *other == name) {
                let what = format!("duplicate header `{name}`");
                section.fault_at_key(what, "each name once, in any case");
            }
            match Template::parse(text) {
                Ok(template) => {
                    check_captures(&section, template.variables(), self.pattern);
                    compiled.push((name, template));
                }
                Err(why) => {
                    let what = format!("`{}` ({why})", excerpt(text));
                    let expected = format!("text, with variables such as {VARIABLES}");
                    section.fault(what, &expected);
                }
            }
        }
        compiled
    }

    /// Parses a field's name. Reports a field that no rule may change.
    fn name(section: &Section<'_>, name: &str, place: NamePlace) -> Option<HeaderName> {
        let parsed = match name.parse::<HeaderName>() {
            Ok(parsed) => parsed,
            Err(_) if place == NamePlace::Value => return parts::header(section, name),
            Err(_) => {
                let what = format!("`{}`", excerpt(name));
                section.fault_at_key(what, "a header name");
                return None;
            }
        };
        if is_framing_field(&parsed) {
            let what = format!("`{parsed}` cannot be changed");
            let expected = match parsed.as_str() {
                "host" => "the key `host` of the route",
                _ => "a header that neither frames the message nor concerns the connection",
            };
            if place == NamePlace::Key {
                section.fault_at_key(what, expected);
            } else {
                section.fault(what, expected);
            }
            return None;
        }
        Some(parsed)
    }

    /// Reports rules after which a client may choose what the upstream reads in a counted header:
    /// `set` with a variable that the client chooses, and any `add`.
    fn check_counted(
        &self,
        section: &Section<'_>,
        set: &[(HeaderName, Template)],
        add: &[(HeaderName, Template)],
    ) {
        for (name, template) in set {
            if !is_among(&self.read.counted, name) {
                continue;
            }
            let Some(chosen) = template.variables().find(|one| one.is_chosen_by_client()) else {
                continue;
            };
            let what = format!("`{name}` is set to `{chosen}`, and limits count by it");
            let expected = "a value that the client cannot choose, or another name";
            section.at("set").entry(name.as_str()).fault_at_key(what, expected);
        }
        for (name, _) in add {
            if !is_among(&self.read.counted, name) {
                continue;
            }
            let what = format!("a second `{name}`, and limits count by it");
            section.at("add").entry(name.as_str()).fault_at_key(what, "`set`");
        }
    }
}

/// True if `name` is one of `headers`, or a spelling that upstreams may treat as one.
fn is_among(headers: &[HeaderName], name: &HeaderName) -> bool {
    let dashed = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    let dashed = |name: &HeaderName| name.as_str().bytes().map(dashed).collect::<Vec<u8>>();
    let name = dashed(name);
    headers.iter().any(|header| dashed(header) == name)
}

/// Compiles one change of values.
fn replacement_of(
    section: &Section<'_>,
    replacement: &HeaderReplacementConfig,
) -> Option<Replacement> {
    let HeaderReplacementConfig { pattern, with } = replacement;
    let report = |key: &'static str, text: &str, why: String, expected: &str| {
        section.at(key).fault(format!("`{}` ({why})", excerpt(text)), expected);
    };
    let compiled = ReplacedPattern::parse(pattern).map_err(|why| {
        let expected = r"a regular expression such as ^http://internal(:\d+)?/";
        report("pattern", pattern, why, expected);
    });
    let compiled = compiled.ok()?.replaced_with(with).map_err(|why| {
        let expected = "text, with groups of the pattern such as `$1`; `$$` is a dollar";
        report("with", with, why, expected);
    });
    compiled.ok()
}

/// Truncates a text for a fault.
pub(super) fn excerpt(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
