use testkit::{
    gateway::Gateway,
    protocol::{AnyClient, PROTOCOLS, on_every_protocol},
    upstream::Upstream,
};

/// A gateway with a limit keyed by `key`; `client` is the configuration section.
fn start_keyed_by(key: &str, client: &str) -> Gateway {
    Gateway::for_every_protocol(&format!(
        "client: {{{client}}}
upstreams: {{hello: {{respond: {{body: hi}}}}}}
limits: {{caller: {{algorithm: sliding_window, quota: 100, window: 1h, key: [{key}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: hello, limits: [caller]}}]"
    ))
}

fn used(client: &mut AnyClient, headers: &str) -> u64 {
    let response = client.get("/a?k=1", headers);
    assert_eq!(response.status, 200, "{headers}: {}", response.text());
    response.number("x-ratelimit-used")
}

const TRUSTED_PROXIES: &str = "trusted_proxies: [127.0.0.0/8, 10.0.0.0/8]";

#[test]
fn an_untrusted_peer_is_keyed_by_its_own_address() {
    on_every_protocol(|protocol| {
        let gateway = start_keyed_by("client_ip", "");
        let mut client = protocol.connect(&gateway);
        for (index, claim) in [
            "",
            "X-Forwarded-For: 192.0.2.1\r\n",
            "X-Forwarded-For: 127.0.0.1, 192.0.2.2\r\n",
            "Forwarded: for=192.0.2.3\r\n",
            "X-Real-IP: 192.0.2.4\r\n",
            "X-Forwarded-For: 192.0.2.5\r\nX-Forwarded-For: 192.0.2.6\r\n",
            "Connection: X-Forwarded-For\r\nX-Forwarded-For: 192.0.2.7\r\n",
        ]
        .iter()
        .enumerate()
        {
            assert_eq!(used(&mut client, claim), index as u64 + 1, "{claim}");
        }
    });
}

#[test]
fn forwarded_addresses_of_trusted_proxies_are_the_key() {
    on_every_protocol(|protocol| {
        let gateway = start_keyed_by("client_ip", TRUSTED_PROXIES);
        let mut client = protocol.connect(&gateway);
        for (claim, wanted) in [
            ("X-Forwarded-For: 192.0.2.1\r\n", 1),
            ("X-Forwarded-For: 6.6.6.6, 192.0.2.1\r\n", 2),
            ("X-Forwarded-For: 192.0.2.1, 10.1.2.3\r\n", 3),
            ("X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 192.0.2.1:4711\r\n", 4),
            ("X-Forwarded-For: ::ffff:192.0.2.1\r\n", 5),
            ("X-Forwarded-For: 192.0.2.2\r\n", 1),
            ("X-Forwarded-For: 2001:db8::1\r\n", 1),
            ("X-Forwarded-For: [2001:db8::2]:80\r\n", 2),
            ("X-Forwarded-For: 2001:db8:0:1::1\r\n", 1),
            ("", 1),
            ("X-Forwarded-For: nonsense\r\n", 2),
            ("X-Forwarded-For: 6.6.6.6, nonsense\r\n", 3),
            ("X-Forwarded-For: 10.3.3.3, 10.2.2.2\r\n", 4),
        ] {
            assert_eq!(used(&mut client, claim), wanted, "{claim}");
        }
    });
}

#[test]
fn the_upstream_receives_the_client_address() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let sent = "X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\n\
                X-Forwarded-Host: evil.test\r\nForwarded: for=192.0.2.1\r\n\
                X-Real-IP: 192.0.2.1\r\nConnection: X-Real-IP\r\n";
        let start = |client: &str| {
            Gateway::for_every_protocol(&format!(
                "client: {{{client}}}
upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
                upstream.target()
            ))
        };
        protocol.get(&start(""), "/", sent);
        protocol.get(&start(TRUSTED_PROXIES), "/", sent);
        let received = upstream.request_texts();
        for (text, lines) in [
            (
                &received[0],
                &[
                    "x-forwarded-for: 127.0.0.1",
                    &format!("x-forwarded-proto: {}", protocol.scheme()),
                    "x-forwarded-host: gateway.test",
                    "host: gateway.test",
                ][..],
            ),
            (
                &received[1],
                &[
                    "x-forwarded-for: 192.0.2.1, 127.0.0.1",
                    "x-forwarded-proto: https",
                    "x-forwarded-host: evil.test",
                    &format!("forwarded: for=192.0.2.1, for=127.0.0.1;proto={}", protocol.scheme()),
                    "x-real-ip: 192.0.2.1",
                ],
            ),
        ] {
            let text = text.to_ascii_lowercase();
            for line in lines {
                assert!(text.contains(&format!("\r\n{line}\r\n")), "{line} in {text}");
            }
        }
        for claimed in ["forwarded", "x-real-ip"] {
            let line = format!("\r\n{claimed}:");
            let text = received[0].to_ascii_lowercase();
            assert!(!text.contains(&line), "the claim is not forwarded: {text}");
        }
    });
}

#[test]
fn connection_headers_cannot_strip_the_key() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = Gateway::for_every_protocol(&format!(
        "client: {{token: [header:x-api-key, header:authorization]}}
upstreams: {{origin: {{targets: [{}]}}}}
limits:
  by-team: {{algorithm: sliding_window, quota: 100, window: 1h, key: [header:x-team]}}
  by-token: {{algorithm: sliding_window, quota: 100, window: 1h, key: [token]}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin, limits: [by-team, by-token]}}]",
        upstream.target()
    ));
        let mut client = protocol.connect(&gateway);
        let sent = "Connection: Authorization, X-Team, X-Api-Key, Cookie, X-Forwarded-For, X-Other\r\n\
                Authorization: Bearer t\r\nX-Team: a\r\nX-Api-Key: k\r\nCookie: c=1\r\nX-Other: 1\r\n";
        assert_eq!(used(&mut client, sent), 1);
        assert_eq!(used(&mut client, sent), 2);
        let received = upstream.request_texts().remove(0);
        let received = received.to_ascii_lowercase();
        for line in ["authorization: bearer t", "x-team: a", "x-api-key: k", "cookie: c=1"] {
            assert!(received.contains(&format!("\r\n{line}\r\n")), "{line} in {received}");
        }
        // HTTP/2 has no `Connection` that could name it.
        assert_eq!(received.contains("x-other:"), protocol.is_http2(), "{received}");
    });
}

#[test]
fn ambiguous_key_headers_are_refused() {
    let refused = |key: &str, path: &str, headers: &str| {
        let gateway = start_keyed_by(key, "token: [header:authorization, cookie:session]");
        for protocol in PROTOCOLS {
            let response = protocol.get(&gateway, path, headers);
            assert_eq!(response.status, 400, "{key} {path} {headers} over {protocol:?}");
            assert!(!response.text().contains("secret"), "{}", response.text());
        }
    };
    refused("token", "/", "Authorization: secret1\r\nAuthorization: secret2\r\n");
    refused("token", "/", "Cookie: session=secret1; session=secret2\r\n");
    refused("token", "/", "Cookie: session=secret1\r\nCookie: session=secret2\r\n");
    refused("'header:X-Team'", "/", "X-Team: secret1\r\nx-team: secret2\r\n");
    refused("'cookie:c'", "/", "Cookie: c=secret1; c=secret2\r\n");
    refused("'query:k'", "/?k=secret1&k=secret2", "");
    refused("'query:k'", "/?k=secret1&%6b=secret2", "");
    // A header that is not a key may be ambiguous.
    on_every_protocol(|protocol| {
        let gateway = start_keyed_by("client_ip", "");
        let twice = "Authorization: a\r\nAuthorization: b\r\nX-Team: a\r\nX-Team: b\r\n";
        assert_eq!(used(&mut protocol.connect(&gateway), twice), 1);
    });
}

#[test]
fn a_missing_key_falls_back_to_the_address() {
    on_every_protocol(|protocol| {
        for (key, present) in [
            ("token", "Authorization: Bearer t\r\n"),
            ("'header:X-Team'", "X-Team: a\r\n"),
            ("'cookie:c'", "Cookie: c=1\r\n"),
        ] {
            let gateway = start_keyed_by(key, TRUSTED_PROXIES);
            let mut client = protocol.connect(&gateway);
            let mut from = |address: &str, more: &str| {
                used(&mut client, &format!("X-Forwarded-For: {address}\r\n{more}"))
            };
            assert_eq!(from("192.0.2.1", ""), 1, "{key}");
            assert_eq!(from("192.0.2.1", ""), 2, "{key}");
            assert_eq!(from("192.0.2.2", ""), 1, "{key}: another address is another caller");
            assert_eq!(from("192.0.2.1", present), 1, "{key}");
            assert_eq!(from("192.0.2.2", present), 2, "{key}: the key counts, not the address");
        }
    });
}

#[test]
fn token_spellings_are_one_key() {
    on_every_protocol(|protocol| {
        let gateway = start_keyed_by("token", "token: [header:authorization, cookie:session]");
        let mut client = protocol.connect(&gateway);
        for (index, headers) in [
            "Authorization: Bearer abc\r\n",
            "authorization:bearer   abc  \r\n",
            "AUTHORIZATION:\tBEARER\tabc\r\n",
            "Authorization: Bearer abc\r\nCookie: session=other\r\n",
        ]
        .iter()
        .enumerate()
        {
            assert_eq!(used(&mut client, headers), index as u64 + 1, "{headers}");
        }
        assert_eq!(used(&mut client, "Authorization: Basic YWJjOg==\r\n"), 1);
        // The same token in a cookie.
        assert_eq!(used(&mut client, "Authorization:\r\nCookie: session=abc\r\n"), 5);
        assert_eq!(used(&mut client, "Cookie: a=b; session=\"abc\"\r\n"), 6);
    });
}

#[test]
fn callers_on_one_connection_are_keyed_apart() {
    on_every_protocol(|protocol| {
        let gateway = start_keyed_by("token", "");
        let mut client = protocol.connect(&gateway);
        for round in 1..=3 {
            for token in ["a", "b", "c"] {
                let response = client.get("/", format!("Authorization: {token}\r\n"));
                assert_eq!(response.number("x-ratelimit-used"), round, "{token}");
            }
        }
    });
}

/// An additional token adds no quota: each token of a request is charged.
#[test]
fn each_of_several_tokens_is_charged() {
    on_every_protocol(|protocol| {
        let client = "token: ['header:authorization', 'cookie:session', 'header:x-key']";
        let gateway = start_keyed_by("token, path", client);
        let mut client = protocol.connect(&gateway);
        for turn in 1..=20 {
            let headers = format!("Authorization: Bearer {turn}\r\nCookie: session=mine\r\n");
            assert_eq!(
                used(&mut client, &headers),
                turn,
                "the cookie's counter has the least left"
            );
        }
        assert_eq!(used(&mut client, "Cookie: session=mine\r\n"), 21);
        assert_eq!(used(&mut client, "Cookie: session=mine\r\nX-Key: new\r\n"), 22);
        assert_eq!(used(&mut client, "Authorization: Bearer 7\r\n"), 2, "it was charged too");
        let same = "Authorization: one\r\nCookie: session=one\r\nX-Key: one\r\n";
        assert_eq!(used(&mut client, same), 1, "the same token is counted once");
        assert_eq!(used(&mut client, same), 2);
        for _ in 0..78 {
            used(&mut client, "Cookie: session=mine\r\n");
        }
        let refused =
            client.get("/a?k=1", "Authorization: Bearer fresh\r\nCookie: session=mine\r\n");
        assert_eq!(refused.status, 429, "an invented token adds no quota");
        assert_eq!(refused.json()["violated-policies"], serde_json::json!(["caller"]));
        let fresh = used(&mut client, "Authorization: Bearer fresh\r\n");
        assert_eq!(fresh, 1, "a refusal charges none of them");
    });
}

#[test]
fn a_limit_of_several_tokens_is_one_item_of_the_standard_header() {
    on_every_protocol(|protocol| {
        let gateway = Gateway::for_every_protocol(
            "headers: {standard: draft-11}
client: {token: ['header:authorization', 'cookie:session']}
upstreams: {hello: {respond: {body: hi}}}
limits: {caller: {algorithm: sliding_window, quota: 100, window: 1h, key: [token]}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [caller]}]",
        );
        let mut client = protocol.connect(&gateway);
        let mut standard_headers = |headers| {
            let response = client.get("/a", headers);
            ["ratelimit", "ratelimit-policy"]
                .map(|name| response.header(name).expect("a header").to_owned())
        };
        standard_headers("Cookie: session=mine\r\n");
        let [state, policy] =
            standard_headers("Authorization: Bearer new\r\nCookie: session=mine\r\n");
        assert!(state.starts_with("\"caller\";r=98;t=") && !state.contains(','), "{state}");
        assert_eq!(policy, "\"caller\";q=100;w=3600");
    });
}

#[test]
fn a_malformed_token_beside_a_good_one_is_refused() {
    on_every_protocol(|protocol| {
        let client = "token: ['header:authorization', 'cookie:session']";
        let gateway = start_keyed_by("token", client);
        let mut client = protocol.connect(&gateway);
        let twice = "Authorization: mine\r\nCookie: session=a; session=b\r\n";
        assert_eq!(client.get("/a?k=1", twice).status, 400);
    });
}

#[test]
fn callers_without_a_token_do_not_share_a_counter_beside_a_part_that_is_always_there() {
    on_every_protocol(|protocol| {
        for key in ["token, route", "route, 'header:x-team', method, token", "host, token"] {
            let gateway = start_keyed_by(key, TRUSTED_PROXIES);
            let mut client = protocol.connect(&gateway);
            for (claim, wanted) in [
                ("X-Forwarded-For: 192.0.2.1\r\n", 1),
                ("X-Forwarded-For: 192.0.2.1\r\n", 2),
                ("X-Forwarded-For: 192.0.2.2\r\n", 1),
                ("X-Forwarded-For: 192.0.2.2\r\nAuthorization: a\r\n", 1),
                ("X-Forwarded-For: 192.0.2.3\r\nAuthorization: a\r\n", 2),
                ("X-Forwarded-For: 192.0.2.1\r\n", 3),
            ] {
                assert_eq!(used(&mut client, claim), wanted, "{key}: {claim}");
            }
        }
    });
    let gateway = start_keyed_by("token, route", TRUSTED_PROXIES);
    let mut client = PROTOCOLS[0].connect(&gateway);
    used(&mut client, "X-Forwarded-For: 192.0.2.1\r\n");
    let shown = |query: &str| {
        let path = format!("/api/limits/caller?{query}");
        testkit::client::get(gateway.admin(), &path, "")
    };
    assert_eq!(shown("key=&key=all&client_ip=192.0.2.1").json()["used"], 1);
    assert_eq!(shown("key=&key=all&client_ip=192.0.2.2").json()["used"], 0);
    assert_eq!(shown("key=&key=all").status, 400, "the address is missing");
}
