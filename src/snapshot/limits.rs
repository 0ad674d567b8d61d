//! How much may pass.

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use smallvec::SmallVec;

use super::algorithm::{self, counted_by};
use super::check::Check;
use super::parts::{header, part};
use super::policy::{Cost, Policy};
use super::quota::{other_quota, quota};
use super::reserve;
use super::tiers;
use crate::config::{self, Config, KeyPart};
use crate::identity::{KeyPlan, TokenSource};
use crate::limit::{Limit, Millis, OnFailure, Quota, leaky_bucket};

/// The shortest lease of a slot, in ms: it is renewed each third of it, to the tenth of a second.
const SHORTEST_LEASE: Millis = 1_000;

/// The limits in the order of their names. A faulty one is noted and has its place all the same.
pub(super) fn compile(
    check: &mut Check<'_>,
    config: &Config,
    sources: &[TokenSource],
) -> Vec<Arc<Policy>> {
    let compiled = config.limits.iter().enumerate().map(|(index, (name, limit))| {
        let path = format!("limits.{name}");
        check.key_name(&path, name);
        let key = key(check, &path, &limit.key, !config.client.token.is_empty());
        let quota = quota(check, &path, limit);
        special(check, &path, limit);
        let counted = Limit {
            name: name.as_str().into(),
            fingerprint: fingerprint(limit),
            algorithm: counted_by(limit.algorithm),
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
        policy(check, &path, limit, &counted, &key, sources)
    });
    compiled.collect()
}

/// What stands beside the counting: costs, tiers, refunds, a candidate.
fn policy(
    check: &mut Check<'_>,
    path: &str,
    written: &config::Limit,
    counted: &Limit,
    key: &KeyPlan,
    sources: &[TokenSource],
) -> Arc<Policy> {
    let cost = cost(check, path, written, &counted.quota);
    let refund: SmallVec<[u16; 4]> = written.refund.iter().map(|status| status.0).collect();
    let fixed = if let Cost::Fixed(cost) = cost { cost } else { 1 };
    let make = |check: &mut Check<'_>, counted: Limit, candidate| {
        let limit = Limit { cost: fixed, ..counted };
        let tiers = tiers::compile(check, path, written, &limit, sources);
        let (key, cost, refund) = (key.clone(), cost.clone(), refund.clone());
        Arc::new(Policy { limit: Arc::new(limit), key, cost, tiers, refund, candidate })
    };
    let other = written.candidate.and_then(|candidate| {
        let at = format!("{path}.candidate.quota");
        let quota = other_quota(check, path, &at, written, candidate.quota)?;
        // No configured name has such a sign in it.
        let name = format!("{}~candidate", counted.name).into();
        Some(Limit { name, quota, enforce: false, ..counted.clone() })
    });
    let candidate = other.map(|limit| make(check, limit, None));
    make(check, counted.clone(), candidate)
}

/// Notes what only another algorithm knows.
fn special(check: &mut Check<'_>, path: &str, limit: &config::Limit) {
    use config::Algorithm::{LeakyBucket, SlidingWindow};
    let keys = [
        ("resolution", limit.resolution.is_some(), SlidingWindow),
        ("strict", limit.strict, SlidingWindow),
        ("max_wait", limit.max_wait.is_some(), LeakyBucket),
        ("max_queue", limit.max_queue.is_some(), LeakyBucket),
    ];
    for (key, given, owner) in keys {
        let what = format!("`{key}`, which only `{}` has", algorithm::name(owner));
        let fits = !given || limit.algorithm == owner;
        check.ensure(fits, &format!("{path}.{key}"), &what, "no such key");
    }
    if limit.algorithm == config::Algorithm::Concurrency {
        in_flight(check, path, limit);
    }
}

/// Notes what makes no sense of requests in flight, which give back what they took when they end.
fn in_flight(check: &mut Check<'_>, path: &str, limit: &config::Limit) {
    let at = format!("{path}.refund");
    let what = "`refund`, though every request gives its slots back";
    check.ensure(limit.refund.is_empty(), &at, what, "no such key");
    let told = matches!(limit.cost, config::Cost::Response(_));
    let what = "a cost from the answer, though slots are held before it";
    check.ensure(!told, &format!("{path}.cost"), what, "a number or `header:NAME`");
    let renewable = limit.window.millis() >= SHORTEST_LEASE || limit.window.millis() == 0;
    let what = format!("`{}`, too short to be renewed in time", limit.window);
    check.ensure(renewable, &format!("{path}.window"), &what, "at least 1s");
}

/// What it counts by. A part that no request could have is noted and left out.
fn key(check: &mut Check<'_>, path: &str, parts: &[KeyPart], tokens: bool) -> KeyPlan {
    let mut first = hashbrown::HashSet::<&KeyPart, ahash::RandomState>::default();
    let plan = parts.iter().enumerate().filter_map(|(index, written)| {
        let path = format!("{path}.key[{index}]");
        check.ensure(first.insert(written), &path, &format!("`{written}` again"), "each part once");
        if *written == KeyPart::Token && !tokens {
            check.fault(&path, "`token`, though `client.token` is empty", "a place to find it in");
        }
        part(check, &path, written)
    });
    KeyPlan(plan.collect())
}

/// What one request costs; where that is faulty, 1.
fn cost(check: &mut Check<'_>, path: &str, limit: &config::Limit, quota: &Quota) -> Cost {
    let at = format!("{path}.cost");
    let leaky = limit.algorithm == config::Algorithm::LeakyBucket;
    let most = if leaky { leaky_bucket::slots(quota) } else { limit.quota };
    let max = limit.max_cost.map_or(most, u64::from);
    if let Some(written) = limit.max_cost {
        let at = format!("{path}.max_cost");
        let sound = (1..=most).contains(&u64::from(written)) || most == 0;
        let expected = format!("1 to {most}: no request of more would pass");
        check.ensure(sound, &at, &format!("`{written}`"), &expected);
        if let config::Cost::Fixed(_) = limit.cost {
            let what = "`max_cost`, which only a cost from a header has";
            check.fault(&at, what, "no such key, or `cost: header:NAME`");
        }
    }
    let max = u32::try_from(max).unwrap_or(u32::MAX);
    match &limit.cost {
        config::Cost::Fixed(cost) => {
            let what = if leaky { "the slots within max_wait" } else { "the quota" };
            let expected = format!("at most {what}, {most}: no request would pass");
            let sound = u64::from(*cost) <= most || most == 0;
            check.ensure(sound, &at, &format!("`{cost}`"), &expected);
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

/// A hash of what makes the counters meaningful: the same in every process, and without the quota,
/// so that a changed quota keeps what is used.
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
