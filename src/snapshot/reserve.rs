//! Tokens taken ahead from the shared store: which limits may, and how many.

use super::algorithm::{self, counted_by};
use super::check::Check;
use crate::config;
use crate::limit::{MAX_AHEAD, Reserve};

/// How many tokens are taken at a time; where that is faulty, as many as each request costs.
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
    if !counted_by(limit.algorithm).reserves() {
        let what = format!(
            "`{}` of a {}, {}",
            limit.reserve,
            algorithm::name(limit.algorithm),
            why(limit)
        );
        check.fault(&at, what, "off, or a sliding_window or fixed_window");
        return Reserve::Off;
    }
    if let config::Cost::Response(_) = limit.cost {
        let what = format!("`{}`, though only the answer tells the cost", limit.reserve);
        check.fault(&at, what, "off, or a cost that is known before");
        return Reserve::Off;
    }
    if !shared {
        let what = format!("`{}`, though the counters are in this process", limit.reserve);
        check.note(&at, what, "a store in Redis, or no such key");
    }
    match limit.reserve {
        config::Reserve::Off => Reserve::Off,
        config::Reserve::Auto => Reserve::Auto,
        config::Reserve::Fixed(tokens) => {
            let most = limit.quota.min(MAX_AHEAD.into());
            let expected = format!("off, auto, or 1 to {most}");
            let sound = u64::from(tokens) <= most || limit.quota == 0;
            check.ensure(sound, &at, &format!("`{tokens}`"), &expected);
            Reserve::Tokens(tokens)
        }
    }
}

/// Why an algorithm takes nothing ahead.
fn why(limit: &config::Limit) -> &'static str {
    match limit.algorithm {
        config::Algorithm::SlidingLog => {
            "whose entries count from the ms in which they are charged"
        }
        config::Algorithm::TokenBucket => {
            "whose tokens flow back from the ms in which they are charged"
        }
        config::Algorithm::LeakyBucket => "whose slots are points in time",
        config::Algorithm::Concurrency => "whose slots are held while requests are in flight",
        config::Algorithm::SlidingWindow | config::Algorithm::FixedWindow => "which may",
    }
}
