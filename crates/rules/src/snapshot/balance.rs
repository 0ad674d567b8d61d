//! Compiles an upstream's balancing, health checks, ejection, retries and bounds.

use tidegate_balance::Policy;
use tidegate_base::time::Millis;
use tidegate_config::{self as config, Config, RetryCondition, StatusRange};
use tidegate_identity::{KeyPart, KeyPlan};
use tidegate_route::Rule;
use tidegate_upstream::adaptive_concurrency::ConcurrencyBounds;
use tidegate_upstream::target_health::HealthSettings;
use tidegate_upstream::{Bounds, CheckSettings, Pacing, RetryConditions};

use super::section::Section;

/// Keys that have an effect only if the number of places at a target is bounded.
const PACING_KEYS: [&str; 4] = ["request_buffer", "response_buffer", "client_share", "min_rate"];

/// The keys of this module, each with true if it is set.
pub(super) fn keys_in_use(
    upstream: &config::UpstreamConfig,
) -> impl Iterator<Item = (&'static str, bool)> {
    let default = config::UpstreamConfig::default();
    [
        ("balance", upstream.balance != default.balance),
        ("hash_key", !upstream.hash_key.is_empty()),
        ("health", upstream.health.is_some()),
        ("ejection", upstream.ejection != default.ejection),
        ("slow_start", upstream.slow_start != default.slow_start),
        ("name_servers", !upstream.name_servers.is_empty()),
        ("retry_on", upstream.retry_on != default.retry_on),
        ("max_connections", upstream.max_connections.is_some()),
        ("max_requests", upstream.max_requests.is_some()),
        ("max_pending", upstream.max_pending != default.max_pending),
        ("request_buffer", upstream.request_buffer != default.request_buffer),
        ("response_buffer", upstream.response_buffer != default.response_buffer),
        ("client_share", upstream.client_share != default.client_share),
        ("min_rate", upstream.min_rate != default.min_rate),
        ("adaptive_concurrency", upstream.adaptive_concurrency.is_some()),
    ]
    .into_iter()
}

/// Reports weights that are all 0.
pub(super) fn ensure_weights(section: &Section<'_>, upstream: &config::UpstreamConfig) {
    let is_drained = upstream.targets.iter().all(|target| target.weight == 0);
    if is_drained && !upstream.targets.is_empty() && section.can_read(&["targets"]) {
        let expected = "at least one target with a weight of 1 or more";
        section.at("targets").fault("the weights of all targets are 0", expected);
    }
}

/// Compiles the policy. Reports `hash` without a key, and a key without `hash`.
pub(super) fn policy(section: &Section<'_>, upstream: &config::UpstreamConfig) -> Policy {
    let policy = upstream.balance;
    if !section.can_read(&["balance", "hash_key"]) {
        return policy;
    }
    if policy == Policy::Hash && upstream.hash_key.is_empty() {
        let section = section.at("balance");
        let expected = "`hash_key` with the parts of a request to choose by, such as [client_ip]";
        section.fault("`hash` without `hash_key`", expected);
    }
    if policy != Policy::Hash && !upstream.hash_key.is_empty() {
        let section = section.at("hash_key");
        section.fault_at_key("`hash_key` without `balance: hash`", "both or none");
    }
    policy
}

/// Compiles the key by which `route` chooses a target. Reports parameters that its path does not
/// have.
pub(super) fn hash_key(
    section: &Section<'_>,
    route: &config::RouteConfig,
    rule: Option<&Rule>,
    config: &Config,
) -> Option<KeyPlan> {
    let name = route.upstream.as_ref()?;
    let upstream = config.upstreams.get(name)?;
    if upstream.hash_key.is_empty() {
        return None;
    }
    for part in &upstream.hash_key {
        let (KeyPart::PathParam(param), Some(rule)) = (part, rule) else { continue };
        if !rule.path.params().contains(param) {
            let what = format!(
                "`{name}` chooses a target by `{part}`, which `{}` does not have",
                rule.path.as_str()
            );
            section.at("upstream").fault(what, &section.path_with(part, param));
        }
    }
    Some(KeyPlan(upstream.hash_key.clone()))
}

/// Compiles the rules for ejecting targets and for health checks.
pub(super) fn health(section: &Section<'_>, upstream: &config::UpstreamConfig) -> HealthSettings {
    let ejection = &upstream.ejection;
    let section = section.at("ejection");
    if ejection.duration > ejection.max_duration && section.can_read(&["duration", "max_duration"])
    {
        let what = format!(
            "`duration` {} is longer than `max_duration` {}",
            ejection.duration, ejection.max_duration
        );
        section.at("duration").fault(what, "at most `max_duration`");
    }
    let check = upstream.health.as_ref();
    HealthSettings {
        failures: ejection.failures,
        duration: Millis::from_duration(ejection.duration.0),
        max_duration: Millis::from_duration(ejection.max_duration.0),
        max_share: ejection.max_share,
        unhealthy_after: check.map_or(1, |check| check.unhealthy_after),
        healthy_after: check.map_or(1, |check| check.healthy_after),
        check_interval: check.map_or(Millis::ZERO, |check| Millis::from_duration(check.interval.0)),
        slow_start: Millis::from_duration(upstream.slow_start.0),
    }
}

/// Compiles the health checks.
pub(super) fn check(
    section: &Section<'_>,
    upstream: &config::UpstreamConfig,
) -> Option<CheckSettings> {
    let check = upstream.health.as_ref()?;
    let section = section.at("health");
    let is_target = check.path.starts_with('/')
        && check.path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
        && check.path.parse::<http::Uri>().is_ok();
    let what = format!("`{}`", check.path);
    section.at("path").ensure(is_target, &what, "a path such as /healthz");
    if let Some(host) = &check.host {
        let is_host = !host.is_empty() && host.parse::<http::uri::Authority>().is_ok();
        let expected = "a host such as app.internal, with or without a port";
        section.at("host").ensure(is_host, &format!("`{host}`"), expected);
    }
    if check.status.is_empty() && section.can_read(&["status"]) {
        section.at("status").fault("no status", "at least one, such as 200-299");
    }
    if check.timeout > check.interval && section.can_read(&["timeout", "interval"]) {
        let what =
            format!("`timeout` {} is longer than `interval` {}", check.timeout, check.interval);
        section.at("timeout").fault(what, "at most `interval`");
    }
    Some(CheckSettings {
        path: check.path.as_str().into(),
        host: check.host.as_deref().map(Into::into),
        interval: check.interval.0,
        timeout: check.timeout.0,
        statuses: StatusRange::set(&check.status),
    })
}

/// Compiles the bounds on each target's load.
pub(super) fn bounds(section: &Section<'_>, upstream: &config::UpstreamConfig) -> Bounds {
    let adaptive = upstream.adaptive_concurrency;
    if let Some(adaptive) = adaptive.filter(|adaptive| adaptive.min > adaptive.max) {
        let section = section.at("adaptive_concurrency");
        if section.can_read(&["min", "max"]) {
            let what = format!("`min` {} is more than `max` {}", adaptive.min, adaptive.max);
            section.at("min").fault(what, "at most `max`");
        }
    }
    let is_bounded =
        upstream.max_requests.is_some() || upstream.max_connections.is_some() || adaptive.is_some();
    if !is_bounded && section.can_read(&["max_requests", "max_connections", "adaptive_concurrency"])
    {
        let expected = "`max_requests`, `max_connections` or `adaptive_concurrency`";
        if upstream.max_pending > 0 {
            let what = "`max_pending` without a bound to wait for";
            section.at("max_pending").fault_at_key(what, expected);
        }
        let set = keys_in_use(upstream).filter(|(_, is_set)| *is_set);
        for (key, _) in set.filter(|(key, _)| PACING_KEYS.contains(key)) {
            let what = format!("`{key}` without a bound of the target's places");
            section.at(key).fault_at_key(what, expected);
        }
    }
    Bounds {
        max_connections: upstream.max_connections,
        max_requests: upstream.max_requests,
        max_pending: upstream.max_pending,
        adaptive: adaptive.map(|bounds| ConcurrencyBounds { min: bounds.min, max: bounds.max }),
        pacing: Pacing {
            request_buffer: upstream.request_buffer.0 as usize,
            response_buffer: upstream.response_buffer.0 as usize,
            client_share: upstream.client_share,
            min_rate: upstream.min_rate.0,
        },
    }
}

/// Compiles the failures after which a request is retried.
pub(super) fn retry_on(upstream: &config::UpstreamConfig) -> RetryConditions {
    let (mut conditions, mut statuses) = (RetryConditions::default(), Vec::new());
    for condition in &upstream.retry_on {
        match condition {
            RetryCondition::Connect => conditions.connect = true,
            RetryCondition::Reset => conditions.reset = true,
            RetryCondition::Timeout => conditions.timeout = true,
            RetryCondition::Status(range) => statuses.push(*range),
        }
    }
    RetryConditions { statuses: StatusRange::set(&statuses), ..conditions }
}
