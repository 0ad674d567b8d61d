//! What a scanner has found at its paths.

use smallvec::SmallVec;

use super::number::Quantity;

/// A member that was found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FoundMember {
    /// The offset of its first byte in the text.
    pub start: u64,
    /// What it is.
    pub kind: MemberKind,
}

/// The kind of a member's value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MemberKind {
    /// A number.
    Number(Quantity),
    /// A string.
    Text,
    /// `true`, `false` or `null`.
    Literal,
    /// An object or an array.
    Container,
}

impl FoundMember {
    /// The number, if it is one.
    pub fn quantity(&self) -> Option<Quantity> {
        match self.kind {
            MemberKind::Number(quantity) => Some(quantity),
            _ => None,
        }
    }
}

/// The members at each path of a set.
#[derive(Clone, Debug)]
pub(super) struct Members {
    /// In the current text.
    current: SmallVec<[Option<FoundMember>; 4]>,
    /// In the last text before it that had the member.
    earlier: SmallVec<[Option<FoundMember>; 4]>,
    /// True if `current` has a member.
    is_found: bool,
    /// The paths of which a member occurred twice in an object.
    pub(super) repeated: u32,
    /// The paths of which a member was spelled with other capitals.
    pub(super) misspelt: u32,
}

impl Members {
    /// Nothing found yet at `count` paths.
    pub(super) fn new(count: usize) -> Self {
        let none: SmallVec<[Option<FoundMember>; 4]> = SmallVec::from_elem(None, count);
        Self { current: none.clone(), earlier: none, is_found: false, repeated: 0, misspelt: 0 }
    }

    /// Records the member at the paths in `mask`.
    pub(super) fn set(&mut self, mask: u32, found: FoundMember) {
        self.is_found = true;
        for_each_bit(mask, |path| self.current[path] = Some(found));
    }

    /// Forgets what was found in the current text below the paths in `mask`: a later member takes
    /// its place.
    pub(super) fn clear(&mut self, mask: u32) {
        if self.is_found {
            for_each_bit(mask, |path| self.current[path] = None);
        }
    }

    /// Ends the current text: the next one's members count where it has them.
    pub(super) fn commit(&mut self) {
        if !std::mem::take(&mut self.is_found) {
            return;
        }
        for (earlier, current) in self.earlier.iter_mut().zip(&mut self.current) {
            *earlier = later(*earlier, current.take());
        }
    }

    /// The member at the path with this index, of the last text that has it as a number, or that
    /// has it at all.
    pub(super) fn get(&self, path: usize) -> Option<FoundMember> {
        later(self.earlier[path], self.current[path])
    }
}

/// Of the members of two texts, the one that counts: the last number, or the last member if neither
/// is a number.
fn later(earlier: Option<FoundMember>, last: Option<FoundMember>) -> Option<FoundMember> {
    let is_number = |found: &FoundMember| found.quantity().is_some();
    last.filter(is_number).or(earlier.filter(is_number)).or(last).or(earlier)
}

fn for_each_bit(mut mask: u32, mut act: impl FnMut(usize)) {
    while mask != 0 {
        act(mask.trailing_zeros() as usize);
        mask &= mask - 1;
    }
}
