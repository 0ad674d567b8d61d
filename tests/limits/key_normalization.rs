//! Equivalent spellings are one caller; ambiguous ones are refused.

use testkit::{
    client::Response,
    gateway::Gateway,
    protocol::{PROTOCOLS, Protocol, on_every_protocol},
};

fn start(key: &str, client: &str) -> Gateway {
    Gateway::for_every_protocol(&format!(
        "client: {{{client}}}
upstreams: {{hello: {{respond: {{body: hi}}}}}}
limits: {{caller: {{algorithm: sliding_window, quota: 1000, window: 1h, key: [{key}]}}}}
routes:
  - {{name: items, match: {{path: '/items/{{id}}'}}, upstream: hello, limits: [caller]}}
  - {{name: files, match: {{path: '/files/{{*id}}'}}, upstream: hello, limits: [caller]}}"
    ))
}

fn ask(protocol: Protocol, gateway: &Gateway, target: &str, headers: &[u8]) -> Response {
    protocol.get(gateway, target, headers)
}

/// Asserts that all spellings share one counter, and that `others` have different ones.
fn assert_one_caller(key: &str, spellings: &[(&str, &[u8])], others: &[(&str, &[u8])]) {
    on_every_protocol(|protocol| {
        let gateway = start(key, "token: [header:authorization, header:x-api-key, cookie:session]");
        for (index, (target, headers)) in spellings.iter().enumerate() {
            let response = ask(protocol, &gateway, target, headers);
            let request = format!("{key} {target} {}", String::from_utf8_lossy(headers));
            assert_eq!(response.status, 200, "{request}: {}", response.text());
            assert_eq!(response.number("x-ratelimit-used"), index as u64 + 1, "{request}");
        }
        for (target, headers) in others {
            let used = ask(protocol, &gateway, target, headers).number("x-ratelimit-used");
            assert_eq!(used, 1, "{key} {target} {}", String::from_utf8_lossy(headers));
        }
    });
}

fn assert_refused(key: &str, target: &str, headers: &[u8]) {
    let gateway = start(key, "token: [header:authorization, header:x-api-key, cookie:session]");
    on_every_protocol(|protocol| {
        let response = ask(protocol, &gateway, target, headers);
        assert_eq!(response.status, 400, "{key} {target} {}", String::from_utf8_lossy(headers));
        assert!(!response.text().contains("secret"), "{}", response.text());
    });
}

/// Spellings of a JWT's signature that lenient decoders treat alike: unused bits, padding, another
/// alphabet, and characters outside of it.
fn respelled_signatures(signature: &str) -> Vec<String> {
    let (start, last) = signature.split_at(signature.len() - 1);
    let mut all: Vec<String> = ["l", "m", "n"].map(|last| format!("{start}{last}")).into();
    all.push(signature.replace('-', "+").replace('_', "/"));
    all.push(format!("{signature}==junk"));
    for at in 0..=start.len() {
        for byte in ["!", "~", "*", "=", ".", "@", ":", "|", "/", "%", "$", "+"] {
            all.push(format!("{}{byte}{}{last}", &start[..at], &start[at..]));
        }
    }
    all
}

#[test]
fn a_signed_token_has_one_spelling() {
    let signed = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.";
    let signature = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    on_every_protocol(|protocol| {
        let gateway =
            start("token", "token: [header:authorization, header:x-api-key, cookie:session]");
        let mut client = protocol.connect(&gateway);
        for (index, place) in
            (1..).zip(["authorization: Bearer ", "x-api-key: ", "cookie: session="])
        {
            for signature in respelled_signatures(signature) {
                let headers = format!("{place}{signed}{signature}\r\n");
                let response = client.get("/items/1", &headers);
                assert_eq!(response.status, 400, "{headers}");
                assert!(!response.text().contains(&signature), "{}", response.text());
            }
            let response = client.get("/items/1", format!("{place}{signed}{signature}\r\n"));
            assert_eq!(response.number("x-ratelimit-used"), index, "{place}");
        }
    });
}

/// Upstreams that read the whole value decode the token, and skip the rest after it.
#[test]
fn a_token_is_no_scheme_of_a_word_behind_it() {
    let signature = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    for token in [
        format!("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.{signature}"),
        format!("NDI.{signature}"),
        format!("gAAAAABkAAAAAAAA{signature}"),
        "eyJhbGciOiJIUzI1NiJ9.".to_owned(),
    ] {
        for junk in ["!", "~", "a", "a=1", ".AAAA.AAAA.AAAA"] {
            let header = format!("Authorization: {token} {junk}\r\n");
            assert_refused("token", "/items/1", header.as_bytes());
            assert_refused("'header:authorization'", "/items/1", header.as_bytes());
        }
    }
}

#[test]
fn bearer_tokens_are_those_of_rfc_6750() {
    for token in ["a!b", "a b", "\u{e9}", "a=b", "{a}", "a%20"] {
        let header = format!("Authorization: Bearer {token}\r\n");
        assert_refused("token", "/items/1", header.as_bytes());
        assert_refused("'header:authorization'", "/items/1", header.as_bytes());
    }
    // As Laravel Sanctum and others issue them.
    assert_one_caller(
        "token",
        &[
            ("/items/1", b"Authorization: Bearer 1|aB~c+d/e==\r\n"),
            ("/items/1", b"X-Api-Key: 1|aB~c+d/e==\r\n"),
        ],
        &[
            ("/items/1", b"Authorization: Bearer 2|aB~c+d/e==\r\n"),
            ("/items/1", b"Authorization: Bearer 1:aB\r\n"),
        ],
    );
}

#[test]
fn forged_forwarding_entries_do_not_change_the_client_address() {
    let gateway = start("client_ip", "trusted_proxies: [127.0.0.0/8, 10.0.0.0/8]");
    let mut clients = PROTOCOLS.map(|protocol| protocol.connect(&gateway));
    let mut used = 0;
    for before in [
        &b"\xfe, "[..],
        b"a\xfe\xff,",
        b", ",
        b",,,",
        b"unknown, ",
        b"_hidden,\t",
        b"\"192.0.2.9\",",
        b"6.6.6.6, ",
        b"10.6.6.6, ",
        b"\xfe\r\nX-Forwarded-For: ",
        b"\r\nX-Forwarded-For: ",
    ] {
        for after in
            [&b""[..], b", 10.2.2.2", b":4711 ,\t10.2.2.2 ", b"\r\nX-Forwarded-For:10.2.2.2"]
        {
            let line = [b"X-Forwarded-For: ", before, b"198.51.100.1", after, b"\r\n"].concat();
            let request = String::from_utf8_lossy(&line);
            for client in &mut clients {
                used += 1;
                let response = client.get("/items/1", &line);
                let protocol = client.protocol;
                assert_eq!(
                    response.number("x-ratelimit-used"),
                    used,
                    "{request} over {protocol:?}"
                );
            }
        }
    }
}

#[test]
fn untrusted_callers_get_no_tier_by_address() {
    let tiers =
        "tiers: [{match: {part: client_ip, values: [127.0.0.0/8, 10.0.0.0/8]}, quota: 500}]";
    let start = |client: &str| {
        Gateway::for_every_protocol(&format!(
            "client: {{{client}}}
upstreams: {{hello: {{respond: {{body: hi}}}}}}
limits: {{caller: {{quota: 100, window: 1h, key: [client_ip], {tiers}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: hello, limits: [caller]}}]"
        ))
    };
    on_every_protocol(|protocol| {
        let trusting = start("trusted_proxies: [127.0.0.0/8, 10.0.0.0/9]");
        for (used, headers) in [
            &b""[..],
            b"X-Forwarded-For:\r\n",
            b"X-Forwarded-For: \xfe\r\n",
            b"X-Forwarded-For: unknown\r\n",
            b"X-Forwarded-For: 010.0.0.1\r\n",
            b"X-Forwarded-For: 198.51.100.1,\r\n",
            b"X-Forwarded-For: 198.51.100.1, , 10.2.2.2\r\n",
            b"X-Forwarded-For: 10.3.3.3, 10.2.2.2\r\n",
            b"X-Forwarded-For: \xfe, 10.2.2.2\r\n",
        ]
        .into_iter()
        .enumerate()
        {
            let response = ask(protocol, &trusting, "/", headers);
            let request = String::from_utf8_lossy(headers);
            assert_eq!(response.number("x-ratelimit-limit"), 100, "no tier by address: {request}");
            assert_eq!(
                response.number("x-ratelimit-used"),
                used as u64 + 1,
                "one counter: {request}"
            );
        }
        let known =
            ask(protocol, &trusting, "/", b"X-Forwarded-For: \xfe, 10.200.0.1, 10.2.2.2\r\n");
        assert_eq!(known.number("x-ratelimit-limit"), 500, "a client that a proxy has named");
        let peer = ask(protocol, &start(""), "/", b"X-Forwarded-For: \xfe\r\n");
        assert_eq!(peer.number("x-ratelimit-limit"), 500, "a client without a proxy");
    });
}

#[test]
fn bearer_token_spellings_are_one_caller() {
    assert_one_caller(
        "token",
        &[
            ("/items/1", b"Authorization: Bearer abc\r\n"),
            ("/items/1", b"Authorization: bearer \t abc\xa0\r\n"),
            ("/items/1", b"Authorization: BEARER abc\xc2\xa0\r\n"),
            ("/items/1", b"Authorization: \xa0Bearer abc\x85\r\n"),
            ("/items/1", b"Authorization: abc\r\n"),
            ("/items/1", b"Authorization: invented-scheme abc\r\n"),
            ("/items/1", b"Authorization: Token token=\"abc\"\r\n"),
            ("/items/1", b"X-Api-Key: abc\xa0\r\n"),
            ("/items/1", b"Authorization: Bearer\r\nX-Api-Key: abc\r\n"),
            ("/items/1", b"Cookie: session=%61bc\r\n"),
        ],
        &[
            ("/items/1", b"Authorization: Bearer ABC\r\n"),
            ("/items/1", b"Authorization: Digest username=\"a\", nonce=\"b\"\r\n"),
            ("/items/1", b"Authorization: Digest username=\"b\", nonce=\"b\"\r\n"),
        ],
    );
    for value in [
        &b"Bearer secret junk"[..],
        b"Bearer secret,junk",
        b"Bearer secret\xa0junk",
        b"Bearer\xa0secret",
        b"Bearer secret, Bearer other",
        b"invented secret junk",
        b"secret\xff",
        b"Token token=\"secret\", nonce=\"1\"",
    ] {
        assert_refused("token", "/items/1", &[b"Authorization: ", value, b"\r\n"].concat());
        assert_refused(
            "'header:authorization'",
            "/items/1",
            &[b"Authorization: ", value, b"\r\n"].concat(),
        );
    }
}

#[test]
fn basic_credential_spellings_are_one_caller() {
    // user:pass1, whose last base64 digit has four unused bits.
    assert_one_caller(
        "token",
        &[
            ("/items/1", b"Authorization: Basic dXNlcjpwYXNzMQ==\r\n"),
            ("/items/1", b"Authorization: basic  dXNlcjpwYXNzMQ\r\n"),
            ("/items/1", b"Authorization: BASIC dXNlcjpwYXNzMR==\r\n"),
            ("/items/1", b"Authorization: Basic dXNlcjpwYXNzMf=\r\n"),
            ("/items/1", b"Authorization: Basic dXNlcjpwYXNzMQ====\xa0\r\n"),
        ],
        &[("/items/1", b"Authorization: Basic dXNlcjpwYXNzMg==\r\n")],
    );
    for junk in [
        "dXNl cjpwYXNzMQ==",
        "dXNl-cjpwYXNzMQ==",
        "dXNlcjpwYXNzMQ==x",
        "dXNl!cjpw",
        "YWJj",
        "====",
        "a",
    ] {
        assert_refused("token", "/items/1", format!("Authorization: Basic {junk}\r\n").as_bytes());
    }
}

#[test]
fn cookie_spellings_are_one_caller() {
    assert_one_caller(
        "'cookie:c'",
        &[
            ("/items/1", b"Cookie: c=a+b\r\n"),
            ("/items/1", b"Cookie: x=1;  c = \"a+b\" ; y=2\r\n"),
            ("/items/1", b"Cookie: c=%61%20b\r\n"),
            ("/items/1", b"Cookie: c=\"%61+b\"\r\n"),
            ("/items/1", b"Cookie: \xa0c=a+b\xa0\r\n"),
            ("/items/1", b"Cookie: c=a%20b; c=%61+b\r\n"),
        ],
        &[("/items/1", b"Cookie: c=%zza\r\n"), ("/items/1", b"Cookie: c=%2561\r\n")],
    );
    for value in [
        "C=secret",
        "c=x; C=secret",
        "%63=secret; c=x",
        "c=\"secret",
        "c=\"\\163ecret\"",
        "c=secret; c=%73ecre",
        "c=x; c[]=secret",
        "c=x c=secret",
        "c=x, c=secret",
        "c=secret x",
        "a=x c=secret",
    ] {
        assert_refused("'cookie:c'", "/items/1", format!("Cookie: {value}\r\n").as_bytes());
    }
    assert_refused("'cookie:a_c'", "/items/1", b"Cookie: a_c=x; a.c=secret\r\n");
    assert_refused("'cookie:a_c'", "/items/1", b"Cookie: a_c=x; a[c=secret\r\n");
    assert_refused("'query:a_c'", "/items/1?a_c=x&a%5bc=secret", b"");
    assert_refused("'query:c'", "/items/1?C=secret&c=x", b"");
}

#[test]
fn header_spellings_are_one_caller() {
    assert_one_caller(
        "'header:x-team'",
        &[
            ("/items/1", b"X-Team: r\xc3\xa9d\xc3\xa0\r\n"),
            ("/items/1", b"x-team:\t r\xc3\xa9d\xc3\xa0\xc2\xa0 \r\n"),
            ("/items/1", b"X-Team: \xe3\x80\x80r\xc3\xa9d\xc3\xa0\r\n"),
        ],
        &[("/items/1", b"X-Team: r\xc3\xa9d\xc3\x85\r\n"), ("/items/1", b"X-Team: red\r\n")],
    );
    assert_one_caller(
        "'header:x-team'",
        &[("/items/1", b"X-Team: red\r\n"), ("/items/1", b"X-Team: red\xa0\x85\r\n")],
        &[],
    );
    assert_one_caller(
        "'header:host'",
        &[("/items/1", b""), ("http://GATEWAY.test.:81/items/1", b"")],
        &[],
    );
}

#[test]
fn parameter_spellings_are_one_caller() {
    assert_one_caller(
        "'path:id'",
        &[
            ("/items/a%20b", b""),
            ("/items/%61%20b", b""),
            ("/items/a%20b;v=1", b""),
            ("/items/a%20b%20", b""),
        ],
        &[("/items/a+b", b""), ("/items/a%2520b", b""), ("/items/a%2Fb", b"")],
    );
    assert_one_caller(
        "'path:id'",
        &[("/files/a/b", b""), ("/files/a%2fb", b""), ("/files/a;x/b", b"")],
        &[],
    );
    assert_one_caller(
        "path",
        &[
            ("/items/a", b""),
            ("/items/a;x=1", b""),
            ("/items;/a", b""),
            ("/;y/items/a", b""),
            ("/items/;z/a", b""),
        ],
        &[("/items/a%3Bx=1", b"")],
    );
    assert_one_caller(
        "'query:k.1'",
        &[
            ("/items/1?k.1=a+b", b""),
            ("/items/1?k%2e1=%61%20b", b""),
            ("/items/1?x=1&k.1=a+b+&k.1=%20a%20b", b""),
        ],
        &[("/items/1?k.1=a%2Bb", b"")],
    );
    for query in [
        "k=secret;x",
        "k=1;k=secret",
        "x;k=secret",
        "k=x&k[]=secret",
        "k[a]=secret",
        "k=x&+k=secret",
        "k=x&k%00=secret",
    ] {
        assert_refused("'query:k'", &format!("/items/1?{query}"), b"");
    }
    assert_refused("'query:k_1'", "/items/1?k_1=x&k.1=secret", b"");
}

#[test]
fn a_backslash_in_a_query_has_one_spelling() {
    assert_one_caller(
        "'query:k'",
        &[("/items/1?k=a\\b", b""), ("/items/1?k=a%5Cb", b""), ("/items/1?k=%61%5cb", b"")],
        &[("/items/1?k=a/b", b"")],
    );
}
