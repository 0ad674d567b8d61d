//! [`CompactToken`]: a token before it is verified.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tidegate_config::JwtAlgorithm;

use super::json::JsonObject;

/// Maximum length of a token, in bytes.
pub const MAX_TOKEN: usize = 16 * 1024;

/// A signed token in the compact serialization of RFC 7515, 7.1, whose signature was not verified.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactToken<'t> {
    /// What is signed: the header and the claims as they were sent.
    pub signed: &'t [u8],
    /// What the header says.
    pub header: JwtHeader,
    /// The claims, decoded. They mean nothing before the signature is verified.
    pub payload: Vec<u8>,
    /// The signature, decoded.
    pub signature: Vec<u8>,
}

/// The parts of a token's header that are used. Keys in a header, and URLs of keys (`jwk`, `jku`,
/// `x5c`, `x5u`), are ignored: an attacker writes them as easily as a valid issuer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JwtHeader {
    /// The algorithm.
    pub algorithm: JwtAlgorithm,
    /// The name of the key.
    pub key_id: Option<String>,
}

/// Why a text is no token.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CompactTokenError {
    /// It is too long.
    #[error("longer than {MAX_TOKEN} bytes")]
    TooLong,
    /// It has another number of parts than three.
    #[error("not three parts that dots separate")]
    Parts,
    /// A part is not base64url without padding.
    #[error("a part is not base64url")]
    Base64,
    /// The header is no JSON object, or has a name twice.
    #[error("the header is not a JSON object without duplicate names")]
    Header,
    /// The algorithm is missing, unknown, or `none`.
    #[error("the algorithm is missing or not supported")]
    Algorithm,
    /// The header has extensions that must be understood (`crit`, `b64`).
    #[error("the header has extensions that are not supported")]
    Critical,
    /// The type is another one than that of a JWT.
    #[error("the type is not that of a JWT")]
    Type,
    /// The name of the key is no text.
    #[error("the name of the key is not a text")]
    KeyId,
}

impl<'t> CompactToken<'t> {
    /// Reads a token.
    ///
    /// # Errors
    ///
    /// It is none, or has a header that is not supported.
    pub fn parse(text: &'t [u8]) -> Result<Self, CompactTokenError> {
        let [header, payload, signature] = parts(text)?;
        let header = JwtHeader::read(&decode(header)?)?;
        let signed = &text[..text.len() - signature.len() - 1];
        Ok(Self { signed, header, payload: decode(payload)?, signature: decode(signature)? })
    }
}

/// The claims of a token, which were not verified; `None` if it is malformed. Only for the choice
/// of the method that verifies it.
pub(super) fn unverified_claims(text: &[u8]) -> Option<JsonObject> {
    let [_, payload, _] = parts(text).ok()?;
    JsonObject::parse(&decode(payload).ok()?).ok()
}

/// The three parts of a token, encoded.
fn parts(text: &[u8]) -> Result<[&[u8]; 3], CompactTokenError> {
    if text.len() > MAX_TOKEN {
        return Err(CompactTokenError::TooLong);
    }
    let mut parts = text.split(|byte| *byte == b'.');
    match [parts.next(), parts.next(), parts.next(), parts.next()] {
        [Some(header), Some(payload), Some(signature), None] => Ok([header, payload, signature]),
        _ => Err(CompactTokenError::Parts),
    }
}

/// Decodes base64url. Padding, other characters and unused bits that are set are refused, so that a
/// token has one spelling.
pub(super) fn decode(text: &[u8]) -> Result<Vec<u8>, CompactTokenError> {
    URL_SAFE_NO_PAD.decode(text).map_err(|_| CompactTokenError::Base64)
}

impl JwtHeader {
    fn read(json: &[u8]) -> Result<Self, CompactTokenError> {
        let header = JsonObject::parse(json).map_err(|_| CompactTokenError::Header)?;
        // RFC 7515, 4.1.11: who does not understand all of them refuses the token. RFC 7797 adds
        // `b64`.
        if header.has("crit") || header.has("b64") {
            return Err(CompactTokenError::Critical);
        }
        if header.has("typ") && !header.text("typ").is_some_and(is_jwt_type) {
            return Err(CompactTokenError::Type);
        }
        let algorithm = header.text("alg").and_then(JwtAlgorithm::of_name);
        let algorithm = algorithm.ok_or(CompactTokenError::Algorithm)?;
        let key_id = match header.get("kid") {
            None => None,
            Some(id) => Some(id.as_text().ok_or(CompactTokenError::KeyId)?.to_owned()),
        };
        Ok(Self { algorithm, key_id })
    }
}

/// True for `JWT`, and `at+jwt` of access tokens (RFC 9068), as media types in any case.
fn is_jwt_type(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    matches!(lower.strip_prefix("application/").unwrap_or(&lower), "jwt" | "at+jwt")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(header: &str, payload: &str, signature: &[u8]) -> String {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (header, payload) = (encode(header.as_bytes()), encode(payload.as_bytes()));
        format!("{header}.{payload}.{}", encode(signature))
    }

    fn error(header: &str) -> Option<CompactTokenError> {
        CompactToken::parse(token(header, "{}", b"s").as_bytes()).err()
    }

    #[test]
    fn the_parts_are_decoded() {
        let text = token(r#"{"alg":"ES256","kid":"../../etc/passwd","jku":"x"}"#, "{}", b"sig");
        let read = CompactToken::parse(text.as_bytes()).unwrap();
        assert_eq!(read.header.algorithm, JwtAlgorithm::Es256);
        assert_eq!(read.header.key_id.as_deref(), Some("../../etc/passwd"), "a name, not a path");
        assert_eq!((&*read.payload, &*read.signature), (&b"{}"[..], &b"sig"[..]));
        assert_eq!(read.signed, &text.as_bytes()[..text.rfind('.').unwrap()]);
    }

    #[test]
    fn headers_that_are_not_supported_are_refused() {
        for header in [
            r#"{"alg":"RS256"}"#,
            r#"{"alg":"RS256","typ":"JWT"}"#,
            r#"{"alg":"RS256","typ":"application/AT+jwt"}"#,
            r#"{"alg":"Ed25519","jwk":{"kty":"oct"},"x5u":"http://a","x5c":["a"]}"#,
        ] {
            assert_eq!(error(header), None, "{header}");
        }
        for (header, expected) in [
            ("{", CompactTokenError::Header),
            ("[]", CompactTokenError::Header),
            (r#"{"alg":"RS256","alg":"RS256"}"#, CompactTokenError::Header),
            ("{}", CompactTokenError::Algorithm),
            (r#"{"alg":"none"}"#, CompactTokenError::Algorithm),
            (r#"{"alg":"nOnE"}"#, CompactTokenError::Algorithm),
            (r#"{"alg":["RS256"]}"#, CompactTokenError::Algorithm),
            (r#"{"alg":"RS256","crit":["exp"]}"#, CompactTokenError::Critical),
            (r#"{"alg":"RS256","crit":null}"#, CompactTokenError::Critical),
            (r#"{"alg":"RS256","b64":false}"#, CompactTokenError::Critical),
            (r#"{"alg":"RS256","typ":"dpop+jwt"}"#, CompactTokenError::Type),
            (r#"{"alg":"RS256","typ":["JWT"]}"#, CompactTokenError::Type),
            (r#"{"alg":"RS256","kid":1}"#, CompactTokenError::KeyId),
        ] {
            assert_eq!(error(header), Some(expected), "{header}");
        }
    }

    #[test]
    fn another_form_is_refused() {
        let good = token(r#"{"alg":"RS256"}"#, "{}", b"sig");
        let parse = |text: &str| CompactToken::parse(text.as_bytes()).map(|_| ());
        assert_eq!(parse(&good), Ok(()));
        for (text, error) in [
            (String::new(), CompactTokenError::Parts),
            ("a.b".to_owned(), CompactTokenError::Parts),
            (format!("{good}."), CompactTokenError::Parts),
            (format!("{good}.e.f"), CompactTokenError::Parts),
            (format!("{good}="), CompactTokenError::Base64),
            (good.replacen("e30", "e31", 1), CompactTokenError::Base64),
            (good.replacen("e30", "e3 0", 1), CompactTokenError::Base64),
            (good.replacen("e30", "e3+", 1), CompactTokenError::Base64),
            (format!("{good}{}", "A".repeat(MAX_TOKEN)), CompactTokenError::TooLong),
        ] {
            assert_eq!(parse(&text), Err(error), "{text:.80}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = CompactToken::parse(&bytes);
        }

        #[test]
        fn a_token_has_one_spelling(
            signature in prop::collection::vec(any::<u8>(), 1..70), at in any::<prop::sample::Index>(), other: u8,
        ) {
            let good = token(r#"{"alg":"RS256"}"#, "{}", &signature);
            let mut changed = good.clone().into_bytes();
            let at = at.index(changed.len());
            changed[at] = other;
            let (one, two) = (CompactToken::parse(good.as_bytes()), CompactToken::parse(&changed));
            let one = one.unwrap();
            let is_other = |two: &CompactToken<'_>| {
                two.signed != one.signed || two.signature != one.signature
            };
            prop_assert!(changed == good.as_bytes() || two.is_ok_and(|two| is_other(&two)) || CompactToken::parse(&changed).is_err());
        }
    }
}
