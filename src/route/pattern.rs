//! The patterns that a route's host and path are written in.

use std::{fmt::Write, net::Ipv6Addr};

use super::normalize::normalize;

/// The longest host name, in bytes. RFC 1035, 2.3.4.
pub const MAX_HOST: usize = 253;
/// The longest label of a host name, in bytes. RFC 1035, 2.3.4.
const MAX_LABEL: usize = 63;
/// The longest path pattern, in bytes.
pub const MAX_PATH: usize = 2_048;
/// The most segments of a path pattern.
pub const MAX_SEGMENTS: usize = 128;
/// The most parameters of a path pattern.
pub const MAX_PARAMS: usize = 64;

/// Why a pattern is not one.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// A host that no request could name.
    #[error(
        "`{host}` is no host ({why}); expected a name such as api.example.com, or *.example.com"
    )]
    Host {
        /// The pattern as written, shortened where it is long.
        host: String,
        /// What is wrong with it.
        why: String,
    },
    /// A path that no request could have, or whose braces are wrong.
    #[error(
        "`{path}` is no path pattern ({why}); expected such as /items/{{id}} or /files/{{*rest}}"
    )]
    Path {
        /// The pattern as written, shortened where it is long.
        path: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Which hosts a route answers for.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub enum HostPattern {
    /// Every host.
    #[default]
    Any,
    /// `api.example.com`, in lower case.
    Exact(String),
    /// `*.example.com`, kept as `example.com`: every name below it, not itself.
    Below(String),
}

impl HostPattern {
    /// Reads `*`, `*.example.com`, `api.example.com` or an address literal; case does not count.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let lower = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let (name, below) = match lower.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (lower.as_str(), false),
        };
        let literal = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        match literal.filter(|_| !below) {
            Some(address) if address.parse::<Ipv6Addr>().is_ok() => Ok(()),
            Some(_) => Err("the brackets hold no IPv6 address".to_owned()),
            None => check_name(name),
        }
        .map_err(|why| PatternError::Host { host: clip(text), why })?;
        Ok(if below { Self::Below(name.to_owned()) } else { Self::Exact(name.to_owned()) })
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if name.len() > MAX_HOST {
        return Err(format!("{} bytes, at most {MAX_HOST}", name.len()));
    }
    for label in name.split('.') {
        let fits = |b: char| b.is_ascii_alphanumeric() || matches!(b, '-' | '_');
        if label.is_empty() {
            return Err("an empty label".to_owned());
        }
        if let Some(other) = label.chars().find(|&b| !fits(b)) {
            return Err(format!("no host has `{}`", other.escape_debug()));
        }
        if label.len() > MAX_LABEL {
            return Err(format!("a label of {} bytes, at most {MAX_LABEL}", label.len()));
        }
    }
    Ok(())
}

/// Which paths a route answers for: `/items/{id}`, `/files/{*rest}`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PathPattern {
    text: String,
    segments: Vec<Segment>,
    params: Vec<String>,
}

/// What stands between two slashes of a path pattern.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Segment {
    /// Fixed text; empty after a slash at the end.
    Fixed(Box<str>),
    /// `{name}`: a value of at least one byte, between fixed texts that may be empty.
    Param { prefix: Box<str>, suffix: Box<str> },
    /// `{*name}`: the last, all that is left of the path, after fixed text that may be empty.
    Rest { prefix: Box<str> },
}

impl PathPattern {
    /// Reads a pattern. `{name}` stands for one segment or a part of it, `{*name}` for all that is
    /// left, nothing included; `{{` and `}}` are braces.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        read(text).map_err(|why| PatternError::Path { path: clip(text), why })
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names of its parameters, in order.
    pub fn params(&self) -> &[String] {
        &self.params
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

fn read(text: &str) -> Result<PathPattern, String> {
    let Some(path) = text.strip_prefix('/') else { return Err("it must start with /".to_owned()) };
    if text.len() > MAX_PATH {
        return Err(format!("{} bytes, at most {MAX_PATH}", text.len()));
    }
    let mut params = Vec::new();
    let segments = path.split('/').map(|text| segment(text, &mut params));
    let segments = segments.collect::<Result<Vec<_>, _>>()?;
    if segments.len() > MAX_SEGMENTS {
        return Err(format!("{} segments, at most {MAX_SEGMENTS}", segments.len()));
    }
    if params.len() > MAX_PARAMS {
        return Err(format!("{} parameters, at most {MAX_PARAMS}", params.len()));
    }
    let before_last = segments.split_last().map_or(&[][..], |(_, before)| before);
    if before_last.iter().any(|segment| matches!(segment, Segment::Rest { .. })) {
        return Err("`{*name}` must be its end".to_owned());
    }
    let again = params.iter().enumerate().find(|(index, name)| params[..*index].contains(name));
    if let Some((_, again)) = again {
        return Err(format!("two parameters `{again}`"));
    }
    let example = example(&segments);
    if let Some(other) = example.chars().find(|&c| !stands_in_requests(c)) {
        let mut escaped = String::new();
        for byte in other.encode_utf8(&mut [0; 4]).bytes() {
            let _ = write!(escaped, "%{byte:02X}");
        }
        return Err(format!("`{}` is {escaped} in a request's path", other.escape_debug()));
    }
    if normalize(&example, true).as_deref() != Ok(example.as_str()) {
        return Err("it is not in normal form, so no request would match it".to_owned());
    }
    Ok(PathPattern { text: text.to_owned(), segments, params })
}

/// Reads what stands between two slashes; its parameter's name goes to `params`.
fn segment(text: &str, params: &mut Vec<String>) -> Result<Segment, String> {
    let (prefix, after) = literal(text)?;
    let Some(after) = after else { return Ok(Segment::Fixed(prefix)) };
    let Some((name, after)) = after.split_once('}') else {
        return Err("a `{` without its `}`".to_owned());
    };
    let (name, is_rest) = name.strip_prefix('*').map_or((name, false), |name| (name, true));
    if name.is_empty() {
        return Err("a parameter without a name".to_owned());
    }
    if let Some(wrong) = name.chars().find(|&c| matches!(c, '{' | '*') || c.is_control()) {
        return Err(format!("`{}` in a parameter's name", wrong.escape_debug()));
    }
    params.push(name.to_owned());
    let (suffix, more) = literal(after)?;
    if is_rest && !after.is_empty() {
        return Err("`{*name}` must be its end".to_owned());
    }
    if more.is_some() {
        return Err("two parameters in one segment".to_owned());
    }
    Ok(if is_rest { Segment::Rest { prefix } } else { Segment::Param { prefix, suffix } })
}

/// The fixed text at the beginning of `text`, and what follows the brace that ends it.
fn literal(text: &str) -> Result<(Box<str>, Option<&str>), String> {
    let mut fixed = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at(at);
        fixed.push_str(before);
        let brace = &from[..1];
        match from[1..].strip_prefix(brace) {
            Some(after) => {
                fixed.push_str(brace);
                rest = after;
            }
            None if brace == "{" => return Ok((fixed.into(), Some(&from[1..]))),
            None => return Err("a `}` without its `{`".to_owned()),
        }
    }
    fixed.push_str(rest);
    Ok((fixed.into(), None))
}

/// A path that the pattern matches. A value of `x` completes no escape and no dot segment.
fn example(segments: &[Segment]) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        match segment {
            Segment::Fixed(text) => path.push_str(text),
            Segment::Param { prefix, suffix } => path.extend([prefix, "x", suffix]),
            Segment::Rest { prefix } => path.extend([prefix, "x"]),
        }
    }
    path
}

/// Whether a request's path may have it unescaped: what RFC 3986 allows and browsers send.
fn stands_in_requests(c: char) -> bool {
    c.is_ascii_graphic() && !matches!(c, '?' | '#' | '<' | '>' | '\\')
}

/// As much of `text` as a fault repeats.
fn clip(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[path = "pattern/tests.rs"]
mod tests;
