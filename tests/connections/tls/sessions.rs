//! Client certificates, and sessions that resume.

use std::{
    io::{Read, Write},
    sync::Arc,
};

use rustls::{ClientConfig, HandshakeKind, client::Resumption};
use testkit::{
    gateway::Gateway,
    tls::{Authority, Identity, TlsClient, connect},
};

use super::{Certificates, HELLO, get_host};

/// Clients need a certificate of an authority in `client_ca.pem`.
const WITH_CLIENT_CA: &str = "
listen:
  - address: 127.0.0.1:0
    tls:
      certificates:
        - {cert: '{files}/a.pem', key: '{files}/a.key', client_ca: '{files}/client_ca.pem'}
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

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
    partners.write(files.path(), "partners.pem");
    files.issue("open", &["open.test", "*.a.test"]);
    files.issue("a", &["a.test", "b.a.test"]);
    let gateway = Gateway::start(&files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls:
              certificates:
                - {cert: '{files}/open.pem', key: '{files}/open.key'}
                - {cert: '{files}/a.pem', key: '{files}/a.key', client_ca: '{files}/partners.pem'}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    ));
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
    Authority::new("partners").write(files.path(), "client_ca.pem");
    files.issue("a", &["a.test"]);
    let gateway = Gateway::start(&files.fill(WITH_CLIENT_CA));
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
    let gateway = files.start(&["a.test"]);
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
        files.issue("a", &["a.test"]);
        gateway.reload(&files.fill(HELLO)).expect("no fault");
        assert_eq!(kind_of_handshake(&gateway, &config), HandshakeKind::Resumed);
    }
}

#[test]
fn sessions_with_a_client_certificate_do_not_resume() {
    let files = Certificates::new();
    files.authority.write(files.path(), "client_ca.pem");
    files.issue("a", &["a.test"]);
    let gateway = Gateway::start(&files.fill(WITH_CLIENT_CA));
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
