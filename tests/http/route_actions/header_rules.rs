//! Header rules: what they write into requests and responses, and remove from them.

use testkit::{
    client::Response, gateway::Gateway, http2_upstream::Http2Upstream, protocol::on_every_protocol,
    upstream::Upstream, yaml::fill,
};

use super::{received, start};

/// The values of all fields of this name.
pub(super) fn values(response: &Response, name: &str) -> Vec<String> {
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
        let gateway = start(
            &upstream,
            "
            upstreams: {origin: {targets: ['{target}']}}
            routes:
              - name: all
                match: {path: '/items/{id}'}
                upstream: origin
                headers:
                  request:
                    set:
                      x-user: '{client_ip} {scheme}'
                      x-path: '{path} {path.id} {query} {host} {method} {route}'
                      x-forwarded-proto: fixed
                      x-empty: '{header.x-none}'
                    add: {x-tag: '{header.x-tag}+'}
                    remove: [x-internal, cookie]
                  response:
                    set: {x-frame-options: DENY, x-id: '{request_id}'}
                    add: {x-tag: '{path.id}'}
                    remove: [server, date, x-ratelimit-used]
            ",
        );
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
    let gateway = Gateway::for_every_protocol(
        "
        upstreams: {unused: {respond: {}}}
        limits: {one: {quota: 1, window: 1h, key: ['header:x-caller']}}
        routes:
          - name: all
            match: {path: '/items/{id}'}
            respond: {body: hi}
            limits: [one]
            headers:
              response:
                set: {x-frame-options: DENY, x-id: '{request_id}'}
                add: {x-tag: '{path.id}'}
                remove: [server, date, x-ratelimit-used]
        ",
    );
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
    let gateway = start(
        &upstream,
        "
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - name: all
            match: {path: '/items/{*rest}'}
            upstream: origin
            headers:
              request: {set: {x-rest: '{path.rest}|{query}|{header.x-a}'}}
              response: {set: {x-rest: '{path.rest}|{query}|{header.x-a}'}}
        ",
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
fn an_http2_upstream_gets_the_same_changes() {
    on_every_protocol(|protocol| {
        let upstream = Http2Upstream::hello();
        let gateway = Gateway::for_every_protocol(&fill(
            "
            upstreams: {origin: {targets: ['{target}'], protocol: http2}}
            routes:
              - name: all
                match: {path: '/items/{id}'}
                upstream: origin
                host: upstream
                rewrite: '/x/{path.id}'
                headers:
                  request:
                    set:
                      x-user: '{client_ip} {scheme}'
                      x-path: '{path} {path.id} {query} {host} {method} {route}'
                      x-forwarded-proto: fixed
                      x-empty: '{header.x-none}'
                    add: {x-tag: '{header.x-tag}+'}
                    remove: [x-internal, cookie]
            ",
            [("target", upstream.target())],
        ));
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
