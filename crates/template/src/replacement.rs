//! [`Replacement`]: a pattern, and the text for each of its matches in the value of a field.

use regex::bytes::{Captures, Regex, RegexBuilder};

/// Maximum size of a compiled pattern, in bytes.
const MAX_COMPILED: usize = 64 << 10;
/// Maximum memory that one thread holds for a pattern, in bytes: values from outside fill it.
const MAX_CACHE: usize = 256 << 10;
/// Maximum number of matches in the fields of one message. A search for one may read to the end of
/// the value, so the time for all of them would grow with the square of its length.
const MAX_MATCHES: usize = 256;
/// Maximum length of the values that replacements give one message, in bytes.
const MAX_BYTES: usize = 64 << 10;

/// A regular expression for parts of a value.
#[derive(Clone, Debug)]
pub struct ReplacedPattern(Regex);

/// A pattern, and the text for each of its matches.
#[derive(Clone, Debug)]
pub struct Replacement {
    pattern: ReplacedPattern,
    /// As it is written in the configuration.
    with: Box<str>,
    pieces: Box<[ReplacementPiece]>,
}

/// A piece of the text for a match.
#[derive(Clone, Debug)]
enum ReplacementPiece {
    Text(Box<str>),
    /// What the group of this number matched.
    Group(usize),
}

/// A value after a replacement.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReplacedValue {
    /// The pattern does not match.
    Unchanged,
    /// The new value.
    Changed(Vec<u8>),
    /// The field is left out: its new value is empty, too long, or not a value.
    LeftOut,
}

/// What replacements in the rest of a message may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplacementBudget {
    matches: usize,
    bytes: usize,
}

impl Default for ReplacementBudget {
    fn default() -> Self {
        Self { matches: MAX_MATCHES, bytes: MAX_BYTES }
    }
}

impl ReplacedPattern {
    /// Compiles a pattern, for bytes and letters of ASCII.
    ///
    /// # Errors
    /// What is wrong, as one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty".to_owned());
        }
        if let Some(control) = text.chars().find(|c| c.is_control()) {
            return Err(format!("the control character `{}`", control.escape_debug()));
        }
        let mut builder = RegexBuilder::new(text);
        builder.unicode(false).size_limit(MAX_COMPILED).dfa_size_limit(MAX_CACHE);
        builder.build().map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                format!("more than {} KiB once compiled", MAX_COMPILED >> 10)
            }
            // The last line of several says what is wrong.
            other => {
                let text = other.to_string();
                let last = text.lines().last().unwrap_or_default();
                last.strip_prefix("error: ").unwrap_or(last).to_owned()
            }
        })
    }

    /// The text for each match: `$1` or `${1}` is what the group 1 matched, `$name` a named group,
    /// `$0` the match, `$$` a dollar.
    ///
    /// # Errors
    /// What is wrong: a control character, or a group that the pattern lacks.
    pub fn replaced_with(self, text: &str) -> Result<Replacement, String> {
        if let Some(control) = text.chars().find(|c| c.is_control()) {
            return Err(format!("the control character `{}`", control.escape_debug()));
        }
        let (mut pieces, mut fixed, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['$', '\\']) {
            fixed.push_str(&rest[..at]);
            let is_group = rest[at..].starts_with('$');
            rest = &rest[at + 1..];
            if !is_group {
                let digit = rest.chars().next().filter(char::is_ascii_digit);
                if let Some(digit) = digit {
                    return Err(format!("`\\{digit}`; a group is `${digit}`"));
                }
                fixed.push('\\');
                continue;
            }
            if let Some(after) = rest.strip_prefix('$') {
                fixed.push('$');
                rest = after;
                continue;
            }
            let group = GroupReference::read(rest)?;
            if !fixed.is_empty() {
                pieces.push(ReplacementPiece::Text(std::mem::take(&mut fixed).into()));
            }
            pieces.push(ReplacementPiece::Group(self.group(group.name)?));
            rest = group.after;
        }
        fixed.push_str(rest);
        if !fixed.is_empty() {
            pieces.push(ReplacementPiece::Text(fixed.into()));
        }
        Ok(Replacement { pattern: self, with: text.into(), pieces: pieces.into() })
    }

    /// The number of a group that a text names.
    fn group(&self, name: &str) -> Result<usize, String> {
        let number = name.parse().ok().filter(|number| *number < self.0.captures_len());
        let named = || self.0.capture_names().position(|group| group == Some(name));
        number.or_else(named).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            format!("no group `{shown}` in the pattern")
        })
    }
}

/// A reference to a group, and the text after it.
struct GroupReference<'t> {
    name: &'t str,
    after: &'t str,
}

impl<'t> GroupReference<'t> {
    /// Reads the reference at the start of `text`, which follows a dollar.
    fn read(text: &'t str) -> Result<Self, String> {
        if let Some(inner) = text.strip_prefix('{') {
            let split = inner.split_once('}');
            let (name, after) = split.ok_or_else(|| "`${` without `}`".to_owned())?;
            return Ok(Self { name, after });
        }
        let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, after) = text.split_at(text.find(|c| !is_inner(c)).unwrap_or(text.len()));
        if name.is_empty() {
            Err("`$` without a group".to_owned())
        } else {
            Ok(Self { name, after })
        }
    }
}

impl Replacement {
    /// The pattern, as it is written in the configuration.
    pub fn pattern(&self) -> &str {
        self.pattern.0.as_str()
    }

    /// The text for a match, as it is written in the configuration.
    pub fn with(&self) -> &str {
        &self.with
    }

    /// True if the pattern matches a part of the value.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        self.pattern.0.is_match(value)
    }

    /// Replaces every match in the value.
    pub(super) fn apply(&self, value: &[u8], budget: &mut ReplacementBudget) -> ReplacedValue {
        let mut out: Vec<u8> = Vec::new();
        let mut copied = None;
        for captures in self.pattern.0.captures_iter(value) {
            let Some(whole) = captures.get(0) else { continue };
            out.extend_from_slice(&value[copied.unwrap_or(0)..whole.start()]);
            copied = Some(whole.end());
            let is_written = budget.matches > 0 && self.write(&captures, budget.bytes, &mut out);
            budget.matches = budget.matches.saturating_sub(1);
            if !is_written {
                return ReplacedValue::LeftOut;
            }
        }
        let Some(copied) = copied else { return ReplacedValue::Unchanged };
        out.extend_from_slice(&value[copied..]);
        if out.len() > budget.bytes {
            return ReplacedValue::LeftOut;
        }
        budget.bytes -= out.len();
        let is_value = |byte: &u8| !byte.is_ascii_control() || *byte == b'\t';
        match out.trim_ascii() {
            // Neither a message's value nor the text has such a byte. This holds if one of them
            // ever does.
            new if new.is_empty() || !new.iter().all(is_value) => ReplacedValue::LeftOut,
            new if new.len() == out.len() => ReplacedValue::Changed(out),
            new => ReplacedValue::Changed(new.to_vec()),
        }
    }

    /// Appends the text for a match. Returns false if `out` then has more than `max` bytes.
    fn write(&self, captures: &Captures<'_>, max: usize, out: &mut Vec<u8>) -> bool {
        self.pieces.iter().all(|piece| {
            let bytes = match piece {
                ReplacementPiece::Text(text) => text.as_bytes(),
                ReplacementPiece::Group(group) => {
                    captures.get(*group).map(|found| found.as_bytes()).unwrap_or_default()
                }
            };
            let fits = out.len() + bytes.len() <= max;
            if fits {
                out.extend_from_slice(bytes);
            }
            fits
        })
    }
}

/// Two replacements are equal if they are written alike.
impl PartialEq for Replacement {
    fn eq(&self, other: &Self) -> bool {
        self.pattern() == other.pattern() && self.with == other.with
    }
}

impl Eq for Replacement {}
