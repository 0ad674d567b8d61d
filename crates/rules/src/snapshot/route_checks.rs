//! Checks of routes that need more than one of their values.

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use tidegate_config::{self as config, Config, Duration};
use tidegate_identity::KeyPart;

use super::LimitPolicy;
use super::policy::PlanLimit;
use super::quota::QUOTA_KEYS;
use super::section::Section;

/// Reports names that another route has, or that are no names.
pub(super) fn check_names(root: &Section<'_>, config: &Config) {
    let mut names = HashMap::<&str, usize, RandomState>::default();
    for (index, route) in config.routes.iter().enumerate() {
        let section = root.at("routes").index(index);
        section.at("name").ensure_value_name(&route.name);
        let has_name = section.can_read(&["name"]);
        let first = if has_name { *names.entry(&route.name).or_insert(index) } else { index };
        if first != index && !root.is_full() {
            let what = format!("duplicate name `{}`", route.name);
            let line = root.at("routes").index(first).at("name").line();
            let expected = format!("a unique name (line {line} has it already)");
            section.at("name").fault(what, &expected);
        }
    }
}

/// The names of the limits whose state a route reports.
pub(super) fn status(route: &config::RouteConfig) -> &[String] {
    route.status.as_deref().unwrap_or_default()
}

pub(super) fn check_references(
    section: &Section<'_>,
    route: &config::RouteConfig,
    config: &Config,
) {
    if let Some(upstream) = &route.upstream {
        let section = section.at("upstream");
        section.ensure_reference("upstream", upstream, &config.upstreams);
    }
    for (key, names) in [("limits", &*route.limits), ("status", status(route))] {
        let mut seen = HashSet::<&str, RandomState>::default();
        for (index, name) in names.iter().enumerate() {
            let section = section.at(key).index(index);
            section.ensure_reference("limit", name, &config.limits);
            let what = format!("duplicate limit `{name}`");
            section.ensure(seen.insert(name), &what, "each limit once");
        }
    }
}

/// Notes reported limits that count each route or path separately: a request to this route does not
/// say which of them is meant. Limits that the route also charges count its own requests.
pub(super) fn check_reported(
    section: &Section<'_>,
    reported: &[Arc<LimitPolicy>],
    charged: &[Arc<LimitPolicy>],
) {
    for policy in reported {
        let is_unknown = |part: &&KeyPart| matches!(part, KeyPart::Route | KeyPart::Path);
        let is_charged = charged.iter().any(|own| Arc::ptr_eq(own, policy));
        if let Some(part) = policy.key.0.iter().find(is_unknown).filter(|_| !is_charged) {
            let name = policy.limit.name();
            let what = format!(
                "`{name}` counts by `{part}`, and no request to this route says which: it is reported as null"
            );
            section.note(what, "a limit without this part in its key");
        }
    }
}

/// Reports a limit that may delay a request for its whole `request_timeout`.
pub(super) fn check_delays(
    section: &Section<'_>,
    route: &config::RouteConfig,
    charged: &[Arc<LimitPolicy>],
) {
    let Some(timeout) = route.request_timeout.millis() else { return };
    for policy in charged {
        let name = policy.limit.name();
        let tiers = policy.tiers.iter().filter_map(|tier| tier.limit.as_ref());
        let plans = policy.plans.iter().filter_map(|tier| match &tier.limit {
            PlanLimit::Quota(limit) => Some(limit),
            PlanLimit::Unlimited | PlanLimit::Blocked => None,
        });
        let waits =
            tiers.chain(plans).chain([&policy.limit]).map(|limit| limit.algorithm().max_wait());
        let longest = waits.max().unwrap_or_default();
        let limit = section.root().at("limits").entry(name);
        let is_known = section.can_read(&["request_timeout", "name"])
            && limit.can_read(&QUOTA_KEYS)
            && limit.can_read(&["tiers", "enforce"]);
        if policy.limit.enforce && !longest.is_zero() && longest >= timeout && is_known {
            let what = format!(
                "`{name}` may delay a request for {}, but the request_timeout of route `{}` is {}",
                Duration::from_millis(longest.as_ms()),
                route.name,
                route.request_timeout
            );
            let expected =
                "a shorter max_wait (by default, it is the window), or a longer request_timeout";
            limit.at("max_wait").fault(what, expected);
        }
    }
}
