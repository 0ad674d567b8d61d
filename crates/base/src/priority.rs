//! [`Priority`]: how important a request is while an upstream is full.

use std::fmt;

/// How important a request is, from 0 to 9: 0 is the most important. Routes and plans set it; 5 is
/// the default.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Priority(u8);

impl Priority {
    /// The number of priorities.
    pub const COUNT: usize = 10;
    /// The least important one.
    pub const LOWEST: Self = Self(9);

    /// The priority with this number; `None` above 9.
    pub const fn new(number: u8) -> Option<Self> {
        if number <= Self::LOWEST.0 { Some(Self(number)) } else { None }
    }

    /// All priorities, the most important first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::LOWEST.0).map(Self)
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Its position in [`Self::all`].
    pub fn index(self) -> usize {
        self.0.into()
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(5)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
