//! [`UrlTemplate`]: the location of a redirect.

use super::{Template, TemplateSegment, TemplateValues, Variable};

/// A URL with variables: absolute, or a path. Only `{host}` may be in its host, and each value is
/// encoded for its part of the URL.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UrlTemplate {
    segments: Box<[(TemplateSegment, UrlPart)]>,
}

/// The part of a URL.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum UrlPart {
    Authority,
    Path,
    /// The query or the fragment.
    Query,
}

impl UrlTemplate {
    /// Parses a URL that starts with `http://`, `https://`, `{scheme}://` or `/`.
    ///
    /// # Errors
    /// What is wrong: the start, a character that a URL cannot have, or a variable other than
    /// `{host}` in the host.
    pub fn parse(text: &str) -> Result<Self, String> {
        let template = Template::parse(text)?;
        let is_url_byte =
            |c: char| c.is_ascii_graphic() && !matches!(c, '<' | '>' | '"' | '\\' | '`');
        let mut fixed = template.segments().iter().filter_map(|segment| match segment {
            TemplateSegment::Text(text) => Some(text),
            TemplateSegment::Variable(_) => None,
        });
        if let Some(other) = fixed.find_map(|text| text.chars().find(|c| !is_url_byte(*c))) {
            return Err(format!("`{}` in a URL", other.escape_debug()));
        }
        let mut after_scheme = ["http://", "https://", "{scheme}://"].into_iter();
        let authority = after_scheme.find_map(|scheme| text.strip_prefix(scheme));
        let is_path =
            text.starts_with('/') && !text.starts_with("//") || text.starts_with("{path}");
        let mut place = match authority {
            Some(authority) if !authority.is_empty() && !authority.starts_with(['/', '?', '#']) => {
                UrlPart::Authority
            }
            None if is_path => UrlPart::Path,
            _ => return Err("not a URL".to_owned()),
        };
        let mut segments: Vec<(TemplateSegment, UrlPart)> = Vec::new();
        for (index, segment) in template.segments().iter().enumerate() {
            match segment {
                TemplateSegment::Text(text) => {
                    segments.push((segment.clone(), place));
                    // The scheme's own slashes do not end the host.
                    let host = match text.split_once("://") {
                        Some((_, host)) if index == 0 || segments.len() == 2 => host,
                        _ => text,
                    };
                    let authority = host.split(['/', '?', '#']).next().unwrap_or_default();
                    if place == UrlPart::Authority && authority.contains('@') {
                        return Err("`@` in the host of a URL".to_owned());
                    }
                    if place == UrlPart::Authority && host.contains(['/', '?', '#']) {
                        place = UrlPart::Path;
                    }
                    if place == UrlPart::Path && text.contains(['?', '#']) {
                        place = UrlPart::Query;
                    }
                }
                TemplateSegment::Variable(variable) => {
                    if place == UrlPart::Authority {
                        match variable {
                            Variable::Scheme if index == 0 => {}
                            Variable::Host => {}
                            Variable::Path => place = UrlPart::Path,
                            other => return Err(format!("`{other}` in the host of a URL")),
                        }
                    }
                    segments.push((segment.clone(), place));
                }
            }
        }
        Ok(Self { segments: segments.into() })
    }

    /// The variables, in their order.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.segments.iter().filter_map(|(segment, _)| match segment {
            TemplateSegment::Text(_) => None,
            TemplateSegment::Variable(variable) => Some(variable),
        })
    }

    /// The URL for one request. `None` if the URL needs the request's host and the request has
    /// none.
    pub fn render(&self, values: &TemplateValues<'_>) -> Option<String> {
        let mut url = Vec::with_capacity(128);
        for (segment, place) in &self.segments {
            let variable = match segment {
                TemplateSegment::Text(text) => {
                    url.extend_from_slice(text.as_bytes());
                    continue;
                }
                TemplateSegment::Variable(variable) => variable,
            };
            if values.host.is_empty() && *variable == Variable::Host && *place == UrlPart::Authority
            {
                return None;
            }
            let start = url.len();
            variable.read(values, &mut |piece| push_encoded(&mut url, piece, variable, *place));
            // An empty query leaves no question mark.
            if *variable == Variable::Query && url.len() == start && url.ends_with(b"?") {
                url.pop();
            }
        }
        // Empty values may leave several slashes at the start. Only one is kept: after `//`, a URL
        // has its host.
        let slashes = url.iter().take_while(|byte| **byte == b'/').count();
        url.drain(..slashes.saturating_sub(1));
        // Text and encoded values are ASCII.
        String::from_utf8(url).ok()
    }
}

/// Appends a part of a variable's value, encoded for its place.
fn push_encoded(url: &mut Vec<u8>, value: &[u8], variable: &Variable, place: UrlPart) {
    let mut value = value;
    if place == UrlPart::Path {
        // A URL that starts with `//` has a host.
        while value.starts_with(b"/")
            && (url.as_slice() == b"/" || value.starts_with(b"//") && url.is_empty())
        {
            value = &value[1..];
        }
    }
    // Paths and queries are encoded already, as the client sent them.
    let is_encoded = matches!(variable, Variable::Path | Variable::PathParam(_) | Variable::Query);
    for byte in value {
        let is_unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
        let is_kept = match (place, variable) {
            (UrlPart::Authority, _) | (_, Variable::Host) => byte.is_ascii_graphic(),
            (UrlPart::Path, Variable::Path | Variable::PathParam(_)) => {
                byte.is_ascii_graphic() && !b"?#\\<>\"".contains(byte)
            }
            (UrlPart::Query, Variable::Query) => {
                byte.is_ascii_graphic() && !b"#\\<>\"".contains(byte)
            }
            _ => is_unreserved || *byte == b'%' && is_encoded,
        };
        if is_kept {
            url.push(*byte);
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            url.extend_from_slice(&[
                b'%',
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ]);
        }
    }
}
