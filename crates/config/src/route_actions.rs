//! Parts of a route: matched values, redirects, decisions, and changes of headers and `Host`.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tidegate_scalar::{ScalarValue, impl_scalar};
use tidegate_usage::Preset;

use super::status::Status;

/// Redirects clients to another URL.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RedirectConfig {
    /// URL, such as `https://new.example.com/items/{path.id}`, or a path. It may contain the
    /// variables of `headers`.
    pub to: String,
    /// Status code: 301, 302, 303, 307 or 308.
    #[serde(default = "RedirectConfig::default_status")]
    pub status: Status,
}

impl RedirectConfig {
    fn default_status() -> Status {
        Status(308)
    }
}

/// Answers to other proxies that ask if they may forward a request.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DecideConfig {
    /// Status of a refusal: 429 leaves every refusal its own status; 403 replaces every status but
    /// 401 by 403, with the own one in `X-Tidegate-Status`, for proxies such as nginx that accept
    /// no other. A head that cannot be read leads to no route, and keeps its own.
    pub refuse_status: Status,
}

impl Default for DecideConfig {
    fn default() -> Self {
        Self { refuse_status: Status(429) }
    }
}

/// Header fields that a route changes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RouteHeaders {
    /// Changes to the request that is forwarded to the upstream.
    pub request: HeaderRulesConfig,
    /// Changes to the response to the client, including the gateway's own responses.
    pub response: HeaderRulesConfig,
}

/// Header fields that are changed, set, added and removed. Values may contain the variables
/// `{client_ip}`, `{host}`, `{method}`, `{scheme}`, `{request_id}`, `{route}`, `{path}`, `{query}`,
/// `{consumer}`, `{plan}`, `{claim.NAME}`, `{path.NAME}` and `{header.NAME}` of the request; `{{`
/// and `}}` are literal braces. A field with an empty value is not written.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HeaderRulesConfig {
    /// Fields to set, each with its value: it replaces all fields of the same name. Values may
    /// contain variables such as `{client_ip}`.
    pub set: BTreeMap<String, String>,
    /// Fields to add, each with its value: fields of the same name stay.
    pub add: BTreeMap<String, String>,
    /// Names of the fields to remove.
    pub remove: Vec<String>,
    /// Fields whose values are changed where a pattern matches, before `set` and `add`: each field
    /// of the name as the client or the server sent it.
    pub replace: BTreeMap<String, HeaderReplacementConfig>,
}

/// What is replaced in the values of a field. A value that the pattern does not match stays.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HeaderReplacementConfig {
    /// Regular expression, of the syntax of the Rust crate regex for ASCII: every match in a value
    /// is replaced.
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub pattern: String,
    /// Text for a match. `$1` and `$name` are groups of the pattern, `$0` is the match, `$$` a
    /// dollar; if a letter, a digit or `_` follows a group, write `$${1}`. A field whose value
    /// becomes empty is left out.
    pub with: String,
}

/// The form of the path that the upstream receives.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ForwardedPath {
    /// In normal form: as routes match it.
    #[default]
    Normalized,
    /// As the client sent it, byte for byte, for signed URIs and names of objects with `//`, `.` or
    /// `..`. A path that a server could read as one outside of the route is refused with 400.
    AsSent,
    /// In normal form; a request with another form is refused with 400.
    Strict,
}

/// The form of the gateway's own errors, for the clients of an API.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorFormat {
    /// A problem document.
    #[default]
    Problem,
    /// With the `error` that the clients of `OpenAI` show: `message`, `type`, `code`.
    Openai,
    /// With the `error` that the clients of Anthropic show: `message`, `type`.
    Anthropic,
    /// With the `error` that the clients of Gemini show: `message`, `code`, `status`.
    Gemini,
    /// With the members that the clients of Amazon Bedrock show: `message`, `__type`.
    Bedrock,
    /// With the `error` that the clients of Ollama show: a text.
    Ollama,
    /// An error of JSON-RPC 2.0, for MCP, with the problem document in `data`.
    #[serde(rename = "json-rpc")]
    JsonRpc,
}

impl From<Preset> for ErrorFormat {
    fn from(api: Preset) -> Self {
        match api {
            Preset::Openai => Self::Openai,
            Preset::Anthropic => Self::Anthropic,
            Preset::Gemini => Self::Gemini,
            Preset::Bedrock => Self::Bedrock,
            Preset::Ollama => Self::Ollama,
        }
    }
}

/// `Host` of a forwarded request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum HostHeader {
    /// `preserve`: the `Host` of the client's request.
    #[default]
    Preserve,
    /// `upstream`: the host and port of the chosen target.
    Upstream,
    /// A fixed host.
    Name(String),
}

impl ScalarValue for HostHeader {
    const EXPECTED: &'static str = "preserve, upstream, or a host such as api.example.com";
    const PATTERN: &'static str = "^[A-Za-z0-9_.:\\[\\]-]+$";
    const EXAMPLE: &'static str = "preserve";

    fn parse(text: &str) -> Option<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte);
        match text {
            "preserve" => Some(Self::Preserve),
            "upstream" => Some(Self::Upstream),
            _ if text.is_empty() || !text.bytes().all(is_allowed) => None,
            _ => Some(Self::Name(text.to_owned())),
        }
    }
}

impl fmt::Display for HostHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Preserve => "preserve",
            Self::Upstream => "upstream",
            Self::Name(name) => name,
        })
    }
}

impl_scalar!(HostHeader);

/// The value of a header or query parameter that a route matches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MatchValue {
    /// Exactly this text.
    Text(String),
    /// True if the request must have it, with any value; false if it must not.
    Sent(bool),
}

/// The accepted values, for faults and the schema.
pub(super) const MATCH_SYNTAX: &str = "text, in quotes if it is a number such as \"2\"; true if it must be sent, false if it must not be";

impl<'de> Deserialize<'de> for MatchValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MatchVisitor;

        impl Visitor<'_> for MatchVisitor {
            type Value = MatchValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(MATCH_SYNTAX)
            }

            fn visit_bool<E: Error>(self, is_sent: bool) -> Result<MatchValue, E> {
                Ok(MatchValue::Sent(is_sent))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<MatchValue, E> {
                Ok(MatchValue::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(MatchVisitor)
    }
}

impl Serialize for MatchValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Sent(is_sent) => serializer.serialize_bool(*is_sent),
        }
    }
}
