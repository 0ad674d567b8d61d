//! Maps the configuration's algorithms to the limiter's.

use crate::config;
use crate::limit::Algorithm;

/// The limiter's algorithm.
pub(super) fn compile(algorithm: config::Algorithm) -> Algorithm {
    match algorithm {
        config::Algorithm::SlidingLog => Algorithm::SlidingLog,
        config::Algorithm::FixedWindow => Algorithm::FixedWindow,
        config::Algorithm::TokenBucket => Algorithm::TokenBucket,
        config::Algorithm::LeakyBucket => Algorithm::LeakyBucket,
        config::Algorithm::SlidingWindow => Algorithm::SlidingWindow,
        config::Algorithm::Concurrency => Algorithm::Concurrency,
    }
}

/// The algorithm's name in the configuration.
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
