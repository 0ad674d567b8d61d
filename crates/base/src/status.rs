//! [`StatusSet`]: a set of response statuses, as `refund`, `charge_on` and other keys list them.

use std::{fmt, ops::RangeInclusive};

/// The first and the last status of a final response.
pub const FINAL_STATUSES: RangeInclusive<u16> = 200..=599;

/// Number of words for the bits of [`FINAL_STATUSES`].
const WORDS: usize = 400_usize.div_ceil(64);

/// A set of statuses from 200 to 599: one bit each, so that a look-up is one load whatever was
/// listed.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
pub struct StatusSet([u64; WORDS]);

impl StatusSet {
    /// The set of the statuses in `ranges`. Statuses outside of [`FINAL_STATUSES`] are ignored.
    pub fn of(ranges: impl IntoIterator<Item = RangeInclusive<u16>>) -> Self {
        let mut set = Self::default();
        for status in ranges.into_iter().flatten() {
            if let Some((word, bit)) = position(status) {
                set.0[word] |= bit;
            }
        }
        set
    }

    /// True if the set has `status`.
    #[inline]
    pub fn contains(&self, status: u16) -> bool {
        position(status).is_some_and(|(word, bit)| self.0[word] & bit != 0)
    }

    /// True if the set has no status.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// The statuses as the fewest ranges, in ascending order.
    pub fn ranges(&self) -> Vec<RangeInclusive<u16>> {
        let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
        for status in FINAL_STATUSES.filter(|status| self.contains(*status)) {
            match ranges.last_mut() {
                Some(last) if *last.end() + 1 == status => *last = *last.start()..=status,
                _ => ranges.push(status..=status),
            }
        }
        ranges
    }
}

impl fmt::Display for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges().into_iter().enumerate() {
            let (first, last) = range.into_inner();
            f.write_str(if index == 0 { "" } else { ", " })?;
            if first == last {
                first.fmt(f)?;
            } else {
                write!(f, "{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for StatusSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}

/// The word and the bit of a status; `None` outside of [`FINAL_STATUSES`].
fn position(status: u16) -> Option<(usize, u64)> {
    let index =
        FINAL_STATUSES.contains(&status).then(|| usize::from(status - FINAL_STATUSES.start()))?;
    Some((index / 64, 1 << (index % 64)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_has_the_statuses_of_its_ranges(
            ranges in prop::collection::vec((0_u16..700, 0_u16..120), 0..6),
        ) {
            let ranges: Vec<_> = ranges.iter().map(|(first, more)| *first..=first + more).collect();
            let set = StatusSet::of(ranges.iter().cloned());
            for status in 0..1_000 {
                let expected = FINAL_STATUSES.contains(&status)
                    && ranges.iter().any(|range| range.contains(&status));
                prop_assert_eq!(set.contains(status), expected, "{}", status);
            }
            prop_assert_eq!(set.is_empty(), set.ranges().is_empty());
            prop_assert_eq!(StatusSet::of(set.ranges()), set);
            let listed = set.ranges();
            let are_apart = listed.windows(2).all(|pair| *pair[0].end() + 1 < *pair[1].start());
            prop_assert!(are_apart, "{:?}", listed);
        }
    }
}
