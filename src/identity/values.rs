//! The parts of a key as a person reads them: the same reading as the hash's, and no secret in it.

use std::{fmt, net::IpAddr};

use http::HeaderName;

use super::{
    client::counted,
    key::{ADDRESS, KeyPlan, Part, SCHEME, Sink, Subject},
    reading::Ambiguous,
    token::TokenSource,
};

/// Words in the names of headers, cookies and parameters whose values are not for every eye.
const SECRETIVE: [&str; 7] = ["auth", "cookie", "key", "pass", "secret", "session", "token"];

/// One part of a key, and what a request has for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Value {
    /// The part, as a configuration names it.
    pub part: String,
    /// Its value; of a secret only the scheme and the length; empty where the request has none.
    pub value: String,
}

/// What a request is counted by.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyValues {
    /// The parts; none: everyone is counted together.
    pub parts: Vec<Value>,
    /// The client's address, where it is counted because all parts are empty.
    pub fallback: Option<IpAddr>,
}

impl fmt::Display for Part {
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

impl KeyPlan {
    /// What `subject` is counted by.
    pub fn values(&self, subject: &Subject<'_>) -> Result<KeyValues, Ambiguous> {
        let mut parts = Vec::new();
        for part in &self.0 {
            let mut read = Read::default();
            KeyPlan(vec![part.clone()]).read(subject, &mut read)?;
            let value =
                if is_secret(part, subject.token_sources) { read.masked() } else { read.text };
            parts.push(Value { part: part.to_string(), value });
        }
        let nowhere = self.read(subject, &mut Read::default())?;
        let fallback = nowhere.then(|| counted(subject.client.ip, subject.ipv6_prefix));
        Ok(KeyValues { parts, fallback })
    }
}

fn is_secret(part: &Part, sources: &[TokenSource]) -> bool {
    let secretive = |name: &str| {
        let name = name.to_ascii_lowercase();
        SECRETIVE.iter().any(|word| name.contains(word))
    };
    let source = |name: &HeaderName| {
        sources.iter().any(|source| matches!(source, TokenSource::Header(header) if header == name))
    };
    match part {
        Part::Token | Part::Cookie(_) => true,
        Part::Header(name) => source(name) || secretive(name.as_str()),
        Part::Query(name) => secretive(name),
        _ => false,
    }
}

/// What was read of one part.
#[derive(Default)]
struct Read {
    scheme: String,
    text: String,
    bytes: usize,
}

impl Sink for Read {
    fn put(&mut self, tag: u8, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        match (tag, bytes) {
            (SCHEME, _) => self.scheme = text.into_owned(),
            (ADDRESS, [a, b, c, d]) => self.text = IpAddr::from([*a, *b, *c, *d]).to_string(),
            (ADDRESS, _) => {
                let octets = bytes.first_chunk::<16>();
                self.text =
                    octets.map(|octets| IpAddr::from(*octets).to_string()).unwrap_or_default();
            }
            _ => (self.text, self.bytes) = (text.into_owned(), bytes.len()),
        }
    }
}

impl Read {
    fn masked(&self) -> String {
        match (&*self.scheme, self.bytes) {
            (_, 0) => String::new(),
            ("", bytes) => format!("*** ({bytes} bytes)"),
            (scheme, bytes) => format!("{scheme} *** ({bytes} bytes)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::framing::Fields;
    use http::{HeaderName, Method, header};

    use super::super::ClientAddress;
    use super::*;

    fn values(parts: Vec<Part>, headers: &Fields) -> KeyValues {
        let subject = Subject {
            client: ClientAddress::of_peer("2001:db8:1:2:3::4".parse().unwrap()),
            host: "api.example.com",
            method: &Method::GET,
            route: "items",
            path: "/items/5",
            param: &|name| (name == "id").then_some("5"),
            query: Some("page=2&api_key=topsecret"),
            headers,
            token_sources: &[TokenSource::Header(header::AUTHORIZATION)],
            ipv6_prefix: 64,
        };
        KeyPlan(parts).values(&subject).unwrap()
    }

    #[test]
    fn a_person_reads_the_parts_and_no_secret() {
        let mut headers = Fields::new();
        headers.push("authorization", "Bearer topsecret");
        headers.push("cookie", "c=topsecret");
        headers.push("x-team", " payments");
        headers.push("x-api-key", "topsecret");
        let header = |name| Part::Header(HeaderName::from_static(name));
        for (part, name, value) in [
            (Part::ClientIp, "client_ip", "2001:db8:1:2::"),
            (Part::Token, "token", "*** (9 bytes)"),
            (Part::Host, "host", "api.example.com"),
            (Part::Method, "method", "GET"),
            (Part::Route, "route", "items"),
            (Part::Path, "path", "/items/5"),
            (Part::PathParam("id".into()), "path:id", "5"),
            (header("x-team"), "header:x-team", "payments"),
            (header("x-api-key"), "header:x-api-key", "*** (9 bytes)"),
            (header("authorization"), "header:authorization", "*** (9 bytes)"),
            (Part::Cookie("c".into()), "cookie:c", "*** (9 bytes)"),
            (Part::Query("page".into()), "query:page", "2"),
            (Part::Query("api_key".into()), "query:api_key", "*** (9 bytes)"),
        ] {
            let told = values(vec![part], &headers);
            let wanted = Value { part: name.to_owned(), value: value.to_owned() };
            assert_eq!(told, KeyValues { parts: vec![wanted], fallback: None });
        }
    }

    #[test]
    fn what_stands_in_for_an_empty_key_is_told() {
        let told = values(vec![Part::Token, Part::Cookie("c".into())], &Fields::new());
        assert_eq!(told.fallback, Some("2001:db8:1:2::".parse().unwrap()));
        assert!(told.parts.iter().all(|part| part.value.is_empty()));
        let everyone = values(Vec::new(), &Fields::new());
        assert_eq!(everyone, KeyValues { parts: Vec::new(), fallback: None });
    }
}
