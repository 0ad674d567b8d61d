//! The values that route conditions test, in the canonical form of key parts.

use std::{borrow::Cow, net::IpAddr};

use http::HeaderName;
use tidegate_http1::Fields;
use tidegate_system::secret::KeySecret;

use super::{
    extract::AmbiguousValue,
    key::{FALLBACK_TAG, KeyHasher, PartSink, SHARE_TAG},
    token::{CredentialSource, Token, header_token, token},
};

/// The canonical value of a header; `None` if it is not sent.
///
/// # Errors
/// It is sent more than once, or can be read in more than one way.
pub fn header_value<'r>(
    headers: &'r Fields,
    name: &HeaderName,
) -> Result<Option<Cow<'r, [u8]>>, AmbiguousValue> {
    Ok(header_token(headers, name)?.map(Token::joined))
}

/// True if the header names a request's origin. Such a header counts only if a trusted proxy sent
/// it.
pub fn is_forwarding_field(name: &HeaderName) -> bool {
    let name = name.as_str().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    name.starts_with("x-forwarded") || matches!(&*name, "forwarded" | "x-real-ip")
}

/// The place of a caller among all callers, from 0 to 99: a keyed hash of its first token, or of
/// its address without a token. An ambiguous token is ignored.
pub fn caller_bucket(
    sources: &[CredentialSource],
    headers: &Fields,
    client: IpAddr,
    ipv6_prefix: u8,
    secret: KeySecret,
) -> u8 {
    let mut hash = KeyHasher::new(secret);
    hash.put(SHARE_TAG, b"");
    match token(sources, headers) {
        Ok(Some(token)) => hash.add_token(&token),
        Ok(None) | Err(_) => hash.add_address(FALLBACK_TAG, client, ipv6_prefix),
    };
    let hash = hash.finish() as u64;
    ((u128::from(hash) * 100) >> 64) as u8
}

#[cfg(test)]
mod tests {
    use http::header;

    use super::*;
    use crate::QueryPairs;

    const SECRET: KeySecret = KeySecret(3, 4);

    fn percentile(lines: &[(&str, &str)], client: &str) -> u8 {
        let sources = [
            CredentialSource::Header(header::AUTHORIZATION),
            CredentialSource::Cookie("session".into()),
        ];
        let headers: Fields = lines.iter().copied().collect();
        caller_bucket(&sources, &headers, client.parse().unwrap(), 64, SECRET)
    }

    #[test]
    fn a_caller_keeps_its_place_whatever_the_spelling_of_its_token() {
        let place = percentile(&[("authorization", "Bearer abc")], "192.0.2.1");
        for line in ["bearer  abc", "abc", "Token token=\"abc\""] {
            let lines = [("authorization", line), ("cookie", "session=x")];
            assert_eq!(percentile(&lines, "192.0.2.2"), place, "{line}");
        }
        let address = percentile(&[], "2001:db8::1");
        assert_eq!(percentile(&[], "2001:db8::2"), address, "one prefix is one caller");
        let ambiguous = [("authorization", "a"), ("authorization", "b")];
        assert_eq!(percentile(&ambiguous, "2001:db8::1"), address);
    }

    #[test]
    fn callers_are_spread_evenly() {
        let mut counts = [0_u32; 100];
        for caller in 0..100_000 {
            let token = format!("token-{caller}");
            counts[usize::from(percentile(&[("authorization", &token)], "192.0.2.1"))] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn values_are_those_of_key_parts() {
        let headers: Fields =
            [("X-Version", " 2\u{a0}"), ("a", "1"), ("a", "1")].into_iter().collect();
        let header = |name| header_value(&headers, &HeaderName::from_static(name));
        assert_eq!(header("x-version").unwrap().as_deref(), Some(&b"2"[..]));
        assert_eq!(header("x-other"), Ok(None));
        assert!(header("a").is_err(), "sent twice");
        let query = |text| QueryPairs::new(Some(text)).value("debug");
        assert_eq!(query("x=1&debug=%31+").unwrap().as_deref(), Some(&b"1"[..]));
        assert_eq!(query("debug").unwrap().as_deref(), Some(&b""[..]));
        assert_eq!(query("x=1"), Ok(None));
        for ambiguous in ["debug=1&debug=2", "debug[]=1", "debug=1;x"] {
            assert!(query(ambiguous).is_err(), "{ambiguous}");
        }
        assert_eq!(QueryPairs::new(None).value("debug"), Ok(None));
    }
}
