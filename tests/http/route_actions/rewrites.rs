//! The host that an upstream gets, rewritten paths, and the locations of its responses.

use std::io::Write;

use testkit::{
    gateway::Gateway,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};

use super::{header_rules::values, received, request_line, start};

#[test]
fn the_host_is_the_clients_the_upstreams_or_a_fixed_one() {
    const PRESERVE: &str = "
        upstreams: {origin: {targets: ['{target}']}}
        routes: [{name: all, match: {path: /}, upstream: origin, host: preserve}]
        ";
    const FIXED: &str = "
        upstreams: {origin: {targets: ['{target}']}}
        routes: [{name: all, match: {path: /}, upstream: origin, host: 'internal.test:81'}]
        ";
    const UPSTREAM: &str = "
        upstreams: {origin: {targets: ['{target}']}}
        routes: [{name: all, match: {path: /}, upstream: origin, host: upstream}]
        ";
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let own = upstream.address.to_string();
        for (yaml, host) in
            [(PRESERVE, "gateway.test"), (FIXED, "internal.test:81"), (UPSTREAM, &*own)]
        {
            let gateway = start(&upstream, yaml);
            assert_eq!(protocol.get(&gateway, "/", "").status, 200, "{yaml}");
            assert_eq!(received(&upstream, "host"), [host], "{yaml}");
            assert_eq!(received(&upstream, "x-forwarded-host"), ["gateway.test"], "{yaml}");
        }
    });
}

#[test]
fn the_host_is_that_of_the_server_that_is_tried_next() {
    // The first server closes the connection without a response.
    let failing = Upstream::with_handler(|_, _| false);
    let working = Upstream::hello();
    let gateway = Gateway::for_every_protocol(&fill(
        "
        workers: 1
        upstreams: {origin: {targets: ['{failing}', '{working}'], balance: round_robin}}
        routes: [{name: all, match: {path: /}, upstream: origin, host: upstream}]
        ",
        [("failing", failing.target()), ("working", working.target())],
    ));
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
        let gateway = start(
            &upstream,
            "
            upstreams: {origin: {targets: ['{target}']}}
            routes:
              - name: all
                match: {path: '/v{n}/{id}/{*rest}'}
                upstream: origin
                rewrite: '/x/{path.n}/{path.id}/y/{path.rest}'
            ",
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
        let gateway = start(
            &upstream,
            "
            upstreams: {origin: {targets: ['{target}']}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin, strip_prefix: /v1}]
            ",
        );
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
    let gateway = start(
        &upstream,
        "
        client: {trusted_proxies: [127.0.0.0/8]}
        upstreams: {origin: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin, strip_prefix: /v1}]
        ",
    );
    on_every_protocol(|protocol| {
        protocol.get(&gateway, "/v1/a", "X-Forwarded-Prefix: /outer/\r\n");
        assert_eq!(received(&upstream, "x-forwarded-prefix"), ["/outer/v1"]);
    });
}
