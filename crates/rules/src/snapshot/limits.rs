//! Compiles the `limits` section.

use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tidegate_charge::{Limit, LimitIdentity};
use tidegate_config::{self as config, Config, StatusRange};
use tidegate_identity::{CredentialSource, KeyPart, KeyPlan};
use tidegate_limit::{Millis, Quota};

use super::algorithm;
use super::calendar;
use super::parts::header;
use super::plans::{self, NamedQuotas};
use super::policy::{Cost, LimitPolicy, Refunds};
use super::quota::{QUOTA_KEYS, QuotaShape, alternative_quota, quota};
use super::reserve;
use super::section::Section;
use super::settled_cost;
use super::tiers;

/// Minimum lease of a concurrency permit, in ms. Leases are renewed every third of their duration,
/// with a precision of 100 ms.
const MIN_LEASE: Millis = Millis::from_secs(1);

/// Compiles the limits in the order of their names. A faulty limit is reported and keeps its index.
pub(super) fn compile(
    root: &Section<'_>,
    config: &Config,
    sources: &[CredentialSource],
) -> Vec<Arc<LimitPolicy>> {
    let compiled = config.limits.iter().enumerate().map(|(index, (name, limit))| {
        let section = root.at("limits").entry(name);
        section.ensure_key_name(name);
        check_key(&section, &limit.key);
        if config.client.token.is_empty() && root.at("client").can_read(&["token"]) {
            check_token_parts(&section, &limit.key);
        }
        compile_one(&section, &NamedLimit { name, limit, index }, config, sources)
    });
    compiled.collect()
}

/// A configured limit.
#[derive(Clone, Copy)]
pub(super) struct NamedLimit<'c> {
    pub(super) name: &'c str,
    pub(super) limit: &'c config::LimitConfig,
    /// Its index in the list of limits.
    pub(super) index: usize,
}

/// Compiles one limit, whose section is `section`.
pub(super) fn compile_one(
    section: &Section<'_>,
    named: &NamedLimit<'_>,
    config: &Config,
    sources: &[CredentialSource],
) -> Arc<LimitPolicy> {
    let NamedLimit { name, limit, index } = *named;
    let key = KeyPlan(limit.key.clone());
    let quota = quota(section, limit);
    check_algorithm_keys(section, limit, &quota);
    calendar::check(section, limit);
    let identity = LimitIdentity::new(name, fingerprint(limit));
    let base = Limit {
        on_failure: limit.on_failure,
        lease_size: reserve::compile(section, limit, &quota, config.store.redis.as_ref()),
        enforce: limit.enforce,
        index,
        ..Limit::new(identity, quota)
    };
    let base = with_block(section, limit, base);
    let plans = NamedQuotas { limit: name, config };
    policy(section, limit, &base, &key, &plans, sources)
}

/// Adds cost, tiers, refunds and the candidate to `base`.
fn policy(
    section: &Section<'_>,
    configured: &config::LimitConfig,
    base: &Limit,
    key: &KeyPlan,
    plans: &NamedQuotas<'_>,
    sources: &[CredentialSource],
) -> Arc<LimitPolicy> {
    let cost = cost(section, configured, &base.quota);
    let refunds = refunds(section, configured);
    let default_cost = if let Cost::Fixed(cost) = cost { cost } else { 1 };
    let compile_with = |base: Limit, candidate| {
        let limit = Limit { cost: default_cost, ..base };
        let counts_consumers = key.0.contains(&KeyPart::Consumer);
        let limit = if counts_consumers { limit.with_billing_days() } else { limit };
        let tiers = tiers::compile(section, configured, &limit, sources);
        let plans = plans::compile(section, configured, &limit, plans);
        let (key, cost) = (key.clone(), cost.clone());
        let limit = Arc::new(limit);
        let shape = QuotaShape::of(configured);
        Arc::new(LimitPolicy { limit, key, cost, tiers, plans, shape, refunds, candidate })
    };
    let candidate_limit = configured.candidate.map(|candidate| {
        let at = section.at("candidate").at("quota");
        let quota = alternative_quota(section, &at, configured, candidate.quota);
        // `~` is not valid in configured names.
        let name = format!("{}~candidate", base.name());
        let identity = LimitIdentity::new(name, base.identity.fingerprint());
        let limit = Limit { identity, quota, enforce: false, block: None, ..base.clone() };
        with_block(section, configured, limit)
    });
    let candidate = candidate_limit.map(|limit| compile_with(limit, None));
    compile_with(base.clone(), candidate)
}

/// Adds the block that `limit` configures to `base`.
fn with_block(section: &Section<'_>, limit: &config::LimitConfig, base: Limit) -> Limit {
    let Some(block) = limit.block else { return base };
    if limit.reserve != config::Reserve::Off && section.can_read(&["reserve"]) {
        let what = "`block` with `reserve`, whose units are spent without asking whether a block is in force";
        section.at("block").fault_at_key(what, "one of them");
    }
    let within = block.within.millis();
    let duration = block.r#for.millis().min(tidegate_limit::block::MAX_DURATION);
    base.with_block(block.after.into(), within, duration)
}

/// Compiles `refund` or `charge_on`.
fn refunds(section: &Section<'_>, limit: &config::LimitConfig) -> Refunds {
    let Some(charged) = &limit.charge_on else {
        return Refunds::On(StatusRange::set(&limit.refund));
    };
    let at = section.at("charge_on");
    at.ensure(!charged.is_empty(), "no status, so that nothing would be charged", "at least one");
    if !limit.refund.is_empty() {
        at.fault_at_key("both `refund` and `charge_on`", "one of them: each implies the other");
    }
    Refunds::Except(StatusRange::set(charged))
}

/// Reports keys that do not apply to the limit's algorithm.
fn check_algorithm_keys(section: &Section<'_>, limit: &config::LimitConfig, quota: &Quota) {
    use config::AlgorithmConfig::{LeakyBucket, SlidingWindow};

    if !section.can_read(&["algorithm"]) {
        return;
    }
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
        section.at(key).ensure(applies, &what, &expected);
    }
    if quota.algorithm.holds_permit() {
        check_concurrency(section, limit);
    } else if quota.algorithm.takes_slot() && matches!(limit.cost, config::CostConfig::Settled(_)) {
        let what =
            "a cost that is settled when the response ends, though its slots are taken before";
        section.at("cost").fault(what, "a number or `header:NAME`, or another algorithm");
    }
}

/// Reports settings that contradict `concurrency`, whose requests release their permits when they
/// end.
fn check_concurrency(section: &Section<'_>, limit: &config::LimitConfig) {
    let at = section.at("refund");
    let what = "`refund` with `concurrency`, which releases every permit anyway";
    at.ensure(limit.refund.is_empty(), what, "no `refund`");
    let at = section.at("charge_on");
    let what = "`charge_on` with `concurrency`, which releases every permit anyway";
    at.ensure(limit.charge_on.is_none(), what, "no `charge_on`");
    let from_response =
        matches!(limit.cost, config::CostConfig::Response(_) | config::CostConfig::Settled(_));
    let what = "a cost from the response, though permits are acquired before it";
    section.at("cost").ensure(!from_response, what, "a number or `header:NAME`");
    let is_renewable = limit.window.millis() >= MIN_LEASE;
    let what = format!("`{}` as the lease of a permit: too short to be renewed", limit.window);
    section.at("window").ensure(is_renewable, &what, "at least 1s");
}

/// Reports duplicate parts of the key.
fn check_key(section: &Section<'_>, key: &[KeyPart]) {
    let mut seen = hashbrown::HashSet::<&KeyPart, ahash::RandomState>::default();
    for (index, part) in key.iter().enumerate() {
        let section = section.at("key").index(index);
        section.ensure(seen.insert(part), &format!("duplicate part `{part}`"), "each part once");
    }
}

/// Reports each `token` in the key, if `client.token` has no source.
fn check_token_parts(section: &Section<'_>, key: &[KeyPart]) {
    for (index, part) in key.iter().enumerate() {
        if *part == KeyPart::Token {
            let section = section.at("key").index(index);
            section.fault("`token` with an empty `client.token`", "at least one token source");
        }
    }
}

/// Compiles the cost of a request; 1 if its header name is invalid.
fn cost(section: &Section<'_>, limit: &config::LimitConfig, quota: &Quota) -> Cost {
    let at = section.at("cost");
    let max_possible = quota.capacity();
    let is_max_known = section.can_read(&QUOTA_KEYS);
    let max = limit.max_cost.unwrap_or(max_possible);
    if let Some(configured) = limit.max_cost {
        let at = section.at("max_cost");
        let is_valid = configured <= max_possible || !is_max_known;
        let expected = format!("1 to {max_possible}: a higher cost would never be admitted");
        at.ensure(is_valid, &format!("`{configured}`"), &expected);
        if matches!(limit.cost, config::CostConfig::Fixed(_)) && section.can_read(&["cost"]) {
            let what = "`max_cost` with a fixed cost";
            at.fault(what, "no `max_cost`, or `cost: header:NAME`");
        }
    }
    match &limit.cost {
        config::CostConfig::Fixed(cost) => {
            let takes_slot = quota.algorithm.takes_slot();
            let bound = if takes_slot { "the slots within max_wait" } else { "the quota" };
            let expected = format!("at most {bound}, {max_possible}: no request would be admitted");
            let is_valid = *cost <= max_possible || !is_max_known;
            at.ensure(is_valid, &format!("`{cost}`"), &expected);
            Cost::Fixed(*cost)
        }
        config::CostConfig::Header(name) => {
            header(&at, name).map_or(Cost::Fixed(1), |name| Cost::Header { name, max })
        }
        config::CostConfig::Settled(settled) => {
            if section.can_read(&["max_cost"]) && limit.max_cost.is_some() {
                section
                    .at("max_cost")
                    .fault("`max_cost` with a cost that is settled", "`cost.max`");
            }
            Cost::Settled(Arc::new(settled_cost::compile(&at, settled)))
        }
        config::CostConfig::Response(name) => {
            header(&at, name).map_or(Cost::Fixed(1), |name| Cost::Response { name, max })
        }
    }
}

/// A hash of the settings that give stored counters their meaning. It is the same in every process.
/// It excludes the quota, so that counters survive a change of the quota.
fn fingerprint(limit: &config::LimitConfig) -> u64 {
    let mut hash = SipHasher13::new_with_keys(0, 0);
    let mut add = |text: &str| {
        hash.write_u64(text.len() as u64);
        hash.write(text.as_bytes());
    };
    add(algorithm::name(limit.algorithm));
    match limit.calendar() {
        None => add(&limit.window.millis().as_ms().to_string()),
        Some(calendar) => add(&calendar.to_string()),
    }
    add(&limit.resolution().to_string());
    for part in &limit.key {
        add(&part.to_string());
    }
    hash.finish()
}
