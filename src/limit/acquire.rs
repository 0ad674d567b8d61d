//! Tokens taken ahead: what a gateway asks of a record when it takes more than it needs at once.
//!
//! Rockset's reservations ("batches reserved locally"), taken up to what is there instead of all or
//! nothing. Which algorithms allow it: those in which a token that was charged a while ago and is spent
//! now still counts for what it is.
//!
//! - [`super::sliding_window`], strict or not: a charge counts for its whole sub-window. So what is
//!   spent inside the sub-window that it was charged to changes none of its bounds.
//! - [`super::fixed_window`]: the same, for the whole window.
//!
//! And which do not: a token of [`super::token_bucket`] begins to flow back when it is charged, so that
//! spending it later lets more pass than burst and rate; an entry of [`super::sliding_log`] leaves the
//! window by the time of its charge; a slot of [`super::leaky_bucket`] is a point in time and passes by;
//! one of [`super::concurrency`] is held while a request is in flight, and ahead of it nobody is.

use super::{Algorithm, Change, Decision, Key, Limit, Millis, Quota, State};

/// The most tokens that a gateway takes ahead at once, and holds, of one record.
pub const MAX_AHEAD: u32 = 1 << 20;

/// What is asked of one record.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Order {
    /// The least that is of use, in tokens: the cost of the cheapest request that waits; at least 1.
    pub least: u32,
    /// What the requests that wait cost together, in tokens; at least `least`. If not all of it is left,
    /// what is left is taken.
    pub needed: u32,
    /// How many tokens are wanted beyond that.
    pub extra: u32,
    /// At the most one in so many of the tokens that are left is taken beyond what is needed; at least 1.
    pub share: u32,
    /// What was not spent of an earlier grant, and is given back first.
    pub back: Back,
}

/// One limit, one caller, tokens ahead.
#[derive(Clone, Copy, Debug)]
pub struct Fetch<'a> {
    /// The limit that is asked.
    pub limit: &'a Limit,
    /// Who is counted.
    pub key: Key,
    /// How much is asked for.
    pub order: Order,
}

/// Tokens that were not spent; none by default.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Back {
    /// When they were charged (ms, by the clock that decided).
    pub charged_at: Millis,
    /// How many.
    pub tokens: u32,
}

/// What came of an [`Order`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grant {
    /// How many tokens were charged, and may be spent before `end`. None, where not even the least is
    /// left.
    pub tokens: u32,
    /// The first ms, by the clock that decided, at which none of them may be spent any more: the end of
    /// the sub-window that they were charged to. 0 for an algorithm that takes nothing ahead.
    pub end: Millis,
    /// What holds after the charge. `admitted` where something was granted; `retry_at` is that of
    /// `least`, and is there unless all that is needed was granted.
    pub decision: Decision,
}

impl Algorithm {
    /// Whether tokens may be taken ahead.
    pub fn reserves(self) -> bool {
        matches!(self, Self::SlidingWindow | Self::FixedWindow)
    }
}

impl State {
    /// What `order` would meet, the same as [`Self::acquire`] and charging nothing, but for what is given
    /// back.
    pub fn offer(&mut self, quota: &Quota, now: Millis, order: &Order) -> Grant {
        let Back { charged_at, tokens } = order.back;
        if tokens > 0 {
            self.settle(quota, now, Change::Refund { charged_at, cost: tokens });
        }
        let decision = self.decide(quota, now, order.least);
        let left = u32::try_from(decision.remaining).unwrap_or(u32::MAX);
        let tokens = if !decision.admitted {
            0
        } else if left < order.needed {
            left
        } else {
            order.needed + order.extra.min((left - order.needed) / order.share.max(1))
        };
        Grant { tokens, end: 0, decision }
    }

    /// Gives back what the order has left of an earlier one, and charges what it asks for, as far as it
    /// is there.
    pub fn acquire(&mut self, quota: &Quota, now: Millis, order: &Order) -> Grant {
        let Grant { tokens, decision, .. } = self.offer(quota, now, order);
        if tokens == 0 {
            return Grant { tokens, end: 0, decision };
        }
        let charged = self.charge_for(quota, now, tokens, order.least);
        let mut decision = Decision { admitted: true, retry_at: None, ..charged };
        if tokens < order.needed {
            decision.retry_at = self.decide(quota, now, order.least).retry_at;
        }
        Grant { tokens, end: self.spendable_until(quota), decision }
    }

    /// Charges `cost` for requests that cost `unit` each: the reset-at is theirs.
    fn charge_for(&mut self, quota: &Quota, now: Millis, cost: u32, unit: u32) -> Decision {
        match self {
            Self::SlidingWindow(state) => {
                super::sliding_window::charge_for(state, quota, now, cost, unit)
            }
            state => state.charge(quota, now, cost),
        }
    }

    /// The first ms at which what was charged just now may not be spent any more.
    fn spendable_until(&self, quota: &Quota) -> Millis {
        match self {
            Self::SlidingWindow(state) => {
                let s = quota.sub_window();
                (state.seen / s + 1) * s
            }
            Self::FixedWindow(state) => state.reset_at,
            _ => 0,
        }
    }
}
