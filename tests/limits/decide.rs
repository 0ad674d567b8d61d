//! `decide` routes: other proxies ask before they forward a request.

/// Envoy's checks over gRPC.
mod check;
/// Services that authenticate asked requests, the throttle, and a store that is lost.
mod dependencies;
/// Who may ask, and descriptions that a client has chosen.
mod forged;
/// `explain`, the access log and `replay`.
mod shown;

use std::{collections::BTreeSet, thread};

use testkit::{
    backend::{MEMORY_AND_REDIS, on_each},
    client::{Client, Response},
    gateway::Gateway,
    protocol::{Protocol, on_every_protocol},
    yaml::fill,
};
use tidegate::{
    auth::KeyHash,
    clock::{Clock, StoreTime},
};

/// Doors for proxies on loopback.
const DOORS: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
limits: {each: {quota: 2, window: 1h, key: [{key}]}}
routes:
  - {name: asked, match: {path: /asked}, limits: [each], decide: {}}
  - {name: nginx, match: {path: /nginx}, limits: [each], decide: {refuse_status: 403}}
  - {name: envoy, match: {path: '/envoy/{*rest}'}, limits: [each], decide: {}}
";

fn doors(key: &str) -> Gateway {
    Gateway::for_every_protocol(&fill(DOORS, [("key", key)]))
}

/// The fields of a question as Traefik and Caddy send it.
fn about(method: &str, host: &str, uri: &str) -> String {
    format!(
        "X-Forwarded-Method: {method}\r\nX-Forwarded-Host: {host}\r\nX-Forwarded-Uri: {uri}\r\n\
         X-Forwarded-Proto: https\r\nX-Forwarded-For: 192.0.2.1\r\n"
    )
}

fn remaining(response: &Response) -> u64 {
    response.number("x-ratelimit-remaining")
}

#[test]
fn an_admission_is_a_204_and_a_refusal_a_429_with_the_rate_headers() {
    on_every_protocol(|protocol| {
        let gateway = doors("client_ip");
        let question = about("POST", "api.test", "/items?x=1");
        for left in [1, 0] {
            let admitted = protocol.get(&gateway, "/asked", &question);
            assert_eq!((admitted.status, &*admitted.text()), (204, ""), "{protocol:?}");
            assert_eq!(remaining(&admitted), left);
            assert_eq!(admitted.number("x-ratelimit-limit"), 2);
            assert_eq!(admitted.header("retry-after"), None);
        }
        let refused = protocol.get(&gateway, "/asked", &question);
        assert_eq!(refused.status, 429, "{protocol:?}");
        assert!((1..=4200).contains(&refused.number("retry-after")));
        assert_eq!(refused.json()["violated-policies"][0], "each");
        assert_eq!(refused.header("x-tidegate-status"), None);

        let refused = protocol.get(&gateway, "/nginx", &question);
        assert_eq!((refused.status, refused.number("x-tidegate-status")), (403, 429));
        assert!((1..=4200).contains(&refused.number("retry-after")));
        assert_eq!(refused.json()["status"], 429);
        assert_eq!(gateway.metric("tidegate_requests_total{route=\"nginx\",status=\"4xx\"}"), 1);
    });
}

#[test]
fn every_part_of_a_key_is_that_of_the_asked_request() {
    let base = about("GET", "api.test", "/items/7?k=1");
    for (key, other) in [
        ("client_ip", base.replace("192.0.2.1", "192.0.2.2")),
        ("host", base.replace("api.test", "other.test")),
        ("method", base.replace("GET", "PUT")),
        ("path", base.replace("items", "item")),
        ("'query:k'", base.replace("k=1", "k=2")),
        ("'header:x-team'", format!("{base}X-Team: a\r\n")),
        ("'cookie:c'", format!("{base}Cookie: c=1\r\n")),
        ("token", format!("{base}Authorization: Bearer a\r\n")),
    ] {
        let gateway = doors(key);
        let mut client = Protocol::Http1.connect(&gateway);
        let mut ask = |fields: &str| {
            let answer = client.ask("POST", "/asked?k=9", fields, "");
            assert_eq!(answer.status, 204, "{key}: {}", answer.text());
            remaining(&answer)
        };
        assert_eq!([ask(&base), ask(&base)], [1, 0], "{key}");
        assert_eq!(ask(&other), 1, "{key}");
        // What the question itself has counts for nothing, nor does a spelling.
        let spelled =
            base.replace("api.test", "API.test:443").replace("/items/7", "/x/..//%69tems/7");
        assert_eq!(client.get("/asked", &spelled).status, 429, "{key}");
    }
}

#[test]
fn each_way_to_describe_a_request_means_the_same() {
    on_every_protocol(|protocol| {
        let gateway = Gateway::for_every_protocol(
            "
client: {trusted_proxies: [127.0.0.1/32]}
limits: {each: {quota: 9, window: 1h, key: [client_ip, host, method, path, 'query:k']}}
routes:
  - {name: asked, match: {path_prefix: /asked}, limits: [each], decide: {}}
",
        );
        let from = "X-Forwarded-For: 192.0.2.1\r\n";
        let mut client = protocol.connect(&gateway);
        let original = "X-Original-Method: PUT\r\nX-Original-URI: /a/b?k=1\r\n";
        let url = "X-Original-Method: PUT\r\nX-Original-URL: https://gateway.test/a/b?k=1\r\n";
        let left = [
            client.get("/asked", about("PUT", "gateway.test", "/a/b?k=1")),
            client.get("/asked", format!("{from}{original}")),
            client.get("/asked", format!("{from}{url}")),
            client.ask("PUT", "/asked/a/b?k=1", from, ""),
            client.ask("PUT", "/asked/a//b?k=%31", from, ""),
        ]
        .map(|answer| (answer.status, remaining(&answer)));
        // Envoy takes no other status than 200.
        let expected = [(204, 8), (204, 7), (204, 6), (200, 5), (200, 4)];
        assert_eq!(left, expected, "{protocol:?}");
        let root = client.ask("PUT", "/asked/", from, "");
        assert_eq!((root.status, remaining(&root)), (200, 8));
    });
}

#[test]
fn conditions_are_those_of_the_asked_request() {
    let gateway = Gateway::start(
        "
client: {trusted_proxies: [127.0.0.1/32]}
limits: {each: {quota: 9, window: 1h, key: [route]}}
upstreams: {other: {respond: {body: other}}}
routes:
  - {name: writes, match: {path: /asked, methods: [PUT, POST]}, limits: [each], decide: {}}
  - {name: debug, match: {path: /asked, methods: [GET], query: {debug: true}}, decide: {}}
  - {name: beta, match: {path: /asked, methods: [GET], headers: {x-beta: '1'}}, decide: {refuse_status: 403}}
  - {name: reads, match: {path: /asked, methods: [GET]}, decide: {}}
  - {name: nginx, match: {path: /nginx, methods: [PUT]}, decide: {refuse_status: 403}}
  - {name: other, match: {path: '/{*rest}'}, upstream: other}
",
    );
    let mut client = Client::connect(gateway.address());
    let mut ask = |method: &str, uri: &str, more: &str| {
        client.get("/asked?debug=1", &format!("{}{more}", about(method, "a.test", uri))).status
    };
    let served = |name: &str| {
        gateway.metric(&format!("tidegate_requests_total{{route=\"{name}\",status=\"2xx\"}}"))
    };
    assert_eq!(ask("PUT", "/x?debug", ""), 204);
    assert_eq!(ask("GET", "/x?debug", ""), 204);
    assert_eq!(ask("GET", "/x", "X-Beta: 1\r\n"), 204);
    assert_eq!(ask("GET", "/x", ""), 204);
    assert_eq!(["writes", "debug", "beta", "reads"].map(served), [1, 1, 1, 1]);
    // No door is for this method. The question does not become a request that another route admits.
    assert_eq!(ask("DELETE", "/x", ""), 404);
    let refused = client.get("/nginx", &about("GET", "a.test", "/x"));
    assert_eq!((refused.status, refused.number("x-tidegate-status")), (403, 404));
    // Another route's request stays what it is, whatever it describes.
    let other = client.get("/other", &about("PUT", "a.test", "/x"));
    assert_eq!((other.status, &*other.text()), (200, "other"));
}

/// Doors that know consumers.
const CONSUMERS: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
auth: {keys: {api_key: {from: [header:x-api-key, query:key]}, max_failures: 3/1h}}
consumers:
  entries:
    - {name: acme, plan: gold, keys: [{sha256: {acme}}]}
    - {name: bread, keys: [{sha256: {bread}}]}
plans: {gold: {each: 5}}
limits: {each: {quota: 1, window: 1h, key: [consumer]}}
routes:
  - {name: asked, match: {path: /asked}, auth: [keys], limits: [each], decide: {refuse_status: 403}}
  - {name: gold, match: {path: /gold}, auth: [keys], consumers: {plans: [gold]}, decide: {}}
  - {name: maybe, match: {path: /maybe}, auth: [keys], auth_optional: true, decide: {}}
";

fn consumers() -> Gateway {
    let hash = |name: &str| KeyHash::of(format!("key of {name}").as_bytes()).to_string();
    Gateway::for_every_protocol(&fill(
        CONSUMERS,
        [("acme", hash("acme")), ("bread", hash("bread"))],
    ))
}

#[test]
fn an_asked_request_authenticates_and_the_answer_names_its_consumer() {
    on_every_protocol(|protocol| {
        let gateway = consumers();
        let mut client = protocol.connect(&gateway);
        let mut ask = |path: &str, uri: &str, more: &str| {
            client.get(path, format!("{}{more}", about("GET", "a.test", uri)))
        };
        let named = |answer: &Response| {
            ["x-consumer-name", "x-consumer-plan"]
                .map(|name| answer.header(name).unwrap_or("none").to_owned())
        };
        let acme = "X-Api-Key: key of acme\r\n";
        let answer = ask("/asked", "/x", acme);
        assert_eq!((answer.status, remaining(&answer)), (204, 4), "{protocol:?}");
        assert_eq!(named(&answer), ["acme", "gold"]);
        // The key is in the query of the asked request; that of the question is not read.
        let answer = ask("/asked?key=key+of+acme", "/x?key=key%20of%20bread", "");
        assert_eq!(named(&answer), ["bread", "none"], "{}", answer.text());
        let refused = ask("/asked", "/x?key=key+of+bread", "X-Consumer-Name: acme\r\n");
        assert_eq!((refused.status, refused.number("x-tidegate-status")), (403, 429));
        assert_eq!(ask("/gold", "/x", acme).status, 204);
        assert_eq!(ask("/gold", "/x?key=key+of+bread", "").status, 403);
        let anonymous = ask("/maybe", "/x", "X-Consumer-Name: acme\r\n");
        assert_eq!(
            (anonymous.status, named(&anonymous)),
            (204, ["none", "none"].map(str::to_owned))
        );
        for attempt in 0..5 {
            let wrong = ask("/asked", "/x", "X-Api-Key: guess\r\n");
            if attempt < 3 {
                // 401 stays 401, with its challenge: every proxy accepts it.
                assert_eq!(wrong.status, 401, "{}", wrong.text());
                assert!(
                    wrong.head.to_lowercase().contains("\nwww-authenticate: "),
                    "{}",
                    wrong.head
                );
            } else {
                assert_eq!((wrong.status, wrong.number("x-tidegate-status")), (403, 429));
            }
        }
    });
}

#[test]
fn a_body_is_neither_waited_for_nor_read() {
    let gateway = doors("client_ip");
    let question = about("POST", "a.test", "/x");
    // As nginx sends it if its configuration forgets to empty `Content-Length`.
    let mut client = Client::connect(gateway.address());
    let (answer, _) = gateway.while_time_passes(|| {
        client.get("/asked", &format!("{question}Content-Length: 100000000\r\n"))
    });
    assert_eq!(answer.status, 204);
    let mut client = Protocol::Http1.connect(&gateway);
    let answer = client.ask("POST", "/asked", &question, "x".repeat(10_000));
    assert_eq!(answer.status, 204, "{}", answer.text());
    // As Caddy sends it for a WebSocket.
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n";
    let answer = Client::connect(gateway.address()).get("/nginx", &format!("{question}{upgrade}"));
    assert_eq!((answer.status, answer.number("x-tidegate-status")), (403, 429));
    let mut expecting = Client::connect(gateway.address());
    let fields = format!("{question}Expect: 100-continue\r\nContent-Length: 5\r\n");
    assert_eq!(expecting.get("/asked", &fields).status, 429);
}

#[test]
fn the_answer_is_framed_for_the_method_of_the_question() {
    on_every_protocol(|protocol| {
        let gateway = doors("client_ip");
        let mut client = protocol.connect(&gateway);
        let question = about("HEAD", "a.test", "/x");
        for status in [204, 204, 429, 429] {
            let answer = client.get("/asked", &question);
            assert_eq!(answer.status, status, "{protocol:?}");
            assert_eq!(answer.text().is_empty(), status == 204, "{protocol:?}: {}", answer.text());
        }
        let answer = client.ask("HEAD", "/asked", about("GET", "a.test", "/x"), "");
        assert_eq!((answer.status, &*answer.text()), (429, ""));
        assert_eq!(client.get("/asked", &question).status, 429, "the connection goes on");
    });
}

#[test]
fn a_refused_grpc_call_is_no_admission() {
    // To a gRPC client, a refusal has status 200.
    let call = "Content-Type: application/grpc\r\nTE: trailers\r\n";
    let gateway = doors("client_ip");
    let mut client = Protocol::Http2.connect(&gateway);
    let question = format!("{}{call}", about("POST", "a.test", "/pkg.Service/Call"));
    let statuses: Vec<u16> = (0..4).map(|_| client.get("/asked", &question).status).collect();
    assert_eq!(statuses, [204, 204, 429, 429]);
    assert_eq!(client.get("/no-door", &question).status, 404);
    assert_eq!(client.ask("POST", "/envoy/../x", call, "").status, 400);
}

#[test]
fn parallel_questions_admit_exactly_the_quota() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(
            "
client: {trusted_proxies: [127.0.0.1/32]}
limits: {each: {quota: 100, window: 24h, resolution: 1, key: [client_ip]}}
routes:
  - {name: one, match: {path: /one}, limits: [each], decide: {}}
  - {name: two, match: {path: /two}, limits: [each], decide: {refuse_status: 403}}
",
            &Clock::manual(StoreTime::from_unix_ms(1_700_000_000_000)),
        );
        let admitted: Vec<u64> = thread::scope(|scope| {
            let clients = (0..20).map(|number| {
                let mut client = fleet.connect(number);
                scope.spawn(move || {
                    let door = if number % 2 == 0 { "/one" } else { "/two" };
                    let answers = (0..10).map(|_| client.get(door, about("GET", "a.test", "/x")));
                    let admitted = answers.filter(|answer| answer.status == 204);
                    admitted.map(|answer| remaining(&answer)).collect::<Vec<u64>>()
                })
            });
            let clients: Vec<_> = clients.collect();
            clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect()
        });
        assert_eq!(admitted.len(), 100);
        let distinct: BTreeSet<u64> = admitted.into_iter().collect();
        assert_eq!(distinct.len(), 100, "each admission has its own remaining number");
    });
}
