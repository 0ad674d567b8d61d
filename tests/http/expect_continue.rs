//! `Expect: 100-continue` travels to the upstream with its request, and the client's 100 follows
//! the upstream's.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use h2::server::Builder;
use testkit::{
    client::Client, gateway::Gateway, http2_upstream::Http2Upstream, protocol::on_every_protocol,
    upstream::Upstream, yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

fn configuration(target: &str, version: &str) -> String {
    fill(
        "
        workers: 1
        upstreams: {app: {targets: ['{target}'], protocol: {version}, retries: 0}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("target", target), ("version", version)],
    )
}

fn read_head(socket: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (String::new(), [0]);
    while !head.ends_with("\r\n\r\n") {
        socket.read_exact(&mut byte).ok()?;
        head.push(byte[0].into());
    }
    Some(head)
}

#[test]
fn an_upload_that_the_upstream_refuses_is_not_sent() {
    let rest = Arc::new(Mutex::new(Vec::new()));
    let received = Arc::clone(&rest);
    let http1 = Upstream::on_connection(move |socket| {
        let Some(head) = read_head(socket) else { return };
        assert!(head.to_ascii_lowercase().contains("\r\nexpect: 100-continue\r\n"), "{head}");
        let refusal = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno";
        let _ = socket.write_all(refusal.as_bytes());
        let mut bytes = Vec::new();
        let _ = socket.read_to_end(&mut bytes);
        received.lock().expect("no panic").extend(bytes);
    });
    let received = Arc::clone(&rest);
    let http2 = Http2Upstream::with_handler(Builder::new(), move |mut exchange| {
        let received = Arc::clone(&received);
        async move {
            assert_eq!(exchange.request.headers["expect"], "100-continue");
            exchange.answer(401, "no");
            if let Ok((body, _)) = exchange.read_body().await {
                received.lock().expect("no panic").extend(body);
            }
        }
    });
    for (target, version) in [(http1.target(), "http1"), (http2.target(), "http2")] {
        let gateway = Gateway::for_every_protocol(&configuration(&target, version));
        on_every_protocol(|protocol| {
            for length in ["Content-Length: 5000000\r\n", ""] {
                let mut client = protocol.connect(&gateway);
                client.start("PUT", "/", format!("Expect: 100-continue\r\n{length}"), true);
                let response = client.read_response();
                assert_eq!((response.status, &*response.text()), (401, "no"), "{version}");
            }
        });
    }
    assert_eq!(*rest.lock().expect("no panic"), b"");
}

#[test]
fn the_clients_100_follows_the_upstreams() {
    let (head_arrived, arrived) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let upstream = Upstream::on_connection(move |socket| {
        while read_head(socket).is_some() {
            head_arrived.send(()).expect("a test");
            if released.lock().expect("no panic").recv().is_err() {
                return;
            }
            let _ = socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
            let mut body = [0; 5];
            socket.read_exact(&mut body).expect("a body");
            assert_eq!(&body, b"hello");
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    // On this clock, the upstream has all the time that it needs.
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::start_at(&configuration(&upstream.target(), "http1"), clock);
    let mut client = Client::connect(gateway.address());
    for _ in 0..2 {
        client
            .send("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
        arrived.recv().expect("a head");
        let timeout = Some(Duration::from_millis(50));
        client.socket.set_read_timeout(timeout).expect("an option");
        assert!(client.socket.peek(&mut [0]).is_err(), "no 100 before the upstream's");
        client.socket.set_read_timeout(None).expect("an option");
        release.send(()).expect("an upstream");
        assert_eq!(client.read_head().expect("an interim response").0, 100);
        client.send("hello");
        assert_eq!(client.read_response().text(), "ok");
    }
    assert_eq!(upstream.connections(), 1, "the connection stays in step");
}

#[test]
fn an_upstream_that_waits_for_the_body_is_not_late() {
    let upstream = Upstream::silent_on_expect();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let rules = configuration(&upstream.target(), "http1");
    let rules = rules.replace("http1", "http1, response_timeout: 700ms");
    let gateway = Gateway::start_at(&rules, clock);
    let mut client = Client::connect(gateway.address());
    client.send("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    let interim =
        gateway.assert_times_out(Duration::from_millis(350), || client.read_head()).expect("a 100");
    assert_eq!(interim.0, 100);
    client.send("hello");
    assert_eq!(client.read_response().status, 200);
}

#[test]
fn an_upstream_that_sends_no_100_gets_the_body_after_a_second() {
    for version in ["http1", "http2"] {
        let (http1, http2) = (Upstream::silent_on_expect(), Http2Upstream::hello());
        let target = if version == "http1" { http1.target() } else { http2.target() };
        let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
        let gateway = Gateway::start_at(&configuration(&target, version), clock);
        let mut client = Client::connect(gateway.address());
        client
            .send("PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
        let interim =
            gateway.assert_times_out(Duration::from_secs(1), || client.read_head()).expect("a 100");
        assert_eq!(interim.0, 100, "{version}");
        client.send("hello");
        assert_eq!(client.read_response().status, 200, "{version}");
    }
}

#[test]
fn a_client_that_does_not_wait_is_not_made_to() {
    let upstream = Upstream::silent_on_expect();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::start_at(&configuration(&upstream.target(), "http1"), clock);
    let mut client = Client::connect(gateway.address());
    client.send(
        "PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    );
    let mut response = client.read_response();
    if response.status == 100 {
        response = client.read_response();
    }
    assert_eq!(response.status, 200);
}
