//! The algorithms, and the questions that each answers for the gateway.
//!
//! Each question is a method with a full `match`, so a new algorithm does not compile until it answers all of
//! them. Code outside of this module therefore asks a question instead of comparing algorithms.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Algorithm by which a limit counts.
//
// The doc comments are the descriptions in the JSON Schema.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// A sliding window, stored as one counter per sub-window. Its cost does not depend on the quota.
    #[default]
    SlidingWindow,
    /// A sliding window, stored as the time of every charge: exact to the millisecond, for small
    /// quotas.
    SlidingLog,
    /// One counter per window. A window starts with its first charge; when it ends, the count starts at 0.
    FixedWindow,
    /// A bucket of `quota` tokens, refilled at a constant rate of quota per window. It allows bursts.
    TokenBucket,
    /// Requests are released at a constant rate of quota per window; faster ones are delayed.
    LeakyBucket,
    /// Bounds the requests in flight: each holds a permit until it ends. The window is the duration of the
    /// permit's lease, which the gateway renews.
    Concurrency,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 6] = [
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::FixedWindow,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Concurrency,
    ];

    /// The name in the configuration and of its Lua counterpart: in the table `algorithms`, and of the file in
    /// `lua/`.
    pub fn tag(self) -> &'static str {
        match self {
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::FixedWindow => "fixed_window",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Concurrency => "concurrency",
        }
    }

    /// True if units may be acquired in batches: see `acquire.rs`.
    pub fn can_lease(self) -> bool {
        match self {
            Self::SlidingWindow | Self::FixedWindow => true,
            Self::SlidingLog | Self::TokenBucket | Self::LeakyBucket | Self::Concurrency => false,
        }
    }

    /// True if a charge is a permit, which its request holds, renews and releases when it ends.
    pub fn holds_permit(self) -> bool {
        match self {
            Self::Concurrency => true,
            Self::SlidingWindow
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::TokenBucket
            | Self::LeakyBucket => false,
        }
    }

    /// True if a charge is a slot, a point in time. Two slots in the same ms differ from one slot of twice
    /// the cost, and the order of their refunds matters.
    pub fn takes_slot(self) -> bool {
        match self {
            Self::LeakyBucket => true,
            Self::SlidingWindow
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::TokenBucket
            | Self::Concurrency => false,
        }
    }

    /// True if a charge blocks other requests until it is refunded or its request ends, so that it must not
    /// outlive its request.
    pub fn blocks_others(self) -> bool {
        self.holds_permit() || self.takes_slot()
    }

    /// True if a denial stays correct until its retry time, so that it may be cached. A permit may be released
    /// at any time.
    pub fn has_cacheable_denials(self) -> bool {
        match self {
            Self::SlidingWindow
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::TokenBucket
            | Self::LeakyBucket => true,
            Self::Concurrency => false,
        }
    }

    /// True if the units that remain after an admission and the time of a retry can be predicted, so that
    /// responses show them. The end of a request in flight is unpredictable.
    pub fn is_predictable(self) -> bool {
        match self {
            Self::SlidingWindow
            | Self::SlidingLog
            | Self::FixedWindow
            | Self::TokenBucket
            | Self::LeakyBucket => true,
            Self::Concurrency => false,
        }
    }
}
