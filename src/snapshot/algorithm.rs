//! The names of algorithms in the configuration.

use crate::config;

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
