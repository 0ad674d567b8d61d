//! The names of algorithms in the configuration.

use tidegate_config as config;

/// The algorithm's name in the configuration.
pub(super) fn name(algorithm: config::AlgorithmConfig) -> &'static str {
    match algorithm {
        config::AlgorithmConfig::SlidingWindow => "sliding_window",
        config::AlgorithmConfig::SlidingLog => "sliding_log",
        config::AlgorithmConfig::FixedWindow => "fixed_window",
        config::AlgorithmConfig::TokenBucket => "token_bucket",
        config::AlgorithmConfig::LeakyBucket => "leaky_bucket",
        config::AlgorithmConfig::Concurrency => "concurrency",
    }
}
