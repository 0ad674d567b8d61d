//! The parts of a request that a limit's `key` is built from.

use std::fmt;

use super::scalar::{ScalarValue, impl_scalar, is_token};

/// One part of a limit's key. A part that the request does not have is the empty string.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum KeyPart {
    /// `client_ip`: the client's address; behind trusted proxies, the address they report.
    ClientIp,
    /// `token`: the access token, from the headers and cookies in `client.token`.
    Token,
    /// `host`: the request's host.
    Host,
    /// `method`: the request's method.
    Method,
    /// `route`: the route's name.
    Route,
    /// `path`: the whole path, normalized.
    Path,
    /// `path:NAME`: the value of `{NAME}` in the route's path.
    PathParam(String),
    /// `header:NAME`: the header's value; the name in lower case.
    Header(String),
    /// `cookie:NAME`: the cookie's value.
    Cookie(String),
    /// `query:NAME`: the query parameter's value.
    Query(String),
}

impl ScalarValue for KeyPart {
    const EXPECTED: &'static str = "client_ip, token, host, method, route, path, path:NAME, header:NAME, cookie:NAME or query:NAME";
    const PATTERN: &'static str = "^(client_ip|token|host|method|route|path|(path|query):.+|(header|cookie):[!#-'*+.0-9A-Z^-z|~-]+)$";
    const EXAMPLE: &'static str = "client_ip";

    fn parse(text: &str) -> Option<Self> {
        Some(match text.split_once(':') {
            None => match text {
                "client_ip" => Self::ClientIp,
                "token" => Self::Token,
                "host" => Self::Host,
                "method" => Self::Method,
                "route" => Self::Route,
                "path" => Self::Path,
                _ => return None,
            },
            Some(("path", name)) if !name.is_empty() => Self::PathParam(name.to_owned()),
            Some(("query", name)) if !name.is_empty() => Self::Query(name.to_owned()),
            Some(("header", name)) if is_token(name) => Self::Header(name.to_ascii_lowercase()),
            Some(("cookie", name)) if is_token(name) => Self::Cookie(name.to_owned()),
            Some(_) => return None,
        })
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("client_ip"),
            Self::Token => f.write_str("token"),
            Self::Host => f.write_str("host"),
            Self::Method => f.write_str("method"),
            Self::Route => f.write_str("route"),
            Self::Path => f.write_str("path"),
            Self::PathParam(name) => write!(f, "path:{name}"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
        }
    }
}

impl_scalar!(KeyPart);
