//! Keys from values that a person gives, where there is no request to read them from.

use std::{borrow::Cow, net::IpAddr};

use http::header;

use super::{
    client::canonical,
    key::{FALLBACK, KeyHash, KeyPlan, Part, Secret, Sink},
    token::{Token, TokenSource, split},
};

/// What a person says of a caller.
#[derive(Clone, Copy)]
pub struct Given<'g> {
    /// One value for each part of the key, in its order: a token as it stands in its header, an address
    /// as such, a host in any case, a path in normal form, a query's value decoded, a cookie's without quotes.
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
        let bytes: Cow<'_, [u8]> = match part {
            Part::ClientIp => return Ok(self.ip(part.tag(), address(value)?, given.ipv6_prefix)),
            Part::Token => return Ok(self.token(token(value, given.token_sources))),
            Part::Host => value.to_ascii_lowercase().into_bytes().into(),
            Part::Header(_) | Part::Cookie(_) => value.as_bytes().trim_ascii().into(),
            Part::Method | Part::Route | Part::Path | Part::PathParam(_) | Part::Query(_) => {
                value.as_bytes().into()
            }
        };
        Ok(self.bytes(part.tag(), &bytes))
    }
}

/// A token as [`super::token()`] reads it; a scheme is told apart where one may stand.
fn token<'v>(value: &'v str, sources: &[TokenSource]) -> Token<'v> {
    let schemes = |source: &TokenSource| matches!(source, TokenSource::Header(name) if *name == header::AUTHORIZATION);
    if sources.iter().any(schemes) {
        return split(&header::AUTHORIZATION, value.as_bytes());
    }
    Token { scheme: b"", value: value.as_bytes().trim_ascii() }
}

fn address(value: &str) -> Result<IpAddr, Unfit> {
    value.trim().parse().map(canonical).map_err(|_| Unfit::Address)
}

#[cfg(test)]
mod tests {
    use crate::framing::Fields;
    use http::{HeaderName, Method};
    use proptest::prelude::*;

    use super::super::Subject;
    use super::*;

    const SECRET: Secret = Secret(3, 4);

    fn sources() -> [TokenSource; 1] {
        [TokenSource::Header(header::AUTHORIZATION)]
    }

    /// The key of a request with these headers, by the gateway's own way.
    fn asked(parts: &[Part], headers: &Fields, client: &str, query: &str) -> u128 {
        let subject = Subject {
            client: client.parse().unwrap(),
            host: "api.example.com",
            method: &Method::GET,
            route: "items",
            path: "/items/5",
            param: &|name| (name == "id").then_some("5"),
            query: Some(query),
            headers,
            token_sources: &sources(),
            ipv6_prefix: 64,
        };
        KeyPlan(parts.to_vec()).key(&subject, SECRET).unwrap()
    }

    fn given(parts: &[Part], values: &[&str], client_ip: Option<&str>) -> Result<u128, Unfit> {
        let given = Given { values, client_ip, token_sources: &sources(), ipv6_prefix: 64 };
        KeyPlan(parts.to_vec()).given(&given, SECRET)
    }

    #[test]
    fn every_part_is_hashed_as_a_request_is() {
        let mut headers = Fields::new();
        headers.push("authorization", "Bearer  abc");
        headers.push("cookie", "c=1");
        headers.push("x-team", "a b");
        let parts = [
            (Part::ClientIp, "2001:db8::77"),
            (Part::Token, "bearer abc "),
            (Part::Host, "API.example.com"),
            (Part::Method, "GET"),
            (Part::Route, "items"),
            (Part::Path, "/items/5"),
            (Part::PathParam("id".into()), "5"),
            (Part::Header(HeaderName::from_static("x-team")), " a b"),
            (Part::Cookie("c".into()), "1"),
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
        let anonymous = asked(&plan, &Fields::new(), "192.0.2.1", "");
        assert_eq!(given(&plan, &["", ""], Some("::ffff:192.0.2.1")), Ok(anonymous));
        assert_eq!(given(&plan, &["", ""], None), Err(Unfit::Empty));
        assert_eq!(given(&plan, &["", ""], Some("here")), Err(Unfit::Address));
        assert_eq!(given(&[Part::ClientIp], &["here"], None), Err(Unfit::Address));
        assert_eq!(given(&plan, &["a"], None), Err(Unfit::Count));
        assert_eq!(given(&[], &["a"], None), Err(Unfit::Count));
    }

    proptest! {
        #[test]
        fn any_token_is_hashed_as_a_request_is(value in "[ -~]{0,20}") {
            let mut headers = Fields::new();
            headers.push("authorization", &value);
            let key = asked(&[Part::Token], &headers, "192.0.2.1", "");
            prop_assert_eq!(given(&[Part::Token], &[&value], Some("192.0.2.1")), Ok(key));
        }
    }
}
