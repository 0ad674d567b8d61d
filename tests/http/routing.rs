use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    protocol::{PROTOCOLS, Protocol, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};

/// Starts a gateway with these routes. Each responds with its name.
fn start_routes(routes: &[(&str, &str)]) -> Gateway {
    let upstreams: Vec<String> = routes
        .iter()
        .map(|(name, _)| format!("  {name}: {{respond: {{body: {name}}}}}\n"))
        .collect();
    let rules: Vec<String> = routes
        .iter()
        .map(|(name, rule)| format!("  - {{name: {name}, match: {{{rule}}}, upstream: {name}}}\n"))
        .collect();
    Gateway::for_every_protocol(&format!(
        "upstreams:\n{}routes:\n{}",
        upstreams.concat(),
        rules.concat()
    ))
}

fn ask(protocol: Protocol, gateway: &Gateway, method: &str, host: &str, path: &str) -> Response {
    protocol.connect(gateway).ask(method, path, format!("Host: {host}\r\n"), "")
}

#[test]
fn the_most_specific_host_path_and_method_win() {
    let gateway = start_routes(&[
        ("any", "path: '/{*rest}'"),
        ("exact", "host: api.example.com, path: '/{*rest}'"),
        ("wild", "host: '*.example.com', path: '/{*rest}'"),
        ("deep", "host: '*.b.example.com', path: '/{*rest}'"),
        ("item", "host: api.example.com, path: '/items/{id}'"),
        ("fixed", "host: api.example.com, path: /items/new"),
        ("write", "host: api.example.com, path: '/items/{id}', methods: [PUT, PATCH]"),
    ]);
    for (method, host, path, name) in [
        ("GET", "other.test", "/x", "any"),
        ("GET", "api.example.com", "/x", "exact"),
        ("GET", "API.Example.COM:8080", "/x", "exact"),
        ("GET", "api.example.com.", "/x", "exact"),
        ("GET", "www.example.com", "/x", "wild"),
        ("GET", "a.www.example.com", "/x", "wild"),
        ("GET", "a.b.example.com", "/x", "deep"),
        ("GET", "example.com", "/x", "any"),
        ("GET", "badexample.com", "/x", "any"),
        ("GET", "api.example.com", "/items/5", "item"),
        ("GET", "api.example.com", "/items/new", "fixed"),
        ("GET", "api.example.com", "/items/5/more", "exact"),
        ("PUT", "api.example.com", "/items/5", "write"),
        ("GET", "api.example.com", "/items/a%2Fb", "item"),
        ("GET", "api.example.com", "/items/%6e%65w", "fixed"),
        ("GET", "api.example.com", "/x/../items/./new", "fixed"),
        ("GET", "api.example.com", "//items///new", "fixed"),
        ("GET", "api.example.com", "/items;v=1/new;w", "fixed"),
        ("GET", "api.example.com", "/;a/items/;b/new", "fixed"),
        ("GET", "api.example.com", "/items/5;new", "item"),
        ("GET", "api.example.com", "/items/5%3Bnew", "item"),
    ] {
        for protocol in PROTOCOLS {
            let response = ask(protocol, &gateway, method, host, path);
            assert_eq!(response.text(), name, "{method} {host} {path} over {protocol:?}");
        }
    }
}

#[test]
fn no_route_is_a_404_and_another_method_a_405() {
    let gateway = start_routes(&[
        ("read", "host: a.test, path: '/items/{id}', methods: [GET, HEAD]"),
        ("write", "host: a.test, path: '/items/{id}', methods: [PUT]"),
    ]);
    on_every_protocol(|protocol| {
        for (host, path) in [("a.test", "/"), ("a.test", "/items"), ("b.test", "/items/5")] {
            let response = ask(protocol, &gateway, "GET", host, path);
            assert_eq!(response.status, 404, "{host} {path}");
            assert_eq!(response.json()["title"], "Not Found");
            assert_eq!(response.header("connection"), None);
        }
        let response = ask(protocol, &gateway, "DELETE", "a.test", "/items/5");
        assert_eq!((response.status, response.header("allow")), (405, Some("GET, HEAD, PUT")));
        assert_eq!(ask(protocol, &gateway, "PUT", "a.test", "/items/5").text(), "write");
    });
}

#[test]
fn paths_without_a_normal_form_are_refused() {
    let upstream = Upstream::hello();
    let gateway = start_forwarding(
        &upstream,
        "
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    for path in [
        "/%00",
        "/a%00b",
        "/%",
        "/%4",
        "/%zz",
        "/../a",
        "/a/../../b",
        "/%2e%2e/a",
        "/.%2E/",
        "/a/..;/b",
        "/.;x=1/b",
    ] {
        for protocol in PROTOCOLS {
            let response = protocol.get(&gateway, path, "");
            assert_eq!(response.status, 400, "{path} over {protocol:?}");
            let detail = response.json()["detail"].as_str().map(str::to_owned);
            assert!(detail.is_some_and(|detail| detail.contains("path")), "{path}");
        }
    }
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.send("GET * HTTP/1.1\r\nHost: a\r\n\r\n").read_response().status, 400);
    assert_eq!(upstream.request_count(), 0);
}

fn start_forwarding(upstream: &Upstream, yaml: &str) -> Gateway {
    Gateway::for_every_protocol(&fill(yaml, [("target", upstream.target())]))
}

/// The request lines that the upstream received.
fn request_lines(upstream: &Upstream) -> Vec<String> {
    upstream
        .request_texts()
        .iter()
        .filter_map(|text| text.lines().next().map(str::to_owned))
        .collect()
}

#[test]
fn the_upstream_is_sent_the_normal_form_and_the_query_untouched() {
    let sent = [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("//a", "/a"),
        ("/%61", "/a"),
        ("/x/../a", "/a"),
        ("/a/%2e%2e/b", "/b"),
        ("/a/./b/.", "/a/b/"),
        ("/a%2fb%2F", "/a%2Fb%2F"),
        ("/a%25%32%46b", "/a%252Fb"),
        ("/%e2%82%ac", "/%E2%82%AC"),
        ("/a//?q=//../%61%2f&%zz&&=", "/a/?q=//../%61%2f&%zz&&="),
        ("/a?", "/a?"),
        ("/a?b?c", "/a?b?c"),
        ("http://other.test/x//y?z", "/x/y?z"),
        ("http://other.test?z", "/?z"),
        ("HTTP://other.test:81", "/"),
    ];
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start_forwarding(
            &upstream,
            "
            upstreams:
              origin: {targets: [{target}]}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
            ",
        );
        if !protocol.is_http2() {
            // The HTTP/2 client removes a fragment.
            assert_eq!(protocol.get(&gateway, "/a//?q=//../%61%2f#", "").status, 400);
        }
        for (path, _) in sent {
            assert_eq!(protocol.get(&gateway, path, "").status, 200, "{path}");
        }
        assert_eq!(request_lines(&upstream), sent.map(|(_, path)| format!("GET {path} HTTP/1.1")));
        let received = upstream.request_texts();
        let has = |at: usize, line: &str| received[at].to_ascii_lowercase().contains(line);
        assert!(has(received.len() - 1, "\r\nhost: other.test:81\r\n"), "{received:?}");
        assert!(has(0, "\r\nhost: gateway.test\r\n"), "{received:?}");
    });
}

#[test]
fn strip_prefix_removes_whole_segments() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start_forwarding(
            &upstream,
            "
            upstreams:
              origin: {targets: [{target}]}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin, strip_prefix: /v1}
            ",
        );
        for path in ["/v1/items?q=/v1", "/v1", "/v1/", "/v10/items", "/%76%31//items", "/other"] {
            assert_eq!(protocol.get(&gateway, path, "").status, 200, "{path}");
        }
        assert_eq!(
            request_lines(&upstream),
            ["/items?q=/v1", "/", "/", "/v10/items", "/items", "/other"]
                .map(|path| format!("GET {path} HTTP/1.1"))
        );
    });
}

#[test]
fn equivalent_paths_share_a_key() {
    on_every_protocol(|protocol| {
        let gateway = Gateway::for_every_protocol(
            "upstreams: {hello: {respond: {body: hi}}}
limits: {by-path: {algorithm: sliding_window, quota: 5, window: 1h, key: [path]}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [by-path]}]",
        );
        let spellings =
            ["/a", "//a", "/%61", "/x/../a", "/./a", "/a?other", "http://gateway.test/a", "/%2e/a"];
        for (index, path) in spellings.iter().enumerate() {
            let response = protocol.get(&gateway, path, "");
            assert_eq!(response.status, if index < 5 { 200 } else { 429 }, "{path}");
        }
        // An escaped separator is not a separator: these are other paths.
        for path in ["/A", "/a/", "/b", "/a%2F"] {
            assert_eq!(protocol.get(&gateway, path, "").number("x-ratelimit-used"), 1, "{path}");
        }
    });
}

#[test]
fn equivalent_hosts_share_a_key() {
    on_every_protocol(|protocol| {
        let gateway = Gateway::for_every_protocol(
            "upstreams: {hello: {respond: {body: hi}}}
limits: {by-host: {algorithm: sliding_window, quota: 100, window: 1h, key: [host]}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [by-host]}]",
        );
        for (used, host) in ["a.test", "A.TEST", "a.test:80", "a.test."].iter().enumerate() {
            let response = ask(protocol, &gateway, "GET", host, "/");
            assert_eq!(response.number("x-ratelimit-used"), used as u64 + 1, "{host}");
        }
        let absolute = ask(protocol, &gateway, "GET", "other.test", "http://a.test/");
        assert_eq!(absolute.number("x-ratelimit-used"), 5, "the target's host counts");
    });
}

#[test]
fn hop_by_hop_headers_are_removed() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::with_response(
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\
             Connection: X-Own, Keep-Alive, Content-Length\r\nX-Own: 1\r\n\
             Keep-Alive: timeout=5\r\nUpgrade: h2c\r\nVia: 1.1 origin\r\nX-Kept: 1\r\n\r\nhello",
        );
        let gateway = start_forwarding(
            &upstream,
            "
            upstreams:
              origin: {targets: [{target}]}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
            ",
        );
        let mut client = protocol.connect(&gateway);
        let response = client.get(
            "/",
            "Connection: X-Mine, close, Host, X-Forwarded-For\r\nX-Mine: 1\r\nTE: trailers\r\n\
             Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nKeep-Alive: 5\r\n\
             Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic x\r\nX-Yours: 1\r\n",
        );
        assert_eq!((response.status, response.text().as_str()), (200, "hello"));
        for name in ["x-own", "keep-alive", "upgrade", "connection"] {
            // HTTP/1 answers the client's own `close`.
            let own =
                if name == "connection" && !protocol.is_http2() { Some("close") } else { None };
            assert_eq!(response.header(name), own, "{name}");
        }
        assert_eq!(
            (response.header("x-kept"), response.header("via")),
            (Some("1"), Some("1.1 origin"))
        );
        assert!(protocol.is_http2() || client.is_closed(), "as the client requested");
        let received = upstream.request_texts().remove(0).to_ascii_lowercase();
        for name in
            ["connection", "te", "upgrade", "keep-alive", "proxy-connection", "proxy-authorization"]
        {
            assert!(!received.contains(&format!("\r\n{name}:")), "{name} in {received}");
        }
        // HTTP/2 has no `Connection` that could name it.
        assert_eq!(received.contains("\r\nx-mine:"), protocol.is_http2(), "{received}");
        for name in ["host: gateway.test", "x-forwarded-for: 127.0.0.1", "x-yours: 1"] {
            assert!(received.contains(&format!("\r\n{name}\r\n")), "{name} in {received}");
        }
        let via =
            if protocol.is_http2() { "\r\nvia: 2 tidegate-" } else { "\r\nvia: 1.1 tidegate-" };
        assert!(received.contains(via), "{received}");
    });
}
