//! Header rules that replace parts of values.

use testkit::{
    gateway::Gateway,
    http2_upstream::Http2Upstream,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};

use super::{header_rules::values, received, start};

#[test]
fn every_match_in_a_response_is_replaced() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::with_response(
            "HTTP/1.1 201 Created\r\nLocation: http://internal:8080/items/7\r\n\
             Link: <http://internal/a>; rel=a, <http://internal/b>; rel=b\r\nLink: <https://other.test/>\r\n\
             LINK: <http://internal/c>\r\nX-Empty: gone\r\nX-Other: http://internal/\r\nConnection: X-Listed\r\n\
             X-Listed: http://internal/\r\nContent-Length: 0\r\n\r\n",
        );
        let gateway = start(
            &upstream,
            r"
            upstreams: {origin: {targets: ['{target}']}}
            routes:
              - name: all
                match: {path: '/{*rest}'}
                upstream: origin
                headers:
                  response:
                    add: {link: '<http://internal/added>'}
                    replace:
                      location: {pattern: '^http://internal(:\d+)?/', with: 'https://api.example.com$1/'}
                      Link: {pattern: '(?P<scheme>http)://(internal)', with: '$${scheme}s://$2.example'}
                      x-empty: {pattern: '^gone$', with: ''}
                      x-listed: {pattern: internal, with: external}
            ",
        );
        let response = protocol.get(&gateway, "/", "");
        assert_eq!(response.status, 201);
        assert_eq!(values(&response, "location"), ["https://api.example.com:8080/items/7"]);
        let links = [
            "<https://internal.example/a>; rel=a, <https://internal.example/b>; rel=b",
            "<https://other.test/>",
            "<https://internal.example/c>",
            "<http://internal/added>",
        ];
        assert_eq!(values(&response, "link"), links);
        assert_eq!(values(&response, "x-empty"), [""; 0]);
        assert_eq!(values(&response, "x-listed"), [""; 0]);
        assert_eq!(values(&response, "x-other"), ["http://internal/"]);
    });
}

const REQUEST: &str = r"
    upstreams: {origin: {targets: ['{target}'], protocol: {protocol}}}
    routes:
      - name: all
        match: {path: '/{*rest}'}
        upstream: origin
        headers:
          request:
            set: {x-before: '{header.x-file}'}
            add: {x-file: added}
            replace:
              x-file: {pattern: '(^|/)\.\.(/|$)', with: '$${1}_$2'}
              x-odd_name: {pattern: b, with: c}
    ";

#[test]
fn what_a_client_sends_is_changed_for_every_upstream() {
    on_every_protocol(|protocol| {
        let http1 = Upstream::hello();
        let http2 = Http2Upstream::hello();
        for (version, target) in [("http1", http1.target()), ("http2", http2.target())] {
            let yaml = fill(REQUEST, [("target", target), ("protocol", version.to_owned())]);
            let gateway = Gateway::for_every_protocol(&yaml);
            // Neither another spelling nor `Connection` keeps the field from the rule.
            let connection = if protocol.is_http2() { "" } else { "Connection: X-File\r\n" };
            let head = format!(
                "X-File: ../a/../b\r\nX_File: ../c\r\nx-file: /d\r\nX-Odd-Name: b\r\nx-odd_name: ab\r\n{connection}"
            );
            assert_eq!(protocol.get(&gateway, "/", head).status, 200);
            let text = if version == "http1" {
                http1.request_texts().remove(0)
            } else {
                http2.request_texts().remove(0)
            };
            let text = text.to_ascii_lowercase();
            let lines =
                text.lines().filter(|line| line.starts_with("x-") || line.starts_with("x_"));
            let lines: Vec<&str> = lines.filter(|line| !line.starts_with("x-forwarded")).collect();
            let file: Vec<&str> =
                lines.iter().copied().filter(|line| line.starts_with("x-file")).collect();
            assert_eq!(file, ["x-file: _/a/_/b", "x-file: /d", "x-file: added"], "{text}");
            assert!(lines.contains(&"x-before: ../a/../b, /d"), "{text}");
            assert!(lines.contains(&"x-odd_name: ac"), "{text}");
            assert!(!text.contains("x_file") && !text.contains("x-odd-name"), "{text}");
        }
    });
}

#[test]
fn a_value_that_would_grow_without_bound_is_left_out() {
    let upstream = Upstream::hello();
    let long = "x".repeat(1_000);
    let yaml = "
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            headers: {request: {replace: {x-a: {pattern: a, with: '{long}'}, x-b: {pattern: b, with: c}}}}
        ";
    let yaml = fill(yaml, [("target", upstream.target()), ("long", long.clone())]);
    let gateway = Gateway::for_every_protocol(&yaml);
    on_every_protocol(|protocol| {
        let sent = |value: &str, count: usize| format!("{}\r\n", value.repeat(count));
        let head = format!("X-A: {}X-B: {}", sent("a", 66), sent("b", 255));
        assert_eq!(protocol.get(&gateway, "/", head).status, 200);
        assert_eq!(received(&upstream, "x-a"), Vec::<String>::new(), "66,000 bytes");
        let head = format!("X-A: {}X-B: {}", sent("a", 64), sent("b", 192));
        assert_eq!(protocol.get(&gateway, "/", head).status, 200);
        assert_eq!(received(&upstream, "x-a"), [long.repeat(64)]);
        assert_eq!(received(&upstream, "x-b"), ["c".repeat(192)]);
        let head = format!("X-B: {}", sent("b", 257));
        assert_eq!(protocol.get(&gateway, "/", head).status, 200);
        assert_eq!(received(&upstream, "x-b"), Vec::<String>::new(), "257 matches");
    });
}

#[test]
fn a_rule_comes_before_the_urls_of_the_gateway() {
    let upstream = Upstream::with_handler(|request, stream| {
        let head = String::from_utf8_lossy(request).into_owned();
        let own = head.lines().find_map(|line| line.strip_prefix("x-own: ")).unwrap_or_default();
        let response =
            format!("HTTP/1.1 302 Found\r\nLocation: {own}\r\nContent-Length: 0\r\n\r\n");
        std::io::Write::write_all(stream, response.as_bytes()).is_ok()
    });
    let gateway = start(
        &upstream,
        "
        upstreams: {origin: {targets: ['{target}']}}
        routes:
          - name: all
            match: {path: '/v1/{*rest}'}
            upstream: origin
            strip_prefix: /v1
            headers:
              request: {replace: {destination: {pattern: '^https?://dav.test/', with: 'http://internal/'}}}
              response: {replace: {location: {pattern: '^/login', with: 'https://id.test/'}}}
        ",
    );
    on_every_protocol(|protocol| {
        for (sent, wanted) in [("/login?a", "https://id.test/?a"), ("/items", "/v1/items")] {
            let response = protocol.get(&gateway, "/v1/x", format!("x-own: {sent}\r\n"));
            assert_eq!(values(&response, "location"), [wanted]);
        }
    });
    for (sent, wanted) in [
        ("https://dav.test/v1/a", "http://internal/v1/a".to_owned()),
        ("http://gateway.test/v1/a", "http://gateway.test/a".to_owned()),
    ] {
        let mut client = Protocol::Http1.connect_http1(&gateway);
        let head = format!(
            "MOVE /v1/x HTTP/1.1\r\nHost: gateway.test\r\nDestination: {sent}\r\nContent-Length: 0\r\n\r\n"
        );
        client.send(head);
        assert_eq!(client.read_response().status, 302);
        assert_eq!(received(&upstream, "destination"), [wanted]);
    }
}

#[test]
fn the_gateways_own_responses_are_changed_too() {
    let gateway = Gateway::for_every_protocol(
        "
        upstreams: {unused: {respond: {}}}
        routes:
          - name: all
            match: {path: '/old/{*rest}'}
            redirect: {to: 'https://{host}/new/{path.rest}'}
            headers: {response: {replace: {location: {pattern: '^https://gateway', with: 'https://api'}}}}
        ",
    );
    on_every_protocol(|protocol| {
        let response = protocol.get(&gateway, "/old/7", "");
        assert_eq!(values(&response, "location"), ["https://api.test/new/7"]);
    });
}
