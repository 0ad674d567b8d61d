//! What a route matches beyond its pattern, and what it does: conditions, redirects, fixed responses, header
//! rules, `host`, rewritten paths and locations.

use std::{collections::BTreeMap, io::Write as _};

use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    http2_upstream::Http2Upstream,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
};

/// Starts a gateway with `upstreams` and `routes`, the lines of these sections.
fn start(sections: &str, upstreams: &str, routes: &str) -> Gateway {
    Gateway::for_every_protocol(&format!(
        "{sections}\nupstreams:\n{upstreams}\nroutes:\n{routes}\n"
    ))
}

/// A gateway whose route `all` forwards to `origin`, with more keys.
fn forwarding(upstream: &Upstream, matches: &str, keys: &str) -> Gateway {
    let upstreams = format!("  origin: {{targets: [\"{}\"]}}", upstream.target());
    let routes = format!("  - {{name: all, match: {{{matches}}}, upstream: origin, {keys}}}");
    start("", &upstreams, &routes)
}

/// The value of a field in the upstream's only request, or in its last one.
fn received(upstream: &Upstream, name: &str) -> Vec<String> {
    let request = upstream.request_texts().pop().expect("a request");
    let head = request.split("\r\n\r\n").next().unwrap_or_default().to_owned();
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(": "));
    fields
        .filter(|(other, _)| other.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.to_owned())
        .collect()
}

fn request_line(upstream: &Upstream) -> String {
    let request = upstream.request_texts().pop().expect("a request");
    request.lines().next().unwrap_or_default().to_owned()
}

/// The body of the response, which names the route.
fn route(protocol: Protocol, gateway: &Gateway, target: &str, head: &str) -> String {
    let response = protocol.get(gateway, target, head);
    match response.status {
        200 => response.text(),
        status => status.to_string(),
    }
}

#[test]
fn a_prefix_matches_its_path_and_all_below() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let origin = upstream.target();
        let gateway = start(
            "",
            &format!("  origin: {{targets: [\"{origin}\"]}}\n  form: {{respond: {{body: form}}}}"),
            "  - {name: form, match: {path: /login}, upstream: form}
  - {name: login, match: {path_prefix: /login}, upstream: origin, strip_prefix: /login}
  - {name: user, match: {path_prefix: '/users/{id}'}, upstream: origin, rewrite: '/u{path.rest}'}
  - {name: old, match: {path_prefix: /old}, redirect: {to: '/new{path.rest}?{query}'}}",
        );
        assert_eq!(protocol.get(&gateway, "/login", "").text(), "form", "{protocol:?}");
        for (target, forwarded) in [
            ("/login/", Some("/")),
            ("/login/a/b?x=1", Some("/a/b?x=1")),
            ("/login//a", Some("/a")),
            ("/login;v=1/a", None),
            ("/loginx", None),
            ("/users", None),
            ("/users/", None),
            ("/users/7", Some("/u")),
            ("/users/7/", Some("/u/")),
            ("/users/7/a%2Fb/c?x", Some("/u/a%2Fb/c?x")),
        ] {
            let status = protocol.get(&gateway, target, "").status;
            if let Some(forwarded) = forwarded {
                assert_eq!(status, 200, "{protocol:?} {target}");
                let line = request_line(&upstream);
                assert_eq!(line, format!("GET {forwarded} HTTP/1.1"), "{protocol:?} {target}");
            } else if target.contains(';') {
                assert_eq!(status, 200, "{protocol:?} {target}");
            } else {
                assert_eq!(status, 404, "{protocol:?} {target}");
            }
        }
        for (target, location) in
            [("/old", "/new"), ("/old/", "/new/"), ("/old/a/b?q=1", "/new/a/b?q=1")]
        {
            let response = protocol.get(&gateway, target, "");
            assert_eq!(response.header("location"), Some(location), "{protocol:?} {target}");
        }
    });
}

#[test]
fn headers_and_queries_choose_among_the_routes_of_a_pattern() {
    let names = ["plain", "v2", "beta", "both", "debug", "get", "rest"];
    let upstreams = names.map(|name| format!("  {name}: {{respond: {{body: {name}}}}}\n")).concat();
    let routes = "
  - {name: plain, match: {path: '/items/{id}'}, upstream: plain}
  - {name: v2, match: {path: '/items/{id}', headers: {x-version: '2'}}, upstream: v2}
  - {name: beta, match: {path: '/items/{id}', headers: {X-Beta: true}}, upstream: beta}
  - {name: both, match: {path: '/items/{id}', headers: {x-beta: true, x-version: '2'}}, upstream: both}
  - {name: debug, match: {path: '/items/{id}', query: {debug: '1'}, headers: {x-none: false}}, upstream: debug}
  - {name: get, match: {path: /only, methods: [GET], headers: {x-version: '2'}}, upstream: get}
  - {name: rest, match: {path: '/items/{*rest}', headers: {x-version: '2'}}, upstream: rest}
";
    let gateway = start("", &upstreams, routes);
    on_every_protocol(|protocol| {
        for (target, head, wanted) in [
            ("/items/1", "", "plain"),
            ("/items/1", "X-Version: 2\r\n", "v2"),
            ("/items/1", "X-Version:  2 \r\n", "v2"),
            ("/items/1", "X-Version: 3\r\n", "plain"),
            ("/items/1", "X-Beta: anything\r\n", "beta"),
            ("/items/1", "X-Beta: \r\n", "beta"),
            ("/items/1", "x-beta: 1\r\nx-version: 2\r\n", "both"),
            ("/items/1?debug=1", "", "debug"),
            ("/items/1?x&%64ebug=%31", "", "debug"),
            ("/items/1?debug=1", "X-None: 1\r\n", "plain"),
            ("/items/1?debug=2", "X-Version: 2\r\n", "v2"),
            ("/items/a/b", "X-Version: 2\r\n", "rest"),
            // A route whose conditions are not met does not exist.
            ("/items/a/b", "", "404"),
            ("/only", "X-Version: 2\r\n", "get"),
            ("/only", "", "404"),
            // What upstreams could read in two ways is refused where a condition tests it.
            ("/items/1", "X-Version: 2\r\nX-Version: 3\r\n", "400"),
            ("/items/1?debug=1&debug=2", "", "400"),
            ("/items/1?debug[]=1", "", "400"),
        ] {
            assert_eq!(route(protocol, &gateway, target, head), wanted, "{target} {head}");
        }
        let post = protocol.connect(&gateway).ask("POST", "/only", "X-Version: 2\r\n", "");
        assert_eq!((post.status, post.header("allow")), (405, Some("GET")));
        let post = protocol.connect(&gateway).ask("POST", "/only", "", "");
        assert_eq!(post.status, 404);
    });
}

#[test]
fn a_client_cannot_hide_a_tested_header_from_the_upstream() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = forwarding(&upstream, "path: /, headers: {x-version: '2'}", "max_body: 1KiB");
        let head = "X-Version: 2\r\nX_Version: 3\r\nConnection: X-Version\r\n";
        assert_eq!(protocol.get(&gateway, "/", head).status, 200);
        assert_eq!(received(&upstream, "x-version"), ["2"]);
        assert_eq!(received(&upstream, "x_version"), [""; 0]);
    });
}

#[test]
fn a_weight_is_a_share_of_callers_who_keep_their_route() {
    let upstreams = "  stable: {respond: {body: stable}}\n  canary: {respond: {body: canary}}";
    let routes = "
  - {name: stable, match: {path: /}, upstream: stable}
  - {name: canary, match: {path: /, weight: 30}, upstream: canary}
  - {name: other-stable, match: {path: /other}, upstream: stable}
  - {name: other, match: {path: /other, weight: 30}, upstream: canary}
";
    let gateway = start("", upstreams, routes);
    let mut places = BTreeMap::new();
    for caller in 0..400 {
        let head = format!("Authorization: Bearer caller-{caller}\r\n");
        places.insert(caller, route(Protocol::Http1, &gateway, "/", &head));
    }
    let canary = places.values().filter(|place| *place == "canary").count();
    // 120 are expected; six standard deviations are 55.
    assert!((65..=175).contains(&canary), "{canary} of 400");
    on_every_protocol(|protocol| {
        for caller in [1, 2, 3, 5, 8, 13, 21, 34] {
            let spellings = [
                format!("Authorization: Bearer caller-{caller}\r\n"),
                format!("Authorization: bearer   caller-{caller}\r\n"),
            ];
            for head in &spellings {
                assert_eq!(&route(protocol, &gateway, "/", head), &places[&caller], "{head}");
                assert_eq!(&route(protocol, &gateway, "/other", head), &places[&caller], "{head}");
            }
        }
        let without_token = route(protocol, &gateway, "/", "");
        assert_eq!(route(Protocol::Http1, &gateway, "/", ""), without_token, "by its address");
    });
}

#[test]
fn redirects_and_fixed_responses_are_answered_by_the_gateway() {
    let routes = "
  - name: moved
    match: {path: '/items/{id}'}
    redirect: {to: 'https://new.test/things/{path.id}?from={route}&{query}'}
    limits: [one]
  - {name: rest, match: {path: '/old/{*rest}'}, redirect: {to: '/new/{path.rest}', status: 302}}
  - {name: see, match: {path: /see}, redirect: {to: 'https://{host}/x?{query}', status: 303}}
  - {name: teapot, match: {path: /teapot}, respond: {status: 418, body: short, content_type: text/tea}}
";
    let limits = "limits: {one: {quota: 2, window: 1h, key: ['header:x-caller']}}";
    let gateway = start(limits, "  unused: {respond: {}}", routes);
    let mut without_host = Client::connect(gateway.address());
    assert_eq!(without_host.send("GET /see HTTP/1.0\r\n\r\n").read_response().status, 400);
    on_every_protocol(|protocol| {
        let get =
            |target: &str| protocol.get(&gateway, target, format!("X-Caller: {protocol:?}\r\n"));
        let location = |response: &Response| {
            (response.status, response.header("location").unwrap_or_default().to_owned())
        };
        let moved = get("/items/7?a=%20b");
        assert_eq!(
            location(&moved),
            (308, "https://new.test/things/7?from=moved&a=%20b".to_owned())
        );
        assert_eq!((moved.number("x-ratelimit-used"), moved.text()), (1, String::new()));
        let encoded = get("/items/a%2Fb%0d%0aX:y");
        assert_eq!(location(&encoded).1, "https://new.test/things/a%2Fb%0D%0AX:y?from=moved&");
        assert_eq!(encoded.header("x"), None);
        assert_eq!(get("/items/7").status, 429, "redirects are charged");
        assert_eq!(location(&get("/old/a/b/")), (302, "/new/a/b/".to_owned()));
        assert_eq!(location(&get("/see")), (303, "https://gateway.test/x".to_owned()));
        let teapot = get("/teapot");
        assert_eq!((teapot.status, teapot.text().as_str()), (418, "short"));
        assert_eq!(teapot.header("content-type"), Some("text/tea"));
    });
}

const REQUEST_RULES: &str = "request: {
        set: {x-user: '{client_ip} {scheme}', x-path: '{path} {path.id} {query} {host} {method} {route}',
              x-forwarded-proto: fixed, x-empty: '{header.x-none}'},
        add: {x-tag: '{header.x-tag}+'}, remove: [x-internal, cookie]}";

const RESPONSE_RULES: &str = "response: {
        set: {x-frame-options: DENY, x-id: '{request_id}'}, add: {x-tag: '{path.id}'},
        remove: [server, date, x-ratelimit-used]}";

/// The values of all fields of this name.
fn values(response: &Response, name: &str) -> Vec<String> {
    let fields = response.head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let named = fields.filter(|(other, _)| other.eq_ignore_ascii_case(name));
    named.map(|(_, value)| value.trim().to_owned()).collect()
}

#[test]
fn header_rules_change_requests_and_responses() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::with_response(
            "HTTP/1.1 200 OK\r\nServer: origin/1\r\nX-Frame-Options: ALLOW\r\nX-Tag: 0\r\nContent-Length: 5\r\n\
             \r\nhello",
        );
        let keys = format!("headers: {{{REQUEST_RULES}, {RESPONSE_RULES}}}");
        let gateway = forwarding(&upstream, "path: '/items/{id}'", &keys);
        let response = protocol.get(
            &gateway,
            "/items/7?a=1",
            "X-User: admin\r\nx_user: admin\r\nX-Internal: 1\r\nX_Internal: 2\r\nCookie: a=b\r\nX-Tag: t\tu\r\n\
             X-Empty: client\r\nConnection: X-Tag\r\n",
        );
        assert_eq!((response.status, response.text().as_str()), (200, "hello"));
        let scheme = protocol.scheme();
        for (name, wanted) in [
            ("x-user", vec![format!("127.0.0.1 {scheme}")]),
            ("x_user", vec![]),
            ("x-path", vec!["/items/7 7 a=1 gateway.test GET all".to_owned()]),
            ("x-forwarded-proto", vec!["fixed".to_owned()]),
            ("x-internal", vec![]),
            ("x_internal", vec![]),
            ("cookie", vec![]),
            ("x-empty", vec![]),
            ("x-forwarded-for", vec!["127.0.0.1".to_owned()]),
        ] {
            assert_eq!(received(&upstream, name), wanted, "{name}");
        }
        // HTTP/1 lists the client's own as hop-by-hop.
        let tags = received(&upstream, "x-tag");
        assert_eq!(tags.last().map(String::as_str), Some("t u+"), "{tags:?}");
        assert_eq!(tags.len(), if protocol.is_http2() { 2 } else { 1 }, "{tags:?}");
        for (name, wanted) in [
            ("x-frame-options", Some("DENY")),
            ("server", None),
            ("date", None),
            ("x-internal", None),
        ] {
            assert_eq!(response.header(name), wanted, "{name}");
        }
        assert_eq!(response.header("x-id"), response.header("x-request-id"));
        assert_eq!(values(&response, "x-tag"), ["0", "7"]);
    });
}

#[test]
fn response_rules_apply_to_the_gateways_own_responses() {
    let routes = format!(
        "  - {{name: all, match: {{path: '/items/{{id}}'}}, respond: {{body: hi}}, limits: [one], \
         headers: {{{RESPONSE_RULES}}}}}"
    );
    let limits = "limits: {one: {quota: 1, window: 1h, key: ['header:x-caller']}}";
    let gateway = start(limits, "  unused: {respond: {}}", &routes);
    on_every_protocol(|protocol| {
        let get = || protocol.get(&gateway, "/items/7", format!("X-Caller: {protocol:?}\r\n"));
        for (response, status) in [(get(), 200), (get(), 429)] {
            assert_eq!(response.status, status);
            assert_eq!(response.header("x-frame-options"), Some("DENY"));
            assert_eq!(response.header("x-ratelimit-used"), None);
            assert_eq!(response.header("x-ratelimit-limit"), Some("1"));
            assert_eq!(response.header("x-tag"), Some("7"));
        }
        assert_eq!(protocol.get(&gateway, "/none", "").header("x-frame-options"), None, "no route");
    });
}

#[test]
fn no_value_of_a_request_ends_a_header_line() {
    let upstream = Upstream::hello();
    let gateway = forwarding(
        &upstream,
        "path: '/items/{*rest}'",
        "headers: {request: {set: {x-rest: '{path.rest}|{query}|{header.x-a}'}}, \
         response: {set: {x-rest: '{path.rest}|{query}|{header.x-a}'}}}",
    );
    on_every_protocol(|protocol| {
        let head = "X-A: a\tb\u{e9}\r\n";
        let response = protocol.get(&gateway, "/items/%0d%0aX-Evil:1/%00x?%0aX-Evil:2", head);
        assert_eq!(response.status, 400, "NUL");
        let response = protocol.get(&gateway, "/items/%0d%0aX-Evil:1?%0aX-Evil:2", head);
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-evil"), None);
        let value = received(&upstream, "x-rest").remove(0);
        assert!(value.starts_with("%0D%0AX-Evil:1|%0aX-Evil:2|a b"), "{value}");
    });
}

#[test]
fn the_host_is_the_clients_the_upstreams_or_a_fixed_one() {
    on_every_protocol(|protocol| {
        for (keys, wanted) in [
            ("host: preserve", None),
            ("host: internal.test:81", Some("internal.test:81".to_owned())),
            ("host: upstream", Some(String::new())),
        ] {
            let upstream = Upstream::hello();
            let own = upstream.address.to_string();
            let wanted = wanted.map(|host| if host.is_empty() { own } else { host });
            let gateway = forwarding(&upstream, "path: /", keys);
            assert_eq!(protocol.get(&gateway, "/", "").status, 200, "{keys}");
            let wanted = wanted.unwrap_or_else(|| "gateway.test".to_owned());
            assert_eq!(received(&upstream, "host"), [wanted], "{keys}");
            assert_eq!(received(&upstream, "x-forwarded-host"), ["gateway.test"], "{keys}");
        }
    });
}

#[test]
fn the_host_is_that_of_the_server_that_is_tried_next() {
    // The first server closes the connection without a response.
    let failing = Upstream::with_handler(|_, _| false);
    let working = Upstream::hello();
    let upstreams = format!(
        "  origin: {{targets: [\"{}\", \"{}\"], balance: round_robin}}",
        failing.target(),
        working.target()
    );
    let routes = "  - {name: all, match: {path: /}, upstream: origin, host: upstream}";
    let gateway = start("workers: 1", &upstreams, routes);
    for _ in 0..4 {
        assert_eq!(Protocol::Http1.get(&gateway, "/", "").status, 200);
        assert_eq!(received(&working, "host"), [working.address.to_string()]);
    }
    assert!(failing.request_count() > 0);
    assert_eq!(received(&failing, "host"), [failing.address.to_string()]);
}

#[test]
fn a_rewritten_path_keeps_its_shape() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = forwarding(
            &upstream,
            "path: '/v{n}/{id}/{*rest}'",
            "rewrite: '/x/{path.n}/{path.id}/y/{path.rest}'",
        );
        for (target, wanted) in [
            ("/v1/7/a/b/?q=/1", "/x/1/7/y/a/b/?q=/1"),
            ("/v1/a%2Fb/", "/x/1/a%2Fb/y/"),
            ("/v1/%3Fx%23/c", "/x/1/%3Fx%23/y/c"),
            ("/v..a/7;v=1/c", "/x/..a/7/y/c"),
        ] {
            assert_eq!(protocol.get(&gateway, target, "").status, 200, "{target}");
            assert_eq!(request_line(&upstream), format!("GET {wanted} HTTP/1.1"), "{target}");
        }
        let count = upstream.request_count();
        for target in ["/v../7/c", "/v./7/c", "/v%2e%2E/7/c"] {
            assert_eq!(protocol.get(&gateway, target, "").status, 400, "{target}");
        }
        assert_eq!(upstream.request_count(), count, "nothing is forwarded");
    });
}

#[test]
fn locations_of_an_upstream_get_the_prefix_back() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::with_handler(|request, socket| {
            let text = String::from_utf8_lossy(request);
            let target = text.split(' ').nth(1).unwrap_or_default();
            let location = target.split_once("?to=").map_or("", |(_, to)| to);
            let host =
                text.lines().find_map(|line| line.strip_prefix("x-own: ")).unwrap_or_default();
            let location = location.replace("OWN", host);
            let response = format!(
                "HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Location: {location}\r\n\
                 Content-Length: 0\r\n\r\n"
            );
            socket.write_all(response.as_bytes()).is_ok()
        });
        let keys = "strip_prefix: /v1";
        let gateway = forwarding(&upstream, "path: '/{*rest}'", keys);
        let own = format!("X-Own: {}\r\n", upstream.address).to_ascii_lowercase();
        let scheme = protocol.scheme();
        for (path, to, wanted) in [
            ("/v1/a", "/b", "/v1/b".to_owned()),
            ("/v1/a", "/v1/b", "/v1/b".to_owned()),
            ("/v1/a", "http://OWN/b", format!("{scheme}://gateway.test/v1/b")),
            ("/v1/a", "http://gateway.test/b", format!("{scheme}://gateway.test/v1/b")),
            ("/v1/a", "https://other.test/b", "https://other.test/b".to_owned()),
            ("/v1/a", "//other.test/b", "//other.test/b".to_owned()),
            ("/v1/a", "b", "b".to_owned()),
            // Nothing was stripped.
            ("/v10/a", "/b", "/b".to_owned()),
        ] {
            let response = protocol.get(&gateway, &format!("{path}?to={to}"), &own);
            assert_eq!(response.header("location"), Some(&*wanted), "{path} {to}");
            assert_eq!(values(&response, "content-location"), [&*wanted], "{path} {to}");
            let prefix = if path.starts_with("/v1/") { vec!["/v1"] } else { vec![] };
            assert_eq!(received(&upstream, "x-forwarded-prefix"), prefix, "{path} {to}");
        }
        let evil = "X-Forwarded-Prefix: /evil\r\n";
        protocol.get(&gateway, "/v1/a?to=/", evil);
        assert_eq!(received(&upstream, "x-forwarded-prefix"), ["/v1"]);
        protocol.get(&gateway, "/v10/a?to=/", evil);
        assert_eq!(received(&upstream, "x-forwarded-prefix"), [""; 0]);
    });
}

#[test]
fn a_trusted_proxys_prefix_precedes_the_stripped_one() {
    let upstream = Upstream::hello();
    let upstreams = format!("  origin: {{targets: [\"{}\"]}}", upstream.target());
    let routes = "  - {name: all, match: {path: '/{*rest}'}, upstream: origin, strip_prefix: /v1}";
    let gateway = start("client: {trusted_proxies: [127.0.0.0/8]}", &upstreams, routes);
    on_every_protocol(|protocol| {
        protocol.get(&gateway, "/v1/a", "X-Forwarded-Prefix: /outer/\r\n");
        assert_eq!(received(&upstream, "x-forwarded-prefix"), ["/outer/v1"]);
    });
}

#[test]
fn an_upstream_of_http2_gets_the_same_changes() {
    on_every_protocol(|protocol| {
        let upstream = Http2Upstream::hello();
        let upstreams =
            format!("  origin: {{targets: [\"{}\"], protocol: http2}}", upstream.target());
        let routes = format!(
            "  - {{name: all, match: {{path: '/items/{{id}}'}}, upstream: origin, host: upstream, \
             rewrite: '/x/{{path.id}}', headers: {{{REQUEST_RULES}}}}}"
        );
        let gateway = start("", &upstreams, &routes);
        let head = "X-User: admin\r\nX-Internal: 1\r\n";
        let response = protocol.get(&gateway, "/items/7?a=1", head);
        assert_eq!(response.status, 200);
        let text = upstream.request_texts().remove(0);
        let authority = upstream.target().trim_start_matches("http://").to_owned();
        for wanted in [
            "/x/7?a=1",
            &*authority,
            "x-path: /items/7 7 a=1 gateway.test GET all",
            &*format!("x-user: 127.0.0.1 {}", protocol.scheme()),
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(!text.contains("admin") && !text.contains("x-internal"), "{text}");
    });
}
