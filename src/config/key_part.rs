use std::fmt;

use super::text::{Text, is_token, text_value};

/// One part of what a limit counts by. A request without it has the empty text in its place.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum KeyPart {
    /// `client_ip`: the client's address, behind trusted proxies the one that they report.
    ClientIp,
    /// `token`: the access token that `client.token` finds.
    Token,
    /// `host`: the host that is asked for.
    Host,
    /// `method`: the method.
    Method,
    /// `route`: the route's name.
    Route,
    /// `path`: the whole path, in normal form.
    Path,
    /// `path:NAME`: what stands for `{NAME}` in the route's path.
    PathParam(String),
    /// `header:NAME`: the header's value; the name in lower case.
    Header(String),
    /// `cookie:NAME`: the cookie's value.
    Cookie(String),
    /// `query:NAME`: the query parameter's value.
    Query(String),
}

impl Text for KeyPart {
    const EXPECTED: &'static str = "client_ip, token, host, method, route, path, path:NAME, header:NAME, cookie:NAME or query:NAME";
    const PATTERN: &'static str = "^(client_ip|token|host|method|route|path|(path|query):.+|(header|cookie):[!#-'*+.0-9A-Z^-z|~-]+)$";

    fn read(text: &str) -> Option<Self> {
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

text_value!(KeyPart);
