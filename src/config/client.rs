use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::text::{Text, is_token, text_value};
use super::units::Cidr;

/// Who is asking.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Client {
    /// The proxies in front of the gateway: only these may say who the client is
    /// (X-Forwarded-For, read right to left).
    pub trusted_proxies: Vec<Cidr>,
    /// IPv6 clients are counted by their first so many bits.
    #[schemars(range(min = 1, max = 128))]
    pub ipv6_prefix: u8,
    /// Where an access token is. Of several that are present each is counted.
    pub token: Vec<TokenSource>,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            trusted_proxies: Vec::new(),
            ipv6_prefix: 64,
            token: vec![TokenSource::Header("authorization".to_owned())],
        }
    }
}

/// A place in a request where an access token may be.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum TokenSource {
    /// The value of this header; the name in lower case.
    Header(String),
    /// The value of this cookie.
    Cookie(String),
}

impl Text for TokenSource {
    const EXPECTED: &'static str = "header:NAME or cookie:NAME";
    const PATTERN: &'static str = "^(header|cookie):[!#-'*+.0-9A-Z^-z|~-]+$";

    fn read(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("header", name) if is_token(name) => Some(Self::Header(name.to_ascii_lowercase())),
            ("cookie", name) if is_token(name) => Some(Self::Cookie(name.to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
        }
    }
}

text_value!(TokenSource);
