//! A row of counters, stored inline if it is short, and in 32 bits while its counts fit.

/// Maximum number of counters that are stored inline.
const INLINE_LEN: usize = 8;

/// Counters, all 0 until they are written: up to eight inline, more on the heap. They take four
/// bytes each until one of them exceeds 32 bits; from then on, all are on the heap with eight bytes
/// each.
///
/// Not a general small vector: the compiler stores the tag of [`super::AlgorithmState`] in the
/// spare values (niche) of this enum's tag, so a record needs no extra word for its algorithm.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Counts {
    /// In the record itself.
    Inline([u32; INLINE_LEN]),
    /// On the heap.
    Heap(Box<[u32]>),
    /// On the heap, because a count does not fit into 32 bits.
    Wide(Box<[u64]>),
}

impl Default for Counts {
    fn default() -> Self {
        Self::Inline([0; INLINE_LEN])
    }
}

impl Counts {
    /// The counter at `index`.
    pub fn get(&self, index: usize) -> u64 {
        let narrow = |counts: &[u32]| counts.get(index).map_or(0, |&count| u64::from(count));
        match self {
            Self::Inline(counts) => narrow(counts),
            Self::Heap(counts) => narrow(counts),
            Self::Wide(counts) => counts.get(index).copied().unwrap_or(0),
        }
    }

    /// The sum of the first `length` counters.
    pub fn sum(&self, length: usize) -> u64 {
        let narrow =
            |counts: &[u32]| counts.iter().take(length).map(|&count| u64::from(count)).sum();
        match self {
            Self::Inline(counts) => narrow(counts),
            Self::Heap(counts) => narrow(counts),
            Self::Wide(counts) => counts.iter().take(length).sum(),
        }
    }

    /// Moves the first `length` counters back by `by` places: counters that are pushed out are
    /// dropped, and the first `by` counters are 0 then.
    pub fn shift(&mut self, length: usize, by: usize) {
        self.allocate(length);
        match self {
            Self::Inline(counts) => shift(&mut counts[..length], by),
            Self::Heap(counts) => shift(&mut counts[..length], by),
            Self::Wide(counts) => shift(&mut counts[..length], by),
        }
    }

    /// Adds to the counter at `index`.
    pub fn add(&mut self, index: usize, units: u64) {
        self.set(index, self.get(index) + units);
    }

    /// Subtracts from the counter at `index`, which is at least `units`.
    pub fn subtract(&mut self, index: usize, units: u64) {
        self.set(index, self.get(index) - units);
    }

    fn set(&mut self, index: usize, count: u64) {
        self.allocate(index + 1);
        match (&mut *self, u32::try_from(count)) {
            (Self::Inline(counts), Ok(count)) => counts[index] = count,
            (Self::Heap(counts), Ok(count)) => counts[index] = count,
            (Self::Wide(counts), _) => counts[index] = count,
            (Self::Inline(_) | Self::Heap(_), Err(_)) => self.widen()[index] = count,
        }
    }

    /// The number of allocated counters.
    fn len(&self) -> usize {
        match self {
            Self::Inline(counts) => counts.len(),
            Self::Heap(counts) => counts.len(),
            Self::Wide(counts) => counts.len(),
        }
    }

    /// Allocates the first `length` counters.
    fn allocate(&mut self, length: usize) {
        if length > INLINE_LEN && self.len() < length {
            self.grow(length);
        }
    }

    #[cold]
    fn grow(&mut self, length: usize) {
        let counts = (0..length).map(|index| self.get(index));
        *self = match self {
            Self::Inline(_) | Self::Heap(_) => {
                Self::Heap(counts.map(|count| count as u32).collect())
            }
            Self::Wide(_) => Self::Wide(counts.collect()),
        };
    }

    /// Changes the counters to eight bytes each.
    #[cold]
    fn widen(&mut self) -> &mut [u64] {
        *self = Self::Wide((0..self.len()).map(|index| self.get(index)).collect());
        match self {
            Self::Wide(counts) => counts,
            Self::Inline(_) | Self::Heap(_) => &mut [],
        }
    }
}

fn shift<T: Copy + Default>(counts: &mut [T], by: usize) {
    let by = by.min(counts.len());
    if by > 0 {
        counts.copy_within(..counts.len() - by, by);
        counts[..by].fill(T::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(values: impl IntoIterator<Item = u64>) -> Counts {
        let mut counts = Counts::default();
        values.into_iter().enumerate().for_each(|(index, value)| counts.add(index, value));
        counts
    }

    fn values(counts: &Counts) -> Vec<u64> {
        (0..10).map(|index| counts.get(index)).collect()
    }

    #[test]
    fn growing_keeps_the_counts() {
        let mut counts = counts(1..=8);
        assert!(matches!(counts, Counts::Inline(_)));
        counts.shift(9, 0);
        assert!(matches!(counts, Counts::Heap(_)));
        assert_eq!(values(&counts), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]);
        assert_eq!(size_of::<Counts>(), 40);
    }

    #[test]
    fn a_large_count_widens_the_row_and_keeps_the_others() {
        for length in [8, 10] {
            let mut counts = counts(1..=length);
            counts.add(1, u64::from(u32::MAX) - 2);
            assert!(!matches!(counts, Counts::Wide(_)), "a count of 2^32 - 1 fits");
            counts.add(1, 1);
            assert!(matches!(counts, Counts::Wide(_)));
            assert_eq!((counts.get(0), counts.get(1), counts.get(2)), (1, 1 << 32, 3));
            counts.subtract(1, 1);
            assert_eq!(counts.sum(2), u64::from(u32::MAX) + 1);
            counts.shift(7, 2);
            assert_eq!(values(&counts)[..4], [0, 0, 1, u64::from(u32::MAX)]);
        }
    }

    #[test]
    fn shifting_drops_the_last_counters() {
        let mut counts = counts(1..=7);
        counts.shift(7, 2);
        assert_eq!(values(&counts), [0, 0, 1, 2, 3, 4, 5, 0, 0, 0]);
        counts.shift(7, 9);
        assert_eq!(counts.sum(10), 0);
    }
}
