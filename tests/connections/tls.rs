//! TLS towards clients: the version and the certificate of a connection, its hosts, and requests in
//! clear.

/// Certificate files that change.
mod certificates;
/// Faults and notes of certificate files.
mod check;
/// Deadlines and the end of sessions.
mod deadlines;
/// Client certificates and resumption.
mod sessions;
/// TLS and Unix sockets towards upstreams.
mod upstream;

use std::{
    io::{ErrorKind, Write},
    net::TcpStream,
    path::Path,
    sync::Arc,
};

use rustls::ClientConfig;
use tempfile::TempDir;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    port::free_port,
    protocol::Protocol,
    tls::{Authority, IdentityFiles, TlsClient, connect, trusting_client},
    upstream::Upstream,
    yaml::fill,
};

/// One listener, whose certificate is that in `a.pem`.
const HELLO: &str = "
listen:
  - address: 127.0.0.1:0
    tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

/// Certificates of one authority, in a directory.
struct Certificates {
    authority: Authority,
    directory: TempDir,
}

impl Certificates {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { authority: Authority::new("tests"), directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Issues a certificate for `names`, in `NAME.pem` and `NAME.key`.
    fn issue(&self, file: &str, names: &[&str]) -> IdentityFiles {
        self.authority.issue(names).write(self.path(), file)
    }

    /// The configuration `yaml` with the directory for `{files}`.
    fn fill(&self, yaml: &str) -> String {
        fill(yaml, [("files", self.path().display())])
    }

    /// A gateway with [`HELLO`], and a new certificate for `names`.
    fn start(&self, names: &[&str]) -> Gateway {
        self.issue("a", names);
        Gateway::start(&self.fill(HELLO))
    }

    /// The rules of a client that trusts the authority and offers HTTP/1.1.
    fn client(&self) -> Arc<ClientConfig> {
        Arc::new(self.authority.client(None, &["http/1.1"]))
    }
}

fn get_host(client: &mut TlsClient, host: &str) -> u16 {
    client.send(format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n")).read_response().status
}

/// What the client chose by ALPN.
fn protocol(client: &TlsClient) -> Option<&[u8]> {
    client.socket.conn.alpn_protocol()
}

#[test]
fn alpn_selects_the_protocol() {
    let files = Certificates::new();
    files.issue("a", &["a.test"]);
    let gateway = Gateway::start(&files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
          - address: 127.0.0.1:0
            http2: false
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    ));
    let [both, http1] = [0, 1].map(|index| gateway.server.addresses[index]);
    let offering = |protocols: &[&str]| Arc::new(files.authority.client(None, protocols));
    for (address, offered, selected) in [
        (both, &["h2", "http/1.1"][..], Some(&b"h2"[..])),
        (both, &["http/1.1", "h2"], Some(b"h2")),
        (both, &["http/1.1"], Some(b"http/1.1")),
        (both, &[], None),
        (http1, &["h2", "http/1.1"], Some(b"http/1.1")),
    ] {
        let mut client = connect(address, "a.test", &offering(offered)).expect("a handshake");
        assert_eq!(protocol(&client), selected, "{offered:?}");
        if selected == Some(b"h2") {
            // The preface and empty SETTINGS; the answer begins with SETTINGS (type 4).
            client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            assert_eq!(client.read_exact(4).expect("a frame")[3], 4);
        } else {
            assert_eq!(get_host(&mut client, "a.test"), 200);
        }
    }
    assert!(connect(http1, "a.test", &offering(&["h2"])).is_err(), "no common protocol");
    let opened = |labels| gateway.metric(&format!("tidegate_opened_connections_total{{{labels}}}"));
    assert_eq!(opened("protocol=\"HTTP/2\",tls=\"true\""), 2);
    assert_eq!(opened("protocol=\"HTTP/1.1\",tls=\"true\""), 3);
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"tls\"}", 1);
}

#[test]
fn the_certificate_is_that_of_the_requested_name() {
    let files = Certificates::new();
    let issue = |file, names: &[&str]| {
        let identity = files.authority.issue(names);
        identity.write(files.path(), file);
        identity.der()
    };
    let first = issue("first", &["a.test", "also.a.test"]);
    let wildcard = issue("wildcard", &["*.b.test"]);
    let exact = issue("exact", &["exact.b.test", "127.0.0.1"]);
    let gateway = Gateway::start(&files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls:
              certificates:
                - {cert: '{files}/first.pem', key: '{files}/first.key'}
                - {cert: '{files}/wildcard.pem', key: '{files}/wildcard.key'}
                - {cert: '{files}/exact.pem', key: '{files}/exact.key'}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    ));
    let config = Arc::new(trusting_client(&[]));
    for (name, expected) in [
        ("a.test", &first),
        ("also.a.test", &first),
        ("ALSO.A.TEST", &first),
        ("x.b.test", &wildcard),
        ("exact.b.test", &exact),
        ("y.x.b.test", &first),
        ("b.test", &first),
        ("unknown.test", &first),
        // An address is not sent: the client asks for no name.
        ("127.0.0.1", &first),
    ] {
        let client = connect(gateway.address(), name, &config).expect("a handshake");
        let shown = client.socket.conn.peer_certificates().expect("a certificate");
        assert_eq!(&shown[0], expected, "{name}");
    }
}

#[test]
fn a_host_that_the_certificate_does_not_cover_is_a_421() {
    let files = Certificates::new();
    files.issue("a", &["a.test", "127.0.0.1"]);
    files.issue("b", &["*.b.test"]);
    let gateway = Gateway::start(&files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls:
              strict_host: true
              certificates:
                - {cert: '{files}/a.pem', key: '{files}/a.key'}
                - {cert: '{files}/b.pem', key: '{files}/b.key'}
        upstreams: {hello: {respond: {body: hello}}}
        limits: {few: {quota: 3, window: 1h, key: []}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: hello}
          - {name: few, match: {path: /few}, upstream: hello, limits: [few]}
        ",
    ));
    let mut client = connect(gateway.address(), "a.test", &files.client()).expect("a handshake");
    for (host, status) in [
        ("a.test", 200),
        ("b.b.test", 421),
        ("A.Test:8443", 200),
        ("a.test.", 200),
        ("127.0.0.1:443", 200),
        ("127.0.0.2", 421),
        ("x.a.test", 421),
    ] {
        assert_eq!(get_host(&mut client, host), status, "{host}");
    }
    let refused = client.send("GET /few HTTP/1.1\r\nHost: other.test\r\n\r\n").read_response();
    assert_eq!(refused.json()["title"], "Misdirected Request");
    assert!(refused.header("x-ratelimit-limit").is_none(), "no limit is charged");
    assert!(refused.header("x-request-id").is_some());
    let mut client = connect(gateway.address(), "x.b.test", &files.client()).expect("a handshake");
    assert_eq!(get_host(&mut client, "y.b.test"), 200, "a wildcard covers both");
    assert_eq!(get_host(&mut client, "a.test"), 421);
    client.send("GET /a HTTP/1.0\r\n\r\n");
    assert_eq!(client.read_response().status, 200, "HTTP/1.0 needs no host");
}

#[test]
fn a_balancer_may_connect_by_an_inner_name() {
    let files = Certificates::new();
    files.issue("inner", &["inner.test"]);
    files.issue("b", &["b.test"]);
    let authority = Authority::new("partners");
    authority.write(files.path(), "client_ca.pem");
    let start = |inner: &str, strict: &str| {
        let yaml = "
            listen:
              - address: 127.0.0.1:0
                http2: true
                tls:
                  {strict}
                  certificates:
                    - {cert: '{files}/inner.pem', key: '{files}/inner.key'{inner}}
                    - {cert: '{files}/b.pem', key: '{files}/b.key', client_ca: '{files}/client_ca.pem'}
            upstreams: {hello: {respond: {body: hello}}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
            ";
        let with_own = yaml.replace("{strict}", strict).replace("{inner}", inner);
        let alone = with_own.lines().filter(|line| !inner.is_empty() || !line.contains("b.pem"));
        Gateway::start(&files.fill(&alone.collect::<Vec<_>>().join("\n")))
    };
    let statuses = |gateway: &Gateway, config: &Arc<ClientConfig>| {
        let mut client = connect(gateway.address(), "inner.test", config).expect("a handshake");
        ["inner.test", "shop.test", "b.test"].map(|host| get_host(&mut client, host))
    };
    let partner = authority.issue(&["partner"]);
    let partner = files.authority.client_of(
        &[&rustls::version::TLS13, &rustls::version::TLS12],
        Some(&partner),
        &["http/1.1"],
    );
    let (anyone, partner) = (files.client(), Arc::new(partner));
    assert_eq!(statuses(&start("", ""), &anyone), [200, 200, 200]);
    assert_eq!(statuses(&start("", "strict_host: true"), &anyone), [200, 421, 421]);
    // A host that requires a certificate of its clients is never reached without its own
    // connection.
    let with_auth = ", client_ca: '{files}/client_ca.pem'";
    assert_eq!(statuses(&start(with_auth, ""), &partner), [200, 421, 421]);
    assert_eq!(statuses(&start(with_auth, "strict_host: false"), &partner), [200, 200, 421]);
}

#[test]
fn a_request_in_clear_is_a_400_that_names_https() {
    let files = Certificates::new();
    let gateway = files.start(&["a.test"]);
    for body in [0, 20_000] {
        let mut client = Client::connect(gateway.address());
        client.send(format!("POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: {body}\r\n\r\n"));
        client.send(vec![b'x'; body]);
        let response = client.read_response();
        assert_eq!(response.status, 400);
        assert_eq!(response.text(), "this listener expects TLS: use https://\n");
        assert!(client.is_closed(), "without a reset");
    }
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"tls\"}", 2);
    Client::connect(gateway.address()).send(b"\x16\x03\x01\0\x05hello");
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"tls\"}", 3);
    drop(TcpStream::connect(gateway.address()).expect("a connection"));
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"closed\"}", 1);
}

#[test]
fn a_large_response_passes_a_slow_reader() {
    const SIZE: usize = 8 << 20;
    let upstream = Upstream::with_handler(|_, socket| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n");
        let body: Vec<u8> = (0..SIZE).map(|index| (index % 251) as u8).collect();
        socket.write_all(head.as_bytes()).is_ok() && socket.write_all(&body).is_ok()
    });
    let files = Certificates::new();
    files.issue("a", &["a.test"]);
    let gateway = Gateway::start(&fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
        upstreams: {origin: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("files", files.path().display().to_string()), ("target", upstream.target())],
    ));
    let mut client = connect(gateway.address(), "a.test", &files.client()).expect("a handshake");
    client.send("GET /large HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let body = client.read_response().body;
    assert_eq!(body.len(), SIZE);
    assert!(body.iter().enumerate().all(|(index, byte)| *byte == (index % 251) as u8));
    assert_eq!(get_host(&mut client, "a.test"), 200, "the connection is kept");
}

#[test]
fn requests_are_redirected_to_https() {
    let files = Certificates::new();
    let port = free_port();
    files.issue("a", &["a.test"]);
    let gateway = Gateway::start(&fill(
        "
        listen:
          - {address: '127.0.0.1:0', redirect_https: true, http2: true}
          - address: 127.0.0.1:{port}
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
        upstreams: {hello: {respond: {body: hello}}}
        limits: {few: {quota: 3, window: 1h, key: []}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: hello}
          - {name: few, match: {path: /few}, upstream: hello, limits: [few]}
        ",
        [("files", files.path().display().to_string()), ("port", port.to_string())],
    ));
    let mut client = Client::connect(gateway.address());
    for (request, location) in [
        ("GET /a/b?c=d&e=%20 HTTP/1.1\r\nHost: a.test\r\n", "/a/b?c=d&e=%20"),
        ("GET /few HTTP/1.1\r\nHost: a.test:8080\r\n", "/few"),
        ("GET http://a.test HTTP/1.1\r\nHost: a.test\r\n", "/"),
        ("GET //evil.test/%2e%2e/x HTTP/1.1\r\nHost: A.test\r\n", "//evil.test/%2e%2e/x"),
        ("DELETE /no/such/route HTTP/1.1\r\nHost: a.test\r\n", "/no/such/route"),
        ("POST /a HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n", "/a"),
    ] {
        let body = if request.starts_with("POST") { "ab" } else { "" };
        let response = client.send(format!("{request}\r\n{body}")).read_response();
        assert_eq!(response.status, 308, "{request}");
        let expected = format!("https://a.test:{port}{location}");
        assert_eq!(response.header("location"), Some(&*expected));
        assert!(response.header("x-ratelimit-limit").is_none());
    }
    assert_eq!(
        client.send("OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n").read_response().status,
        200
    );
    assert_eq!(client.send("GET / HTTP/1.0\r\n\r\n").read_response().status, 400, "no host");
    assert_eq!(gateway.metric("tidegate_limit_decisions_total{route=\"few\""), 0);
    let mut secure =
        connect(gateway.server.addresses[1], "a.test", &files.client()).expect("a handshake");
    assert_eq!(get_host(&mut secure, "a.test"), 200);
}

#[test]
fn a_client_whose_tls_a_trusted_proxy_has_ended_is_not_redirected() {
    let yaml = "
        listen: [{address: '127.0.0.1:0', redirect_https: 443, http2: true}]
        client: {trusted_proxies: ['{proxy}']}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ";
    for (proxy, forwarded) in [("127.0.0.1/32", 200), ("10.0.0.0/8", 308)] {
        let gateway = Gateway::start(&fill(yaml, [("proxy", proxy)]));
        for protocol in [Protocol::Http1, Protocol::Http2] {
            for (headers, status) in [
                ("X-Forwarded-Proto: https\r\n", forwarded),
                ("X-Forwarded-Proto: HTTPS\r\n", forwarded),
                ("X-Forwarded-Proto: http\r\n", 308),
                ("X-Forwarded-Proto: https\r\nX-Forwarded-Proto: http\r\n", 308),
                ("X-Forwarded-Proto: https, http\r\n", 308),
                ("X-Forwarded-Proto: http, https\r\n", 308),
                ("X-Forwarded-Proto: https,\r\n", 308),
                ("X-Forwarded-Proto: https, spdy\r\n", 308),
                ("X-Forwarded-Proto: wss\r\n", forwarded),
                ("X-Forwarded-Proto: ws\r\n", 308),
                ("X-Forwarded-Proto: https, WSS\r\n", forwarded),
                ("X-Forwarded-Proto: https\r\nX-Forwarded-Proto: https\r\n", forwarded),
                ("X_Forwarded_Proto: https\r\n", 308),
                ("", 308),
            ] {
                let response = protocol.get(&gateway, "/a", headers);
                assert_eq!(response.status, status, "{proxy} {protocol:?} {headers}");
            }
        }
    }
}

#[test]
fn a_listener_changes_to_tls_and_back_in_a_reload() {
    let files = Certificates::new();
    let in_clear = "
        listen: [{address: '127.0.0.1:0'}]
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ";
    let gateway = Gateway::start(in_clear);
    let mut kept = Client::connect(gateway.address());
    assert_eq!(kept.get("/a", "").status, 200);
    files.issue("a", &["a.test"]);
    gateway.reload(&files.fill(HELLO)).expect("no fault");
    let mut client = connect(gateway.address(), "a.test", &files.client()).expect("a handshake");
    assert_eq!(get_host(&mut client, "a.test"), 200);
    assert_eq!(get(gateway.address(), "/a", "").status, 400, "TLS is expected");
    assert_eq!(kept.get("/a", "").status, 200, "an open connection stays as it is");
    gateway.reload(in_clear).expect("no fault");
    assert_eq!(get(gateway.address(), "/a", "").status, 200);
    assert_eq!(get_host(&mut client, "a.test"), 200);
    let error = connect(gateway.address(), "a.test", &files.client()).err().expect("no TLS");
    assert_ne!(error.kind(), ErrorKind::TimedOut);
}
