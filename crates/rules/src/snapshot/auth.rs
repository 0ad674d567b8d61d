//! Compiles the ways to authenticate, and how each route uses them.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;

use ahash::RandomState;
use hashbrown::HashSet;
use siphasher::sip::SipHasher13;
use tidegate_access::auth::{
    AllowedConsumers, AuthKind, AuthMethod, KeyForwarding, RouteAuth, WithoutCredentials,
    is_consumer_name,
};
use tidegate_charge::{Limit, LimitIdentity};
use tidegate_config::{self as config, AuthKindConfig, Config, MaxFailures};
use tidegate_identity::ApiKeySource;
use tidegate_limit::{MAX_RESOLUTION, Quota};
use tidegate_tls::TlsFile;

use super::forward_auth;
use super::jwt::{self, NamedMethod};
use super::section::Section;

/// The ways to authenticate, by name.
pub(super) type AuthMethods = BTreeMap<String, Arc<AuthMethod>>;

/// Compiles the section `auth`. A faulty method is reported and left out. The files that it has read
/// are added to `files`.
pub(super) fn methods(
    root: &Section<'_>,
    config: &Config,
    files: &mut Vec<TlsFile>,
) -> AuthMethods {
    let mut methods = AuthMethods::new();
    for (name, configured) in &config.auth {
        let section = root.at("auth").entry(name);
        section.ensure_key_name(name);
        if !section.can_read(&KINDS) {
            continue;
        }
        let expected = "`api_key`, `basic`, `certificate`, `forward` or `jwt`";
        let Some(only) = section.only_one(configured.kind(), ("no kind", expected)) else {
            continue;
        };
        let named =
            NamedMethod { name, prefix: prefix(&section, configured.prefix.as_deref(), only) };
        let compiled = kind(&section, named, only, MethodParts { config, files });
        let Some(kind) = compiled else { continue };
        let max_failures = max_failures(name, configured.max_failures);
        let method = AuthMethod { name: name.as_str().into(), kind, max_failures };
        methods.insert(name.clone(), Arc::new(method));
    }
    note_unused(root, config);
    methods
}

/// What the kind of a method is compiled with.
struct MethodParts<'a> {
    config: &'a Config,
    /// The files that were read.
    files: &'a mut Vec<TlsFile>,
}

/// The kind of a method; `None` if it is faulty.
fn kind(
    section: &Section<'_>,
    named: NamedMethod<'_>,
    configured: AuthKindConfig<'_>,
    MethodParts { config, files }: MethodParts<'_>,
) -> Option<AuthKind> {
    let prefix = named.prefix;
    Some(match configured {
        AuthKindConfig::ApiKey(key) => {
            check_sources(&section.at("api_key").at("from"), &key.from);
            ensure_consumers(section, config, "API keys", "key");
            let forwarding = forwarding(key.forward_credentials);
            AuthKind::ApiKey { sources: key.from.as_slice().into(), forwarding }
        }
        AuthKindConfig::Basic(basic) => {
            ensure_consumers(section, config, "passwords", "password");
            AuthKind::Basic { forwarding: forwarding(basic.forward_credentials) }
        }
        AuthKindConfig::Certificate(certificate) => {
            note_missing_client_ca(section, config);
            AuthKind::Certificate { consumer: certificate.consumer, prefix: prefix.into() }
        }
        AuthKindConfig::Forward(service) => {
            let section = section.at("forward");
            AuthKind::Forward(forward_auth::compile(&section, service, prefix)?)
        }
        AuthKindConfig::Jwt(jwt) => {
            let method = jwt::method(&section.at("jwt"), named, jwt, config, files)?;
            AuthKind::Jwt(Arc::new(method))
        }
    })
}

/// Maximum length of a prefix, in bytes: half of a name.
const MAX_PREFIX: usize = 64;

/// The text before the names of a method's consumers. Reports a faulty one.
fn prefix<'c>(
    section: &Section<'_>,
    configured: Option<&'c str>,
    kind: AuthKindConfig<'_>,
) -> &'c str {
    let Some(prefix) = configured else { return "" };
    let section = section.at("prefix");
    if matches!(kind, AuthKindConfig::ApiKey(_) | AuthKindConfig::Basic(_)) {
        let what = "`prefix` of a method whose consumers have the names of their records";
        section.fault_at_key(what, "no `prefix`, or other names in the records");
    }
    let is_valid = is_consumer_name(prefix) && prefix.len() <= MAX_PREFIX;
    let expected = "at most 64 bytes without white space at the ends, such as `sso:`";
    section.ensure(is_valid, &format!("`{prefix}`"), expected);
    prefix
}

/// The keys of the kinds.
const KINDS: [&str; 5] = ["api_key", "basic", "certificate", "forward", "jwt"];

fn forwarding(forward_credentials: bool) -> KeyForwarding {
    if forward_credentials { KeyForwarding::Keep } else { KeyForwarding::Remove }
}

/// Reports credentials that no record can have.
fn ensure_consumers(section: &Section<'_>, config: &Config, credentials: &str, one: &str) {
    if config.consumers.is_none() && section.root().can_read(&["consumers"]) {
        let what = format!("{credentials} without `consumers`: every {one} would be refused");
        section.fault_at_key(what, "a section `consumers` with `file`, `entries` or `redis`");
    }
}

/// Notes certificates of clients that no listener asks for.
fn note_missing_client_ca(section: &Section<'_>, config: &Config) {
    let asks = |tls: &config::ListenerTls| {
        tls.certificates.iter().any(|certificate| certificate.client_ca.is_some())
            || tls.acme.as_ref().is_some_and(|acme| acme.client_ca.is_some())
    };
    let mut listeners = config.listen.iter().filter_map(|own| own.tls.as_ref());
    if !listeners.any(asks) {
        let what = "no listener asks clients for a certificate";
        section.at("certificate").note_at_key(what, "a certificate with `client_ca`");
    }
}

/// Reports an empty list and duplicates, and notes keys in queries.
fn check_sources(section: &Section<'_>, sources: &[ApiKeySource]) {
    section.ensure(!sources.is_empty(), "no place of a key", "at least one");
    for (index, source) in sources.iter().enumerate() {
        let section = section.index(index);
        let is_first = !sources[..index].contains(source);
        section.ensure(is_first, &format!("duplicate place `{source}`"), "each place once");
        if matches!(source, ApiKeySource::Query(_)) {
            let what =
                format!("`{source}`: URLs with keys are kept in histories and other servers' logs");
            section.note(what, "`header:NAME`");
        }
    }
}

/// The limit of refused credentials, by client address.
fn max_failures(name: &str, configured: MaxFailures) -> Option<Arc<Limit>> {
    let MaxFailures::Rate(rate) = configured else { return None };
    let window = rate.window.millis();
    // The largest one that divides the window, as for other limits.
    let resolution = (1..=6).rev().find(|parts| window.as_ms().is_multiple_of((*parts).into()));
    let resolution = resolution.unwrap_or(1).min(MAX_RESOLUTION);
    // Only what gives stored counters their meaning, as for other limits.
    let mut fingerprint = SipHasher13::new_with_keys(0, 0);
    fingerprint.write(b"failures");
    fingerprint.write_u64(window.as_ms());
    let quota = Quota::sliding(rate.quota, window, resolution);
    // `~` is not valid in configured names.
    let identity = LimitIdentity::new(format!("{name}~failures"), fingerprint.finish());
    Some(Arc::new(Limit::new(identity, quota)))
}

/// Notes methods that no route names.
fn note_unused(root: &Section<'_>, config: &Config) {
    let named = config.routes.iter().flat_map(|route| &route.auth);
    let named: HashSet<&String, RandomState> = named.collect();
    for name in config.auth.keys().filter(|name| !named.contains(name)) {
        let what = format!("no route authenticates by `{name}`");
        root.at("auth").entry(name).note_at_key(what, "its name in `auth` of a route");
    }
}

/// Compiles the authentication of a route; `None` if it has none.
pub(super) fn of_route(
    section: &Section<'_>,
    route: &config::RouteConfig,
    methods: &AuthMethods,
    config: &Config,
) -> Option<RouteAuth> {
    let mut seen = HashSet::<&str, RandomState>::default();
    for (index, name) in route.auth.iter().enumerate() {
        let section = section.at("auth").index(index);
        section.ensure_auth_reference(name, &config.auth);
        section.ensure(seen.insert(name), &format!("duplicate `{name}`"), "each way once");
        let is_forward =
            |name: &String| config.auth.get(name).is_some_and(|own| own.forward.is_some());
        if is_forward(name) && index + 1 < route.auth.len() && !route.auth_optional {
            let what = format!("`{name}` before others, which are never used: it is always asked");
            section.fault(what, "it as the last one");
        }
    }
    let has_auth = !route.auth.is_empty() || !section.can_read(&["auth"]);
    if !has_auth {
        for (key, is_set) in
            [("auth_optional", route.auth_optional), ("consumers", route.consumers.is_some())]
        {
            if is_set {
                section.at(key).fault_at_key(format!("`{key}` without `auth`"), "`auth`");
            }
        }
        return None;
    }
    let allowed = route.consumers.as_ref().map(|allowed| {
        let section = section.at("consumers");
        allowed_consumers(&section, allowed, route.auth_optional, config)
    });
    let without_credentials =
        if route.auth_optional { WithoutCredentials::Proceed } else { WithoutCredentials::Refuse };
    let named = route.auth.iter().filter_map(|name| methods.get(name)).map(Arc::clone);
    Some(RouteAuth::new(named.collect(), without_credentials, allowed))
}

fn allowed_consumers(
    section: &Section<'_>,
    allowed: &config::RouteConsumersConfig,
    auth_optional: bool,
    config: &Config,
) -> AllowedConsumers {
    if allowed.plans.is_empty() && allowed.names.is_empty() && section.can_read(&["plans", "names"])
    {
        section.fault_at_key("no consumer may use this route", "`plans` or `names`");
    }
    if auth_optional {
        let what = "`consumers` with `auth_optional`, though a request without credentials has no consumer";
        section.fault_at_key(what, "one of them");
    }
    for (index, plan) in allowed.plans.iter().enumerate() {
        section.at("plans").index(index).ensure_reference("plan", plan, &config.plans);
    }
    let boxed = |names: &[String]| names.iter().map(|name| name.as_str().into()).collect();
    AllowedConsumers { plans: boxed(&allowed.plans), names: boxed(&allowed.names) }
}
