//! [`ChallengeResponse`]: what a gateway responds to an authority that checks a domain, and its
//! text in Redis.

use std::fmt;

/// The longest text, in bytes.
const MAX_LEN: usize = 2_048;

/// A response.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum ChallengeResponse {
    /// The body for a token of `http-01` (RFC 8555, 8.3).
    Token {
        /// The token, in base64url.
        token: Box<str>,
        /// The token, a dot and the digest of the account's key.
        key_authorization: Box<str>,
    },
    /// The handshake of `tls-alpn-01` (RFC 8737).
    Handshake {
        /// The domain, in lower case.
        domain: Box<str>,
        /// The SHA-256 of the key authorization.
        digest: [u8; 32],
    },
}

impl ChallengeResponse {
    /// The handshake for `domain`; `None` if `digest` has another length.
    pub(super) fn handshake(domain: &str, digest: &[u8]) -> Option<Self> {
        let domain = domain.to_ascii_lowercase().into();
        Some(Self::Handshake { domain, digest: digest.try_into().ok()? })
    }

    /// Reads what [`fmt::Display`] wrote.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok().filter(|text| text.len() <= MAX_LEN)?;
        let mut words = text.split(' ');
        let (kind, name, proof) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || name.is_empty() {
            return None;
        }
        let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        match kind {
            "http-01" => {
                let (token, digest) = proof.split_once('.')?;
                let is_proof = token == name && token.bytes().chain(digest.bytes()).all(is_base64);
                is_proof
                    .then(|| Self::Token { token: name.into(), key_authorization: proof.into() })
            }
            "tls-alpn-01" => {
                let is_name = |byte: u8| is_base64(byte) || byte == b'.';
                let mut digest = [0; 32];
                if proof.len() != 64 || !proof.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return None;
                }
                for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
                    *byte = u8::from_str_radix(proof.get(at..at + 2)?, 16).ok()?;
                }
                let is_domain = name.bytes().all(is_name);
                is_domain
                    .then(|| Self::Handshake { domain: name.to_ascii_lowercase().into(), digest })
            }
            _ => None,
        }
    }
}

impl fmt::Display for ChallengeResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token { token, key_authorization } => {
                write!(f, "http-01 {token} {key_authorization}")
            }
            Self::Handshake { domain, digest } => {
                write!(f, "tls-alpn-01 {domain} ")?;
                digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_response_is_none() {
        let digest = "0b".repeat(32);
        for good in ["http-01 a-_1 a-_1.b".to_owned(), format!("tls-alpn-01 a.test {digest}")] {
            assert_eq!(ChallengeResponse::parse(good.as_bytes()).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "http-01",
            "http-01 a",
            "http-01  .b",
            "http-01 a b.c",
            "http-01 a a.b c",
            "http-01 a a.<b>",
            "dns-01 a a.b",
            "tls-alpn-01 a.test 0b",
            &format!("tls-alpn-01 a/test {digest}"),
            &format!("tls-alpn-01 a.test {}é", &digest[..62]),
            &format!("http-01 a a.{}", "b".repeat(MAX_LEN)),
        ] {
            assert_eq!(ChallengeResponse::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(ChallengeResponse::handshake("a.test", &[0; 31]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(ChallengeResponse::parse(&text), None);
        }

        #[test]
        fn a_response_is_read_as_it_was_written(
            token in "[A-Za-z0-9_-]{1,60}", thumb in "[A-Za-z0-9_-]{1,60}",
            domain in "[a-z0-9.-]{1,60}", digest: [u8; 32],
        ) {
            let key_authorization = format!("{token}.{thumb}").into();
            let token = ChallengeResponse::Token { token: token.into(), key_authorization };
            for own in [token, ChallengeResponse::Handshake { domain: domain.into(), digest }] {
                prop_assert_eq!(ChallengeResponse::parse(own.to_string().as_bytes()), Some(own));
            }
        }
    }
}
