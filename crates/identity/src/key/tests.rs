//! Tests of keys.

use super::*;
use proptest::prelude::*;

const SECRET: KeySecret = KeySecret(1, 2);

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

    fn key(&self, parts: &[KeyPart]) -> Result<u128, AmbiguousValue> {
        let param = |name: &str| {
            self.params.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
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
            token_sources: &[CredentialSource::Header(header::AUTHORIZATION)],
            token_hash: None,
            ipv6_prefix: 64,
            consumer: None,
            body: None,
            descriptor: &[],
        };
        KeyPlan(parts.to_vec()).key(&subject, SECRET)
    }
}

#[test]
fn key_without_parts_is_the_same_for_all_callers() {
    let mut other = Request::new(&[("authorization", "x")]);
    other.client = "198.51.100.1".parse().unwrap();
    assert_eq!(Request::new(&[]).key(&[]), other.key(&[]));
}

#[test]
fn empty_key_falls_back_to_the_address_without_collisions() {
    let anonymous = Request::new(&[]);
    let fallback = anonymous.key(&[KeyPart::Token]).unwrap();
    assert_ne!(fallback, anonymous.key(&[KeyPart::ClientIp]).unwrap());
    let token_as_address = Request::new(&[("authorization", "192.0.2.1")]);
    assert_ne!(fallback, token_as_address.key(&[KeyPart::Token]).unwrap());
    let octets = Request::new(&[("x-team", "\u{c0}")]);
    let team = [KeyPart::Header(HeaderName::from_static("x-team"))];
    assert_ne!(fallback, octets.key(&team).unwrap());
    let mut other_client = Request::new(&[]);
    other_client.client = "192.0.2.2".parse().unwrap();
    assert_ne!(fallback, other_client.key(&[KeyPart::Token]).unwrap());
    assert_eq!(fallback, Request::new(&[("x-other", "1")]).key(&[KeyPart::Token]).unwrap());
}

#[test]
fn the_address_takes_the_place_of_missing_caller_parts_beside_the_others() {
    let key = |client: &str, lines: &[(&str, &str)], plan: &[KeyPart]| {
        let mut request = Request::new(lines);
        request.client = client.parse().unwrap();
        request.params = vec![("id", "5".into())];
        request.key(plan).unwrap()
    };
    let team = KeyPart::Header(HeaderName::from_static("x-team"));
    for plan in [
        vec![KeyPart::Token, KeyPart::Route],
        vec![KeyPart::Host, KeyPart::Method, KeyPart::Path, KeyPart::Token],
        vec![KeyPart::Token, KeyPart::PathParam("id".into())],
        vec![team.clone(), KeyPart::Route, KeyPart::Cookie("c".into()), KeyPart::Query("q".into())],
        vec![KeyPart::Header(header::HOST), KeyPart::Token],
    ] {
        let one = key("192.0.2.1", &[], &plan);
        assert_ne!(one, key("192.0.2.2", &[], &plan), "{plan:?}");
        assert_eq!(one, key("192.0.2.1", &[], &plan), "{plan:?}");
        let without_others: Vec<KeyPart> =
            plan.iter().filter(|part| part.identifies_caller()).cloned().collect();
        assert_ne!(one, key("192.0.2.1", &[], &without_others), "{plan:?}: the others count");
    }
    let plan = [KeyPart::Token, team, KeyPart::Route];
    let named = |client| key(client, &[("x-team", "a")], &plan);
    assert_eq!(named("192.0.2.1"), named("192.0.2.2"), "one caller part is there");
    let by_path = [KeyPart::PathParam("id".into()), KeyPart::Route];
    assert_eq!(key("192.0.2.1", &[], &by_path), key("192.0.2.2", &[], &by_path));
}

#[test]
fn spellings_of_a_scheme_have_one_key() {
    let keys: Vec<_> = ["Bearer abc", "bearer abc", "BEARER   abc ", "bearer\tabc"]
        .iter()
        .map(|value| Request::new(&[("authorization", value)]).key(&[KeyPart::Token]).unwrap())
        .collect();
    assert!(keys.windows(2).all(|pair| pair[0] == pair[1]));
    let basic = Request::new(&[("authorization", "Basic YWJjOg==")]);
    assert_ne!(basic.key(&[KeyPart::Token]).unwrap(), keys[0]);
}

#[test]
fn each_part_has_its_own_key() {
    let mut request = Request::new(&[("x-team", "a"), ("cookie", "c=1")]);
    request.query = Some("k=%61b&x=1".into());
    request.params = vec![("id", "5".into())];
    let parts = [
        KeyPart::ClientIp,
        KeyPart::Host,
        KeyPart::Method,
        KeyPart::Route,
        KeyPart::Path,
        KeyPart::PathParam("id".into()),
        KeyPart::Header(HeaderName::from_static("x-team")),
        KeyPart::Cookie("c".into()),
        KeyPart::Query("k".into()),
    ];
    let mut keys: Vec<_> =
        parts.iter().map(|part| request.key(std::slice::from_ref(part)).unwrap()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), parts.len());
    let mut plain = Request::new(&[]);
    plain.query = Some("x=2&k=ab".into());
    let part = [KeyPart::Query("k".into())];
    assert_eq!(request.key(&part), plain.key(&part));
}

#[test]
fn repeated_parts_are_rejected() {
    let mut request = Request::new(&[("x-team", "a"), ("x-team", "b"), ("cookie", "c=1; c=2")]);
    request.query = Some("k=1&%6b=2".into());
    for part in [
        KeyPart::Header(HeaderName::from_static("x-team")),
        KeyPart::Cookie("c".into()),
        KeyPart::Query("k".into()),
    ] {
        assert!(request.key(std::slice::from_ref(&part)).is_err(), "{part:?}");
    }
}

#[test]
fn ipv6_addresses_in_one_prefix_are_one_caller() {
    let key = |address: &str| {
        let mut request = Request::new(&[]);
        request.client = address.parse().unwrap();
        request.key(&[KeyPart::ClientIp]).unwrap()
    };
    assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
    assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
}

proptest! {
    #[test]
    fn keys_are_equal_exactly_if_the_values_are(one in "[ab][0-9]{0,2}", other in "[ab][0-9]{0,2}") {
        let escaped = other.replace('a', "%61").replace('b', "%62");
        let spelled_request = |header: &str, cookie: &str, query: &str, param: &str, token: &str| {
            let lines = [("x-team", header), ("cookie", cookie), ("authorization", token)];
            let mut request = Request::new(&lines);
            (request.query, request.params) = (Some(query.into()), vec![("id", param.into())]);
            request
        };
        let plain = spelled_request(&one, &format!("c={one}"), &format!("k={one}"), &one, &format!("Bearer {one}"));
        let odd = spelled_request(
            &format!("\t{other}\u{a0}"),
            &format!("x=1;\u{a0}c =\"{escaped}\" "),
            &format!("x&%6B={escaped}+"),
            &format!("{escaped};v=1"),
            &format!("x  {other} "),
        );
        for part in [
            KeyPart::Header(HeaderName::from_static("x-team")),
            KeyPart::Cookie("c".into()),
            KeyPart::Query("k".into()),
            KeyPart::PathParam("id".into()),
            KeyPart::Token,
        ] {
            let part = std::slice::from_ref(&part);
            prop_assert_eq!(plain.key(part) == odd.key(part), one == other, "{:?}", part);
            prop_assert!(odd.key(part).is_ok(), "{:?}", part);
        }
    }

    #[test]
    fn moving_a_separator_changes_the_key(
        a in "[a-z:|]{0,6}", b in "[a-z:|]{0,6}", c in "[a-z:|]{0,6}", d in "[a-z:|]{0,6}",
    ) {
        let plan = [
            KeyPart::Header(HeaderName::from_static("x-a")),
            KeyPart::Header(HeaderName::from_static("x-b")),
        ];
        let one = Request::new(&[("x-a", &a), ("x-b", &b)]).key(&plan).unwrap();
        let two = Request::new(&[("x-a", &c), ("x-b", &d)]).key(&plan).unwrap();
        prop_assert_eq!(one == two, (a, b) == (c, d));
    }
}
