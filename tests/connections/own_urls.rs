//! URLs of the gateway in fields of requests, such as WebDAV's `Destination`, and the upstream's
//! own in responses.

use std::io::Write;

use testkit::{
    gateway::Gateway,
    http2_upstream::Http2Upstream,
    protocol::{PROTOCOLS, Protocol, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};

const RULES: &str = "
    workers: 1
    upstreams:
      one: {targets: ['{http1}']}
      two: {targets: ['{http2}'], protocol: http2}
    routes:
      - {name: plain, match: {path_prefix: /plain}, upstream: one}
      - {name: dav, match: {path_prefix: /dav}, upstream: one, strip_prefix: /dav}
      - {name: own, match: {path_prefix: /own}, upstream: one, strip_prefix: /own, host: upstream}
      - {name: named, match: {path_prefix: /named}, upstream: one, host: 'internal.test:81'}
      - {name: kept, match: {path_prefix: /kept}, upstream: one, host: upstream, headers: {request: {set: {destination: '{header.destination}'}}}}
      - {name: dav-2, match: {host: b.test, path_prefix: /dav}, upstream: two, strip_prefix: /dav, host: upstream}
    ";

struct Servers {
    one: Upstream,
    two: Http2Upstream,
    gateway: Gateway,
}

impl Servers {
    fn start() -> Self {
        let (one, two) = (Upstream::hello(), Http2Upstream::hello());
        let yaml = fill(RULES, [("http1", one.target()), ("http2", two.target())]);
        Self { gateway: Gateway::for_every_protocol(&yaml), one, two }
    }

    /// The status, and the values of the field that the server of `host` got.
    fn send(
        &self,
        protocol: Protocol,
        host: &str,
        path: &str,
        (name, value): (&str, &str),
    ) -> (u16, Vec<String>) {
        let count = || self.one.request_count() + self.two.request_count();
        let before = count();
        let headers = format!("Host: {host}\r\n{name}: {value}\r\n");
        let status = protocol.connect(&self.gateway).ask("COPY", path, headers, "").status;
        if count() == before {
            return (status, Vec::new());
        }
        let all =
            if host == "b.test" { self.two.request_texts() } else { self.one.request_texts() };
        let text = all.last().expect("a request").clone();
        let fields = text.lines().skip(1).filter_map(|line| line.split_once(": "));
        let own = fields.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        (status, own.map(|(_, value)| value.to_owned()).collect())
    }
}

#[test]
fn a_destination_is_one_that_the_upstream_knows() {
    let servers = Servers::start();
    on_every_protocol(|protocol| {
        let scheme = protocol.scheme();
        let got = |host: &str, path: &str, value: &str| {
            let (status, values) = servers.send(protocol, host, path, ("Destination", value));
            assert_eq!((status, values.len()), (200, 1), "{path} {value}: {values:?}");
            values[0].clone()
        };
        // The scheme is that of the connection to the server; the port stays.
        let port = if protocol.is_tls() { ":443" } else { "" };
        let own = servers.one.address;
        for (path, value, wanted) in [
            (
                "/plain/a",
                format!("{scheme}://a.test/plain/b%20c?x"),
                format!("http://a.test{port}/plain/b%20c?x"),
            ),
            (
                "/plain/a",
                format!("{scheme}://A.test:8443/plain/b"),
                "http://A.test:8443/plain/b".to_owned(),
            ),
            ("/plain/a", "/plain/b".to_owned(), "/plain/b".to_owned()),
            ("/dav/a", format!("{scheme}://a.test/dav/b//c"), format!("http://a.test{port}/b//c")),
            ("/dav/a", format!("{scheme}://a.test/dav"), format!("http://a.test{port}/")),
            ("/dav/a", "/dav/b".to_owned(), "/b".to_owned()),
            ("/dav/a", format!("{scheme}://a.test/dav/../dav/b"), format!("http://a.test{port}/b")),
            ("/own/a", format!("{scheme}://a.test/own/b"), format!("http://{own}/b")),
            (
                "/named/a",
                format!("{scheme}://a.test/named/b"),
                "http://internal.test:81/named/b".to_owned(),
            ),
            ("/kept/a", format!("{scheme}://a.test/kept/b"), format!("{scheme}://a.test/kept/b")),
            // Of another server, or none.
            (
                "/own/a",
                "https://other.test/own/b".to_owned(),
                "https://other.test/own/b".to_owned(),
            ),
            (
                "/own/a",
                "https://a.test@other.test/b".to_owned(),
                "https://a.test@other.test/b".to_owned(),
            ),
            ("/own/a", "//a.test/own/b".to_owned(), "//a.test/own/b".to_owned()),
            ("/own/a", "urn:x".to_owned(), "urn:x".to_owned()),
        ] {
            let host = if value.contains(":8443") { "a.test:8443" } else { "a.test" };
            assert_eq!(got(host, path, &value), wanted, "{path} {value}");
        }
        let two = servers.two.address;
        let value = format!("{scheme}://b.test/dav/b");
        assert_eq!(got("b.test", "/dav/a", &value), format!("http://{two}/b"));
    });
}

#[test]
fn a_destination_outside_of_the_prefix_is_refused() {
    let servers = Servers::start();
    for protocol in PROTOCOLS {
        for value in ["/other/b", "/dav/../b", "/davx/b", "http://a.test/b", "http://a.test"] {
            let got = servers.send(protocol, "a.test", "/dav/a", ("Destination", value));
            assert_eq!(got, (400, Vec::new()), "{protocol:?} {value}");
        }
    }
    let headers = "Host: a.test\r\nDestination: /b\r\n";
    let refused = Protocol::Http1.connect(&servers.gateway).ask("MOVE", "/dav/a", headers, "");
    let detail = refused.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.starts_with("`Destination` is outside of /dav"), "{detail}");
}

#[test]
fn the_tags_of_an_if_are_known_to_the_upstream() {
    let servers = Servers::start();
    on_every_protocol(|protocol| {
        let scheme = protocol.scheme();
        let own = servers.one.address;
        for (value, wanted) in [
            ("(<urn:uuid:1> [\"<(a)>\"])".to_owned(), "(<urn:uuid:1> [\"<(a)>\"])".to_owned()),
            (
                format!(
                    "<{scheme}://a.test/own/b> (Not <urn:uuid:1>) (<{scheme}://a.test/own/t>) </own/c> ([\"x\"])"
                ),
                format!(
                    "<http://{own}/b> (Not <urn:uuid:1>) (<{scheme}://a.test/own/t>) </c> ([\"x\"])"
                ),
            ),
            (
                "<https://other.test/own/b> (<urn:x>)".to_owned(),
                "<https://other.test/own/b> (<urn:x>)".to_owned(),
            ),
            ("</elsewhere> (<urn:x>)".to_owned(), "</elsewhere> (<urn:x>)".to_owned()),
            ("<unclosed (<a".to_owned(), "<unclosed (<a".to_owned()),
        ] {
            let got = servers.send(protocol, "a.test", "/own/a", ("If", &value));
            assert_eq!(got, (200, vec![wanted]), "{value}");
        }
    });
}

#[test]
fn a_response_names_the_public_host_and_paths() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::with_handler(|_, socket| {
            let own = socket.local_addr().expect("an address");
            let text = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nRefresh: 5; url=http://{own}/items\r\n\
                 Set-Cookie: a=1; Path=/; Domain={}\r\nSet-Cookie: b=2; path=/items; Secure\r\n\r\n",
                own.ip()
            );
            socket.write_all(text.as_bytes()).is_ok()
        });
        let yaml = "
            upstreams: {origin: {targets: ['{target}']}}
            routes:
              - {name: own, match: {path_prefix: /own}, upstream: origin, strip_prefix: /own, host: upstream}
              - {name: plain, match: {path_prefix: /plain}, upstream: origin}
            ";
        let gateway = Gateway::for_every_protocol(&fill(yaml, [("target", upstream.target())]));
        let (scheme, own) = (protocol.scheme(), upstream.address);
        let head = protocol.get(&gateway, "/own/a", "Host: a.test\r\n").head.to_ascii_lowercase();
        for line in [
            &*format!("refresh: 5; url={scheme}://a.test/own/items\r\n"),
            "set-cookie: a=1; path=/; domain=a.test\r\n",
            "set-cookie: b=2; path=/own/items; secure\r\n",
        ] {
            assert!(head.contains(line.trim_end()), "{line}{head}");
        }
        let head = protocol.get(&gateway, "/plain/a", "Host: a.test\r\n").head.to_ascii_lowercase();
        for line in [&*format!("refresh: 5; url=http://{own}/items"), "path=/items; secure"] {
            assert!(head.contains(line), "{line}{head}");
        }
    });
}
