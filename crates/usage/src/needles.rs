//! [`NeedleSearch`]: where the names that paths end in occur next, so that text without them is
//! skipped.

use super::path::PathSet;

/// The places of needles in one piece of a body. The piece is searched once for each needle,
/// however often [`Self::first`] is called.
#[derive(Clone, Debug)]
pub(super) struct NeedleSearch {
    /// For each needle, where it occurs next; the length of the piece if it does not.
    next: Vec<usize>,
}

impl NeedleSearch {
    /// A search for the needles of `paths`.
    pub(super) fn new(paths: &PathSet) -> Self {
        Self { next: vec![0; paths.needles.len()] }
    }

    /// Begins the next piece.
    pub(super) fn begin_piece(&mut self) {
        self.next.fill(0);
    }

    /// Where the first needle begins in the piece `bytes`, at or after `from`; its length if there
    /// is none.
    pub(super) fn first(&mut self, paths: &PathSet, bytes: &[u8], from: usize) -> usize {
        let mut first = bytes.len();
        for (needle, next) in paths.needles.iter().zip(&mut self.next) {
            if *next <= from && *next < bytes.len() {
                let found = needle.find(&bytes[from..]);
                *next = found.map_or(bytes.len(), |found| from + found);
            }
            first = first.min(*next);
        }
        first
    }
}
