//! Which algorithm counts.

use crate::config;
use crate::limit::Algorithm;

/// The algorithm that counts.
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

/// The name of an algorithm, as a configuration has it.
pub(super) fn name(algorithm: config::Algorithm) -> &'static str {
    match algorithm {
        config::Algorithm::SlidingWindow => "sliding_window",
        config::Algorithm::SlidingLog => "sliding_log",
        config::Algorithm::FixedWindow => "fixed_window",
        config::Algorithm::TokenBucket => "token_bucket",
        config::Algorithm::LeakyBucket => "leaky_bucket",
        config::Algorithm::Concurrency => "concurrency",
    }
}
