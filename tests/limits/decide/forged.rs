use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    protocol::{Protocol, on_every_protocol},
};

use super::{about, doors, remaining};

#[test]
fn a_peer_that_is_no_trusted_proxy_gets_no_decision() {
    let gateway = doors("client_ip");
    for (path, fields) in [
        ("/asked", about("GET", "a.test", "/x")),
        ("/asked", String::new()),
        ("/nginx", "X-Original-Method: GET\r\nX-Original-URI: /x\r\n".to_owned()),
        ("/envoy/x", String::new()),
    ] {
        let mut client = Client::connect_from([127, 0, 0, 9], gateway.address());
        let refused = client.get(path, &fields);
        assert_eq!(refused.status, 403, "{path} {fields}");
        let detail = refused.json()["detail"].to_string();
        assert!(detail.contains("client.trusted_proxies"), "{detail}");
        assert_eq!(refused.header("x-ratelimit-limit"), None);
    }
    assert_eq!(Client::connect(gateway.address()).get("/envoy/x", "").status, 200);
}

/// The status, the own status of a refusal, and the detail.
fn refused(response: &Response) -> (u16, u64, String) {
    let own = response.header("x-tidegate-status").map_or(0, |own| own.parse().expect("a status"));
    (response.status, own, response.json()["detail"].as_str().expect("text").to_owned())
}

#[test]
fn a_description_that_could_be_the_clients_is_refused() {
    on_every_protocol(|protocol| {
        let gateway = doors("path");
        let mut client = protocol.connect(&gateway);
        let own = "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /x\r\n";
        for (fields, reason) in [
            ("", "no request is asked about"),
            ("X-Forwarded-Method: GET\r\n", "no request is asked about"),
            ("X-Forwarded-Uri: /x\r\n", "X-Forwarded-Uri without X-Forwarded-Method"),
            ("X-Original-URI: /x\r\n", "X-Original-URI without X-Original-Method"),
            (&format!("{own}X-Forwarded-Uri: /y\r\n"), "X-Forwarded-Uri is sent more than once"),
            (&format!("{own}X-Forwarded-Uri: /x\r\n"), "X-Forwarded-Uri is sent more than once"),
            (&format!("{own}X-Forwarded-Method: PUT\r\n"), "X-Forwarded-Method is sent more than"),
            (
                &format!("{own}X-Original-URI: /y\r\nX-Original-Method: GET\r\n"),
                "both X-Forwarded-Uri and X-Original-URI name the request",
            ),
            (
                &format!("{own}X-Forwarded-Host: a\r\nX-Forwarded-Host: b\r\n"),
                "X-Forwarded-Host is sent more than once",
            ),
            (&own.replace("/x", "http://other.test/x"), "the request target is malformed"),
            (&own.replace("/x", "x"), "the request target is malformed"),
            (&own.replace("/x", ""), "the request target is malformed"),
            (&own.replace("/x", "*"), "the request target is malformed"),
            (&own.replace("/x", "/x#y"), "the request target is malformed"),
            (&own.replace("/x", "/x\\..\\y"), "the request target is malformed"),
            (&own.replace("/x", "/x y"), "the request target is malformed"),
            (&own.replace("/x", "/x%zz"), "%"),
            (&own.replace("/x", "/x%00"), "%00"),
            (&own.replace("/x", "/../x"), "the path leads above the root"),
            (&own.replace("GET", "get"), "the method is malformed; expected a word in upper case"),
            (&own.replace("GET", "G(T"), "the method is malformed"),
            (&format!("{own}X-Forwarded-Host: a b\r\n"), "Host is malformed"),
            (&format!("{own}X-Forwarded-Host: a, b\r\n"), "Host is malformed"),
        ] {
            let answer = client.get("/asked", fields);
            let (status, _, detail) = refused(&answer);
            assert_eq!(status, 400, "{protocol:?} {fields}: {detail}");
            assert!(detail.contains(reason), "{fields}: {detail}");
            // nginx accepts 403.
            let answer = client.get("/nginx", fields);
            assert_eq!(refused(&answer), (403, 400, detail), "{fields}");
        }
        for method in ["CONNECT", "TRACE"] {
            let answer = client.get("/asked", about(method, "a.test", "/x"));
            assert_eq!(answer.status, 405, "{}", answer.text());
        }
    });
}

#[test]
fn nginx_accepts_each_refusal_that_precedes_the_route() {
    let own = about("GET", "a.test", "/x");
    let doors = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {open: {respond: {body: open}}}
routes:
  - {name: nginx, match: {path: /nginx}, decide: {refuse_status: 403}}
  - {name: below, match: {host: below.test, path_prefix: /below}, decide: {refuse_status: 403}}
  - {name: own, match: {path_prefix: /own}, decide: {}}
  - {name: open, match: {path: /open}, upstream: open}
";
    let gateway = Gateway::for_every_protocol(doors);
    let send = |method: &str, path: &str, fields: &str| {
        let mut client = Client::connect(gateway.address());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: below.test\r\n{fields}\r\n");
        let answer = client.send(head).read_response();
        (answer.status, answer.header("x-tidegate-status").map(str::to_owned))
    };
    let both = |own: u16| (403, Some(own.to_string()));
    for (method, path, fields, status) in [
        ("GET", "/nginx", "Expect: foo\r\n", 417),
        ("TRACE", "/nginx", "", 405),
        ("TRACE", "/below/x", "", 405),
        ("GET", "/below/%zz", "", 400),
        ("GET", "/below/../x", "", 400),
        ("GET", "/below/x", "X-Forwarded-For: 192.0.2.1\r\nExpect: foo\r\n", 417),
    ] {
        assert_eq!(send(method, path, &format!("{own}{fields}")), both(status), "{method} {path}");
        assert_eq!(send(method, path, fields), both(status), "{method} {path}");
    }
    for path in ["/own/x", "/open", "/none"] {
        assert_eq!(send("GET", path, "Expect: foo\r\n"), (417, None), "{path}");
    }
    // The client of a gRPC call gets its refusal from the proxy, which reads the status.
    let call = "Content-Type: application/grpc\r\nTE: trailers\r\nExpect: foo\r\n";
    let answer = Protocol::Http2.connect(&gateway).get("/nginx", call);
    assert_eq!((answer.status, answer.number("x-tidegate-status")), (403, 417));
}

#[test]
fn spellings_of_a_path_are_one_path_and_an_encoded_slash_is_none() {
    let gateway = doors("path");
    let mut client = Client::connect(gateway.address());
    let mut ask = |uri: &str| client.get("/asked", &about("GET", "a.test", uri));
    assert_eq!(remaining(&ask("/a/b")), 1);
    assert_eq!(remaining(&ask("/a/./c/..//%62")), 0);
    assert_eq!(ask("/a/b;v=1").status, 429);
    assert_eq!(ask("//a/b?x=1").status, 429);
    assert_eq!(remaining(&ask("/a%2Fb")), 1);
}

#[test]
fn a_path_that_leaves_its_prefix_reaches_no_other_route() {
    let gateway = Gateway::for_every_protocol(
        "
client: {trusted_proxies: [127.0.0.1/32]}
limits: {each: {quota: 9, window: 1h, key: [path]}}
upstreams: {open: {respond: {body: open}}}
routes:
  - {name: envoy, match: {path_prefix: /envoy}, limits: [each], decide: {}}
  - {name: open, match: {path: '/{*rest}'}, upstream: open}
",
    );
    on_every_protocol(|protocol: Protocol| {
        let mut client = protocol.connect(&gateway);
        assert_eq!(client.get("/open", "").status, 200);
        for path in ["/envoy/../open", "/envoy/%2e%2E/open", "/envoy/a/../../open", "/envoy/./../x"]
        {
            let answer = client.get(path, "");
            assert_eq!(answer.status, 400, "{protocol:?} {path}");
            assert!(answer.text().contains("leaves `/envoy/`"), "{}", answer.text());
        }
        assert_eq!(client.get("/envoy/a/../b", "").status, 200);
        // A client that adds the field cannot ask about another path.
        let forged = client.get("/envoy/a", "X-Forwarded-Uri: /b\r\nX-Forwarded-Method: GET\r\n");
        assert_eq!(forged.status, 400);
        let detail = refused(&forged).2;
        assert!(detail.contains("both X-Forwarded-Uri and the path"), "{detail}");
    });
}
