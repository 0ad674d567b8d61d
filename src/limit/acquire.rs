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
//! one of [`super::concurrency`] is held while a request is in flight, which cannot be ahead of it.

use super::{Algorithm, Decision, Key, Limit, Millis, Quota, State};

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
    /// the sub-window that they were charged to. 0 where nothing was granted.
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
    /// Gives back what the order has left of an earlier one, and charges what it asks for, as far as it
    /// is there.
    pub fn acquire(&mut self, quota: &Quota, now: Millis, order: &Order) -> Grant {
        let Back { charged_at, tokens } = order.back;
        if tokens > 0 {
            self.refund(quota, now, charged_at, tokens);
        }
        let decision = self.decide(quota, now, order.least);
        let left = u32::try_from(decision.remaining).unwrap_or(u32::MAX);
        if !decision.admitted || left == 0 {
            return Grant { tokens: 0, end: 0, decision };
        }
        let tokens = match left.checked_sub(order.needed) {
            Some(rest) => order.needed + order.extra.min(rest / order.share.max(1)),
            None => left,
        };
        let mut decision = self.charge_for(quota, now, tokens, order.least);
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = 1_700_000_000_000;

    fn order(least: u32, needed: u32, extra: u32, share: u32) -> Order {
        Order { least, needed, extra, share, back: Back::default() }
    }

    fn both(quota: u32) -> [(Quota, State); 2] {
        let sliding = Quota::new(quota, 60_000, 6);
        [
            (sliding, State::fresh(Algorithm::SlidingWindow)),
            (Quota { resolution: 1, ..sliding }, State::fresh(Algorithm::FixedWindow)),
        ]
    }

    #[test]
    fn fifty_are_taken_where_fifty_are_left() {
        for (quota, mut state) in both(50) {
            let grant = state.acquire(&quota, NOW, &order(10, 100, 100, 1));
            assert_eq!((grant.tokens, grant.decision.remaining), (50, 0));
            assert!(grant.decision.admitted && grant.decision.retry_at > Some(NOW));
            let grant = state.acquire(&quota, NOW, &order(10, 100, 100, 1));
            assert_eq!((grant.tokens, grant.end, grant.decision.admitted), (0, 0, false));
        }
    }

    #[test]
    fn beyond_what_is_needed_only_a_share_is_taken() {
        for (quota, mut state) in both(1_000) {
            let grant = state.acquire(&quota, NOW, &order(1, 100, 500, 6));
            assert_eq!((grant.tokens, grant.decision.remaining), (250, 750));
            assert_eq!(grant.decision.retry_at, None);
            let grant = state.acquire(&quota, NOW, &order(1, 745, 500, 6));
            assert_eq!(grant.tokens, 745, "a sixth of five is nothing");
        }
    }

    #[test]
    fn what_comes_back_is_there_again_and_moves_no_reset() {
        for (quota, mut state) in both(100) {
            let first = state.acquire(&quota, NOW, &order(1, 1, 99, 1));
            let back = Back { charged_at: NOW, tokens: 40 };
            let again = Order { back, ..order(1, 40, 0, 1) };
            let grant = state.acquire(&quota, NOW + 1, &again);
            assert_eq!((grant.tokens, grant.decision.remaining), (40, 0));
            assert!(grant.decision.reset_at >= first.decision.reset_at);
        }
    }

    #[test]
    fn the_end_is_that_of_the_sub_window_or_of_the_window() {
        let [(sliding, mut first), (fixed, mut second)] = both(100);
        let grant = first.acquire(&sliding, NOW + 3, &order(1, 1, 9, 1));
        assert_eq!(grant.end, NOW + 10_000);
        let grant = second.acquire(&fixed, NOW + 3, &order(1, 1, 9, 1));
        assert_eq!(grant.end, NOW + 60_003);
    }

    #[test]
    fn the_reset_is_for_one_request_however_many_tokens_were_taken_for() {
        let (quota, mut ahead) = both(100)[0].clone();
        let mut single = ahead.clone();
        ahead.acquire(&quota, NOW, &order(1, 1, 79, 1));
        for _ in 0..80 {
            single.admit(&quota, NOW, 1);
        }
        let ahead = ahead.decide(&quota, NOW, 0);
        assert_eq!(ahead, single.decide(&quota, NOW, 0));
    }
}
