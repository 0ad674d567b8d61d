//! Other spellings of a path or a header lead to the same route, limits and rules.

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    protocol::on_every_protocol,
    upstream::Upstream,
    yaml::fill,
};

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    Gateway::for_every_protocol(&fill(yaml, [("target", upstream.target())]))
}

/// The values of a field in the upstream's last request.
fn received(upstream: &Upstream, name: &str) -> Vec<String> {
    let request = upstream.request_texts().pop().expect("a request");
    let fields = request.lines().skip(1).filter_map(|line| line.split_once(": "));
    let own = fields.filter(|(other, _)| other.eq_ignore_ascii_case(name));
    own.map(|(_, value)| value.to_owned()).collect()
}

#[test]
fn escaped_characters_of_a_path_match_the_same_route() {
    let upstream = Upstream::hello();
    let gateway = start(
        &upstream,
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - {name: me, match: {path: '/users/@me'}, upstream: origin, deny: [127.0.0.0/8]}
          - {name: json, match: {path: '/files/{name}:json'}, upstream: origin, deny: [127.0.0.0/8]}
          - {name: odd, match: {path: '/odd/a|{{b}}'}, upstream: origin, deny: [127.0.0.0/8]}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    on_every_protocol(|protocol| {
        for path in [
            "/users/@me",
            "/users/%40me",
            "/users/%40%6de",
            "/users/%40me;v=1",
            "/files/a:json",
            "/files/a%3ajson",
            "/files/%40%3Ajson",
            "/odd/a%7C%7bb%7D",
        ] {
            assert_eq!(protocol.get(&gateway, path, "").status, 403, "{path}");
        }
        for path in ["/users/%2540me", "/users%2F@me", "/users/@me/", "/files/:json"] {
            assert_eq!(protocol.get(&gateway, path, "").status, 200, "{path}");
        }
    });
}

#[test]
fn all_spellings_of_a_path_share_a_quota_and_are_forwarded_as_sent() {
    let upstream = Upstream::hello();
    let gateway = start(
        &upstream,
        "
        workers: 1
        limits: {few: {quota: 3, window: 1h, key: [path]}}
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - {name: items, match: {path: '/v1/{*rest}'}, upstream: origin, limits: [few], strip_prefix: /v1}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    for (path, forwarded) in [
        ("/v1/Items(5)", "/Items(5)"),
        ("/v1/Items%285%29", "/Items%285%29"),
        ("/v1/Items%285);x=1", "/Items%285);x=1"),
    ] {
        assert_eq!(get(gateway.address(), path, "").status, 200);
        let request = upstream.request_texts().pop().expect("a request");
        assert!(request.starts_with(&format!("GET {forwarded} ")), "{request}");
    }
    assert_eq!(get(gateway.address(), "/v1/Items(5%29", "").status, 429);
    // A prefix is stripped in every spelling.
    let gateway = start(
        &upstream,
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - {name: own, match: {path: '/@own/{*rest}'}, upstream: origin, strip_prefix: /@own}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    for path in ["/@own/a%40b", "/%40own/a%40b"] {
        assert_eq!(get(gateway.address(), path, "").status, 200);
        let request = upstream.request_texts().pop().expect("a request");
        assert!(request.starts_with("GET /a%40b "), "{request}");
    }
}

#[test]
fn parts_of_a_path_keep_their_escapes() {
    let upstream = Upstream::hello();
    let gateway = start(
        &upstream,
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - {name: own, match: {path: '/v1/{id}:read'}, upstream: origin, rewrite: '/v2/{path.id}'}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    for path in ["/v1/a%40b%2Fc:read", "/v1/a%40b%2Fc%3Aread"] {
        assert_eq!(get(gateway.address(), path, "").status, 200);
        let request = upstream.request_texts().pop().expect("a request");
        assert!(request.starts_with("GET /v2/a%40b%2Fc "), "{request}");
    }
}

#[test]
fn names_with_underscores_cover_the_names_with_dashes() {
    let upstream = Upstream::hello();
    let gateway = start(
        &upstream,
        "
        workers: 1
        limits: {few: {quota: 100, window: 1h, key: ['header:x_tenant']}}
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - name: set
            match: {path: /set}
            upstream: origin
            headers: {request: {set: {x_user: '{client_ip}'}, remove: [x_internal]}}
          - {name: key, match: {path: /key}, upstream: origin, limits: [few]}
          - {name: v2, match: {path: /version, headers: {x_version: '2'}}, upstream: origin}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    let sent = "X-User: root\r\nX_User: root\r\nX-Internal: 1\r\nX.Internal: 1\r\n";
    assert_eq!(get(gateway.address(), "/set", sent).status, 200);
    assert_eq!(received(&upstream, "x_user"), ["127.0.0.1"]);
    for name in ["x-user", "x-internal", "x_internal", "x.internal"] {
        assert!(received(&upstream, name).is_empty(), "{name}");
    }
    assert_eq!(get(gateway.address(), "/key", "X_Tenant: a\r\nX-Tenant: victim\r\n").status, 200);
    assert!(received(&upstream, "x-tenant").is_empty());
    assert_eq!(received(&upstream, "x_tenant"), ["a"]);
    assert_eq!(get(gateway.address(), "/version", "X_Version: 2\r\nX-Version: 9\r\n").status, 200);
    assert!(received(&upstream, "x-version").is_empty());
}

/// The bodies of the routes that an untrusted or trusted peer reaches with forwarded fields.
fn bodies_for_forwarded_fields(yaml: &str) -> [String; 3] {
    let gateway = start(&Upstream::hello(), yaml);
    let sent = "X-Forwarded-Proto: https\r\nX-Real-IP: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\n";
    ["/pay", "/inside", "/direct"].map(|path| get(gateway.address(), path, sent).text())
}

#[test]
fn conditions_do_not_believe_what_an_untrusted_peer_forwards() {
    let bodies = bodies_for_forwarded_fields(
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - {name: secure, match: {path: /pay, headers: {x-forwarded-proto: https}}, respond: {body: secure}}
          - {name: inside, match: {path: /inside, headers: {x-real-ip: '10.0.0.1'}}, respond: {body: inside}}
          - {name: direct, match: {path: /direct, headers: {forwarded: false}}, respond: {body: direct}}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    assert_eq!(bodies, ["hello", "hello", "direct"]);
}

#[test]
fn conditions_believe_what_a_trusted_proxy_forwards() {
    let bodies = bodies_for_forwarded_fields(
        "
        workers: 1
        client: {trusted_proxies: [127.0.0.0/8]}
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - {name: secure, match: {path: /pay, headers: {x-forwarded-proto: https}}, respond: {body: secure}}
          - {name: inside, match: {path: /inside, headers: {x-real-ip: '10.0.0.1'}}, respond: {body: inside}}
          - {name: direct, match: {path: /direct, headers: {forwarded: false}}, respond: {body: direct}}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    assert_eq!(bodies, ["secure", "inside", "hello"]);
}

#[test]
fn an_ipv6_host_matches_in_every_form() {
    let upstream = Upstream::hello();
    let gateway = start(
        &upstream,
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - {name: own, match: {host: '[0:0::1]', path: /own}, respond: {body: own}}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    for host in ["[::1]", "[0:0::1]:8080", "[0:0:0:0:0:0:0:1]"] {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET /own HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.read_response().text(), "own", "{host}");
    }
}

#[test]
fn no_value_makes_a_redirect_lead_to_another_host() {
    let upstream = Upstream::hello();
    let gateway = start(
        &upstream,
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - {name: go, match: {path: '/go/{*rest}'}, redirect: {to: '/{header.x-lang}/{path.rest}'}}
          - {name: old, match: {path: '/old/{id}/{*rest}'}, redirect: {to: '/{path.rest}/{path.id}'}}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    for (path, head, location) in [
        ("/go/evil.test/login", "", "/evil.test/login"),
        ("/go/evil.test", "X-Lang: en\r\n", "/en/evil.test"),
        ("/go/evil.test", "X-Lang: /\r\n", "/evil.test"),
        ("/old/evil.test/", "", "/evil.test"),
    ] {
        let response = get(gateway.address(), path, head);
        assert_eq!(response.header("location"), Some(location), "{path}");
    }
}

#[test]
fn header_rules_for_vary_keep_the_names_of_cors_and_compression() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nVary: Origin, Accept-Encoding\r\n\
         Content-Length: 5\r\n\r\nhello",
    );
    let gateway = start(
        &upstream,
        "
        workers: 1
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - name: own
            match: {path: /own}
            upstream: origin
            compress: {min_size: 1B}
            cors: {origins: ['https://app.test']}
            headers: {response: {set: {vary: accept-language}}}
          - {name: any, match: {path: /any}, upstream: origin, cors: {origins: ['*']}}
          - {name: rest, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    let response = get(gateway.address(), "/own", "Accept-Encoding: gzip\r\n");
    let head = response.head.to_ascii_lowercase();
    for vary in ["vary: origin", "vary: accept-encoding", "vary: accept-language"] {
        assert_eq!(head.matches(vary).count(), 1, "{vary} in {head}");
    }
    // Even without an `Origin`: a cache may give the response to a script.
    let any = get(gateway.address(), "/any", "");
    assert_eq!(any.header("access-control-allow-origin"), Some("*"));
}
