//! What a route matches beyond its pattern, and what it does: conditions, shares of callers,
//! redirects and fixed responses.

/// Header rules.
mod header_rules;
/// Header rules that replace parts of values.
mod replaced_values;
/// `host`, rewritten paths, and locations.
mod rewrites;

use std::collections::BTreeMap;

use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    Gateway::for_every_protocol(&fill(yaml, [("target", upstream.target())]))
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
        let gateway = start(
            &upstream,
            "
            upstreams:
              origin: {targets: ['{target}']}
              form: {respond: {body: form}}
            routes:
              - {name: form, match: {path: /login}, upstream: form}
              - {name: login, match: {path_prefix: /login}, upstream: origin, strip_prefix: /login}
              - {name: user, match: {path_prefix: '/users/{id}'}, upstream: origin, rewrite: '/u{path.rest}'}
              - {name: old, match: {path_prefix: /old}, redirect: {to: '/new{path.rest}?{query}'}}
            ",
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
    let gateway = Gateway::for_every_protocol(
        "
        upstreams:
          plain: {respond: {body: plain}}
          v2: {respond: {body: v2}}
          beta: {respond: {body: beta}}
          both: {respond: {body: both}}
          debug: {respond: {body: debug}}
          get: {respond: {body: get}}
          rest: {respond: {body: rest}}
        routes:
          - {name: plain, match: {path: '/items/{id}'}, upstream: plain}
          - {name: v2, match: {path: '/items/{id}', headers: {x-version: '2'}}, upstream: v2}
          - {name: beta, match: {path: '/items/{id}', headers: {X-Beta: true}}, upstream: beta}
          - {name: both, match: {path: '/items/{id}', headers: {x-beta: true, x-version: '2'}}, upstream: both}
          - {name: debug, match: {path: '/items/{id}', query: {debug: '1'}, headers: {x-none: false}}, upstream: debug}
          - {name: get, match: {path: /only, methods: [GET], headers: {x-version: '2'}}, upstream: get}
          - {name: rest, match: {path: '/items/{*rest}', headers: {x-version: '2'}}, upstream: rest}
        ",
    );
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
            // A header that upstreams could read in two ways is refused if a condition tests it.@
            // tests/limits/agreement.rs
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
        let gateway = start(
            &upstream,
            "
            upstreams: {origin: {targets: ['{target}']}}
            routes: [{name: all, match: {path: /, headers: {x-version: '2'}}, upstream: origin}]
            ",
        );
        let head = "X-Version: 2\r\nX_Version: 3\r\nConnection: X-Version\r\n";
        assert_eq!(protocol.get(&gateway, "/", head).status, 200);
        assert_eq!(received(&upstream, "x-version"), ["2"]);
        assert_eq!(received(&upstream, "x_version"), [""; 0]);
    });
}

#[test]
fn a_weight_is_a_share_of_callers_who_keep_their_route() {
    let gateway = Gateway::for_every_protocol(
        "
        upstreams:
          stable: {respond: {body: stable}}
          canary: {respond: {body: canary}}
        routes:
          - {name: stable, match: {path: /}, upstream: stable}
          - {name: canary, match: {path: /, weight: 30}, upstream: canary}
          - {name: other-stable, match: {path: /other}, upstream: stable}
          - {name: other, match: {path: /other, weight: 30}, upstream: canary}
        ",
    );
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
    let gateway = Gateway::for_every_protocol(
        "
        upstreams: {unused: {respond: {}}}
        limits: {one: {quota: 2, window: 1h, key: ['header:x-caller']}}
        routes:
          - name: moved
            match: {path: '/items/{id}'}
            redirect: {to: 'https://new.test/things/{path.id}?from={route}&{query}'}
            limits: [one]
          - {name: rest, match: {path: '/old/{*rest}'}, redirect: {to: '/new/{path.rest}', status: 302}}
          - {name: see, match: {path: /see}, redirect: {to: 'https://{host}/x?{query}', status: 303}}
          - {name: teapot, match: {path: /teapot}, respond: {status: 418, body: short, content_type: text/tea}}
        ",
    );
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
