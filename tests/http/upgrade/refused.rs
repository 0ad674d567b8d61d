//! Requests that do not become tunnels: not asked for, not accepted, or answered otherwise.

use std::io::Write;

use testkit::{
    client::{Client, get},
    upstream::Upstream,
};

use super::{request, start};

#[test]
fn a_101_that_was_not_asked_for_is_an_error() {
    let websocket = request("/x");
    let plain = "GET /x HTTP/1.1\r\nHost: a\r\n\r\n".to_owned();
    let h2c =
        "GET /x HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n".to_owned();
    let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n";
    for (request, response) in [
        (&plain, "Upgrade: websocket\r\n\r\n"),
        (&h2c, "Upgrade: h2c\r\n\r\n"),
        (&websocket, "Upgrade: h2c\r\n\r\n"),
        (&websocket, "Upgrade: websocket, h2c\r\n\r\n"),
        (&websocket, "Upgrade: websocket\r\nUpgrade: h2c\r\n\r\n"),
        (&websocket, "Upgrade: websocket/13\r\n\r\n"),
        (&websocket, "\r\n"),
    ] {
        let upstream = Upstream::with_handler(move |_, socket| {
            let _ = socket.write_all(format!("{switching}{response}secret").as_bytes());
            true
        });
        let gateway = start(&upstream);
        let mut client = Client::connect(gateway.address());
        let answer = client.send(request).read_response();
        assert_eq!(answer.status, 502, "{request}{response}");
        assert!(!answer.text().contains("secret"));
        assert_eq!(upstream.request_count(), 1);
        let old = Upstream::with_response("HTTP/1.0 101 Ok\r\nUpgrade: websocket\r\n\r\n");
        let gateway = start(&old);
        let mut client = Client::connect(gateway.address());
        assert_eq!(client.send(request).read_response().status, 502);
    }
}

#[test]
fn another_response_to_an_upgrade_is_an_ordinary_one() {
    let upstream = Upstream::with_handler(|request, socket| {
        let status = match request {
            [b'G', b'E', b'T', b' ', b'/', b'4', ..] => "404 Not Found",
            [b'G', b'E', b'T', b' ', b'/', b'6', ..] => "426 Upgrade Required",
            _ => "200 OK",
        };
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\nUpgrade: websocket\r\n\r\nhello");
        socket.write_all(head.as_bytes()).is_ok()
    });
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    for (path, status) in [("/2", 200), ("/4", 404), ("/6", 426), ("/2", 200)] {
        let response = client.send(request(path)).read_response();
        assert_eq!((response.status, response.text().as_str()), (status, "hello"));
        // RFC 9110, 15.5.22: a 426 says which protocol the server demands.
        let demanded = (status == 426).then_some("websocket");
        assert_eq!(response.header("upgrade"), demanded);
    }
    assert_eq!(upstream.request_count(), 4, "on one connection of the client");
    assert_eq!(gateway.metric("tidegate_tunnels"), 0);
    // What follows such a request is the next request, as in any pipeline.
    let both = request("/4") + "GET /2 HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(client.send(both).read_response().status, 404);
    assert_eq!(client.read_response().status, 200);
}

#[test]
fn offers_that_cannot_be_accepted_are_not_forwarded() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let upgrade = "Host: a\r\nUpgrade: websocket\r\n";
    let get = |version: &str, lines: &str| format!("GET /x HTTP/{version}\r\n{lines}\r\n");
    for request in [
        get("1.1", upgrade),
        get("1.1", &format!("{upgrade}Connection: close\r\n")),
        get("1.0", &format!("{upgrade}Connection: upgrade\r\n")),
        get("1.1", &format!("{upgrade}Upgrade: foo\r\nConnection: upgrade\r\n")),
        get("1.1", &format!("{upgrade}Connection: upgrade\r\nContent-Length: 2\r\n")) + "hi",
        get("1.1", "Host: a\r\nConnection: upgrade\r\nUpgrade: websocket, h2c\r\n"),
        get("1.1", "Host: a\r\nConnection: upgrade\r\nUpgrade: TLS/1.3\r\n"),
        get("1.1", "Host: a\r\nConnection: upgrade\r\nUpgrade: HTTP/2.0\r\n"),
        get("1.1", "Host: a\r\nConnection: upgrade\r\nUpgrade: web socket\r\n"),
        get("1.1", "Host: a\r\nConnection: upgrade\r\nUpgrade:\r\n"),
        get(
            "1.1",
            "Host: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
        ),
    ] {
        let mut client = Client::connect(gateway.address());
        assert_eq!(client.send(&request).read_response().status, 200, "{request}");
        let sent = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
        assert!(!sent.contains("upgrade") && !sent.contains("http2-settings"), "{request}{sent}");
    }
}

#[test]
fn connect_and_trace_stay_refused() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    for line in ["CONNECT a:80", "CONNECT /x", "TRACE /x"] {
        let mut client = Client::connect(gateway.address());
        client.send(format!(
            "{line} HTTP/1.1\r\nHost: a:80\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        ));
        assert_eq!(client.read_response().status, 405, "{line}");
    }
    assert_eq!(get(gateway.address(), "/x", "").status, 200);
    assert_eq!(upstream.request_count(), 1);
}
