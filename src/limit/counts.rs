//! A row of counters that lives inside its record where it is short.

/// Up to so many counters live inside the record.
const INSIDE: usize = 8;

/// Counters, all of them 0 until they are written. Eight live inside the record, more beside it.
///
/// An enum of this house and not a general small vector, because its tag leaves the room in which
/// [`super::State`] tells the algorithms apart: so a record has no word more than this.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Counts {
    /// In the record.
    Inside([u32; INSIDE]),
    /// On the heap.
    Beside(Box<[u32]>),
}

impl Default for Counts {
    fn default() -> Self {
        Self::Inside([0; INSIDE])
    }
}

impl Counts {
    /// All counters that there is room for.
    pub fn all(&self) -> &[u32] {
        match self {
            Self::Inside(counts) => counts,
            Self::Beside(counts) => counts,
        }
    }

    /// The first `length` counters, for writing; makes room for them where there is none.
    pub fn first(&mut self, length: usize) -> &mut [u32] {
        if length > INSIDE && self.all().len() < length {
            self.grow(length);
        }
        match self {
            Self::Inside(counts) => &mut counts[..length],
            Self::Beside(counts) => &mut counts[..length],
        }
    }

    #[cold]
    fn grow(&mut self, length: usize) {
        let mut longer = vec![0; length];
        longer[..self.all().len()].copy_from_slice(self.all());
        *self = Self::Beside(longer.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_grows_and_keeps_what_it_counted() {
        let mut counts = Counts::default();
        counts.first(8).copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(matches!(counts, Counts::Inside(_)));
        assert_eq!(counts.first(9), [1, 2, 3, 4, 5, 6, 7, 8, 0]);
        assert!(matches!(counts, Counts::Beside(_)));
        assert_eq!(size_of::<Counts>(), 40);
    }
}
