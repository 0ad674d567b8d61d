//! Keys from values that an operator enters, as in the admin API and in tier configurations.

use std::{borrow::Cow, net::IpAddr};

use http::header;
use tidegate_system::secret::KeySecret;

use super::{
    canonical::{canonical_host, decoded_cookie_value, strip_matrix_params, trim},
    client,
    credentials::canonical_credentials,
    key::{FALLBACK_TAG, FoundParts, KeyHasher, KeyPart, KeyPlan, PartSink},
    signed,
    token::{CredentialSource, Token},
};

/// The values of a caller's key.
#[derive(Clone, Copy)]
pub struct KeyInput<'a> {
    /// One value for each part of the key, in its order: a token as in its header, an IP address, a
    /// host in any case, a normalized path, decoded parameters and cookies.
    pub values: &'a [&'a str],
    /// The client's address, for a caller whose identifying parts are all empty.
    pub client_ip: Option<&'a str>,
    /// Where access tokens are looked for.
    pub token_sources: &'a [CredentialSource],
    /// The length of the IPv6 prefix that is counted, in bits.
    pub ipv6_prefix: u8,
}

/// Why values are not a valid key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeyInputError {
    /// The number of values is not the number of parts.
    Count,
    /// An address is malformed.
    Address,
    /// Credentials or a signed token have no canonical form.
    Credentials,
    /// All values that identify a caller are empty, and so is the client's address, which would
    /// replace them.
    Empty,
}

impl KeyPlan {
    /// The key of a request with these values, equal to the result of [`KeyPlan::key`].
    ///
    /// # Errors
    /// The values are not a valid key.
    pub fn key_of_input(
        &self,
        input: &KeyInput<'_>,
        secret: KeySecret,
    ) -> Result<u128, KeyInputError> {
        if input.values.len() != self.0.len() {
            return Err(KeyInputError::Count);
        }
        let client = input.client_ip.map(parse_address).transpose()?;
        let mut hash = KeyHasher::new(secret);
        let mut found = FoundParts::default();
        for (part, value) in self.0.iter().zip(input.values) {
            let is_empty = hash.add_input(part, value, input)?;
            found.add(part, is_empty);
        }
        if found.needs_address() {
            let client = client.ok_or(KeyInputError::Empty)?;
            hash.add_address(FALLBACK_TAG, client, input.ipv6_prefix);
        }
        Ok(hash.finish())
    }
}

impl KeyHasher {
    /// Adds one part. Returns true if it is empty.
    fn add_input(
        &mut self,
        part: &KeyPart,
        value: &str,
        input: &KeyInput<'_>,
    ) -> Result<bool, KeyInputError> {
        Ok(match part {
            KeyPart::ClientIp => {
                self.add_address(part.tag(), parse_address(value)?, input.ipv6_prefix)
            }
            KeyPart::Token => self.add_token(&token(value, input.token_sources)?),
            KeyPart::Descriptor(_) => {
                self.add_bytes(part.tag(), trim(value.as_bytes()));
                false
            }
            _ => self.add_bytes(part.tag(), &part.canonical_input(value, input.token_sources)?),
        })
    }
}

impl KeyPart {
    /// The canonical form of an entered `value`, equal to [`KeyPart::value`] for a request that
    /// sends it. A client address is returned as entered.
    ///
    /// # Errors
    /// Credentials have no canonical form.
    pub fn canonical_input<'v>(
        &self,
        value: &'v str,
        sources: &[CredentialSource],
    ) -> Result<Cow<'v, [u8]>, KeyInputError> {
        let bytes = value.as_bytes();
        Ok(match self {
            Self::Token => token(value, sources)?.value,
            Self::Host => canonical_host(value).into_bytes().into(),
            Self::Header(name) if *name == header::HOST => {
                canonical_host(value).into_bytes().into()
            }
            Self::Header(name) if *name == header::AUTHORIZATION => {
                canonical_credentials(bytes).ok_or(KeyInputError::Credentials)?.joined()
            }
            Self::Cookie(_) => cookie(bytes)?,
            Self::Path => strip_matrix_params(value).into_owned().into_bytes().into(),
            Self::Header(_) | Self::PathParam(_) | Self::Query(_) => word(bytes)?,
            Self::ClientIp => bytes.into(),
            Self::Method
            | Self::Route
            | Self::Consumer
            | Self::Plan
            | Self::Claim(_)
            | Self::Json(_)
            | Self::Descriptor(_) => trim(bytes).into(),
        })
    }
}

/// The token in `value`, as [`super::token()`] reads it. With `Authorization` among the sources,
/// `value` may have a scheme.
fn token<'v>(value: &'v str, sources: &[CredentialSource]) -> Result<Token<'v>, KeyInputError> {
    let bytes = value.as_bytes();
    let is_authorization = |source: &CredentialSource| matches!(source, CredentialSource::Header(name) if *name == header::AUTHORIZATION);
    if sources.iter().any(is_authorization) {
        return canonical_credentials(bytes).ok_or(KeyInputError::Credentials);
    }
    let all_cookies = sources.iter().all(|source| matches!(source, CredentialSource::Cookie(_)));
    Ok(Token::plain(if all_cookies { cookie(bytes)? } else { word(bytes)? }))
}

fn word(value: &[u8]) -> Result<Cow<'_, [u8]>, KeyInputError> {
    signed::canonical(trim(value).into()).ok_or(KeyInputError::Credentials)
}

fn cookie(value: &[u8]) -> Result<Cow<'_, [u8]>, KeyInputError> {
    let value = signed::canonical(trim(value).into()).ok_or(KeyInputError::Credentials)?;
    Ok(decoded_cookie_value(value))
}

fn parse_address(value: &str) -> Result<IpAddr, KeyInputError> {
    client::parse_address(value.as_bytes()).ok_or(KeyInputError::Address)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, Method};
    use proptest::prelude::*;
    use tidegate_http1::Fields;

    use super::super::{AmbiguousValue, ClientAddress, Consumer, Subject};
    use super::*;

    const SECRET: KeySecret = KeySecret(3, 4);

    fn sources() -> [CredentialSource; 1] {
        [CredentialSource::Header(header::AUTHORIZATION)]
    }

    fn with_subject<T>(
        headers: &Fields,
        client: &str,
        query: &str,
        read: impl FnOnce(&Subject<'_>) -> T,
    ) -> T {
        read(&Subject {
            client: ClientAddress::of_peer(client.parse().unwrap()),
            host: "api.example.com",
            method: &Method::GET,
            route: "items",
            path: "/items/5;v=1",
            param: &|name| (name == "id").then_some("%35;v=1"),
            query: Some(query),
            headers,
            token_sources: &sources(),
            token_hash: None,
            ipv6_prefix: 64,
            consumer: Some(Consumer::new("acme", Some("gold"))),
            body: None,
            descriptor: &[],
        })
    }

    /// The key of a request with these headers, as the gateway reads it.
    fn try_request_key(
        parts: &[KeyPart],
        headers: &Fields,
        client: &str,
        query: &str,
    ) -> Result<u128, AmbiguousValue> {
        let plan = KeyPlan(parts.to_vec());
        with_subject(headers, client, query, |subject| plan.key(subject, SECRET))
    }

    fn request_key(parts: &[KeyPart], headers: &Fields, client: &str, query: &str) -> u128 {
        try_request_key(parts, headers, client, query).unwrap()
    }

    fn input_key(
        parts: &[KeyPart],
        values: &[&str],
        client_ip: Option<&str>,
    ) -> Result<u128, KeyInputError> {
        let input = KeyInput { values, client_ip, token_sources: &sources(), ipv6_prefix: 64 };
        KeyPlan(parts.to_vec()).key_of_input(&input, SECRET)
    }

    #[test]
    fn entered_parts_have_the_key_of_the_request() {
        let mut headers = Fields::default();
        headers.push("authorization", "Bearer  abc");
        headers.push("cookie", "c=\"1%202\"");
        headers.push("x-team", "a b");
        let parts = [
            (KeyPart::ClientIp, "2001:db8::77"),
            (KeyPart::Token, "bearer abc "),
            (KeyPart::Host, "API.example.com.:80"),
            (KeyPart::Header(header::HOST), "api.example.com"),
            (KeyPart::Header(header::AUTHORIZATION), "token token=\"abc\""),
            (KeyPart::Method, "GET"),
            (KeyPart::Route, "items"),
            (KeyPart::Path, "/items/5"),
            (KeyPart::PathParam("id".into()), "5"),
            (KeyPart::Header(HeaderName::from_static("x-team")), " a b"),
            (KeyPart::Cookie("c".into()), "1 2"),
            (KeyPart::Query("q".into()), "x y"),
            (KeyPart::Consumer, "acme "),
            (KeyPart::Plan, " gold"),
        ];
        let (all, values): (Vec<KeyPart>, Vec<&str>) = parts.into_iter().unzip();
        let key = |parts: &[KeyPart]| request_key(parts, &headers, "2001:db8::1", "q=x+y");
        assert_eq!(input_key(&all, &values, None), Ok(key(&all)));
        for (part, value) in all.iter().zip(&values) {
            let (part, value) = (std::slice::from_ref(part), std::slice::from_ref(value));
            assert_eq!(input_key(part, value, None), Ok(key(part)), "{part:?}");
        }
        assert_eq!(input_key(&[], &[], None), Ok(key(&[])));
    }

    #[test]
    fn empty_values_fall_back_to_the_client_address() {
        let plan = [KeyPart::Token, KeyPart::Cookie("c".into())];
        let anonymous = request_key(&plan, &Fields::default(), "192.0.2.1", "");
        assert_eq!(input_key(&plan, &["", ""], Some("::ffff:192.0.2.1")), Ok(anonymous));
        assert_eq!(input_key(&plan, &["", ""], None), Err(KeyInputError::Empty));
        assert_eq!(input_key(&plan, &["", ""], Some("here")), Err(KeyInputError::Address));
        assert_eq!(input_key(&plan, &["a", "b"], Some("here")), Err(KeyInputError::Address));
        assert_eq!(input_key(&[KeyPart::ClientIp], &["here"], None), Err(KeyInputError::Address));
        assert_eq!(input_key(&plan, &["a"], None), Err(KeyInputError::Count));
        let plan = [KeyPart::Token, KeyPart::Route];
        let anonymous = request_key(&plan, &Fields::default(), "192.0.2.1", "");
        assert_eq!(input_key(&plan, &["", "items"], Some("192.0.2.1")), Ok(anonymous));
        assert_eq!(input_key(&plan, &["", "items"], None), Err(KeyInputError::Empty));
        let respelled = "eyJhbGciOiJIUzI1NiJ9.e30.AB";
        assert_eq!(input_key(&plan, &[respelled, "items"], None), Err(KeyInputError::Credentials));
        assert_eq!(input_key(&[], &["a"], None), Err(KeyInputError::Count));
    }

    proptest! {
        #[test]
        fn entered_tokens_have_the_key_of_the_request(
            value in "(Basic |Bearer |Digest |x )?[ -~]{0,20}", padded in "[ \u{a0}]{0,2}",
        ) {
            let value = value + &padded;
            let mut headers = Fields::default();
            headers.push("authorization", value.as_bytes());
            for part in [KeyPart::Token, KeyPart::Header(header::AUTHORIZATION)] {
                let key = try_request_key(std::slice::from_ref(&part), &headers, "192.0.2.1", "");
                let key_of_input = input_key(&[part], &[&value], Some("192.0.2.1"));
                prop_assert_eq!(key_of_input.ok(), key.ok());
            }
        }

        #[test]
        fn values_shown_by_explain_have_the_key_of_the_request(value in "[ -~]{0,20}", query in "[ -~&&[^#]]{0,20}") {
            let mut headers = Fields::default();
            headers.push("x-team", value.trim());
            headers.push("cookie", format!("c={value}").trim());
            for part in [
                KeyPart::Header(HeaderName::from_static("x-team")),
                KeyPart::Cookie("c".into()),
                KeyPart::Query("q".into()),
            ] {
                let plan = std::slice::from_ref(&part);
                let Ok(key) = try_request_key(plan, &headers, "192.0.2.1", &query) else { continue };
                let shown = with_subject(&headers, "192.0.2.1", &query, |subject| {
                    part.value(subject).map(Cow::into_owned)
                }).unwrap();
                // Only UTF-8 can be entered.
                let Ok(shown) = std::str::from_utf8(&shown) else { continue };
                prop_assert_eq!(input_key(plan, &[shown], Some("192.0.2.1")), Ok(key));
            }
        }
    }
}
