//! TLS towards clients; the files of certificates and TLS towards upstreams in the files below.

/// Certificate files: faults, reload, expiry.
mod certificates;
/// TLS and Unix sockets towards upstreams.
mod upstream;

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    path::Path,
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConfig, HandshakeKind, client::Resumption};
use tempfile::TempDir;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    port::free_port,
    tls::{Authority, Identity, TlsClient, connect, handshake, trusting_client},
    upstream::Upstream,
};
use tidegate::clock::{Clock, StoreTime};

/// The routes of every gateway here.
const RULES: &str = "
upstreams: {hello: {respond: {body: hello}}}
limits: {few: {quota: 3, window: 1h, key: []}}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: hello}
  - {name: few, match: {path: /few}, upstream: hello, limits: [few]}
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

    /// Issues a certificate for `names` and returns its entry in `certificates`.
    fn entry(&self, file: &str, names: &[&str]) -> String {
        self.authority.issue(names).write(self.path(), file).entry()
    }

    /// The rules of a client that trusts the authority and offers HTTP/1.1.
    fn client(&self) -> Arc<ClientConfig> {
        Arc::new(self.authority.client(None, &["http/1.1"]))
    }
}

/// A listener with these entries of `certificates`, each without its braces.
fn listener(entries: &[String], more: &str) -> String {
    let entries: Vec<String> = entries.iter().map(|entry| format!("{{{entry}}}")).collect();
    format!("{{address: '127.0.0.1:0', tls: {{certificates: [{}]}}{more}}}", entries.join(", "))
}

fn configuration(listeners: &[String]) -> String {
    format!("listen: [{}]{RULES}", listeners.join(", "))
}

fn start(entries: &[String], more: &str) -> Gateway {
    Gateway::start(&configuration(&[listener(entries, more)]))
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
    let entry = files.entry("a", &["a.test"]);
    let listeners = [
        listener(std::slice::from_ref(&entry), ""),
        listener(std::slice::from_ref(&entry), ", http2: false"),
    ];
    let gateway = Gateway::start(&configuration(&listeners));
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
        let entry = identity.write(files.path(), file).entry();
        (identity.der(), entry)
    };
    let (first, first_entry) = issue("first", &["a.test", "also.a.test"]);
    let (wildcard, wildcard_entry) = issue("wildcard", &["*.b.test"]);
    let (exact, exact_entry) = issue("exact", &["exact.b.test", "127.0.0.1"]);
    let gateway = start(&[first_entry, wildcard_entry, exact_entry], "");
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
    let entries = [files.entry("a", &["a.test", "127.0.0.1"]), files.entry("b", &["*.b.test"])];
    let gateway = start(&entries, "");
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

/// Why the server ended the session, for a client that sends a request after its handshake.
fn refusal(client: std::io::Result<TlsClient>) -> String {
    let mut client = match client {
        Ok(client) => client,
        Err(error) => return error.to_string(),
    };
    let _ = client.socket.write_all(b"GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n");
    match client.socket.read(&mut [0]) {
        Ok(count) => format!("{count} bytes"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn clients_need_a_certificate_of_the_listed_authority() {
    let files = Certificates::new();
    let partners = Authority::new("partners");
    let ca = partners.write(files.path(), "partners.pem");
    let entries = [
        files.entry("open", &["open.test", "*.a.test"]),
        format!("{}, client_ca: {}", files.entry("a", &["a.test", "b.a.test"]), ca.display()),
    ];
    let gateway = start(&entries, "");
    let address = gateway.address();
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        let client = |identity: Option<&Identity>| {
            Arc::new(files.authority.client_of(versions, identity, &["http/1.1"]))
        };
        let partner = client(Some(&partners.issue(&["partner"])));
        let stranger = client(Some(&Authority::new("strangers").issue(&["stranger"])));
        let expired = partners.issue_for(&["partner"], (2000, 1, 1), (2001, 1, 1));
        let expired = client(Some(&expired));
        let mut accepted = connect(address, "a.test", &partner).expect("a handshake");
        assert_eq!(get_host(&mut accepted, "a.test"), 200);
        assert_eq!(get_host(&mut accepted, "b.a.test"), 200, "of the same certificate");
        assert_eq!(get_host(&mut accepted, "open.test"), 421);
        for (config, alert) in
            [(client(None), "Certificate"), (stranger, "CA"), (expired, "Certificate")]
        {
            let refused = refusal(connect(address, "a.test", &config));
            assert!(refused.contains("alert") && refused.contains(alert), "{refused}");
        }
        // A name without `client_ca` needs none, and does not lead to one that does.
        let mut open = connect(address, "c.a.test", &client(None)).expect("a handshake");
        assert_eq!(get_host(&mut open, "c.a.test"), 200);
        assert_eq!(get_host(&mut open, "b.a.test"), 421, "the wildcard covers it");
    }
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"tls\"}", 6);
}

#[test]
fn a_client_that_still_sends_reads_why_it_was_refused() {
    let files = Certificates::new();
    let ca = Authority::new("partners").write(files.path(), "partners.pem");
    let entry = format!("{}, client_ca: {}", files.entry("a", &["a.test"]), ca.display());
    let gateway = start(&[entry], "");
    let config = files.authority.client_of(&[&rustls::version::TLS13], None, &["http/1.1"]);
    // With TLS 1.3, the handshake is complete for the client before the gateway has checked it.
    let client = connect(gateway.address(), "a.test", &Arc::new(config));
    let mut client = client.expect("a handshake");
    let _ = client.socket.sock.peek(&mut [0]);
    for _ in 0..3 {
        client.socket.write_all(b"GET /a HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("no reset");
    }
    let error = client.socket.read(&mut [0]).expect_err("an alert").to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
}

/// Connects and gets a response, so that the client has new tickets.
fn kind_of_handshake(gateway: &Gateway, config: &Arc<ClientConfig>) -> HandshakeKind {
    let mut client = connect(gateway.address(), "a.test", config).expect("a handshake");
    assert_eq!(get_host(&mut client, "a.test"), 200);
    client.socket.conn.handshake_kind().expect("after the handshake")
}

#[test]
fn sessions_resume_at_every_worker_and_after_a_reload() {
    let files = Certificates::new();
    let entry = files.entry("a", &["a.test"]);
    let yaml = configuration(&[listener(std::slice::from_ref(&entry), "")]);
    let gateway = Gateway::start(&yaml);
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        let mut config = files.authority.client_of(versions, None, &["http/1.1"]);
        config.resumption = Resumption::in_memory_sessions(16);
        let config = Arc::new(config);
        assert_ne!(kind_of_handshake(&gateway, &config), HandshakeKind::Resumed);
        // The kernel spreads the connections over two workers.
        for _ in 0..12 {
            assert_eq!(kind_of_handshake(&gateway, &config), HandshakeKind::Resumed);
        }
        // Also with another certificate.
        files.entry("a", &["a.test"]);
        gateway.reload(&yaml).expect("no fault");
        assert_eq!(kind_of_handshake(&gateway, &config), HandshakeKind::Resumed);
    }
}

#[test]
fn sessions_with_a_client_certificate_do_not_resume() {
    let files = Certificates::new();
    let ca = files.authority.write(files.path(), "ca.pem");
    let entry = format!("{}, client_ca: {}", files.entry("a", &["a.test"]), ca.display());
    let gateway = start(&[entry], "");
    let identity = files.authority.issue(&["client"]);
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        let mut config = files.authority.client_of(versions, Some(&identity), &["http/1.1"]);
        config.resumption = Resumption::in_memory_sessions(16);
        let config = Arc::new(config);
        for _ in 0..3 {
            assert_ne!(kind_of_handshake(&gateway, &config), HandshakeKind::Resumed);
        }
    }
}

#[test]
fn a_request_in_clear_is_told_to_use_tls() {
    let files = Certificates::new();
    let gateway = start(&[files.entry("a", &["a.test"])], "");
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

/// The first flight of a client, which asks for `a.test`.
fn client_hello(files: &Certificates) -> Vec<u8> {
    let name = "a.test".try_into().expect("a name");
    let mut session = rustls::ClientConnection::new(files.client(), name).expect("a session");
    let mut hello = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut hello).expect("memory");
    }
    hello
}

#[test]
fn half_handshakes_are_closed_at_the_deadline() {
    let files = Certificates::new();
    let yaml = format!(
        "http: {{head_timeout: 1s}}\n{}",
        configuration(&[listener(&[files.entry("a", &["a.test"])], "")])
    );
    let gateway =
        Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)));
    let hello = client_hello(&files);
    for sent in [&[][..], &hello[..3], &hello[..hello.len() / 2], &hello] {
        let (closed, took) = gateway.while_time_passes(|| {
            let mut client = Client::connect(gateway.address());
            client.send(sent).read_to_end()
        });
        assert!(closed.is_ok(), "{closed:?}");
        assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(9), "{took:?}");
    }
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"timeout\"}", 4);
}

#[test]
fn handshake_and_first_head_share_one_deadline() {
    let files = Certificates::new();
    let yaml = format!(
        "http: {{head_timeout: 2s}}\n{}",
        configuration(&[listener(&[files.entry("a", &["a.test"])], "")])
    );
    let gateway =
        Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)));
    let socket = TcpStream::connect(gateway.address()).expect("a connection");
    gateway.wait_for_metric("tidegate_connections ", 1);
    for _ in 0..14 {
        gateway.clock.advance(Duration::from_millis(100));
    }
    let mut client = handshake(socket, "a.test", &files.client()).expect("in time");
    client.send("GET /a HTTP/1.1\r\nHo");
    let (response, took) = gateway.while_time_passes(|| client.read_response());
    assert_eq!(response.status, 408);
    assert!(took < Duration::from_millis(1500), "a new deadline began: {took:?}");
}

#[test]
fn sessions_end_with_close_notify() {
    let files = Certificates::new();
    let yaml = format!(
        "http: {{idle_timeout: 1s}}\n{}",
        configuration(&[listener(&[files.entry("a", &["a.test"])], "")])
    );
    let gateway =
        Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)));
    let connect = || connect(gateway.address(), "a.test", &files.client()).expect("a handshake");
    let (mut last, mut idle, mut drained) = (connect(), connect(), connect());
    last.send("GET /a HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    assert_eq!(last.read_response().status, 200);
    assert!(last.is_closed(), "after the last response");
    assert_eq!(get_host(&mut idle, "a.test"), 200);
    gateway.while_time_passes(|| assert!(idle.is_closed(), "after the idle time"));
    assert_eq!(get_host(&mut drained, "a.test"), 200);
    gateway.stop();
    assert!(drained.is_closed(), "after the drain");
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
    let gateway = Gateway::start(&format!(
        "listen: [{}]
upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]
",
        listener(&[files.entry("a", &["a.test"])], ""),
        upstream.target()
    ));
    let mut client = connect(gateway.address(), "a.test", &files.client()).expect("a handshake");
    let response = client.get("/a", "").status;
    assert_eq!(response, 421, "gateway.test is another host");
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
    let tls = listener(&[files.entry("a", &["a.test"])], "");
    let tls = tls.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    let clear = "{address: '127.0.0.1:0', redirect_https: true, http2: true}";
    let gateway = Gateway::start(&configuration(&[clear.to_owned(), tls]));
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
fn a_listener_changes_to_tls_and_back_in_a_reload() {
    let files = Certificates::new();
    let clear = "{address: '127.0.0.1:0'}".to_owned();
    let gateway = Gateway::start(&configuration(std::slice::from_ref(&clear)));
    let mut kept = Client::connect(gateway.address());
    assert_eq!(kept.get("/a", "").status, 200);
    let secure = listener(&[files.entry("a", &["a.test"])], "");
    gateway.reload(&configuration(&[secure])).expect("no fault");
    let mut client = connect(gateway.address(), "a.test", &files.client()).expect("a handshake");
    assert_eq!(get_host(&mut client, "a.test"), 200);
    assert_eq!(get(gateway.address(), "/a", "").status, 400, "TLS is expected");
    assert_eq!(kept.get("/a", "").status, 200, "an open connection stays as it is");
    gateway.reload(&configuration(&[clear])).expect("no fault");
    assert_eq!(get(gateway.address(), "/a", "").status, 200);
    assert_eq!(get_host(&mut client, "a.test"), 200);
    let error = connect(gateway.address(), "a.test", &files.client()).err().expect("no TLS");
    assert_ne!(error.kind(), ErrorKind::TimedOut);
}
