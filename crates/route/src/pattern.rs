//! The patterns for a route's host and path.

use std::{fmt::Write, net::Ipv6Addr};

use smallvec::SmallVec;

use super::normalize::{self, Slashes, normalize, routed_form};

/// The longest host name, in bytes. RFC 1035, 2.3.4.
pub const MAX_HOST: usize = 253;
/// The longest label of a host name, in bytes. RFC 1035, 2.3.4.
const MAX_LABEL: usize = 63;
/// The longest path pattern, in bytes.
pub const MAX_PATH: usize = 2_048;
/// The maximum number of segments of a path pattern.
pub const MAX_SEGMENTS: usize = 128;
/// The maximum number of parameters of a path pattern.
pub const MAX_PARAMS: usize = 64;

/// Why a pattern is invalid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// A host that no request can have.
    #[error(
        "`{host}` is not a host ({why}); expected a name such as api.example.com or *.example.com"
    )]
    Host {
        /// The pattern as written, truncated if it is long.
        host: String,
        /// What is wrong with it.
        why: String,
    },
    /// A path that no request can have, with invalid braces, or beyond a bound.
    #[error(
        "`{path}` is not a path pattern ({why}); expected one such as /items/{{id}} or /files/{{*rest}}"
    )]
    Path {
        /// The pattern as written, truncated if it is long.
        path: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The hosts of a route.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub enum HostPattern {
    /// Every host.
    #[default]
    Any,
    /// `api.example.com`, in lower case.
    Exact(String),
    /// `*.example.com`, stored as `example.com`: all subdomains, not the name itself.
    Wildcard(String),
}

impl HostPattern {
    /// Parses `*`, `*.example.com`, `api.example.com` or an IP address, without regard to case.
    ///
    /// # Errors
    /// No request can have such a host.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let lower = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let (name, is_wildcard) = match lower.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (lower.as_str(), false),
        };
        let literal = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let name = match literal.filter(|_| !is_wildcard) {
            // In its shortest form, as the host of a request.
            Some(address) => match address.parse::<Ipv6Addr>() {
                Ok(address) => Ok(format!("[{address}]")),
                Err(_) => Err("the brackets must contain an IPv6 address".to_owned()),
            },
            None => check_name(name).map(|()| name.to_owned()),
        };
        let name = name.map_err(|why| PatternError::Host { host: truncate(text), why })?;
        Ok(if is_wildcard { Self::Wildcard(name) } else { Self::Exact(name) })
    }
}

fn check_name(name: &str) -> Result<(), String> {
    if name.len() > MAX_HOST {
        return Err(format!("{} bytes; at most {MAX_HOST}", name.len()));
    }
    for label in name.split('.') {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if label.is_empty() {
            return Err("an empty label".to_owned());
        }
        if let Some(other) = label.chars().find(|&c| !is_allowed(c)) {
            return Err(format!("`{}` is not allowed in a host", other.escape_debug()));
        }
        if label.len() > MAX_LABEL {
            return Err(format!("a label has {} bytes; at most {MAX_LABEL}", label.len()));
        }
    }
    Ok(())
}

/// The paths of a route: `/items/{id}`, `/files/{*rest}`. The default matches none.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PathPattern {
    text: String,
    segments: Vec<Segment>,
    params: Vec<String>,
}

/// The part of a path pattern between two slashes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Segment {
    /// Fixed text; empty after a trailing slash.
    Fixed(Box<str>),
    /// `prefix{name}suffix`: the value has at least one byte; the fixed texts may be empty.
    Param { prefix: Box<str>, suffix: Box<str> },
    /// `prefix{*name}`, only in the last segment: the value is the rest of the path and may be
    /// empty.
    Rest { prefix: Box<str> },
    /// After the last segment of a prefix: the value is the rest of the path with the slash before
    /// it, or empty.
    Below,
}

/// The parameter of a prefix whose value is the path below it.
const BELOW: &str = "rest";

impl PathPattern {
    /// Parses a pattern. `{name}` matches a segment or a part of it, `{*name}` the rest of the
    /// path, which may be empty. `{{` and `}}` are literal braces.
    ///
    /// # Errors
    /// The braces are invalid, a bound is exceeded, or no request can have such a path.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        parse_path(text).map_err(|why| PatternError::Path { path: truncate(text), why })
    }

    /// Parses a prefix in whole segments: `/login` matches `/login`, `/login/` and all paths below.
    /// Its segments have the syntax of [`Self::parse`], without `{*name}`. The parameter `rest` is
    /// the path after the prefix, with its slash; it may be empty.
    ///
    /// # Errors
    /// As [`Self::parse`], or the prefix ends in a slash or has `{*name}`.
    pub fn prefix(text: &str) -> Result<Self, PatternError> {
        parse_prefix(text).map_err(|why| PatternError::Path { path: truncate(text), why })
    }

    /// True for a pattern from [`Self::prefix`].
    pub fn is_prefix(&self) -> bool {
        self.segments.last() == Some(&Segment::Below)
    }

    /// The pattern as written, with `/...` appended to a prefix.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The parameters' names, in order.
    pub fn params(&self) -> &[String] {
        &self.params
    }

    /// The number of parameters before one that is the rest of the path.
    pub fn bounded_params(&self) -> usize {
        let has_rest = matches!(self.segments.last(), Some(Segment::Rest { .. } | Segment::Below));
        self.params.len() - usize::from(has_rest)
    }

    /// True if a matching path can begin with the segments of `prefix`, such as `/v1`.
    pub fn can_start_with(&self, prefix: &str) -> bool {
        let mut rest = prefix.trim_matches('/');
        let mut segments = self.segments.iter();
        while !rest.is_empty() {
            let (segment, after) = rest.split_once('/').unwrap_or((rest, ""));
            let matches = match segments.next() {
                None => false,
                Some(Segment::Fixed(text)) => segment == &**text,
                Some(Segment::Param { prefix, suffix }) => {
                    segment.len() > prefix.len() + suffix.len()
                        && segment.starts_with(&**prefix)
                        && segment.ends_with(&**suffix)
                }
                Some(Segment::Rest { prefix }) => return rest.starts_with(&**prefix),
                Some(Segment::Below) => return true,
            };
            if !matches {
                return false;
            }
            rest = after;
        }
        true
    }

    /// The parameters' names, and their values in `path` with its escapes. The pattern matches the
    /// [`routed_form`] of `path`. An empty `{*name}` is left out.
    pub fn captures<'p>(&'p self, path: &'p str) -> SmallVec<[(&'p str, &'p str); 4]> {
        let mut captures = SmallVec::new();
        let (mut names, mut rest) = (self.params.iter(), path.strip_prefix('/'));
        for segment in &self.segments {
            let Some(from) = rest else { break };
            let (text, after) = match from.split_once('/') {
                Some((text, after)) => (text, Some(after)),
                None => (from, None),
            };
            let value = match segment {
                Segment::Fixed(_) => None,
                Segment::Param { prefix, suffix } => {
                    let text = normalize::strip_prefix(text, prefix);
                    text.and_then(|text| normalize::strip_suffix(text, suffix))
                }
                Segment::Rest { prefix } => {
                    normalize::strip_prefix(from, prefix).filter(|value| !value.is_empty())
                }
                // The slash before the segment belongs to it.
                Segment::Below => path.get(path.len() - from.len() - 1..),
            };
            if !matches!(segment, Segment::Fixed(_)) {
                let name = names.next();
                captures.extend(name.zip(value).map(|(name, value)| (name.as_str(), value)));
            }
            rest = after;
        }
        captures
    }

    /// True if the patterns differ at most by the names of parameters.
    pub fn has_shape_of(&self, other: &Self) -> bool {
        self.segments == other.segments
    }

    /// A matching path, with `x` for each parameter.
    pub fn example(&self) -> String {
        example_path(&self.segments)
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

fn parse_prefix(text: &str) -> Result<PathPattern, String> {
    let mut pattern = parse_path(text)?;
    if text == "/" {
        pattern.segments.clear();
    } else if let Some(prefix) = text.strip_suffix('/') {
        return Err(format!(
            "a prefix has no `/` at its end: write {prefix} for this path and all below, or `path: {text}{{*rest}}` for those below"
        ));
    }
    if matches!(pattern.segments.last(), Some(Segment::Rest { .. })) {
        return Err("`{*name}` in a prefix, which matches all paths below anyway".to_owned());
    }
    if pattern.params.iter().any(|name| name == BELOW) {
        return Err(format!("a parameter `{BELOW}`, which is the path below the prefix"));
    }
    pattern.segments.push(Segment::Below);
    pattern.params.push(BELOW.to_owned());
    pattern.text = format!("{}/...", text.trim_end_matches('/'));
    Ok(pattern)
}

fn parse_path(text: &str) -> Result<PathPattern, String> {
    let Some(path) = text.strip_prefix('/') else {
        return Err("the path must start with /".to_owned());
    };
    if text.len() > MAX_PATH {
        return Err(format!("{} bytes; at most {MAX_PATH}", text.len()));
    }
    let mut params = Vec::new();
    let segments = path.split('/').map(|text| parse_segment(text, &mut params));
    let segments = segments.collect::<Result<Vec<_>, _>>()?;
    if segments.len() > MAX_SEGMENTS {
        return Err(format!("{} segments; at most {MAX_SEGMENTS}", segments.len()));
    }
    if params.len() > MAX_PARAMS {
        return Err(format!("{} parameters; at most {MAX_PARAMS}", params.len()));
    }
    let all_but_last = segments.split_last().map_or(&[][..], |(_, before)| before);
    if all_but_last.iter().any(|segment| matches!(segment, Segment::Rest { .. })) {
        return Err("`{*name}` must be at the end".to_owned());
    }
    let repeated = params.iter().enumerate().find(|(index, name)| params[..*index].contains(name));
    if let Some((_, name)) = repeated {
        return Err(format!("parameter `{name}` is used twice"));
    }
    let example = example_path(&segments);
    if let Some(other) = example.chars().find(|&c| !is_request_path_char(c)) {
        let mut escaped = String::new();
        for byte in other.encode_utf8(&mut [0; 4]).bytes() {
            let _ = write!(escaped, "%{byte:02X}");
        }
        return Err(format!("`{}` must be written as {escaped}", other.escape_debug()));
    }
    if example.contains(';') {
        let what = "no request matches `;`: parameters of a request's path are ignored";
        return Err(what.to_owned());
    }
    check_normal(&example)?;
    Ok(PathPattern { text: text.to_owned(), segments, params })
}

/// Requests are matched by their normalized path, so a path that is not normal matches none.
fn check_normal(path: &str) -> Result<(), String> {
    let normal = normalize(path, Slashes::Merge).map_err(|error| error.to_string())?;
    let routed = routed_form(&normal, Slashes::Merge);
    if *routed == *path {
        return Ok(());
    }
    if *normal == *path {
        return Err(format!("no request matches this escape; write {routed}"));
    }
    Err(if path.contains("//") {
        "no request matches `//`: a request's path has `/` instead".to_owned()
    } else if path.split('/').any(|segment| matches!(segment, "." | "..")) {
        "no request matches `.` and `..`: they are resolved in a request's path".to_owned()
    } else {
        "no request matches this escape: only reserved characters are escaped, with capitals as in %2F"
            .to_owned()
    })
}

/// Parses one segment and appends its parameter's name to `params`.
fn parse_segment(text: &str, params: &mut Vec<String>) -> Result<Segment, String> {
    let (prefix, after) = parse_literal(text)?;
    let Some(after) = after else { return Ok(Segment::Fixed(prefix)) };
    let Some((name, after)) = after.split_once('}') else {
        return Err("`{` without `}`".to_owned());
    };
    let (name, is_rest) = name.strip_prefix('*').map_or((name, false), |name| (name, true));
    if name.is_empty() {
        return Err("a parameter without a name".to_owned());
    }
    if let Some(other) = name.chars().find(|&c| matches!(c, '{' | '*') || c.is_control()) {
        return Err(format!("`{}` is not allowed in a parameter's name", other.escape_debug()));
    }
    if let Some(plain) = name.strip_suffix("...") {
        return Err(format!("write {{*{plain}}} for the rest of the path"));
    }
    params.push(name.to_owned());
    let (suffix, more) = parse_literal(after)?;
    if is_rest && !after.is_empty() {
        return Err("`{*name}` must be at the end".to_owned());
    }
    if more.is_some() {
        return Err("more than one parameter in a segment".to_owned());
    }
    Ok(if is_rest { Segment::Rest { prefix } } else { Segment::Param { prefix, suffix } })
}

/// Parses the fixed text at the start of `text`. Returns it, and what follows the opening brace
/// after it.
fn parse_literal(text: &str) -> Result<(Box<str>, Option<&str>), String> {
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
            None => return Err("`}` without `{`".to_owned()),
        }
    }
    fixed.push_str(rest);
    Ok((fixed.into(), None))
}

/// A matching path, with `x` for each parameter, because `x` cannot complete an escape or a dot
/// segment.
fn example_path(segments: &[Segment]) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        match segment {
            Segment::Fixed(text) => path.push_str(text),
            Segment::Param { prefix, suffix } => path.extend([prefix, "x", suffix]),
            Segment::Rest { prefix } => path.extend([prefix, "x"]),
            Segment::Below => path.push('x'),
        }
    }
    path
}

/// True if a request's path can contain `c` unescaped: RFC 3986, and characters that browsers send.
fn is_request_path_char(c: char) -> bool {
    c.is_ascii_graphic() && !matches!(c, '?' | '#' | '<' | '>' | '\\')
}

/// `text`, truncated for an error message.
fn truncate(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
