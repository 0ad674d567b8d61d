//! [`Hits`]: what a descriptor of a call adds to a counter, and whom it counts.

use tidegate_envoy::rate_limit_service::messages::RateLimitDescriptor;
use tidegate_limit::MAX_UNITS;

use super::HitAct;

/// Which hits are counted although a plan or an override leaves nothing to decide.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Counting {
    /// None: a caller that is blocked or unlimited is not counted.
    Admissible,
    /// Those of a blocked caller: what is reported has happened.
    Blocked,
    /// All: what was taken before comes back.
    All,
}

impl Counting {
    pub(super) fn includes(self, is_blocked: bool) -> bool {
        match self {
            Self::Admissible => false,
            Self::Blocked => is_blocked,
            Self::All => true,
        }
    }
}

/// The hits of a descriptor.
#[derive(Clone, Copy)]
pub(super) struct Hits {
    pub(super) act: HitAct,
    count: u64,
}

impl Hits {
    /// The hits of `descriptor` in a call with `addend` hits.
    pub(super) fn of(descriptor: &RateLimitDescriptor, addend: u32) -> Self {
        let of_call = u64::from(addend.max(1));
        let count = descriptor.hits_addend.map_or(of_call, |own| own.value);
        let act = match (count, descriptor.is_negative_hits) {
            (0, _) => HitAct::Peek,
            (_, true) => HitAct::Refund,
            (_, false) => HitAct::Charge,
        };
        Self { act, count }
    }

    /// True if more than one hit is charged.
    pub(super) fn are_several(self) -> bool {
        self.act == HitAct::Charge && self.count > 1
    }

    /// The cost of the hits, if one of them costs `one`.
    pub(super) fn cost(self, one: u64) -> u64 {
        let count = if self.act == HitAct::Peek { 1 } else { self.count };
        one.saturating_mul(count).min(MAX_UNITS)
    }
}
