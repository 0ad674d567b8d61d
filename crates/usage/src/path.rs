//! [`JsonPath`], the dotted path of a member, and [`PathSet`], the paths that one scanner looks
//! for.

use std::{fmt, str::FromStr};

use memchr::memmem::Finder;

/// Most segments of a path: the scanner tracks this many levels.
pub(super) const MAX_DEPTH: usize = 8;
/// Longest name of a segment, in bytes.
pub(super) const MAX_NAME: usize = 64;
/// Most paths of a set: one bit each.
const MAX_PATHS: usize = 32;

/// A member of a JSON text: names of members, separated by dots. A number is an element of an
/// array; `*` as the first segment is each element of an array that is the whole text.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct JsonPath {
    segments: Box<[PathSegment]>,
}

/// One segment of a path.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(super) struct PathSegment {
    pub(super) name: Box<str>,
    /// The element of an array that it also is.
    index: Option<u32>,
}

/// The reason why a text is not a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidPath {
    /// A segment is empty.
    #[error("a path has no empty segment")]
    Empty,
    /// A segment has more than 64 bytes.
    #[error("a segment of a path has at most 64 bytes")]
    LongName,
    /// There are more than eight segments.
    #[error("a path has at most 8 segments")]
    Deep,
    /// `*` is not the first segment, or the only one.
    #[error("`*` is the first of several segments")]
    Star,
    /// A segment looks like a formula.
    #[error("a path names one member and computes nothing")]
    Formula,
    /// A segment has brackets.
    #[error("an element of an array is `items.0`, not `items[0]`")]
    Brackets,
    /// A segment has a quotation mark, a backslash, a space or a control character.
    #[error("a path has no quotation mark, backslash, space or control character")]
    Character,
}

impl FromStr for JsonPath {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        let is_odd = |c: char| c == '"' || c == '\\' || c.is_whitespace() || c.is_control();
        if text.contains(is_odd) {
            return Err(InvalidPath::Character);
        }
        let segments: Box<[PathSegment]> = text.split('.').map(PathSegment::new).collect();
        if segments.len() > MAX_DEPTH {
            return Err(InvalidPath::Deep);
        }
        for (at, segment) in segments.iter().enumerate() {
            match segment.name.len() {
                0 => return Err(InvalidPath::Empty),
                length if length > MAX_NAME => return Err(InvalidPath::LongName),
                _ if segment.is_each() && (at > 0 || segments.len() == 1) => {
                    return Err(InvalidPath::Star);
                }
                _ if segment.name.contains(['[', ']']) => return Err(InvalidPath::Brackets),
                _ if segment.is_formula() => return Err(InvalidPath::Formula),
                _ => {}
            }
        }
        Ok(Self { segments })
    }
}

/// The reason for which the path of a text `json:PATH` is invalid; `None` for other texts.
pub fn json_path_fault(text: &str) -> Option<String> {
    let path = text.strip_prefix("json:")?;
    path.parse::<JsonPath>().err().map(|error| error.to_string())
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.segments.iter().enumerate() {
            let dot = if at == 0 { "" } else { "." };
            write!(f, "{dot}{}", segment.name)?;
        }
        Ok(())
    }
}

impl PathSegment {
    fn new(name: &str) -> Self {
        let index = name.parse().ok().filter(|index: &u32| index.to_string() == name);
        Self { name: name.into(), index }
    }

    /// True if the name is a formula, such as `max_tokens*n`, rather than a name. As a name, no
    /// request would have it, and each would count as if it lacked the member.
    fn is_formula(&self) -> bool {
        let divides = |(_, divisor): (&str, &str)| divisor.parse::<f64>().is_ok();
        let has_operator = self.name.contains(['*', '+', '(', ')', '=', '<', '>', ',', '|', '&']);
        has_operator && !self.is_each() || self.name.split_once('/').is_some_and(divides)
    }

    /// True for `*`.
    fn is_each(&self) -> bool {
        &*self.name == "*"
    }
}

/// The paths that a scanner looks for. A set of them is a bit mask: bit `i` is the path with index
/// `i`.
#[derive(Clone, Debug)]
pub struct PathSet {
    paths: Vec<JsonPath>,
    /// By a number of segments: the paths with exactly this many.
    ending: [u32; MAX_DEPTH + 1],
    /// A text without any of these has none of the paths.
    pub(super) needles: Vec<Finder<'static>>,
}

/// Two sets are equal if they have the same paths in the same order.
impl PartialEq for PathSet {
    fn eq(&self, other: &Self) -> bool {
        self.paths == other.paths
    }
}

impl Eq for PathSet {}

impl PathSet {
    /// The set of `paths`, in their order; `None` beyond 32.
    pub fn new(paths: Vec<JsonPath>) -> Option<Self> {
        if paths.len() > MAX_PATHS {
            return None;
        }
        let mut ending = [0; MAX_DEPTH + 1];
        for (bit, path) in paths.iter().enumerate() {
            ending[path.segments.len()] |= 1 << bit;
        }
        // A name may be spelled with escapes.
        let mut needles = vec![Finder::new("\\u").into_owned()];
        let mut names: Vec<&str> = paths.iter().filter_map(JsonPath::needle).collect();
        let all_have_names = names.len() == paths.len();
        names.sort_unstable();
        names.dedup();
        needles.extend(names.into_iter().map(|name| Finder::new(name).into_owned()));
        if !all_have_names {
            needles = vec![Finder::new("").into_owned()];
        }
        Some(Self { paths, ending, needles })
    }

    /// The paths.
    pub fn paths(&self) -> &[JsonPath] {
        &self.paths
    }

    /// All paths.
    pub(super) fn all(&self) -> u32 {
        self.ending.iter().fold(0, |all, ending| all | ending)
    }

    /// The paths with exactly `depth` segments.
    pub(super) fn ending_at(&self, depth: usize) -> u32 {
        self.ending[depth]
    }

    /// Of the paths in `mask`, those whose segment `depth` is this element of an array.
    pub(super) fn with_element(&self, mask: u32, depth: usize, element: u32) -> u32 {
        self.filter(mask, |path| {
            let segment = &path.segments[depth];
            segment.index == Some(element) || depth == 0 && segment.is_each()
        })
    }

    /// Of the paths in `mask`, the ones whose segment `depth` matches `is_named`.
    pub(super) fn with_name(
        &self,
        mask: u32,
        depth: usize,
        mut is_named: impl FnMut(&str) -> bool,
    ) -> u32 {
        self.filter(mask, |path| is_named(&path.segments[depth].name))
    }

    /// True if a path of `mask` begins with `*`.
    pub(super) fn has_each(&self, mask: u32) -> bool {
        self.filter(mask, |path| path.segments[0].is_each()) != 0
    }

    fn filter(&self, mask: u32, mut is_kept: impl FnMut(&JsonPath) -> bool) -> u32 {
        let (mut left, mut kept) = (mask, 0);
        while left != 0 {
            let bit = left & left.wrapping_neg();
            left ^= bit;
            if is_kept(&self.paths[bit.trailing_zeros() as usize]) {
                kept |= bit;
            }
        }
        kept
    }
}

impl JsonPath {
    /// The last name, which a text must have to have the path; `None` if a segment is an element.
    fn needle(&self) -> Option<&str> {
        let name = self.segments.iter().rev().find(|segment| segment.index.is_none());
        name.filter(|segment| !segment.is_each()).map(|segment| &*segment.name)
    }
}
