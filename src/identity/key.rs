//! The key that a limit counts a request by: a keyed hash of its parts.
//!
//! Parts are tagged and length-prefixed, so no two callers share a key by moving a separator. The
//! hash is SipHash-1-3 with 128 bits under a secret, so keys can be stored and shared without telling
//! whose they are, and nobody outside can aim at another's.

use std::{borrow::Cow, hash::Hasher, net::IpAddr};

use http::{HeaderName, Method, header};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::{
    client::{ClientAddress, counted},
    reading::{Ambiguous, cookie, query},
    spelling::{path_value, without_matrix},
    token::{Token, TokenSource, header_token, token},
};
use crate::framing::Fields;

/// The secret of the keyed hash.
#[derive(Clone, Copy)]
pub struct Secret(pub u64, pub u64);

/// One part of a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Part {
    /// The client's address, IPv6 by prefix.
    ClientIp,
    /// The access token.
    Token,
    /// The requested host.
    Host,
    /// The method.
    Method,
    /// The route's name.
    Route,
    /// The path in normal form.
    Path,
    /// A parameter of the route's path.
    PathParam(String),
    /// A header.
    Header(HeaderName),
    /// A cookie.
    Cookie(String),
    /// A parameter of the query.
    Query(String),
}

impl Part {
    /// Tells the parts of a key from one another.
    pub(super) fn tag(&self) -> u8 {
        match self {
            Self::ClientIp => 1,
            Self::Token => 2,
            Self::Host => 3,
            Self::Method => 4,
            Self::Route => 5,
            Self::Path => 6,
            Self::PathParam(_) => 7,
            Self::Header(_) => 8,
            Self::Cookie(_) => 9,
            Self::Query(_) => 10,
        }
    }

    /// What stands for it in `subject`, in its one form: a missing one is empty, a token is without its
    /// scheme, and an address is in its bytes, IPv6 by prefix.
    pub fn value<'r>(&self, subject: &Subject<'r>) -> Result<Cow<'r, [u8]>, Ambiguous> {
        Ok(match self {
            Self::ClientIp => match counted(subject.client.ip, subject.ipv6_prefix) {
                IpAddr::V4(v4) => Cow::Owned(v4.octets().to_vec()),
                IpAddr::V6(v6) => Cow::Owned(v6.octets().to_vec()),
            },
            Self::Token => token(subject.token_sources, subject.headers)?.unwrap_or_default().value,
            Self::Host => Cow::Borrowed(subject.host.as_bytes()),
            Self::Method => Cow::Borrowed(subject.method.as_str().as_bytes()),
            Self::Route => Cow::Borrowed(subject.route.as_bytes()),
            Self::Path => match without_matrix(subject.path) {
                Cow::Borrowed(path) => Cow::Borrowed(path.as_bytes()),
                Cow::Owned(path) => Cow::Owned(path.into_bytes()),
            },
            Self::PathParam(name) => path_value((subject.param)(name).unwrap_or_default()),
            // Its port and case do not count.
            Self::Header(name) if *name == header::HOST => Cow::Borrowed(subject.host.as_bytes()),
            Self::Header(name) => header_token(subject.headers, name)?.unwrap_or_default().joined(),
            Self::Cookie(name) => cookie(subject.headers, name)?.unwrap_or_default(),
            Self::Query(name) => {
                query(subject.query.unwrap_or_default(), name)?.unwrap_or_default()
            }
        })
    }
}

/// The parts of one limit's key, in order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyPlan(pub Vec<Part>);

/// What a key is read from: one request of one client.
#[derive(Clone, Copy)]
pub struct Subject<'r> {
    /// The client's address, behind trusted proxies.
    pub client: ClientAddress,
    /// The requested host: lower case, without port.
    pub host: &'r str,
    /// The method.
    pub method: &'r Method,
    /// The route's name.
    pub route: &'r str,
    /// The path in normal form.
    pub path: &'r str,
    /// Finds the value of one of the path's parameters by its name.
    pub param: &'r dyn Fn(&str) -> Option<&'r str>,
    /// The query, without the question mark.
    pub query: Option<&'r str>,
    /// The request's headers.
    pub headers: &'r Fields,
    /// Where tokens may stand.
    pub token_sources: &'r [TokenSource],
    /// The length of the prefix that IPv6 clients are counted by, in bits.
    pub ipv6_prefix: u8,
}

/// The tag of the client's address where it stands in for a key that is wholly empty: told apart
/// from every part, so it never meets a token of the same spelling.
pub(super) const FALLBACK: u8 = 0;
/// The tags of what is not shown as it stands in the request.
pub(super) const ADDRESS: u8 = 1;
pub(super) const TOKEN: u8 = 2;
pub(super) const SCHEME: u8 = 11;

impl KeyPlan {
    /// Hashes the parts of `subject`. A missing part is the empty string; where all are missing the
    /// client's address is counted instead, so nobody escapes by leaving a header out.
    pub fn key(&self, subject: &Subject<'_>, secret: Secret) -> Result<u128, Ambiguous> {
        let mut hash = KeyHash::new(secret);
        if self.read(subject, &mut hash)? {
            hash = KeyHash::new(secret);
            hash.address(FALLBACK, subject);
        }
        Ok(hash.finish())
    }

    /// Reads the parts into `sink`; says whether there are some, and all are empty.
    pub(super) fn read(
        &self,
        subject: &Subject<'_>,
        sink: &mut impl Sink,
    ) -> Result<bool, Ambiguous> {
        let mut empty = !self.0.is_empty();
        for part in &self.0 {
            empty &= sink.part(part, subject)?;
        }
        Ok(empty)
    }
}

/// Hashes parts, each tagged and with its length before it.
pub(super) struct KeyHash(SipHasher13);

impl KeyHash {
    pub(super) fn new(secret: Secret) -> Self {
        Self(SipHasher13::new_with_keys(secret.0, secret.1))
    }

    pub(super) fn finish(self) -> u128 {
        self.0.finish128().as_u128()
    }
}

/// What the parts of a key are read into: a hash, or a list for a person.
pub(super) trait Sink {
    /// Takes one value in, under its tag.
    fn put(&mut self, tag: u8, bytes: &[u8]);

    /// Adds one part; says whether it was empty.
    fn part(&mut self, part: &Part, subject: &Subject<'_>) -> Result<bool, Ambiguous> {
        Ok(match part {
            Part::ClientIp => self.address(ADDRESS, subject),
            Part::Token => {
                let token = token(subject.token_sources, subject.headers)?.unwrap_or_default();
                self.token(&token)
            }
            _ => self.bytes(part.tag(), &part.value(subject)?),
        })
    }

    fn bytes(&mut self, tag: u8, bytes: &[u8]) -> bool {
        self.put(tag, bytes);
        bytes.is_empty()
    }

    fn address(&mut self, tag: u8, subject: &Subject<'_>) -> bool {
        self.ip(tag, subject.client.ip, subject.ipv6_prefix)
    }

    /// Adds a client's address, IPv6 by a prefix of so many bits.
    fn ip(&mut self, tag: u8, client: IpAddr, prefix: u8) -> bool {
        match counted(client, prefix) {
            IpAddr::V4(v4) => self.bytes(tag, &v4.octets()),
            IpAddr::V6(v6) => self.bytes(tag, &v6.octets()),
        }
    }

    fn token(&mut self, token: &Token<'_>) -> bool {
        if !token.scheme.is_empty() {
            self.bytes(SCHEME, &token.scheme);
        }
        self.bytes(TOKEN, &token.value)
    }
}

impl Sink for KeyHash {
    fn put(&mut self, tag: u8, bytes: &[u8]) {
        self.0.write_u64(u64::from(tag) << 56 | bytes.len() as u64);
        self.0.write(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECRET: Secret = Secret(1, 2);

    struct Request {
        headers: Fields,
        client: IpAddr,
        query: Option<String>,
        params: Vec<(&'static str, String)>,
    }

    impl Request {
        fn new(lines: &[(&str, &str)]) -> Self {
            let headers = lines.iter().copied();
            let client = "192.0.2.1".parse().unwrap();
            Self { headers: headers.collect(), client, query: None, params: Vec::new() }
        }

        fn key(&self, parts: &[Part]) -> Result<u128, Ambiguous> {
            let param = |name: &str| {
                self.params
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| value.as_str())
            };
            let subject = Subject {
                client: ClientAddress::of_peer(self.client),
                host: "api.example.com",
                method: &Method::GET,
                route: "items",
                path: "/items/5",
                param: &param,
                query: self.query.as_deref(),
                headers: &self.headers,
                token_sources: &[TokenSource::Header(header::AUTHORIZATION)],
                ipv6_prefix: 64,
            };
            KeyPlan(parts.to_vec()).key(&subject, SECRET)
        }
    }

    #[test]
    fn a_key_of_nothing_counts_everyone_together() {
        let mut other = Request::new(&[("authorization", "x")]);
        other.client = "198.51.100.1".parse().unwrap();
        assert_eq!(Request::new(&[]).key(&[]), other.key(&[]));
    }

    #[test]
    fn a_missing_part_falls_back_to_the_address_and_never_meets_a_token() {
        let anonymous = Request::new(&[]);
        let fallback = anonymous.key(&[Part::Token]).unwrap();
        assert_ne!(fallback, anonymous.key(&[Part::ClientIp]).unwrap());
        let spelled = Request::new(&[("authorization", "192.0.2.1")]);
        assert_ne!(fallback, spelled.key(&[Part::Token]).unwrap());
        let octets = Request::new(&[("x-team", "\u{c0}")]);
        let team = [Part::Header(HeaderName::from_static("x-team"))];
        assert_ne!(fallback, octets.key(&team).unwrap());
        let mut elsewhere = Request::new(&[]);
        elsewhere.client = "192.0.2.2".parse().unwrap();
        assert_ne!(fallback, elsewhere.key(&[Part::Token]).unwrap());
        assert_eq!(fallback, Request::new(&[("x-other", "1")]).key(&[Part::Token]).unwrap());
    }

    #[test]
    fn the_spelling_of_a_scheme_does_not_make_a_new_caller() {
        let keys: Vec<_> = ["Bearer abc", "bearer abc", "BEARER   abc ", "bearer\tabc"]
            .iter()
            .map(|value| Request::new(&[("authorization", value)]).key(&[Part::Token]).unwrap())
            .collect();
        assert!(keys.windows(2).all(|pair| pair[0] == pair[1]));
        let basic = Request::new(&[("authorization", "Basic YWJjOg==")]);
        assert_ne!(basic.key(&[Part::Token]).unwrap(), keys[0]);
    }

    #[test]
    fn every_part_counts() {
        let mut request = Request::new(&[("x-team", "a"), ("cookie", "c=1")]);
        request.query = Some("k=%61b&x=1".into());
        request.params = vec![("id", "5".into())];
        let parts = [
            Part::ClientIp,
            Part::Host,
            Part::Method,
            Part::Route,
            Part::Path,
            Part::PathParam("id".into()),
            Part::Header(HeaderName::from_static("x-team")),
            Part::Cookie("c".into()),
            Part::Query("k".into()),
        ];
        let mut keys: Vec<_> =
            parts.iter().map(|part| request.key(std::slice::from_ref(part)).unwrap()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), parts.len());
        let mut plain = Request::new(&[]);
        plain.query = Some("x=2&k=ab".into());
        let part = [Part::Query("k".into())];
        assert_eq!(request.key(&part), plain.key(&part));
    }

    #[test]
    fn a_part_sent_twice_is_refused() {
        let mut request = Request::new(&[("x-team", "a"), ("x-team", "b"), ("cookie", "c=1; c=2")]);
        request.query = Some("k=1&%6b=2".into());
        for part in [
            Part::Header(HeaderName::from_static("x-team")),
            Part::Cookie("c".into()),
            Part::Query("k".into()),
        ] {
            assert!(request.key(std::slice::from_ref(&part)).is_err(), "{part:?}");
        }
    }

    #[test]
    fn ipv6_neighbours_are_one_caller() {
        let key = |address: &str| {
            let mut request = Request::new(&[]);
            request.client = address.parse().unwrap();
            request.key(&[Part::ClientIp]).unwrap()
        };
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
    }

    proptest! {
        #[test]
        fn keys_are_equal_exactly_where_values_are(one in "[ab][0-9]{0,2}", other in "[ab][0-9]{0,2}") {
            let escaped = other.replace('a', "%61").replace('b', "%62");
            let spelt = |header: &str, cookie: &str, query: &str, param: &str, token: &str| {
                let lines = [("x-team", header), ("cookie", cookie), ("authorization", token)];
                let mut request = Request::new(&lines);
                (request.query, request.params) = (Some(query.into()), vec![("id", param.into())]);
                request
            };
            let plain = spelt(&one, &format!("c={one}"), &format!("k={one}"), &one, &format!("Bearer {one}"));
            let odd = spelt(
                &format!("\t{other}\u{a0}"),
                &format!("x=1;\u{a0}c =\"{escaped}\" "),
                &format!("x&%6B={escaped}+"),
                &format!("{escaped};v=1"),
                &format!("x  {other} "),
            );
            for part in [
                Part::Header(HeaderName::from_static("x-team")),
                Part::Cookie("c".into()),
                Part::Query("k".into()),
                Part::PathParam("id".into()),
                Part::Token,
            ] {
                let part = std::slice::from_ref(&part);
                prop_assert_eq!(plain.key(part) == odd.key(part), one == other, "{:?}", part);
                prop_assert!(odd.key(part).is_ok(), "{:?}", part);
            }
        }

        #[test]
        fn no_two_callers_share_a_key_by_moving_a_separator(
            a in "[a-z:|]{0,6}", b in "[a-z:|]{0,6}", c in "[a-z:|]{0,6}", d in "[a-z:|]{0,6}",
        ) {
            let plan = [
                Part::Header(HeaderName::from_static("x-a")),
                Part::Header(HeaderName::from_static("x-b")),
            ];
            let one = Request::new(&[("x-a", &a), ("x-b", &b)]).key(&plan).unwrap();
            let two = Request::new(&[("x-a", &c), ("x-b", &d)]).key(&plan).unwrap();
            prop_assert_eq!(one == two, (a, b) == (c, d));
        }
    }
}
