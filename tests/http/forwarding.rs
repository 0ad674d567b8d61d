use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    port::free_address,
    protocol::on_every_protocol,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};

fn proxy(upstream: &Upstream) -> Gateway {
    Gateway::for_every_protocol(&format!(
        "upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        upstream.target()
    ))
}

#[test]
fn requests_and_responses_are_forwarded() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = proxy(&upstream);
        let response = protocol.get(&gateway, "/items/5?page=2", "X-Own: kept\r\n");
        assert_eq!((response.status, response.text()), (200, "hello".to_owned()));
        let received = upstream.request_texts()[0].to_ascii_lowercase();
        assert!(received.starts_with("get /items/5?page=2 http/1.1\r\n"), "{received}");
        for line in ["host: gateway.test", "x-own: kept", "x-forwarded-for: 127.0.0.1"] {
            assert!(received.contains(line), "{line} in {received}");
        }
    });
}

#[test]
fn a_body_that_is_there_at_once_has_a_length() {
    let upstream = Upstream::hello();
    let gateway = proxy(&upstream);
    let head = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let large = format!("8000\r\n{}\r\n0\r\n\r\n", "x".repeat(0x8000));
    for (body, end) in [
        ("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "content-length: 5\r\n\r\nabcde"),
        ("0\r\n\r\n", "content-length: 0\r\n\r\n"),
        // Trailers need chunks, and so does a body that is not there as a whole.
        ("1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n", "\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"),
        (&*large, "x\r\n0\r\n\r\n"),
    ] {
        let mut client = Client::connect(gateway.address());
        client.send(format!("{head}{body}"));
        assert_eq!(client.read_response().status, 200);
        let received = upstream.request_texts().pop().expect("a request");
        assert!(received.ends_with(end), "{received}");
        let is_chunked = received.contains("transfer-encoding: chunked\r\n");
        assert_ne!(is_chunked, received.contains("content-length: "), "{received}");
    }
    // An HTTP/2 request without a length, whose frames arrive together.
    let mut socket = TcpStream::connect(gateway.server.addresses[0]).expect("a connection");
    let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // POST, http, /, and `:authority: a`, indexed or as literals without Huffman coding.
    let fields = b"\x83\x86\x84\x41\x01a";
    frames.extend_from_slice(&[0, 0, fields.len() as u8, 1, 4, 0, 0, 0, 1]);
    frames.extend_from_slice(fields);
    frames.extend_from_slice(b"\0\0\x03\0\x01\0\0\0\x01abc");
    socket.write_all(&frames).expect("a socket");
    eventually("the request arrives", || upstream.request_count() == 5);
    let received = upstream.request_texts().pop().expect("a request");
    assert!(received.ends_with("content-length: 3\r\n\r\nabc"), "{received}");
}

#[test]
fn bodies_are_streamed_and_connections_kept() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = proxy(&upstream);
        let mut client = protocol.connect(&gateway);
        for _ in 0..3 {
            assert_eq!(client.ask("POST", "/a", "", "12345").status, 200);
            client.start("POST", "/b", "", true).send("abc", true);
            assert_eq!(client.read_response().status, 200);
        }
        let received = upstream.request_texts();
        assert!(received[0].ends_with("\r\n\r\n12345"));
        let is_whole = received[1].ends_with("content-length: 3\r\n\r\nabc");
        assert!(is_whole || received[1].ends_with("3\r\nabc\r\n0\r\n\r\n"));
        assert_eq!(received.len(), 6);
        assert_eq!(upstream.connections(), 1);
    });
}

/// nginx compresses no response to a request with `Via`, and CGI programs read `Proxy` as
/// `HTTP_PROXY`.
#[test]
fn fields_that_change_what_a_server_does_are_not_sent() {
    let upstream = Upstream::hello();
    for (via, present, absent) in [
        (true, "\r\nvia: 1.1 tidegate-", "\r\ntidegate-via:"),
        (false, "\r\ntidegate-via: 1.1 tidegate-", "\r\nvia:"),
    ] {
        let gateway = Gateway::start(&fill(
            "
            upstreams: {app: {targets: ['{target}'], via: {via}}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
            ",
            [("target", upstream.target()), ("via", via.to_string())],
        ));
        assert_eq!(get(gateway.address(), "/", "Proxy: http://evil.test\r\n").status, 200);
        let sent = upstream.request_texts().pop().expect("a request");
        assert!(sent.contains(present) && !sent.contains(absent), "{sent}");
        assert!(!sent.to_ascii_lowercase().contains("\r\nproxy:"), "{sent}");
    }
}

/// A route that leads back to the gateway ends at once, also without `Via`.
#[test]
fn a_loop_is_found_without_via() {
    let address: SocketAddr = free_address();
    let gateway = Gateway::start(&fill(
        "
        listen: [{address: '{address}'}]
        upstreams: {app: {targets: ['http://{address}'], via: false, retries: 0}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("address", address)],
    ));
    assert_eq!(get(gateway.address(), "/", "").status, 508);
}
