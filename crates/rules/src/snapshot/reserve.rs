//! Compiles `reserve`: the number of units that a limit leases from Redis at a time.

use tidegate_charge::LeaseSize;
use tidegate_config as config;
use tidegate_limit::{MAX_LEASED_UNITS, Quota};

use super::algorithm;
use super::section::Section;

/// Compiles the number of units to lease at a time; `Off` if leasing is not possible. `redis` is
/// `None` if the counters are in this process.
pub(super) fn compile(
    section: &Section<'_>,
    limit: &config::LimitConfig,
    quota: &Quota,
    redis: Option<&config::Redis>,
) -> LeaseSize {
    let at = section.at("reserve");
    if limit.reserve == config::Reserve::Off {
        return LeaseSize::Off;
    }
    if !section.can_read(&["algorithm", "quota", "cost"]) {
        return LeaseSize::Off;
    }
    if !quota.algorithm.can_lease() {
        let what = format!(
            "`{}` with {}, {}",
            limit.reserve,
            algorithm::name(limit.algorithm),
            reason(limit)
        );
        at.fault(what, "off, or a sliding_window or fixed_window");
        return LeaseSize::Off;
    }
    if matches!(limit.cost, config::CostConfig::Response(_) | config::CostConfig::Settled(_)) {
        let what = format!("`{}`, though the cost is only known from the response", limit.reserve);
        at.fault(what, "off, or a cost that is known on admission");
        return LeaseSize::Off;
    }
    if redis.is_none() {
        let what = format!("`{}`, though the counters are in this process", limit.reserve);
        at.note(what, "`store.redis`, or no `reserve`");
    }
    match limit.reserve {
        config::Reserve::Off => LeaseSize::Off,
        config::Reserve::Auto => LeaseSize::Auto,
        config::Reserve::Fixed(units) => {
            let max = limit.quota.min(MAX_LEASED_UNITS);
            let expected = format!("off, auto, or 1 to {max}");
            let units = u64::from(units);
            at.ensure(units <= max, &format!("`{units}`"), &expected);
            LeaseSize::Units(units)
        }
    }
}

/// The reason why the algorithm does not allow leases, as a relative clause.
fn reason(limit: &config::LimitConfig) -> &'static str {
    match limit.algorithm {
        config::AlgorithmConfig::SlidingLog => "which stores the exact time of every charge",
        config::AlgorithmConfig::TokenBucket => "which refills continuously",
        config::AlgorithmConfig::LeakyBucket => {
            "which gives every request a release time of its own"
        }
        config::AlgorithmConfig::Concurrency => {
            "whose permits are held while requests are in flight"
        }
        config::AlgorithmConfig::SlidingWindow | config::AlgorithmConfig::FixedWindow => {
            "which allows leases"
        }
    }
}
