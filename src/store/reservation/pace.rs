//! How many tokens a fetch asks for beyond what is needed.
//!
//! Rockset's outlook: half as many again if the last were used up fast, half if they go to waste.
//! A caller that comes seldom gets none: each of its requests asks the store, and nothing is held back.
//! What a gateway may hold at the most is bounded where it is known, at the store, by a share of what is
//! left ([`crate::limit::Order::share`]).

use crate::limit::Reserve;

/// Tokens that are used up within so many ms were too few.
pub const FAST: u64 = 250;

/// Tokens that last for so many ms were too many.
pub const SLOW: u64 = 1_000;

/// The most that is asked for beyond what is needed.
pub const MAX_EXTRA: u32 = 1 << 20;

/// The chunk of one caller at one gateway.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Pace {
    extra: u32,
    /// When the last tokens came (ticks); `None` where the store had fewer than were asked for.
    filled: Option<u64>,
}

impl Pace {
    /// A reply has come at `ticks`; `whole` if all that was asked for was granted.
    pub fn fill(&mut self, ticks: u64, whole: bool) {
        self.filled = whole.then_some(ticks);
    }

    /// A fetch begins at `ticks`, because what there was is used up or has ended: what to ask for beyond
    /// what is needed.
    pub fn next(&mut self, ticks: u64, reserve: Reserve) -> u32 {
        match reserve {
            Reserve::Off => 0,
            Reserve::Tokens(count) => count.min(MAX_EXTRA),
            Reserve::Auto => {
                match self.filled.take().map(|filled| ticks.saturating_sub(filled)) {
                    Some(lasted) if lasted < FAST => self.grow(),
                    Some(lasted) if lasted > SLOW => self.shrink(),
                    _ => {}
                }
                self.extra
            }
        }
    }

    /// Tokens are handed back unspent.
    pub fn shrink(&mut self) {
        self.extra /= 2;
        self.filled = None;
    }

    fn grow(&mut self) {
        self.extra = (self.extra + self.extra / 2).max(self.extra + 1).min(MAX_EXTRA);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked for if each chunk lasts for `lasts` ms, so many times.
    fn after(pace: &mut Pace, times: usize, lasts: u64) -> u32 {
        for _ in 0..times {
            pace.fill(0, true);
            pace.next(lasts, Reserve::Auto);
        }
        pace.extra
    }

    #[test]
    fn it_grows_by_half_and_shrinks_to_half() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(0, Reserve::Auto), 0, "a caller never seen asks for what it needs");
        let grown: Vec<u32> = (0..6).map(|_| after(&mut pace, 1, FAST - 1)).collect();
        assert_eq!(grown, [1, 2, 3, 4, 6, 9]);
        assert_eq!(after(&mut pace, 3, FAST), 9);
        assert_eq!(after(&mut pace, 3, SLOW), 9);
        assert_eq!(after(&mut pace, 1, SLOW + 1), 4);
        pace.shrink();
        assert_eq!(pace.extra, 2);
        assert_eq!(after(&mut pace, 5, SLOW + 1), 0);
        assert_eq!(after(&mut pace, 100, 0), MAX_EXTRA);
    }

    #[test]
    fn what_the_store_cut_short_says_nothing_of_the_demand() {
        let mut pace = Pace::default();
        after(&mut pace, 6, 0);
        pace.fill(0, false);
        assert_eq!(pace.next(1, Reserve::Auto), 9);
        assert_eq!(pace.next(5_000, Reserve::Auto), 9);
    }

    #[test]
    fn a_fixed_chunk_stays() {
        let mut pace = Pace::default();
        pace.fill(0, true);
        assert_eq!(pace.next(1, Reserve::Tokens(100)), 100);
        assert_eq!(pace.next(1, Reserve::Tokens(u32::MAX)), MAX_EXTRA);
        assert_eq!(pace.next(1, Reserve::Off), 0);
    }
}
