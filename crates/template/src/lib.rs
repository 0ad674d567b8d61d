//! Texts with variables of a request, such as `{client_ip}`, and what routes write with them:
//! header fields, the location of a redirect, and the rewritten path. Pure.
//!
//! A text is parsed when the configuration is loaded. Writing it appends to the output and
//! allocates nothing else. A variable never adds a control character, and cannot change another
//! part of a URL or path.
//!
//! It has no loops, conditions or functions, and reads nothing but the values that it is given.
//!
//! | file | content |
//! |---|---|
//! | `lib` | [`Template`]: the syntax; [`Variable`], [`TemplateValues`] |
//! | `header_rules` | [`HeaderRules`]: header fields that are changed, set, added and removed |
//! | `replacement` | [`Replacement`]: a pattern, and the text for its matches in the value of a field |
//! | `url` | [`UrlTemplate`]: the location of a redirect |
//! | `path` | [`PathTemplate`]: a rewritten path |
//!
//! ```
//! use tidegate_template::{Template, TemplateValues};
//!
//! let template = Template::parse("{route}: {path.id} of {host}").unwrap();
//! let values =
//!     TemplateValues { route: "items", host: "a.test", params: &[("id", "7")], ..TemplateValues::default() };
//! let mut out = Vec::new();
//! template.write_value(&values, &mut out);
//! assert_eq!(out, b"items: 7 of a.test");
//! ```

mod header_rules;
mod path;
mod replacement;
mod url;

use std::{fmt, io::Write as _, net::IpAddr};

use http::HeaderName;

pub use self::{
    header_rules::{HeaderRules, MessageReplacements, is_framing_field},
    path::PathTemplate,
    replacement::{ReplacedPattern, ReplacedValue, Replacement},
    url::UrlTemplate,
};
use tidegate_http1::Fields;
use tidegate_identity::Consumer;

/// The variables, for messages.
pub const VARIABLES: &str = "{client_ip}, {host}, {method}, {scheme}, {request_id}, {route}, {path}, {query}, \
     {consumer}, {plan}, {claim.NAME}, {path.NAME} or {header.NAME}; `{{` and `}}` are braces";

/// A value of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Variable {
    /// The client's address, behind trusted proxies.
    ClientIp,
    /// The requested host, in lower case and without port.
    Host,
    /// The method.
    Method,
    /// `http` or `https`, as the client sent the request.
    Scheme,
    /// The request's id.
    RequestId,
    /// The route's name.
    Route,
    /// The path in normal form.
    Path,
    /// The query as sent, without the question mark.
    Query,
    /// The name of the consumer; empty without one.
    Consumer,
    /// The name of the consumer's plan; empty without one.
    Plan,
    /// A claim of the consumer's token; empty without it.
    Claim(Box<str>),
    /// A parameter of the route's path.
    PathParam(Box<str>),
    /// The values of a request's header, separated by commas.
    Header(HeaderName),
}

/// A part of a template.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum TemplateSegment {
    Text(Box<str>),
    Variable(Variable),
}

/// A text with variables.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Template {
    segments: Box<[TemplateSegment]>,
}

/// The values of the variables for one request.
#[derive(Clone, Copy, Debug)]
pub struct TemplateValues<'r> {
    /// The client's address.
    pub client_ip: IpAddr,
    /// The requested host.
    pub host: &'r str,
    /// The method.
    pub method: &'r str,
    /// `http` or `https`.
    pub scheme: &'r str,
    /// The request's id.
    pub request_id: &'r [u8],
    /// The route's name.
    pub route: &'r str,
    /// The path in normal form.
    pub path: &'r str,
    /// The query.
    pub query: Option<&'r str>,
    /// The parameters of the path.
    pub params: &'r [(&'r str, &'r str)],
    /// Who sends the request, if that is known.
    pub consumer: Option<Consumer<'r>>,
    /// The request's headers.
    pub headers: Option<&'r Fields>,
}

impl Default for TemplateValues<'_> {
    fn default() -> Self {
        Self {
            client_ip: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            host: "",
            method: "",
            scheme: "",
            request_id: b"",
            route: "",
            path: "/",
            query: None,
            params: &[],
            consumer: None,
            headers: None,
        }
    }
}

impl Variable {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "client_ip" => Self::ClientIp,
            "host" => Self::Host,
            "method" => Self::Method,
            "scheme" => Self::Scheme,
            "request_id" => Self::RequestId,
            "route" => Self::Route,
            "path" => Self::Path,
            "query" => Self::Query,
            "consumer" => Self::Consumer,
            "plan" => Self::Plan,
            _ => match name.split_once('.')? {
                ("path", name) if !name.is_empty() => Self::PathParam(name.into()),
                ("claim", name) if !name.is_empty() => Self::Claim(name.into()),
                ("header", name) => Self::Header(name.parse().ok()?),
                _ => return None,
            },
        })
    }

    /// True if the client can choose the value.
    pub fn is_chosen_by_client(&self) -> bool {
        match self {
            Self::Host
            | Self::Method
            | Self::Path
            | Self::Query
            | Self::PathParam(_)
            | Self::Header(_) => true,
            Self::ClientIp
            | Self::Scheme
            | Self::RequestId
            | Self::Route
            | Self::Consumer
            | Self::Plan
            | Self::Claim(_) => false,
        }
    }

    /// Calls `push` with each piece of the value.
    fn read(&self, values: &TemplateValues<'_>, push: &mut impl FnMut(&[u8])) {
        match self {
            Self::ClientIp => {
                let mut text = [0; 48];
                let mut left = &mut text[..];
                // Never fails: an address has at most 45 bytes.
                let _ = write!(left, "{}", values.client_ip);
                let length = 48 - left.len();
                push(&text[..length]);
            }
            Self::Host => push(values.host.as_bytes()),
            Self::Method => push(values.method.as_bytes()),
            Self::Scheme => push(values.scheme.as_bytes()),
            Self::RequestId => push(values.request_id),
            Self::Route => push(values.route.as_bytes()),
            Self::Path => push(values.path.as_bytes()),
            Self::Query => push(values.query.unwrap_or_default().as_bytes()),
            Self::Consumer => {
                let name = values.consumer.map(|consumer| consumer.name);
                push(name.unwrap_or_default().as_bytes());
            }
            Self::Plan => {
                let plan = values.consumer.and_then(|consumer| consumer.plan);
                push(plan.unwrap_or_default().as_bytes());
            }
            Self::Claim(name) => {
                let claim = values.consumer.and_then(|consumer| consumer.claim(name));
                push(claim.unwrap_or_default().as_bytes());
            }
            Self::PathParam(name) => {
                let param = values.params.iter().find(|(param, _)| *param == &**name);
                push(param.map_or("", |(_, value)| value).as_bytes());
            }
            Self::Header(name) => {
                let lines = values.headers.into_iter().flat_map(|fields| fields.get_all(name));
                for (index, line) in lines.enumerate() {
                    if index > 0 {
                        push(b", ");
                    }
                    push(line);
                }
            }
        }
    }
}

/// As in a template, with its braces.
impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("{client_ip}"),
            Self::Host => f.write_str("{host}"),
            Self::Method => f.write_str("{method}"),
            Self::Scheme => f.write_str("{scheme}"),
            Self::RequestId => f.write_str("{request_id}"),
            Self::Route => f.write_str("{route}"),
            Self::Path => f.write_str("{path}"),
            Self::Query => f.write_str("{query}"),
            Self::Consumer => f.write_str("{consumer}"),
            Self::Plan => f.write_str("{plan}"),
            Self::Claim(name) => write!(f, "{{claim.{name}}}"),
            Self::PathParam(name) => write!(f, "{{path.{name}}}"),
            Self::Header(name) => write!(f, "{{header.{name}}}"),
        }
    }
}

/// As it is written in the configuration.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.segments.iter().try_for_each(|segment| match segment {
            TemplateSegment::Text(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}")),
            TemplateSegment::Variable(variable) => variable.fmt(f),
        })
    }
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// What is wrong: a control character, an unbalanced brace, or an unknown variable.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(control) = text.chars().find(|c| c.is_control()) {
            return Err(format!("the control character `{}`", control.escape_debug()));
        }
        let (mut segments, mut fixed, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            fixed.push_str(before);
            let brace = &from[..1];
            if let Some(after) = from[1..].strip_prefix(brace) {
                fixed.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err("`}` without `{`".to_owned());
            }
            let Some((name, after)) = from[1..].split_once('}') else {
                return Err("`{` without `}`".to_owned());
            };
            let variable = Variable::parse(name).ok_or_else(|| {
                let shown: String = name.chars().take(40).collect();
                format!("unknown variable `{{{shown}}}`")
            })?;
            if !fixed.is_empty() {
                segments.push(TemplateSegment::Text(std::mem::take(&mut fixed).into()));
            }
            segments.push(TemplateSegment::Variable(variable));
            rest = after;
        }
        fixed.push_str(rest);
        if !fixed.is_empty() {
            segments.push(TemplateSegment::Text(fixed.into()));
        }
        Ok(Self { segments: segments.into() })
    }

    /// The variables, in their order.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.segments.iter().filter_map(|segment| match segment {
            TemplateSegment::Text(_) => None,
            TemplateSegment::Variable(variable) => Some(variable),
        })
    }

    pub(crate) fn segments(&self) -> &[TemplateSegment] {
        &self.segments
    }

    /// Appends the value of a header field. A control character in a variable, such as a tab in a
    /// header, becomes a space.
    pub fn write_value(&self, values: &TemplateValues<'_>, out: &mut Vec<u8>) {
        for segment in &self.segments {
            match segment {
                TemplateSegment::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplateSegment::Variable(variable) => {
                    let start = out.len();
                    variable.read(values, &mut |piece| out.extend_from_slice(piece));
                    for byte in &mut out[start..] {
                        if byte.is_ascii_control() {
                            *byte = b' ';
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
