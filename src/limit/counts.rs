//! A row of counters, stored inline if it is short.

/// Maximum number of counters that are stored inline.
const INLINE_LEN: usize = 8;

/// Counters, all 0 until they are written: up to eight inline, more on the heap.
///
/// Not a general small vector: the compiler stores the tag of [`super::AlgorithmState`] in the spare values (niche)
/// of this enum's tag, so a record needs no extra word for its algorithm.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Counts {
    /// In the record itself.
    Inline([u32; INLINE_LEN]),
    /// On the heap.
    Heap(Box<[u32]>),
}

impl Default for Counts {
    fn default() -> Self {
        Self::Inline([0; INLINE_LEN])
    }
}

impl Counts {
    /// Every allocated counter.
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::Inline(counts) => counts,
            Self::Heap(counts) => counts,
        }
    }

    /// The first `length` counters; allocates the missing ones.
    pub fn prefix_mut(&mut self, length: usize) -> &mut [u32] {
        if length > INLINE_LEN && self.as_slice().len() < length {
            self.grow(length);
        }
        match self {
            Self::Inline(counts) => &mut counts[..length],
            Self::Heap(counts) => &mut counts[..length],
        }
    }

    #[cold]
    fn grow(&mut self, length: usize) {
        let mut grown = vec![0; length];
        grown[..self.as_slice().len()].copy_from_slice(self.as_slice());
        *self = Self::Heap(grown.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_the_counts() {
        let mut counts = Counts::default();
        counts.prefix_mut(8).copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(matches!(counts, Counts::Inline(_)));
        assert_eq!(counts.prefix_mut(9), [1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert!(matches!(counts, Counts::Heap(_)));
        assert_eq!(size_of::<Counts>(), 40);
    }
}
