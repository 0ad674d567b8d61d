//! Cross-origin resource sharing: preflights, the fields of responses, and the gateway's own
//! responses.

use std::fs;

use serde_json::Value;
use testkit::{
    client::Response,
    gateway::Gateway,
    protocol::{AnyClient, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};

use testkit::commands::run;
use testkit::log_lines::read_lines;

const APP: &str = "https://app.example.com";

/// What an upstream that has CORS of its own answers.
const WITH_CORS: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\
    access-control-allow-origin: https://upstream.test\r\nAccess-Control-Allow-Credentials: true\r\n\
    ACCESS-CONTROL-EXPOSE-HEADERS: x-upstream\r\nAccess-Control-Max-Age: 5\r\n\
    Vary: Accept-Encoding\r\nX-Own: 1\r\n\r\nhello";

/// Routes with `cors`, and without it.
const RULES: &str = "
workers: 1
upstreams: {app: {targets: [{target}]}}
limits: {few: {quota: 3, window: 1h, key: []}}
routes:
  - name: items
    match: {path: /items, methods: [GET, PUT]}
    upstream: app
    limits: [few]
    cors:
      origins: ['https://app.example.com', 'https://*.example.org']
      headers: [content-type, X-Token]
      expose: [X-Own, retry-after]
      credentials: true
      max_age: 1h
  - {name: any, match: {path: /any}, upstream: app, cors: {origins: ['*'], max_age: 0s}}
  - {name: nulls, match: {path: /nulls}, upstream: app, cors: {origins: ['null'], methods: [POST]}}
  - {name: plain, match: {path: /any, methods: [DELETE]}, upstream: app}
  - {name: none, match: {path: /none}, upstream: app, limits: [few]}
";

fn start(yaml: &str, upstream: &Upstream) -> Gateway {
    Gateway::for_every_protocol(&fill(yaml, [("target", upstream.target())]))
}

fn from(origin: &str) -> String {
    format!("Origin: {origin}\r\n")
}

fn preflight(client: &mut AnyClient, path: &str, origin: &str, method: &str) -> Response {
    let headers = format!(
        "Origin: {origin}\r\nAccess-Control-Request-Method: {method}\r\n\
         Access-Control-Request-Headers: content-type,x-token\r\n"
    );
    client.ask("OPTIONS", path, headers, "")
}

/// The CORS fields, and `vary`: sorted lines in lower case.
fn cors(response: &Response) -> Vec<String> {
    let head = response.head.to_ascii_lowercase();
    let is_cors = |line: &&str| line.starts_with("access-control-") || line.starts_with("vary:");
    let mut lines: Vec<_> = head.lines().filter(is_cors).map(str::to_owned).collect();
    lines.sort();
    lines
}

const EXPOSED: &str = "access-control-expose-headers: x-ratelimit-limit, x-ratelimit-remaining, \
    x-ratelimit-used, x-ratelimit-reset, x-ratelimit-resource, ratelimit, ratelimit-policy, \
    retry-after, x-request-id";

#[test]
fn preflights_are_answered_and_not_charged() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(RULES, &upstream);
        let mut client = protocol.connect(&gateway);
        let allowed = |origin: &str| {
            [
                "access-control-allow-credentials: true",
                "access-control-allow-headers: content-type, x-token",
                "access-control-allow-methods: get, put",
                &format!("access-control-allow-origin: {origin}"),
                EXPOSED_WITH_OWN,
                "access-control-max-age: 3600",
                "vary: origin",
            ]
            .map(str::to_owned)
        };
        for origin in [APP, "https://a.b.example.org"] {
            // Also of a method that no route has: the browser then says so.
            for method in ["PUT", "GET", "DELETE", "patch"] {
                let response = preflight(&mut client, "/items", origin, method);
                assert_eq!((response.status, response.body.len()), (204, 0), "{method}");
                assert_eq!(cors(&response), allowed(origin), "{method}");
                assert!(response.header("x-ratelimit-used").is_none());
                assert!(response.header("content-length").is_none(), "{}", response.head);
            }
        }
        for origin in ["https://evil.test", "null", "https://example.org"] {
            let response = preflight(&mut client, "/items", origin, "PUT");
            assert_eq!((response.status, cors(&response)), (204, vec!["vary: origin".to_owned()]));
        }
        let open = preflight(&mut client, "/any", "https://evil.test", "PUT");
        let expected = [
            "access-control-allow-methods: get, head, post, put, patch, delete",
            "access-control-allow-origin: *",
            EXPOSED,
            "access-control-max-age: 0",
        ];
        assert_eq!(cors(&open), expected);
        assert_eq!(upstream.request_count(), 0);
        let used = client.get("/items", "");
        assert_eq!((used.status, used.number("x-ratelimit-used")), (200, 1));
    });
}

const EXPOSED_WITH_OWN: &str = "access-control-expose-headers: x-ratelimit-limit, \
    x-ratelimit-remaining, x-ratelimit-used, x-ratelimit-reset, x-ratelimit-resource, ratelimit, \
    ratelimit-policy, retry-after, x-request-id, x-own";

#[test]
fn a_preflight_finds_the_route_of_the_request_that_it_announces() {
    const ROUTES: &str = "
        workers: 1
        upstreams: {app: {targets: [{target}]}}
        routes:
          - {name: v1, match: {path: /a, headers: {x-version: '1'}}, upstream: app, cors: {origins: ['*'], max_age: 1s}}
          - {name: new, match: {path: /a, headers: {x-new: true, x-old: false}}, upstream: app, cors: {origins: ['*'], max_age: 2s}}
          - {name: session, match: {path: /b, headers: {cookie: true}}, upstream: app, cors: {origins: ['*'], max_age: 3s}}
          - {name: json, match: {path: /c, headers: {accept: application/json}}, upstream: app}
          - {name: any, match: {path: /c}, upstream: app, cors: {origins: ['*'], max_age: 4s}}
          - {name: app, match: {path: /d, headers: {origin: 'https://app.example.com'}}, upstream: app, cors: {origins: ['*'], max_age: 5s}}
          - {name: old, match: {path: /e, headers: {x-new: false}}, upstream: app, cors: {origins: ['*'], max_age: 6s}}
          - {name: debug, match: {path: /f, headers: {x-version: '1'}, query: {debug: '1'}}, upstream: app, cors: {origins: ['*'], max_age: 7s}}
        ";
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(ROUTES, &upstream);
        let mut client = protocol.connect(&gateway);
        let mut max_age = |path: &str, origin: &str, listed: &str| {
            let headers = format!(
                "Origin: {origin}\r\nAccess-Control-Request-Method: GET\r\n\
                 Access-Control-Request-Headers: {listed}\r\n"
            );
            let response = client.ask("OPTIONS", path, headers, "");
            (response.status, response.header("access-control-max-age").unwrap_or("").to_owned())
        };
        for (path, listed, age) in [
            ("/a", "content-type,x-version", Some("1")),
            ("/a", "X-Version", Some("1")),
            ("/a", "x-new", Some("2")),
            ("/a", "x-new, x-old", None),
            ("/a", "content-type", None),
            ("/b", "content-type", Some("3")),
            ("/c", "content-type", Some("4")),
            ("/d", "content-type", Some("5")),
            ("/e", "content-type", Some("6")),
            ("/f?debug=1", "x-version", Some("7")),
            ("/f", "x-version", None),
        ] {
            let wanted = age.map_or((404, String::new()), |age| (204, age.to_owned()));
            assert_eq!(max_age(path, APP, listed), wanted, "{path} {listed}");
        }
        assert_eq!(max_age("/d", "https://other.test", "content-type").0, 404);
        assert_eq!(upstream.request_count(), 0);
        // No route is for a request with `X-New`: it is an ordinary `OPTIONS`, which has none.
        assert_eq!(max_age("/e", APP, "x-new"), (200, String::new()));
        // The request itself is matched by its headers.
        assert_eq!(protocol.get(&gateway, "/a", "X-Version: 2\r\n").status, 404);
    });
}

#[test]
fn options_requests_that_are_no_preflight_are_forwarded() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(RULES, &upstream);
        let mut client = protocol.connect(&gateway);
        let request = |method: &str| format!("Access-Control-Request-Method: {method}\r\n");
        for headers in [
            String::new(),
            from(APP),
            request("GET"),
            from(APP) + &request("GET") + &request("PUT"),
            from(APP) + &request("G T"),
        ] {
            assert_eq!(client.ask("OPTIONS", "/any", &headers, "").status, 200, "{headers}");
        }
        assert_eq!(upstream.request_count(), 5);
        // The route of the method that is asked for has no `cors`.
        assert_eq!(preflight(&mut client, "/any", APP, "DELETE").status, 200);
        assert_eq!(preflight(&mut client, "/none", APP, "GET").number("x-ratelimit-used"), 1);
        assert_eq!(upstream.request_count(), 7);
        assert_eq!(preflight(&mut client, "/nowhere", APP, "GET").status, 404);
        // Not a preflight, and the route has no OPTIONS.
        assert_eq!(client.ask("OPTIONS", "/items", from(APP), "").status, 405);
    });
}

#[test]
fn the_gateway_replaces_the_cors_fields_of_the_upstream() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::with_response(WITH_CORS);
        let gateway = start(RULES, &upstream);
        let mut client = protocol.connect(&gateway);
        let response = client.get("/items", from(APP));
        let expected = [
            "access-control-allow-credentials: true",
            "access-control-allow-origin: https://app.example.com",
            EXPOSED_WITH_OWN,
            "vary: accept-encoding",
            "vary: origin",
        ];
        assert_eq!(cors(&response), expected);
        assert_eq!(response.header("x-own"), Some("1"));
        let vary = ["vary: accept-encoding", "vary: origin"];
        for headers in [String::new(), from("https://evil.test"), from(APP) + &from(APP)] {
            let response = client.get("/nulls", &headers);
            assert_eq!(cors(&response), vary, "{headers}");
        }
        for origin in ["https://evil.test", "null"] {
            let response = client.get("/any", from(origin));
            let expected = ["access-control-allow-origin: *", EXPOSED, "vary: accept-encoding"];
            assert_eq!(cors(&response), expected, "{origin}");
        }
        assert!(cors(&client.get("/nulls", from("null")))[0].ends_with("origin: null"));
        assert_eq!(cors(&client.get("/nulls", from(APP))), vary);
        // Without `cors`, the upstream's fields stay.
        let foreign = cors(&client.ask("DELETE", "/any", from(APP), ""));
        assert!(foreign.iter().any(|line| line.ends_with("https://upstream.test")), "{foreign:?}");
    });
}

#[test]
fn vary_is_not_repeated() {
    on_every_protocol(|protocol| {
        for (upstream, expected) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nVary: Accept, ORIGIN\r\n\r\n",
                "vary: accept, origin",
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nVary: *\r\n\r\n", "vary: *"),
        ] {
            let upstream = Upstream::with_response(upstream);
            let gateway = start(RULES, &upstream);
            let response = protocol.get(&gateway, "/items", "");
            assert_eq!(cors(&response), [expected]);
        }
    });
}

#[test]
fn scripts_can_read_the_gateways_own_responses() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(
            "
            workers: 1
            headers: {standard: draft-11}
            upstreams:
              app: {targets: [{target}]}
              lost: {targets: ['http://127.0.0.1:1']}
              hello: {respond: {body: hello}}
            limits: {few: {quota: 3, window: 1h, key: []}}
            routes:
              - name: items
                match: {path: /items, methods: [GET, PUT]}
                upstream: app
                limits: [few]
                cors: {origins: ['https://app.example.com']}
              - name: lost
                match: {path: /lost}
                upstream: lost
                cors: {origins: ['https://app.example.com']}
              - name: inside
                match: {path: /inside}
                upstream: hello
                allow: [10.0.0.0/8]
                cors: {origins: ['https://app.example.com']}
              - name: fixed
                match: {path: /fixed}
                upstream: hello
                cors: {origins: ['https://app.example.com']}
              - {name: none, match: {path: /none}, upstream: app, limits: [few]}
            ",
            &upstream,
        );
        let mut client = protocol.connect(&gateway);
        for _ in 0..3 {
            assert_eq!(client.get("/items", "").status, 200);
        }
        for (path, status) in [("/items", 429), ("/lost", 502), ("/inside", 403), ("/fixed", 200)] {
            let response = client.get(path, from(APP));
            assert_eq!(response.status, status, "{path}");
            let fields = cors(&response);
            let origin = format!("access-control-allow-origin: {APP}");
            assert_eq!(fields.iter().filter(|line| **line == origin).count(), 1, "{fields:?}");
            let is_exposing = |line: &&String| line.starts_with("access-control-expose-headers");
            assert_eq!(fields.iter().filter(is_exposing).count(), 1, "{fields:?}");
            assert!(fields.contains(&"vary: origin".to_owned()), "{fields:?}");
        }
        // Preflights are not refused while requests are.
        assert_eq!(preflight(&mut client, "/items", APP, "GET").status, 204);
        assert_eq!(preflight(&mut client, "/lost", APP, "GET").status, 204);
        // But clients that the route does not admit are.
        assert_eq!(preflight(&mut client, "/inside", APP, "GET").status, 403);
        // A route without `cors` exposes the rate-limit headers, as before.
        let plain = client.get("/none", from(APP));
        let expected = vec![EXPOSED.to_owned(), "vary: accept".to_owned()];
        assert_eq!((plain.status, cors(&plain)), (429, expected));
    });
}

#[test]
fn the_throttle_admits_preflights() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(
            "
            workers: 1
            throttle: {max_active: 20, capacity: 1000, mode: 'on'}
            upstreams: {app: {targets: [{target}]}}
            routes:
              - name: items
                match: {path: /items, methods: [GET, PUT]}
                upstream: app
                cors:
                  origins: ['https://app.example.com']
                  expose: [X-Own]
                  credentials: true
            ",
            &upstream,
        );
        let mut client = protocol.connect(&gateway);
        let refused = client.get("/items", from(APP));
        assert_eq!((refused.status, refused.header("x-ratelimit-limit")), (429, Some("20")));
        let expected = [
            "access-control-allow-credentials: true",
            "access-control-allow-origin: https://app.example.com",
            EXPOSED_WITH_OWN,
            "vary: accept",
            "vary: origin",
        ];
        assert_eq!(cors(&refused), expected);
        assert_eq!(preflight(&mut client, "/items", APP, "GET").status, 204);
    });
}

#[test]
fn explain_and_replay_decide_preflights_as_the_gateway_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let (log, config) = (path("access.log"), path("tidegate.yaml"));
    let upstream = Upstream::hello();
    let yaml = fill(
        "
        workers: 1
        access_log: '{log}'
        upstreams:
          app: {targets: [{target}]}
          hello: {respond: {body: hello}}
        limits: {few: {quota: 3, window: 1h, key: []}}
        routes:
          - name: items
            match: {path: /items, methods: [GET, PUT]}
            upstream: app
            limits: [few]
            cors:
              origins: ['https://app.example.com']
              headers: [content-type, X-Token]
              expose: [X-Own, retry-after]
              credentials: true
              max_age: 1h
          - {name: any, match: {path: /any}, upstream: app, cors: {origins: ['*'], max_age: 0s}}
          - name: inside
            match: {path: /inside}
            upstream: hello
            allow: [10.0.0.0/8]
            cors: {origins: ['https://app.example.com']}
          - name: fixed
            match: {path: /fixed}
            upstream: hello
            cors: {origins: ['https://app.example.com']}
        ",
        [("log", &log), ("target", &upstream.target())],
    );
    fs::write(&config, &yaml).expect("a file");
    let explained = |method: &str, path: &str, headers: &[String]| -> Value {
        let mut arguments = vec!["explain", "-c", &config, "--json", "-X", method];
        arguments.extend(headers.iter().flat_map(|line| ["-H", line]));
        arguments.push(path);
        serde_json::from_str(&run(&arguments)).expect("JSON")
    };
    {
        let gateway = Gateway::for_every_protocol(&yaml);
        let mut client = testkit::protocol::Protocol::Http1.connect(&gateway);
        let origin = from(APP).trim_end().to_owned();
        let asks = "Access-Control-Request-Method: PUT".to_owned();
        for (method, path, headers) in [
            ("OPTIONS", "/items", vec![origin.clone(), asks.clone()]),
            ("OPTIONS", "/inside", vec![origin.clone(), asks.clone()]),
            ("OPTIONS", "/any", vec![origin.clone(), asks.clone()]),
            ("GET", "/items", vec![origin.clone()]),
            ("GET", "/items", vec![]),
            ("GET", "/inside", vec![origin.clone()]),
            ("GET", "/fixed", vec![origin.clone()]),
        ] {
            let explanation = explained(method, path, &headers);
            let lines: String = headers.iter().flat_map(|line| [line, "\r\n"]).collect();
            let response = client.ask(method, path, lines, "");
            if let Some(status) = explanation["status"].as_u64() {
                assert_eq!(u64::from(response.status), status, "{explanation}");
            }
            let fields = explanation["headers"].as_object().expect("headers").iter();
            let fields = fields.filter(|(name, _)| name.starts_with("access-") || *name == "vary");
            let mut fields: Vec<String> = fields
                .map(|(name, value)| format!("{name}: {}", value.as_str().expect("text")))
                .map(|line| {
                    line.to_ascii_lowercase().replace("vary: origin, ", "vary: origin\nvary: ")
                })
                .flat_map(|lines| lines.lines().map(str::to_owned).collect::<Vec<_>>())
                .collect();
            fields.sort_unstable();
            assert_eq!(cors(&response), fields, "{method} {path}");
        }
        read_lines(log.as_ref(), 7);
    }
    let logged = fs::read_to_string(&log).expect("a log");
    let decisions = run(&["replay", "-c", &config, "--decisions", &log]);
    for (line, decision) in logged.lines().zip(decisions.lines()) {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let fields: Vec<&str> = decision.split('\t').collect();
        assert_eq!(
            (&line["route"], &line["limit"]),
            (&fields[2].into(), &fields[3].into()),
            "{line}"
        );
    }
    assert_eq!(decisions.lines().count(), 7);
}
