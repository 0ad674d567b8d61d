//! [`CorsPolicy`]: how scripts of other origins may use a route.

use ahash::RandomState;
use hashbrown::HashSet;
use tidegate_config::{self as config, CorsOrigin};

use super::origins::OriginMatcher;
use super::parts;
use super::section::Section;

/// The header names that the gateway adds to responses and that scripts may read.
pub const EXPOSED_HEADERS: &str = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Used, \
    X-RateLimit-Reset, X-RateLimit-Resource, RateLimit, RateLimit-Policy, Retry-After, X-Request-Id";

/// The allowed methods if the route lists none.
const COMMON_METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// How scripts of other origins may use a route. Texts are values of header fields.
#[derive(Debug)]
pub struct CorsPolicy {
    /// The origins.
    pub origins: OriginMatcher,
    /// `Access-Control-Allow-Methods`.
    pub methods: Box<str>,
    /// `Access-Control-Allow-Headers`; empty for none.
    pub headers: Box<str>,
    /// `Access-Control-Expose-Headers`.
    pub expose: Box<str>,
    /// True if browsers may send credentials.
    pub credentials: bool,
    /// `Access-Control-Max-Age`, in seconds.
    pub max_age: u64,
}

/// Compiles the `cors` of the route at `section`.
pub(super) fn compile(section: &Section<'_>, route: &config::RouteConfig) -> Option<CorsPolicy> {
    let cors = route.cors.as_ref()?;
    let section = section.at("cors");
    check_origins(&section, cors);
    check_methods(&section, cors, route);
    let [headers, expose] = [("headers", &cors.headers), ("expose", &cors.expose)]
        .map(|(key, names)| header_names(&section.at(key), names, cors));
    let methods: Vec<&str> = match &cors.methods {
        Some(methods) => methods.iter().map(|method| &*method.0).collect(),
        None if route.matches.methods.is_empty() => COMMON_METHODS.into(),
        None => route.matches.methods.iter().map(|method| &*method.0).collect(),
    };
    Some(CorsPolicy {
        origins: OriginMatcher::new(&cors.origins),
        methods: methods.join(", ").into(),
        headers: headers.join(", ").into(),
        expose: exposed(&expose).into(),
        credentials: cors.credentials,
        max_age: cors.max_age.0.as_secs(),
    })
}

fn check_origins(section: &Section<'_>, cors: &config::Cors) {
    let origins = section.at("origins");
    let expected = "at least one, such as https://app.example.com";
    origins.ensure(!cors.origins.is_empty(), "no origin", expected);
    let has_any = cors.origins.contains(&CorsOrigin::Any);
    if has_any && cors.credentials && section.can_read(&["origins", "credentials"]) {
        let what = "`credentials: true` with the origin `*`, which browsers refuse";
        let expected = "origins such as https://app.example.com, or no `credentials`";
        section.at("credentials").fault(what, expected);
    }
    let matches = |listed: &[CorsOrigin], origin: &CorsOrigin| {
        let text = match origin {
            CorsOrigin::Exact(origin) => origin.clone(),
            CorsOrigin::Null => "null".to_owned(),
            // An example of an origin that it matches.
            CorsOrigin::Below { scheme, suffix } => format!("{scheme}a{suffix}"),
            CorsOrigin::Any => return listed.contains(origin),
        };
        OriginMatcher::new(listed).contains(text.as_bytes())
    };
    for (index, origin) in cors.origins.iter().enumerate() {
        let mut others = cors.origins.clone();
        others.truncate(index);
        if has_any && *origin != CorsOrigin::Any {
            others.push(CorsOrigin::Any);
        }
        if matches(&others, origin) {
            let what = format!("`{origin}` has no effect: another origin of the list includes it");
            origins.index(index).note(what, "each origin once");
        }
        if matches!(origin, CorsOrigin::Below { suffix, .. } if !suffix[1..].contains('.')) {
            let what = format!("`{origin}` includes all hosts of a top-level domain");
            let expected = "a domain of your own, such as https://*.example.org";
            origins.index(index).note(what, expected);
        }
    }
}

/// Reports an empty list, and notes methods that the route does not match.
fn check_methods(section: &Section<'_>, cors: &config::Cors, route: &config::RouteConfig) {
    let section = section.at("methods");
    let listed = cors.methods.as_ref();
    let is_empty = listed.is_some_and(Vec::is_empty);
    let expected = "at least one; without `methods`, those of the route";
    section.ensure(!is_empty, "no method", expected);
    let served = &route.matches.methods;
    for (index, method) in listed.into_iter().flatten().enumerate() {
        if !served.is_empty() && !served.contains(method) {
            let what =
                format!("`{method}` is allowed to scripts, but not among the route's methods");
            section.index(index).note(what, "a method of the route's `match`");
        }
    }
}

/// The names of the list at `section`, each once, in lower case.
fn header_names(section: &Section<'_>, names: &[String], cors: &config::Cors) -> Vec<String> {
    let mut seen = HashSet::<String, RandomState>::default();
    let mut compiled = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let section = section.index(index);
        if name == "*" && cors.credentials {
            // With credentials, browsers treat `*` as a header of this name.
            let expected = "names: with `credentials: true`, browsers do not support `*` here";
            section.fault("`*` with `credentials: true`", expected);
        }
        let Some(name) = parts::header(&section, name) else { continue };
        if seen.insert(name.to_string()) {
            compiled.push(name.to_string());
        } else {
            section.fault(format!("duplicate header `{name}`"), "each header once");
        }
    }
    compiled
}

/// The headers that scripts may read: `names` and the gateway's own.
fn exposed(names: &[String]) -> String {
    let is_gateways = |name: &&String| {
        EXPOSED_HEADERS.split(", ").any(|exposed| exposed.eq_ignore_ascii_case(name.as_str()))
    };
    let mut all = EXPOSED_HEADERS.to_owned();
    for name in names.iter().filter(|name| !is_gateways(name)) {
        all.push_str(", ");
        all.push_str(name);
    }
    all
}
