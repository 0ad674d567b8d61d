//! How much may pass.

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use smallvec::SmallVec;

use super::check::Check;
use super::compile::header;
use super::policy::{Cost, Policy};
use super::reserve;
use super::routes::part;
use super::tiers;
use crate::config::{self, Config, KeyPart};
use crate::identity::{KeyPlan, TokenSource};
use crate::limit::{
    Algorithm, Limit, MAX_QUOTA_MILLIS, MAX_RESOLUTION, Millis, OnFailure, Quota, leaky_bucket,
    sliding_log,
};

/// The largest quota of a log that nobody is asked about: 80 KB a key.
const MODEST_LOG: u32 = 10_000;

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

/// The quota of `written` with another number, which stands at `at`.
pub(super) fn other_quota(
    check: &mut Check<'_>,
    path: &str,
    at: &str,
    written: &config::Limit,
    number: u64,
) -> Option<Quota> {
    let limit = u32::try_from(number).ok().filter(|&limit| limit > 0);
    let expected = format!("a quota from 1 to {}", u32::MAX);
    check.ensure(limit.is_some(), at, &format!("`{number}`"), &expected);
    let quota = Quota { limit: limit?, ..quota_of(written, limit?) };
    bounds(check, path, at, written.algorithm, &quota);
    Some(quota)
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
        let what = format!("`{key}`, which only `{}` has", algorithm(owner));
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

/// What counts by it.
pub(super) fn counted_by(algorithm: config::Algorithm) -> Algorithm {
    match algorithm {
        config::Algorithm::SlidingLog => Algorithm::SlidingLog,
        config::Algorithm::FixedWindow => Algorithm::FixedWindow,
        config::Algorithm::TokenBucket => Algorithm::TokenBucket,
        config::Algorithm::LeakyBucket => Algorithm::LeakyBucket,
        config::Algorithm::SlidingWindow => Algorithm::SlidingWindow,
        config::Algorithm::Concurrency => Algorithm::Concurrency,
    }
}

pub(super) fn algorithm(algorithm: config::Algorithm) -> &'static str {
    match algorithm {
        config::Algorithm::SlidingWindow => "sliding_window",
        config::Algorithm::SlidingLog => "sliding_log",
        config::Algorithm::FixedWindow => "fixed_window",
        config::Algorithm::TokenBucket => "token_bucket",
        config::Algorithm::LeakyBucket => "leaky_bucket",
        config::Algorithm::Concurrency => "concurrency",
    }
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

/// The quota; where it is faulty, one that does no harm to the checks that follow.
fn quota(check: &mut Check<'_>, path: &str, limit: &config::Limit) -> Quota {
    let at = format!("{path}.quota");
    let expected = format!("a quota from 1 to {}", u32::MAX);
    let written = u32::try_from(limit.quota).ok().filter(|&quota| quota > 0);
    check.ensure(written.is_some(), &at, &format!("`{}`", limit.quota), &expected);
    check.some_time(&format!("{path}.window"), limit.window);
    let (window, resolution) = (limit.window.millis().max(1), limit.resolution());
    let sound = divides(window, resolution) || limit.window.millis() == 0;
    if !sound {
        let what = format!("`{resolution}` sub-windows of {}", limit.window);
        check.fault(&format!("{path}.resolution"), what, &dividers(window, resolution));
    }
    max_wait(check, path, limit);
    let quota = quota_of(limit, written.unwrap_or(u32::MAX));
    if sound && written.is_some() {
        bounds(check, path, &at, limit.algorithm, &quota);
    }
    quota
}

/// The quota of `limit` with this number; where the rest is faulty, something that does no harm.
fn quota_of(limit: &config::Limit, number: u32) -> Quota {
    let (window, resolution) = (limit.window.millis().max(1), limit.resolution());
    let resolution = if divides(window, resolution) { resolution } else { 1 };
    let mut max_wait = 0;
    if limit.algorithm == config::Algorithm::LeakyBucket {
        let wait = limit.max_wait.unwrap_or(limit.window).millis();
        let queue = limit.max_queue.map_or(u64::MAX, |most| last_of(most, window, number.into()));
        max_wait = u32::try_from(wait.min(queue)).unwrap_or(u32::MAX);
    }
    Quota { max_wait, strict: limit.strict, ..Quota::new(number, window, resolution) }
}

/// How long the last of `most` requests waits, in ms, if they come at once behind another: so many wait
/// at the most if none waits longer. Rounded up, so that the last may; at more than one release a ms
/// rounded down, because a whole ms more would let several more in.
fn last_of(most: u32, window: Millis, number: u64) -> Millis {
    let slots = u64::from(most).saturating_mul(window);
    if number <= window { slots.div_ceil(number) } else { slots / number }
}

/// Notes a wait that is too long to be counted.
fn max_wait(check: &mut Check<'_>, path: &str, limit: &config::Limit) {
    let Some(wait) = limit.max_wait else { return };
    let fits = u32::try_from(wait.millis()).is_ok();
    let path = format!("{path}.max_wait");
    check.ensure(fits, &path, &format!("`{wait}`"), "a time of at most 1193h");
}

/// Notes what could not be counted exactly, and what takes more memory than may be meant.
fn bounds(check: &mut Check<'_>, path: &str, at: &str, by: config::Algorithm, quota: &Quota) {
    // What a unit of the quota is multiplied by.
    let (millis, shorter): (Millis, _) = match by {
        config::Algorithm::SlidingWindow => {
            (quota.sub_window(), "shorter sub-windows (a higher resolution)")
        }
        config::Algorithm::TokenBucket => (quota.window, "a shorter window"),
        config::Algorithm::LeakyBucket => {
            (quota.window.max(quota.max_wait.into()), "a shorter window and max_wait")
        }
        config::Algorithm::SlidingLog
        | config::Algorithm::FixedWindow
        | config::Algorithm::Concurrency => (1, ""),
    };
    let most = MAX_QUOTA_MILLIS / millis;
    if u64::from(quota.limit) > most {
        let what = format!("`{}`, too much to count exactly", quota.limit);
        check.fault(at, what, &format!("at most {most}, or {shorter}"));
    }
    if by == config::Algorithm::SlidingLog {
        let fits = quota.window <= sliding_log::MAX_WINDOW;
        let longest = format!("at most {}h", sliding_log::MAX_WINDOW / 3_600_000);
        let window = format!("{path}.window");
        check.ensure(fits, &window, "longer than a log remembers", &longest);
        if quota.limit > MODEST_LOG {
            let what = format!("`{}` with sliding_log: up to 8 bytes a unit and key", quota.limit);
            check.note(at, what, &format!("at most {MODEST_LOG}, or `strict: true` instead"));
        }
    }
}

fn divides(window: u64, resolution: u32) -> bool {
    (1..=MAX_RESOLUTION).contains(&resolution) && window.is_multiple_of(u64::from(resolution))
}

/// Which resolutions near the one asked for would do.
fn dividers(window: u64, resolution: u32) -> String {
    let mut below = (1..resolution.min(MAX_RESOLUTION + 1)).rev();
    let mut above = resolution.saturating_add(1)..=MAX_RESOLUTION;
    let below = below.find(|&k| divides(window, k));
    let above = above.find(|&k| divides(window, k));
    let near: Vec<String> = below.into_iter().chain(above).map(|k| k.to_string()).collect();
    format!(
        "a resolution from 1 to {MAX_RESOLUTION} that divides it, such as {}",
        near.join(" or ")
    )
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
    add(algorithm(limit.algorithm));
    add(&limit.window.millis().to_string());
    add(&limit.resolution().to_string());
    for part in &limit.key {
        add(&part.to_string());
    }
    hash.finish()
}
