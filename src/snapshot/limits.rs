//! Compiles the `limits` section.

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use smallvec::SmallVec;

use super::algorithm;
use super::check::Check;
use super::parts::{header, part};
use super::policy::{Cost, Policy};
use super::quota::{alternative_quota, quota};
use super::reserve;
use super::tiers;
use crate::config::{self, Config, KeyPart};
use crate::identity::{KeyPlan, TokenSource};
use crate::limit::{Limit, Millis, OnFailure, Quota, leaky_bucket};

/// Shortest lease of a concurrency permit, in ms. Leases are renewed every third of their length, with
/// a precision of 100 ms.
const MIN_LEASE: Millis = 1_000;

/// Compiles the limits in the order of their names. A faulty limit is reported and keeps its index.
pub(super) fn compile(
    check: &mut Check<'_>,
    config: &Config,
    sources: &[TokenSource],
) -> Vec<Arc<Policy>> {
    let compiled = config.limits.iter().enumerate().map(|(index, (name, limit))| {
        let path = format!("limits.{name}");
        check.ensure_key_name(&path, name);
        let key = key(check, &path, &limit.key, !config.client.token.is_empty());
        let quota = quota(check, &path, limit);
        check_algorithm_keys(check, &path, limit);
        let base = Limit {
            name: name.as_str().into(),
            fingerprint: fingerprint(limit),
            algorithm: algorithm::compile(limit.algorithm),
            quota,
            cost: 1,
            on_failure: match limit.on_failure {
                config::OnFailure::Local => OnFailure::Local,
                config::OnFailure::Open => OnFailure::Open,
                config::OnFailure::Closed => OnFailure::Closed,
            },
            reserve: reserve::compile(check, &path, limit, config.store.redis.is_some()),
            enforce: limit.enforce,
            index,
        };
        policy(check, &path, limit, &base, &key, sources)
    });
    compiled.collect()
}

/// Adds cost, tiers, refunds and the candidate to `base`.
fn policy(
    check: &mut Check<'_>,
    path: &str,
    configured: &config::Limit,
    base: &Limit,
    key: &KeyPlan,
    sources: &[TokenSource],
) -> Arc<Policy> {
    let cost = cost(check, path, configured, &base.quota);
    let refund: SmallVec<[u16; 4]> = configured.refund.iter().map(|status| status.0).collect();
    let default_cost = if let Cost::Fixed(cost) = cost { cost } else { 1 };
    let compile_with = |check: &mut Check<'_>, base: Limit, candidate| {
        let limit = Limit { cost: default_cost, ..base };
        let tiers = tiers::compile(check, path, configured, &limit, sources);
        let (key, cost, refund) = (key.clone(), cost.clone(), refund.clone());
        Arc::new(Policy { limit: Arc::new(limit), key, cost, tiers, refund, candidate })
    };
    let candidate_limit = configured.candidate.and_then(|candidate| {
        let at = format!("{path}.candidate.quota");
        let quota = alternative_quota(check, path, &at, configured, candidate.quota)?;
        // `~` is not valid in configured names.
        let name = format!("{}~candidate", base.name).into();
        Some(Limit { name, quota, enforce: false, ..base.clone() })
    });
    let candidate = candidate_limit.map(|limit| compile_with(check, limit, None));
    compile_with(check, base.clone(), candidate)
}

/// Reports keys that do not apply to the limit's algorithm.
fn check_algorithm_keys(check: &mut Check<'_>, path: &str, limit: &config::Limit) {
    use config::Algorithm::{LeakyBucket, SlidingWindow};
    let keys = [
        ("resolution", limit.resolution.is_some(), SlidingWindow),
        ("strict", limit.strict, SlidingWindow),
        ("max_wait", limit.max_wait.is_some(), LeakyBucket),
        ("max_queue", limit.max_queue.is_some(), LeakyBucket),
    ];
    for (key, given, owner) in keys {
        let what = format!("`{key}` with `{}`", algorithm::name(limit.algorithm));
        let expected = format!("it only with `{}`", algorithm::name(owner));
        let applies = !given || limit.algorithm == owner;
        check.ensure(applies, &format!("{path}.{key}"), &what, &expected);
    }
    if limit.algorithm == config::Algorithm::Concurrency {
        check_concurrency(check, path, limit);
    }
}

/// Reports settings that do not apply to `concurrency`, whose requests release their permits when they
/// end.
fn check_concurrency(check: &mut Check<'_>, path: &str, limit: &config::Limit) {
    let at = format!("{path}.refund");
    let what = "`refund` with `concurrency`, which releases every permit anyway";
    check.ensure(limit.refund.is_empty(), &at, what, "no `refund`");
    let from_response = matches!(limit.cost, config::Cost::Response(_));
    let what = "a cost from the response, though permits are acquired before it";
    check.ensure(!from_response, &format!("{path}.cost"), what, "a number or `header:NAME`");
    let is_renewable = limit.window.millis() >= MIN_LEASE || limit.window.millis() == 0;
    let what = format!("`{}`, a lease too short to be renewed in time", limit.window);
    check.ensure(is_renewable, &format!("{path}.window"), &what, "at least 1s");
}

/// Compiles the key. Reports invalid parts; a part with an invalid header name is left out.
fn key(check: &mut Check<'_>, path: &str, parts: &[KeyPart], has_token_source: bool) -> KeyPlan {
    let mut seen = hashbrown::HashSet::<&KeyPart, ahash::RandomState>::default();
    let plan = parts.iter().enumerate().filter_map(|(index, configured)| {
        let path = format!("{path}.key[{index}]");
        let what = format!("duplicate part `{configured}`");
        check.ensure(seen.insert(configured), &path, &what, "each part once");
        if *configured == KeyPart::Token && !has_token_source {
            check.fault(&path, "`token` with an empty `client.token`", "at least one token source");
        }
        part(check, &path, configured)
    });
    KeyPlan(plan.collect())
}

/// Compiles the cost of a request; 1 if its header name is invalid.
fn cost(check: &mut Check<'_>, path: &str, limit: &config::Limit, quota: &Quota) -> Cost {
    let at = format!("{path}.cost");
    let leaky = limit.algorithm == config::Algorithm::LeakyBucket;
    let max_possible = if leaky { leaky_bucket::capacity(quota) } else { limit.quota };
    let max = limit.max_cost.map_or(max_possible, u64::from);
    if let Some(configured) = limit.max_cost {
        let at = format!("{path}.max_cost");
        let is_valid = (1..=max_possible).contains(&u64::from(configured)) || max_possible == 0;
        let expected = format!("1 to {max_possible}: a higher cost would never be admitted");
        check.ensure(is_valid, &at, &format!("`{configured}`"), &expected);
        if let config::Cost::Fixed(_) = limit.cost {
            let what = "`max_cost` with a fixed cost";
            check.fault(&at, what, "no `max_cost`, or `cost: header:NAME`");
        }
    }
    let max = u32::try_from(max).unwrap_or(u32::MAX);
    match &limit.cost {
        config::Cost::Fixed(cost) => {
            let bound = if leaky { "the slots within max_wait" } else { "the quota" };
            let expected = format!("at most {bound}, {max_possible}: no request would be admitted");
            let is_valid = u64::from(*cost) <= max_possible || max_possible == 0;
            check.ensure(is_valid, &at, &format!("`{cost}`"), &expected);
            Cost::Fixed(*cost)
        }
        config::Cost::Header(name) => {
            header(check, &at, name).map_or(Cost::Fixed(1), |name| Cost::Header { name, max })
        }
        config::Cost::Response(name) => {
            header(check, &at, name).map_or(Cost::Fixed(1), |name| Cost::Response { name, max })
        }
    }
}

/// A hash of the settings that give stored counters their meaning. It is the same in every process, and
/// excludes the quota, so that a changed quota keeps what has been used.
fn fingerprint(limit: &config::Limit) -> u64 {
    let mut hash = SipHasher13::new_with_keys(0, 0);
    let mut add = |text: &str| {
        hash.write_u64(text.len() as u64);
        hash.write(text.as_bytes());
    };
    add(algorithm::name(limit.algorithm));
    add(&limit.window.millis().to_string());
    add(&limit.resolution().to_string());
    for part in &limit.key {
        add(&part.to_string());
    }
    hash.finish()
}
