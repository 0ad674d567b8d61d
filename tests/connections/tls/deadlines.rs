//! The end of sessions: deadlines of handshakes and heads, and the orderly end.

use std::{net::TcpStream, time::Duration};

use testkit::{
    client::Client,
    gateway::Gateway,
    tls::{connect, handshake},
};
use tidegate::clock::{Clock, StoreTime};

use super::{Certificates, get_host};

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
fn connections_with_half_a_handshake_are_closed_at_the_deadline() {
    let files = Certificates::new();
    files.issue("a", &["a.test"]);
    let yaml = files.fill(
        "
        http: {head_timeout: 1s}
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    let gateway =
        Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)));
    let hello = client_hello(&files);
    for sent in [&[][..], &hello[..3], &hello[..hello.len() / 2], &hello] {
        let mut client = Client::connect(gateway.address());
        client.send(sent);
        let closed = gateway.assert_times_out(Duration::from_secs(1), || client.read_to_end());
        assert!(closed.is_ok(), "{closed:?}");
    }
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"timeout\"}", 4);
}

#[test]
fn the_handshake_and_the_first_head_share_one_deadline() {
    let files = Certificates::new();
    files.issue("a", &["a.test"]);
    let yaml = files.fill(
        "
        http: {head_timeout: 2s}
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
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
    // 1.4 s of the 2 s have passed.
    let left = Duration::from_millis(600);
    let response = gateway.assert_times_out(left, || client.read_response());
    assert_eq!(response.status, 408);
}

#[test]
fn sessions_end_with_close_notify() {
    let files = Certificates::new();
    files.issue("a", &["a.test"]);
    let yaml = files.fill(
        "
        http: {idle_timeout: 1s}
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    let gateway =
        Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)));
    let connect = || connect(gateway.address(), "a.test", &files.client()).expect("a handshake");
    let (mut last, mut idle, mut drained) = (connect(), connect(), connect());
    last.send("GET /a HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    assert_eq!(last.read_response().status, 200);
    assert!(last.is_closed(), "after the last response");
    assert_eq!(get_host(&mut idle, "a.test"), 200);
    gateway.assert_times_out(Duration::from_secs(1), || {
        assert!(idle.is_closed(), "after the idle time");
    });
    assert_eq!(get_host(&mut drained, "a.test"), 200);
    gateway.stop();
    assert!(drained.is_closed(), "after the drain");
}
