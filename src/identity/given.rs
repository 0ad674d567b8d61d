//! Keys from values that a person gives, where there is no request to read them from.

use std::{borrow::Cow, net::IpAddr};

use http::header;

use super::{
    client,
    credentials::credentials,
    key::{FALLBACK, KeyHash, KeyPlan, Part, Secret, Sink},
    spelling::{host, plain_cookie_value, trim, without_matrix},
    token::{Token, TokenSource},
};

/// What a person says of a caller.
#[derive(Clone, Copy)]
pub struct Given<'g> {
    /// One value for each part of the key, in its order: a token as it stands in its header, an address
    /// as such, a host in any case, a path in normal form, parameters and cookies decoded.
    pub values: &'g [&'g str],
    /// The client's address, for a caller of whom all parts are empty.
    pub client_ip: Option<&'g str>,
    /// Where tokens may stand.
    pub token_sources: &'g [TokenSource],
    /// The length of the prefix that IPv6 clients are counted by, in bits.
    pub ipv6_prefix: u8,
}

/// Values that are no caller's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unfit {
    /// There are not as many as the key has parts.
    Count,
    /// What should be an address is none.
    Address,
    /// What should be credentials has no one reading.
    Credentials,
    /// All are empty, so the client's address is counted, and it is not given.
    Empty,
}

impl KeyPlan {
    /// The key of a request that has these values: the same as [`KeyPlan::key`] gives it.
    pub fn given(&self, given: &Given<'_>, secret: Secret) -> Result<u128, Unfit> {
        if given.values.len() != self.0.len() {
            return Err(Unfit::Count);
        }
        let mut hash = KeyHash::new(secret);
        let mut empty = !self.0.is_empty();
        for (part, value) in self.0.iter().zip(given.values) {
            empty &= hash.given(part, value, given)?;
        }
        if empty {
            hash = KeyHash::new(secret);
            let client = given.client_ip.ok_or(Unfit::Empty)?;
            hash.ip(FALLBACK, address(client)?, given.ipv6_prefix);
        }
        Ok(hash.finish())
    }
}

impl KeyHash {
    /// Adds one part; says whether it was empty.
    fn given(&mut self, part: &Part, value: &str, given: &Given<'_>) -> Result<bool, Unfit> {
        Ok(match part {
            Part::ClientIp => self.ip(part.tag(), address(value)?, given.ipv6_prefix),
            Part::Token => self.token(&token(value, given.token_sources)?),
            _ => self.bytes(part.tag(), &part.given(value, given.token_sources)?),
        })
    }
}

impl Part {
    /// The form of a `value` that a person gives: what [`Part::value`] has of a request that sends it. Of a
    /// client's address the text.
    pub fn given<'v>(
        &self,
        value: &'v str,
        sources: &[TokenSource],
    ) -> Result<Cow<'v, [u8]>, Unfit> {
        let bytes = value.as_bytes();
        Ok(match self {
            Self::Token => token(value, sources)?.value,
            Self::Host => host(value).into_bytes().into(),
            Self::Header(name) if *name == header::HOST => host(value).into_bytes().into(),
            Self::Header(name) if *name == header::AUTHORIZATION => {
                credentials(bytes).ok_or(Unfit::Credentials)?.joined()
            }
            Self::Cookie(_) => plain_cookie_value(bytes.into()),
            Self::Path => without_matrix(value).into_owned().into_bytes().into(),
            Self::Header(_) | Self::PathParam(_) | Self::Query(_) => trim(bytes).into(),
            Self::ClientIp | Self::Method | Self::Route => bytes.into(),
        })
    }
}

/// A token as [`super::token()`] reads it; credentials have a scheme where one may stand.
fn token<'v>(value: &'v str, sources: &[TokenSource]) -> Result<Token<'v>, Unfit> {
    let bytes = value.as_bytes();
    let schemes = |source: &TokenSource| matches!(source, TokenSource::Header(name) if *name == header::AUTHORIZATION);
    if sources.iter().any(schemes) {
        return credentials(bytes).ok_or(Unfit::Credentials);
    }
    let cookies = sources.iter().all(|source| matches!(source, TokenSource::Cookie(_)));
    Ok(Token::plain(if cookies { plain_cookie_value(bytes.into()) } else { trim(bytes).into() }))
}

fn address(value: &str) -> Result<IpAddr, Unfit> {
    client::address(value.as_bytes()).ok_or(Unfit::Address)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, Method};

    use crate::framing::Fields;
    use proptest::prelude::*;

    use super::super::{Ambiguous, ClientAddress, Subject};
    use super::*;

    const SECRET: Secret = Secret(3, 4);

    fn sources() -> [TokenSource; 1] {
        [TokenSource::Header(header::AUTHORIZATION)]
    }

    fn with_subject<T>(
        headers: &Fields,
        client: &str,
        query: &str,
        ask: impl FnOnce(&Subject<'_>) -> T,
    ) -> T {
        ask(&Subject {
            client: ClientAddress::of_peer(client.parse().unwrap()),
            host: "api.example.com",
            method: &Method::GET,
            route: "items",
            path: "/items/5;v=1",
            param: &|name| (name == "id").then_some("%35;v=1"),
            query: Some(query),
            headers,
            token_sources: &sources(),
            ipv6_prefix: 64,
        })
    }

    /// The key of a request with these headers, by the gateway's own way.
    fn try_asked(
        parts: &[Part],
        headers: &Fields,
        client: &str,
        query: &str,
    ) -> Result<u128, Ambiguous> {
        let plan = KeyPlan(parts.to_vec());
        with_subject(headers, client, query, |subject| plan.key(subject, SECRET))
    }

    fn asked(parts: &[Part], headers: &Fields, client: &str, query: &str) -> u128 {
        try_asked(parts, headers, client, query).unwrap()
    }

    fn given(parts: &[Part], values: &[&str], client_ip: Option<&str>) -> Result<u128, Unfit> {
        let given = Given { values, client_ip, token_sources: &sources(), ipv6_prefix: 64 };
        KeyPlan(parts.to_vec()).given(&given, SECRET)
    }

    #[test]
    fn every_part_is_hashed_as_a_request_is() {
        let mut headers = Fields::default();
        headers.push("authorization", "Bearer  abc");
        headers.push("cookie", "c=\"1%202\"");
        headers.push("x-team", "a b");
        let parts = [
            (Part::ClientIp, "2001:db8::77"),
            (Part::Token, "bearer abc "),
            (Part::Host, "API.example.com.:80"),
            (Part::Header(header::HOST), "api.example.com"),
            (Part::Header(header::AUTHORIZATION), "token token=\"abc\""),
            (Part::Method, "GET"),
            (Part::Route, "items"),
            (Part::Path, "/items/5"),
            (Part::PathParam("id".into()), "5"),
            (Part::Header(HeaderName::from_static("x-team")), " a b"),
            (Part::Cookie("c".into()), "1 2"),
            (Part::Query("q".into()), "x y"),
        ];
        let (all, values): (Vec<Part>, Vec<&str>) = parts.into_iter().unzip();
        let key = |parts: &[Part]| asked(parts, &headers, "2001:db8::1", "q=x+y");
        assert_eq!(given(&all, &values, None), Ok(key(&all)));
        for (part, value) in all.iter().zip(&values) {
            let (part, value) = (std::slice::from_ref(part), std::slice::from_ref(value));
            assert_eq!(given(part, value, None), Ok(key(part)), "{part:?}");
        }
        assert_eq!(given(&[], &[], None), Ok(key(&[])));
    }

    #[test]
    fn a_caller_without_any_part_is_given_by_its_address() {
        let plan = [Part::Token, Part::Cookie("c".into())];
        let anonymous = asked(&plan, &Fields::default(), "192.0.2.1", "");
        assert_eq!(given(&plan, &["", ""], Some("::ffff:192.0.2.1")), Ok(anonymous));
        assert_eq!(given(&plan, &["", ""], None), Err(Unfit::Empty));
        assert_eq!(given(&plan, &["", ""], Some("here")), Err(Unfit::Address));
        assert_eq!(given(&[Part::ClientIp], &["here"], None), Err(Unfit::Address));
        assert_eq!(given(&plan, &["a"], None), Err(Unfit::Count));
        assert_eq!(given(&[], &["a"], None), Err(Unfit::Count));
    }

    proptest! {
        #[test]
        fn any_token_is_hashed_as_a_request_is(
            value in "(Basic |Bearer |Digest |x )?[ -~]{0,20}", padded in "[ \u{a0}]{0,2}",
        ) {
            let value = value + &padded;
            let mut headers = Fields::default();
            headers.push("authorization", value.as_bytes());
            for part in [Part::Token, Part::Header(header::AUTHORIZATION)] {
                let key = try_asked(std::slice::from_ref(&part), &headers, "192.0.2.1", "");
                let given = given(&[part], &[&value], Some("192.0.2.1"));
                prop_assert_eq!(given.ok(), key.ok());
            }
        }

        #[test]
        fn what_explain_shows_finds_the_caller(value in "[ -~]{0,20}", query in "[ -~&&[^#]]{0,20}") {
            let mut headers = Fields::default();
            headers.push("x-team", value.trim());
            headers.push("cookie", format!("c={value}").trim());
            for part in [
                Part::Header(HeaderName::from_static("x-team")),
                Part::Cookie("c".into()),
                Part::Query("q".into()),
            ] {
                let plan = std::slice::from_ref(&part);
                let Ok(key) = try_asked(plan, &headers, "192.0.2.1", &query) else { continue };
                let shown = with_subject(&headers, "192.0.2.1", &query, |subject| {
                    part.value(subject).map(Cow::into_owned)
                }).unwrap();
                // A person can type no other bytes than these.
                let Ok(shown) = std::str::from_utf8(&shown) else { continue };
                prop_assert_eq!(given(plan, &[shown], Some("192.0.2.1")), Ok(key));
            }
        }
    }
}
