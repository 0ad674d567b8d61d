//! Token leases: which limits may lease tokens from Redis, and how many at a time.

use super::algorithm;
use super::check::Check;
use crate::config;
use crate::limit::{MAX_RESERVE, Reserve};

/// Compiles the number of tokens to lease at a time; `Off` if leasing is not possible. `shared` is true if
/// the counters are in Redis.
pub(super) fn compile(
    check: &mut Check<'_>,
    path: &str,
    limit: &config::Limit,
    shared: bool,
) -> Reserve {
    let at = format!("{path}.reserve");
    if limit.reserve == config::Reserve::Off {
        return Reserve::Off;
    }
    if !algorithm::compile(limit.algorithm).can_reserve() {
        let what = format!(
            "`{}` with {}, {}",
            limit.reserve,
            algorithm::name(limit.algorithm),
            reason(limit)
        );
        check.fault(&at, what, "off, or a sliding_window or fixed_window");
        return Reserve::Off;
    }
    if let config::Cost::Response(_) = limit.cost {
        let what = format!("`{}`, though the cost is only known from the response", limit.reserve);
        check.fault(&at, what, "off, or a cost that is known on admission");
        return Reserve::Off;
    }
    if !shared {
        let what = format!("`{}`, though the counters are in this process", limit.reserve);
        check.note(&at, what, "`store.redis`, or no `reserve`");
    }
    match limit.reserve {
        config::Reserve::Off => Reserve::Off,
        config::Reserve::Auto => Reserve::Auto,
        config::Reserve::Fixed(tokens) => {
            let max = limit.quota.min(MAX_RESERVE.into());
            let expected = format!("off, auto, or 1 to {max}");
            let is_valid = u64::from(tokens) <= max || limit.quota == 0;
            check.ensure(is_valid, &at, &format!("`{tokens}`"), &expected);
            Reserve::Tokens(tokens)
        }
    }
}

/// Why the algorithm does not allow leases.
fn reason(limit: &config::Limit) -> &'static str {
    match limit.algorithm {
        config::Algorithm::SlidingLog => "which stores the exact time of every charge",
        config::Algorithm::TokenBucket => "which refills continuously",
        config::Algorithm::LeakyBucket => "which gives every request a release time of its own",
        config::Algorithm::Concurrency => "whose permits are held while requests are in flight",
        config::Algorithm::SlidingWindow | config::Algorithm::FixedWindow => "which allows leases",
    }
}
