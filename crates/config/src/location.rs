//! [`Location`]: where in a file a fault is.

/// A location in a file. Lines and columns count from 1, columns in characters, as in an editor.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Location {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// The number of characters that the caret marks; at least 1.
    pub width: usize,
}
