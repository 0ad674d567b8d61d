//! Arbitrary headers, cookies and queries do not panic the computation of a key, which has the same
//! result each time. An untrusted peer cannot change its address.
#![no_main]

use http::{Method, header};
use libfuzzer_sys::fuzz_target;
use tidegate::{
    http1::Fields,
    identity::{
        ClientAddress, CredentialSource, KeyPart, KeyPlan, KeySecret, Subject, TrustedProxies,
        token,
    },
};

fuzz_target!(|input: (Vec<(u8, Vec<u8>)>, Option<String>)| {
    let (lines, query) = input;
    let names = ["Authorization", "Cookie", "X-Forwarded-For"];
    let mut headers = Fields::new();
    for (name, value) in lines.iter().take(20) {
        // As the parser accepts it: without control characters and without white space at the ends.
        let value: Vec<u8> =
            value.iter().copied().filter(|byte| !byte.is_ascii_control()).collect();
        headers.push(names[usize::from(*name) % names.len()], value.trim_ascii());
    }
    let peer = "192.0.2.1".parse().expect("an address");
    let proxies = TrustedProxies::new(vec!["192.0.2.0/24".parse().expect("a network")]);
    let _ = proxies.client(peer, &headers);
    let client = TrustedProxies::default().client(peer, &headers);
    assert_eq!(client, ClientAddress::of_peer(peer));
    let sources = [
        CredentialSource::Header(header::AUTHORIZATION),
        CredentialSource::Cookie("session".to_owned()),
    ];
    let _ = token(&sources, &headers);
    let subject = Subject {
        client,
        host: "a.test",
        method: &Method::GET,
        route: "all",
        path: "/",
        param: &|_| None,
        query: query.as_deref(),
        headers: &headers,
        token_sources: &sources,
        token_hash: None,
        ipv6_prefix: 64,
        consumer: None,
        body: None,
        descriptor: &[],
    };
    let parts =
        [KeyPart::Token, KeyPart::Cookie("session".to_owned()), KeyPart::Query("k".to_owned())];
    let plan = KeyPlan(parts.to_vec());
    assert_eq!(plan.key(&subject, KeySecret(1, 2)), plan.key(&subject, KeySecret(1, 2)));
    let by_address = KeyPlan(vec![KeyPart::ClientIp]);
    assert!(by_address.key(&subject, KeySecret(1, 2)).is_ok());
});
