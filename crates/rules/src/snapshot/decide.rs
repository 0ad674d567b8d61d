//! [`DecideRules`]: routes that answer other proxies, which ask before they forward a request.
//! Compiles a route's `decide`, and reports what cannot hold there: the gateway sees neither the
//! body of the asked request nor its response.

use std::sync::Arc;

use http::{Method, StatusCode, header};
use tidegate_config::{Config, DecideConfig, RouteConfig};
use tidegate_identity::KeyPart;
use tidegate_limit::Algorithm;
use tidegate_route::{
    ConditionResult, ConditionalRoute, Conditions, Lookup, PathPattern, RouteConflict, RouteTable,
    Rule,
};

use super::Route;
use super::policy::{Cost, LimitPolicy, TierMatch};
use super::section::Section;

/// How a `decide` route answers.
#[derive(Debug)]
pub struct DecideRules {
    /// Which statuses the asking proxy accepts for refusals.
    pub refusals: RefusalStatus,
    /// The prefix below which the path of a question is that of the asked request; `None`: only
    /// header fields describe requests.
    pub prefix: Option<Box<str>>,
}

/// The statuses of refusals.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RefusalStatus {
    /// Each refusal has its own.
    Own,
    /// 403, or 401 for missing or wrong credentials: nginx takes any other for a failure.
    Forbidden,
}

/// The `decide` routes of a snapshot.
#[derive(Debug)]
pub struct Doors {
    /// All routes, the `decide` routes without their methods and conditions: those are about other
    /// requests.
    table: RouteTable,
    /// For each route of `table` its index in the snapshot.
    routes: Vec<usize>,
    /// The prefixes of the routes that have one, each with a slash at its end.
    prefixes: Vec<Box<str>>,
}

impl DecideRules {
    /// The path of the asked request, from the `path` of the question: the part below the prefix,
    /// with its slash. `None` if there is none.
    pub fn asked_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        path.strip_prefix(self.prefix.as_deref()?).filter(|rest| rest.starts_with('/'))
    }

    /// The status to send for a response with `status`.
    pub fn sent_status(&self, status: StatusCode) -> StatusCode {
        let is_accepted = status.is_success() || status == StatusCode::UNAUTHORIZED;
        match self.refusals {
            RefusalStatus::Forbidden if !is_accepted => StatusCode::FORBIDDEN,
            RefusalStatus::Own | RefusalStatus::Forbidden => status,
        }
    }
}

impl Doors {
    /// The doors among `routes`, which match by `rules`, each with its index; `None` without any.
    /// Reports a path that another route serves too.
    pub(super) fn compile(
        root: &Section<'_>,
        rules: &[(usize, Rule)],
        routes: &[Arc<Route>],
    ) -> Option<Self> {
        let is_door =
            |index: usize| routes.get(index).is_some_and(|route| route.decide().is_some());
        if root.has_faults() || !rules.iter().any(|(index, _)| is_door(*index)) {
            return None;
        }
        let mut kept: Vec<(usize, Rule)> = Vec::new();
        for (index, rule) in rules {
            let mut rule = rule.clone();
            if is_door(*index) {
                (rule.methods, rule.conditions) = (Vec::new(), Conditions::default());
                let is_same = |(other, own): &(usize, Rule)| {
                    is_door(*other) && own.host == rule.host && own.path.has_shape_of(&rule.path)
                };
                if kept.iter().any(is_same) {
                    continue;
                }
            }
            kept.push((*index, rule));
        }
        let (indices, kept): (Vec<usize>, Vec<Rule>) = kept.into_iter().unzip();
        let table = RouteTable::build(&kept).unwrap_or_else(|conflicts| {
            for RouteConflict { first, second, .. } in conflicts {
                let (first, second) = (&routes[indices[first]].name, indices[second]);
                let what =
                    format!("`{first}` and this route, of which one has `decide`, share a path");
                let section = root.at("routes").index(second).at("match");
                section.fault_at_key(what, "a path that only questions have");
            }
            RouteTable::default()
        });
        let prefixes = routes.iter().filter_map(|route| route.decide()?.prefix.as_deref());
        let prefixes = prefixes.map(|prefix| format!("{prefix}/").into()).collect();
        Some(Self { table, routes: indices, prefixes })
    }

    /// The index of the route that serves a question, by its host and path; `decide` tests the
    /// conditions of routes without `decide`.
    pub fn find(
        &self,
        host: &str,
        path: &str,
        method: &Method,
        decide: impl FnMut(&ConditionalRoute) -> ConditionResult,
    ) -> Option<usize> {
        match self.table.find_where(host, path, method, decide) {
            Lookup::Found(found) => self.routes.get(found.route).copied(),
            Lookup::Undecided(_) | Lookup::MethodNotAllowed(_) | Lookup::NotFound => None,
        }
    }

    /// True if the path of a question, as it was sent, is below a prefix.
    pub fn have_prefix_of(&self, sent: &str) -> bool {
        self.prefixes.iter().any(|prefix| sent.starts_with(&**prefix))
    }

    /// The prefix that the path of a question was `sent` with and that its normal form, `path`, has
    /// left. Another route would answer the question: it must not.
    pub fn left_prefix(&self, sent: &str, path: &str) -> Option<&str> {
        let mut prefixes = self.prefixes.iter().map(AsRef::as_ref);
        prefixes.find(|prefix| sent.starts_with(prefix) && !path.starts_with(prefix))
    }
}

/// Compiles the `decide` of the route at `section`, and checks the route.
pub(super) fn compile(
    section: &Section<'_>,
    route: &RouteConfig,
    decide: &DecideConfig,
    config: &Config,
    rule: Option<&Rule>,
) -> DecideRules {
    if config.client.trusted_proxies.is_empty() && section.root().can_read(&["client"]) {
        let what = "`decide` without `client.trusted_proxies`: no proxy may ask";
        section.at("decide").fault_at_key(what, "the addresses of the proxies that ask");
    }
    check_auth(section, route, config);
    check_unused(section, route);
    let status = decide.refuse_status.0;
    let refusals = match status {
        403 => RefusalStatus::Forbidden,
        429 => RefusalStatus::Own,
        _ => {
            let at = section.at("decide").at("refuse_status");
            at.fault(format!("`{status}`"), "429, or 403 for nginx");
            RefusalStatus::Own
        }
    };
    DecideRules { refusals, prefix: rule.and_then(|rule| prefix(&rule.path)) }
}

/// The fixed text before the rest of a path; `None` for a pattern of another shape.
fn prefix(pattern: &PathPattern) -> Option<Box<str>> {
    let [only] = pattern.params() else { return None };
    let text = pattern.as_str();
    let rest = format!("/{{*{only}}}");
    let fixed = text.strip_suffix(if pattern.is_prefix() { "/..." } else { &rest })?;
    // Braces in fixed text are doubled.
    let is_plain = !fixed.contains(['{', '}']);
    is_plain.then(|| fixed.into())
}

/// Reports ways to authenticate that find the asking proxy instead of the asked client.
fn check_auth(section: &Section<'_>, route: &RouteConfig, config: &Config) {
    for (index, name) in route.auth.iter().enumerate() {
        if config.auth.get(name).is_some_and(|method| method.certificate.is_some()) {
            let what =
                format!("`{name}` on a `decide` route: the certificate is the asking proxy's");
            section
                .at("auth")
                .index(index)
                .fault(what, "a method whose credentials are in headers");
        }
    }
}

/// Reports keys that would have no effect.
fn check_unused(section: &Section<'_>, route: &RouteConfig) {
    for (key, is_set) in [
        ("cors", route.cors.is_some()),
        ("strip_prefix", route.strip_prefix.is_some()),
        ("compress", route.compress.is_some()),
        ("mirror", route.mirror.is_some()),
        ("max_body", section.at("max_body").is_written()),
    ] {
        if is_set {
            let what = format!("`{key}` on a `decide` route: the asking proxy has the request");
            section.at(key).fault_at_key(what, &format!("no `{key}`"));
        }
    }
    let response = section.at("headers").at("response");
    let fields = [("set", &route.headers.response.set), ("add", &route.headers.response.add)];
    for (key, name, text) in
        fields.iter().flat_map(|(key, map)| map.iter().map(|(name, text)| (*key, name, text)))
    {
        if text.contains("{path.") {
            let what =
                "`{path.NAME}` on a `decide` route, whose path is not that of the asked request";
            response.at(key).entry(name).fault(what, "`{path}`");
        }
    }
}

/// Reports a limit of a `decide` route that needs what the gateway does not see; `section` is its
/// name in `limits`.
pub(super) fn check_limit(section: &Section<'_>, policy: &LimitPolicy) {
    let name = policy.limit.name();
    let tiers = policy.tiers.iter().filter_map(|tier| match &tier.matches {
        TierMatch::Part(part, _) => Some(part),
        TierMatch::Networks(_) => None,
    });
    for part in policy.key.0.iter().chain(tiers) {
        let (why, expected) = match part {
            KeyPart::PathParam(_) => (
                "whose path is not that of the asked request",
                "a key with `path`, or a `decide` route for each path",
            ),
            KeyPart::Json(_) => ("which sees no body of the asked request", "another key"),
            KeyPart::Header(own) if *own == header::HOST => {
                ("whose `Host` may be its own", "a key with `host`")
            }
            _ => continue,
        };
        let what = format!("`{name}` counts by `{part}` on a `decide` route, {why}");
        section.fault(what, expected);
    }
    let fault = |what: &str, expected: &str| {
        section.fault(format!("`{name}` {what} on a `decide` route"), expected);
    };
    if matches!(policy.limit.algorithm(), Algorithm::Concurrency) {
        fault(
            "bounds requests in flight, whose end the gateway does not see,",
            "a limit of a rate",
        );
    }
    match policy.cost {
        Cost::Fixed(_) | Cost::Header { .. } => {}
        Cost::Response { .. } | Cost::Settled(_) => {
            let expected = "a fixed cost, or `header:NAME` of the request";
            fault("has a cost that the response gives, which the gateway does not see,", expected);
        }
    }
    if !policy.refunds.are_none() {
        let expected = "neither `refund` nor `charge_on`";
        fault("depends on the status of the response, which the gateway does not see,", expected);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix_of(text: &str) -> Option<Box<str>> {
        prefix(&PathPattern::parse(text).unwrap())
    }

    #[test]
    fn the_rest_of_a_path_is_the_asked_one() {
        assert_eq!(prefix_of("/decide/{*rest}").as_deref(), Some("/decide"));
        assert_eq!(prefix_of("/{*all}").as_deref(), Some(""));
        let below = prefix(&PathPattern::prefix("/a/b").unwrap());
        assert_eq!(below.as_deref(), Some("/a/b"));
        assert_eq!(prefix(&PathPattern::prefix("/").unwrap()).as_deref(), Some(""));
        for other in ["/decide", "/{door}", "/{door}/{*rest}", "/x{*rest}", "/{{a}}/{*rest}"] {
            assert_eq!(prefix_of(other), None, "{other}");
        }
        let rules = DecideRules { refusals: RefusalStatus::Own, prefix: below };
        for (path, asked) in
            [("/a/b/c", Some("/c")), ("/a/b/", Some("/")), ("/a/b", None), ("/a/bc", None)]
        {
            assert_eq!(rules.asked_path(path), asked, "{path}");
        }
        let prefixes = vec!["/a/b/".into()];
        let doors = Doors { table: RouteTable::default(), routes: Vec::new(), prefixes };
        for (sent, path, left) in [
            ("/a/b/../c", "/a/c", Some("/a/b/")),
            ("/a/b/../b/c", "/a/b/c", None),
            ("/a/c", "/a/c", None),
        ] {
            assert_eq!(doors.left_prefix(sent, path), left, "{sent}");
        }
    }

    #[test]
    fn nginx_accepts_every_sent_status() {
        let rules = DecideRules { refusals: RefusalStatus::Forbidden, prefix: None };
        for (own, sent) in
            [(204, 204), (302, 403), (400, 403), (401, 401), (403, 403), (429, 403), (503, 403)]
        {
            let own = StatusCode::from_u16(own).unwrap();
            assert_eq!(rules.sent_status(own).as_u16(), sent, "{own}");
        }
    }
}
