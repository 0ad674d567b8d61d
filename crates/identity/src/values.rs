//! The parts of a key for display. They are read as for the hash; secrets are masked.

use std::{fmt, net::IpAddr};

use http::HeaderName;
use tidegate_base::sensitive::is_sensitive_name;

use super::{
    client::mask_address,
    extract::AmbiguousValue,
    key::{ADDRESS_TAG, KeyPart, KeyPlan, PartSink, SCHEME_TAG, Subject},
    token::CredentialSource,
};

/// One part of a key and its value in a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PartValue {
    /// The part as in the configuration, such as `header:x-team`.
    pub part: String,
    /// The value; for a secret only the scheme and the length; empty if the request has none.
    pub value: String,
}

/// The values of a request's key.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyValues {
    /// The parts; empty if all requests share one key.
    pub parts: Vec<PartValue>,
    /// The client's address, if it is counted because all parts that identify a caller are empty.
    pub fallback: Option<IpAddr>,
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
            Self::Consumer => f.write_str("consumer"),
            Self::Plan => f.write_str("plan"),
            Self::Claim(name) => write!(f, "claim:{name}"),
            Self::Json(path) => write!(f, "json:{path}"),
            Self::Descriptor(name) => write!(f, "descriptor:{name}"),
        }
    }
}

impl KeyPlan {
    /// The key of `subject` for display.
    ///
    /// # Errors
    /// A part can be read in more than one way.
    pub fn display_values(&self, subject: &Subject<'_>) -> Result<KeyValues, AmbiguousValue> {
        let mut parts = Vec::new();
        for part in &self.0 {
            let mut sink = DisplaySink::default();
            sink.add_part(part, subject)?;
            let value =
                if is_secret(part, subject.token_sources) { sink.masked() } else { sink.text };
            parts.push(PartValue { part: part.to_string(), value });
        }
        let is_empty = self.read_into(subject, &mut DisplaySink::default())?;
        let fallback = is_empty.then(|| mask_address(subject.client.ip, subject.ipv6_prefix));
        Ok(KeyValues { parts, fallback })
    }
}

fn is_secret(part: &KeyPart, sources: &[CredentialSource]) -> bool {
    let is_token_source = |name: &HeaderName| {
        sources
            .iter()
            .any(|source| matches!(source, CredentialSource::Header(header) if header == name))
    };
    match part {
        KeyPart::Token | KeyPart::Cookie(_) => true,
        KeyPart::Header(name) => is_token_source(name) || is_sensitive_name(name.as_str()),
        KeyPart::Query(name) | KeyPart::Descriptor(name) => is_sensitive_name(name),
        _ => false,
    }
}

/// The text of one part.
#[derive(Default)]
struct DisplaySink {
    scheme: String,
    text: String,
    bytes: usize,
}

impl PartSink for DisplaySink {
    fn put(&mut self, tag: u8, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        match (tag, bytes) {
            (SCHEME_TAG, _) => self.scheme = text.into_owned(),
            (ADDRESS_TAG, [a, b, c, d]) => self.text = IpAddr::from([*a, *b, *c, *d]).to_string(),
            (ADDRESS_TAG, _) => {
                let octets = bytes.first_chunk::<16>();
                self.text =
                    octets.map(|octets| IpAddr::from(*octets).to_string()).unwrap_or_default();
            }
            _ => (self.text, self.bytes) = (text.into_owned(), bytes.len()),
        }
    }
}

impl DisplaySink {
    fn masked(&self) -> String {
        match (&*self.scheme, self.bytes) {
            (_, 0) => String::new(),
            ("", 1) => "*** (1 byte)".to_owned(),
            ("", bytes) => format!("*** ({bytes} bytes)"),
            (scheme, 1) => format!("{scheme} *** (1 byte)"),
            (scheme, bytes) => format!("{scheme} *** ({bytes} bytes)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, Method, header};
    use tidegate_http1::Fields;

    use super::super::{ClientAddress, Consumer};
    use super::*;

    fn key_values(parts: Vec<KeyPart>, headers: &Fields) -> KeyValues {
        let subject = Subject {
            client: ClientAddress::of_peer("2001:db8:1:2:3::4".parse().unwrap()),
            host: "api.example.com",
            method: &Method::GET,
            route: "items",
            path: "/items/5",
            param: &|name| (name == "id").then_some("5"),
            query: Some("page=2&api_key=topsecret"),
            headers,
            token_sources: &[CredentialSource::Header(header::AUTHORIZATION)],
            token_hash: None,
            ipv6_prefix: 64,
            consumer: Some(Consumer::new("acme", Some("gold"))),
            body: None,
            descriptor: &[],
        };
        KeyPlan(parts).display_values(&subject).unwrap()
    }

    #[test]
    fn secrets_are_masked() {
        let mut headers = Fields::new();
        headers.push("authorization", "Bearer topsecret");
        headers.push("cookie", "c=topsecret");
        headers.push("x-team", " payments");
        headers.push("x-api-key", "topsecret");
        let header = |name| KeyPart::Header(HeaderName::from_static(name));
        for (part, name, value) in [
            (KeyPart::ClientIp, "client_ip", "2001:db8:1:2::"),
            (KeyPart::Token, "token", "*** (9 bytes)"),
            (KeyPart::Host, "host", "api.example.com"),
            (KeyPart::Method, "method", "GET"),
            (KeyPart::Route, "route", "items"),
            (KeyPart::Path, "path", "/items/5"),
            (KeyPart::PathParam("id".into()), "path:id", "5"),
            (header("x-team"), "header:x-team", "payments"),
            (header("x-api-key"), "header:x-api-key", "*** (9 bytes)"),
            (header("authorization"), "header:authorization", "*** (9 bytes)"),
            (KeyPart::Cookie("c".into()), "cookie:c", "*** (9 bytes)"),
            (KeyPart::Query("page".into()), "query:page", "2"),
            (KeyPart::Consumer, "consumer", "acme"),
            (KeyPart::Plan, "plan", "gold"),
            (KeyPart::Query("api_key".into()), "query:api_key", "*** (9 bytes)"),
        ] {
            let values = key_values(vec![part], &headers);
            let wanted = PartValue { part: name.to_owned(), value: value.to_owned() };
            assert_eq!(values, KeyValues { parts: vec![wanted], fallback: None });
        }
    }

    #[test]
    fn empty_key_shows_the_fallback_address() {
        let values = key_values(vec![KeyPart::Token, KeyPart::Cookie("c".into())], &Fields::new());
        assert_eq!(values.fallback, Some("2001:db8:1:2::".parse().unwrap()));
        assert!(values.parts.iter().all(|part| part.value.is_empty()));
        let without_parts = key_values(Vec::new(), &Fields::new());
        assert_eq!(without_parts, KeyValues { parts: Vec::new(), fallback: None });
    }
}
