//! Upgrades whose requests have a body, such as those of `docker exec`: the body is sent first,
//! then the tunnel begins.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use testkit::{
    client::Client,
    http2_upstream::Http2Upstream,
    protocol::{HTTP1, on_protocols},
    upstream::Upstream,
    yaml::fill,
};

use super::{assert_echoes, echo, start};

const SWITCHING: &str = "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\n\
     Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n";

/// A body of `length` bytes that would be a request if it were read as one.
fn body(length: usize) -> Vec<u8> {
    b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n".iter().copied().cycle().take(length).collect()
}

fn head(framing: &str) -> String {
    format!(
        "POST /exec/1/start HTTP/1.1\r\nHost: gateway.test\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\
         Content-Type: application/json\r\n{framing}\r\n\r\n"
    )
}

/// An upstream that reads the request, answers 101 with the length of the body as its first bytes,
/// and echoes.
fn hijacking() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request).to_ascii_lowercase();
        assert!(text.contains("upgrade: tcp") && text.contains("connection: upgrade"), "{text}");
        let end = request.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let length = request.len() - end;
        let _ = socket.write_all(format!("{SWITCHING}{length:08}").as_bytes());
        echo(socket);
        false
    })
}

#[test]
fn the_body_is_sent_before_the_tunnel() {
    let upstream = hijacking();
    let gateway = start(&upstream);
    on_protocols(&HTTP1, |protocol| {
        for length in [30, 16 * 1024, 700_000] {
            let bytes = body(length);
            let mut client = protocol.connect_http1(&gateway);
            // The first bytes of the tunnel follow at once.
            client.send(head(&format!("Content-Length: {length}")));
            client.send([&bytes, &b"first"[..]].concat());
            assert_eq!(client.read_head().expect("a response").0, 101, "{length}");
            assert_eq!(client.read_exact(8).expect("bytes"), format!("{length:08}").as_bytes());
            assert_eq!(client.read_exact(5).as_deref(), Some(&b"first"[..]), "{length}");
            assert_echoes(&mut client, "after the body");
        }
        // A short body in chunks gets a length.
        let mut client = protocol.connect_http1(&gateway);
        client.send(head("Transfer-Encoding: chunked") + "5\r\nhello\r\n0\r\n\r\n");
        assert_eq!(client.read_head().expect("a response").0, 101);
        client.read_exact(8).expect("the length");
        assert_echoes(&mut client, "after the chunks");
    });
    assert!(upstream.request_texts().iter().all(|text| text.starts_with("POST /exec")));
}

/// Reads until the end of the head, and says what follows.
fn answer_after_head(socket: &mut TcpStream, answer: &str) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    let _ = socket.write_all(answer.as_bytes());
    let _ = std::io::copy(socket, &mut std::io::sink());
}

/// What is left of the body would pass for bytes of the tunnel.
#[test]
fn a_101_before_the_end_of_the_body_is_a_502() {
    let upstream =
        Upstream::on_connection(|socket| answer_after_head(socket, &format!("{SWITCHING}secret")));
    let gateway = start(&upstream);
    on_protocols(&HTTP1, |protocol| {
        for (framing, part) in
            [("Content-Length: 50", "half of it"), ("Transfer-Encoding: chunked", "5\r\nhello\r\n")]
        {
            let mut client = protocol.connect_http1(&gateway);
            client.send(head(framing) + part);
            let response = client.read_response();
            assert_eq!(response.status, 502, "{framing}");
            assert!(!response.text().contains("secret"));
        }
    });
    assert_eq!(gateway.metric("tidegate_tunnels"), 0);
}

#[test]
fn an_ordinary_response_leaves_the_connection_in_sync() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    for _ in 0..3 {
        client.send(head("Content-Length: 40"));
        client.send(body(40));
        assert_eq!(client.read_response().text(), "hello");
    }
    assert_eq!(client.get("/next", "").status, 200);
    assert_eq!(upstream.request_count(), 4);
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn http2_upstreams_get_an_ordinary_request() {
    let upstream =
        Http2Upstream::with_handler(h2::server::Builder::new(), |mut exchange| async move {
            let length = exchange.read_body().await.map_or(0, |(body, _)| body.len());
            let is_get = exchange.request.method == http::Method::GET;
            exchange.answer(
                200,
                match (is_get, length) {
                    (true, 40) => "GET 40",
                    (false, 40) => "POST 40",
                    _ => "another request",
                },
            );
        });
    let gateway = testkit::gateway::Gateway::start(&fill(
        "
        upstreams: {app: {targets: [{target}], protocol: http2}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("target", upstream.target())],
    ));
    let mut client = Client::connect(gateway.address());
    for method in ["GET", "POST"] {
        client.send(head("Content-Length: 40").replacen("POST", method, 1));
        client.send(body(40));
        assert_eq!(client.read_response().text(), format!("{method} 40"));
    }
}
