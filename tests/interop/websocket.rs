//! WebSocket through the gateway: Python's websockets and h2 and Node.js' ws as clients,
//! websockets, ws and Hypercorn as servers.

use std::{net::SocketAddr, path::Path};

use serde_json::{Value, json};

use testkit::yaml::fill;

use crate::{
    edge::{Edge, Files, Listener, NAME, upstream_tls},
    server::Server,
    tools::{run, script},
};

/// The name of the servers' certificate.
const SERVER: &str = "server.test";

/// A gateway in front of a server, with a target of this scheme and this protocol.
fn edge(files: &Files, server: SocketAddr, scheme: &str, protocol: &str) -> Edge {
    Edge::start(&fill(
        "
        upstreams:
          echo:
            targets: ['{scheme}://{server}']
            protocol: {protocol}
            {tls}
        routes: [{name: chat, match: {path: /chat}, upstream: echo}]
        ",
        [
            ("scheme", scheme),
            ("server", &server.to_string()),
            ("protocol", protocol),
            ("tls", &upstream_tls(files, scheme, SERVER)),
        ],
    ))
}

/// A client script's observations of `server` over a listener.
fn seen(edge: &Edge, server: &str, client: &str, listener: Listener, messages: u32) -> Value {
    let ca = matches!(listener, Listener::Tls).then_some(&*edge.files.ca);
    converse(client, edge.port(listener), ca, messages, &format!("{listener:?}, {server}"))
}

/// A client script's observations of the server of [`NAME`] at a port; over TLS, with a file of
/// CAs.
pub(crate) fn converse(
    client: &str,
    port: u16,
    ca: Option<&Path>,
    messages: u32,
    case: &str,
) -> Value {
    let mut command = script(client);
    command.arg(port.to_string()).args([NAME, &messages.to_string()]).args(ca);
    let output = run(&mut command).succeeded(&format!("{client}, {case}"));
    serde_json::from_str(&output.out).expect("JSON")
}

/// The expected observations of both clients, with the answers to `ping` and to `version`.
pub(crate) fn expected(pinged: &str, version: &str, last_close: &str) -> Value {
    json!({
        "subprotocol": "chat.v2",
        "text": "hello \u{e9}",
        "binary_is_equal": true,
        "fragments": "one two three",
        "ponged": true,
        "pinged": pinged,
        "version": version,
        "messages_are_equal": true,
        "own_close": "4001 by the client",
        "last_close": last_close,
        "their_close": "4002 by the server",
    })
}

pub(crate) const HTTP1_CLIENT: &str = "websocket_client.py";
pub(crate) const HTTP2_CLIENT: &str = "http2_websocket_client.py";
const WS_CLIENT: &str = "ws_client.cjs";

/// Runs both clients, with and without TLS, and compares their observations of `server`.
fn assert_all_see(edge: &Edge, server: &str, messages: u32, expected: &Value) {
    let seen = |client, listener| seen(edge, server, client, listener, messages);
    for listener in [Listener::Clear, Listener::Tls] {
        let http1 = seen(HTTP1_CLIENT, listener);
        assert_eq!(http1, *expected, "HTTP/1.1, {listener:?}, {server}");
        let mut http2 = seen(HTTP2_CLIENT, listener);
        let status = http2.as_object_mut().and_then(|seen| seen.remove("status"));
        assert_eq!(status, Some(json!("200")), "HTTP/2, {listener:?}, {server}");
        assert_eq!(http2, *expected, "HTTP/2, {listener:?}, {server}");
    }
}

#[test]
fn websocket_conversations_pass_to_a_server_of_http1() {
    let (_server, address) = Server::script("echo.py", &[]);
    let edge = edge(&Files::new(), address, "http", "http1");
    let expected = expected("pong", "version", "4001 by the client");
    assert_all_see(&edge, "websockets", 10_000, &expected);
    edge.gateway.wait_for_metric("tidegate_tunnels ", 0);
}

#[test]
fn websocket_conversations_pass_to_a_server_over_tls() {
    let files = Files::new();
    let own = files.issue("server", &[SERVER]);
    let (_server, address) = Server::script("echo.py", &[&own.cert, &own.key]);
    let edge = edge(&files, address, "https", "http1");
    let expected = expected("pong", "version", "4001 by the client");
    assert_all_see(&edge, "websockets over TLS", 100, &expected);
    edge.gateway.wait_for_metric("tidegate_tunnels ", 0);
}

#[test]
fn websocket_conversations_pass_to_a_server_of_http2() {
    let files = Files::new();
    let own = files.issue("server", &[SERVER]);
    for (scheme, arguments) in [("http", vec![]), ("https", vec![&*own.cert, &*own.key])] {
        let (_server, address) = Server::script("application.py", &arguments);
        // For a WebSocket, `auto` chooses HTTP/1.1.
        for (protocol, version) in [("http1", "1.1"), ("http2", "2"), ("auto", "1.1")] {
            let edge = edge(&files, address, scheme, protocol);
            let server = format!("Hypercorn, {scheme}, {protocol}");
            assert_all_see(&edge, &server, 100, &expected("ping", version, "closed"));
        }
    }
}

#[test]
fn websocket_conversations_pass_between_ws_and_websockets() {
    let files = Files::new();
    let own = files.issue("server", &[SERVER]);
    for (scheme, arguments) in [("http", vec![]), ("https", vec![&*own.cert, &*own.key])] {
        for (server, client) in
            [("ws_echo.cjs", WS_CLIENT), ("echo.py", WS_CLIENT), ("ws_echo.cjs", HTTP1_CLIENT)]
        {
            let (_server, address) = Server::script(server, &arguments);
            let edge = edge(&files, address, scheme, "http1");
            let mut expected = expected("pong", "version", "4001 by the client");
            if (server, client) == ("ws_echo.cjs", WS_CLIENT) {
                // The message that either side sends after the other has ended its direction of the
                // stream.
                expected["after_own_end"] = json!("after the end");
                expected["after_their_end"] = json!("after their end");
            }
            for listener in [Listener::Clear, Listener::Tls] {
                let seen = seen(&edge, server, client, listener, 10_000);
                assert_eq!(seen, expected, "{client}, {listener:?}, {server}, {scheme}");
            }
            edge.gateway.wait_for_metric("tidegate_tunnels ", 0);
        }
    }
}
