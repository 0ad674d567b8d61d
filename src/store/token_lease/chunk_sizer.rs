//! How many tokens a fetch asks for beyond what is needed.
//!
//! Rockset's outlook: half as many again if the last were used up fast, half if they go to waste.
//! A caller that comes seldom gets none: each of its requests asks the store, and nothing is held back.
//! What a gateway may hold at the most is bounded where it is known, at the store, by a share of what is
//! left ([`crate::limit::Order::share`]).

use crate::limit::Reserve;

/// Tokens that are used up within so many ms were too few.
pub(super) const FAST: u64 = 250;

/// Tokens that last for so many ms were too many.
pub(super) const SLOW: u64 = 1_000;

/// The most that is asked for beyond what is needed.
pub(super) const MAX_EXTRA: u32 = 1 << 20;

/// The chunk of one caller at one gateway.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct ChunkSizer {
    extra: u32,
    /// When the last tokens came (ticks); `None` where the store had fewer than were asked for.
    filled: Option<u64>,
}

impl ChunkSizer {
    /// A reply has come at `ticks`; `whole` if all that was asked for was granted.
    pub(super) fn fill(&mut self, ticks: u64, whole: bool) {
        self.filled = whole.then_some(ticks);
    }

    /// A fetch begins at `ticks`, because what there was is used up or has ended: what to ask for beyond
    /// what is needed.
    pub(super) fn next(&mut self, ticks: u64, reserve: Reserve) -> u32 {
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
    pub(super) fn shrink(&mut self) {
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
    fn after(sizer: &mut ChunkSizer, times: usize, lasts: u64) -> u32 {
        for _ in 0..times {
            sizer.fill(0, true);
            sizer.next(lasts, Reserve::Auto);
        }
        sizer.extra
    }

    #[test]
    fn it_grows_by_half_and_shrinks_to_half() {
        let mut sizer = ChunkSizer::default();
        assert_eq!(sizer.next(0, Reserve::Auto), 0, "a caller never seen asks for what it needs");
        let grown: Vec<u32> = (0..6).map(|_| after(&mut sizer, 1, FAST - 1)).collect();
        assert_eq!(grown, [1, 2, 3, 4, 6, 9]);
        assert_eq!(after(&mut sizer, 3, FAST), 9);
        assert_eq!(after(&mut sizer, 3, SLOW), 9);
        assert_eq!(after(&mut sizer, 1, SLOW + 1), 4);
        sizer.shrink();
        assert_eq!(sizer.extra, 2);
        assert_eq!(after(&mut sizer, 5, SLOW + 1), 0);
        assert_eq!(after(&mut sizer, 100, 0), MAX_EXTRA);
    }

    #[test]
    fn what_the_store_cut_short_says_nothing_of_the_demand() {
        let mut sizer = ChunkSizer::default();
        after(&mut sizer, 6, 0);
        sizer.fill(0, false);
        assert_eq!(sizer.next(1, Reserve::Auto), 9);
        assert_eq!(sizer.next(5_000, Reserve::Auto), 9);
    }

    #[test]
    fn a_fixed_chunk_stays() {
        let mut sizer = ChunkSizer::default();
        sizer.fill(0, true);
        assert_eq!(sizer.next(1, Reserve::Tokens(100)), 100);
        assert_eq!(sizer.next(1, Reserve::Tokens(u32::MAX)), MAX_EXTRA);
        assert_eq!(sizer.next(1, Reserve::Off), 0);
    }
}
