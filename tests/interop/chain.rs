//! Messages that must pass through Tidegate and another proxy, in either order: bodies, trailers,
//! WebSocket and gRPC, over each protocol of the proxy in front.

use std::{io::Write, net::SocketAddr, path::Path};

use serde_json::{Value, json};
use testkit::{client::Client, upstream::Upstream, yaml::fill};

use crate::{
    curl::curl,
    edge::{Files, Listener, NAME, WAYS},
    server::{Server, loopback},
    tools::{run, script},
    websocket::{converse, expected},
};

/// The path of the WebSocket echo, and that of the gRPC service's methods.
pub(crate) const PATHS: [&str; 2] = ["/chat", "/tidegate.Test/"];

/// The application behind both proxies.
pub(crate) struct Application {
    /// Sends bodies back; HTTP/1.1.
    pub(crate) echo: Upstream,
    /// Echoes WebSocket messages; HTTP/1.1.
    pub(crate) chat: SocketAddr,
    /// A gRPC server; HTTP/2 in clear.
    pub(crate) grpc: SocketAddr,
    _servers: [Server; 2],
}

impl Application {
    pub(crate) fn start() -> Self {
        let (chat_server, chat) = Server::script("echo.py", &[]);
        let (grpc_server, grpc) = Server::script("../../grpc/server.py", &[]);
        Self { echo: echo(), chat, grpc, _servers: [chat_server, grpc_server] }
    }

    /// The `upstreams` and `routes` of a gateway in front of it.
    pub(crate) fn sections(&self) -> String {
        fill(
            "
            upstreams:
              echo: {targets: ['{echo}']}
              chat: {targets: ['http://{chat}']}
              grpc: {targets: ['http://{grpc}'], protocol: http2}
            routes:
              - {name: chat, match: {path: /chat}, upstream: chat}
              - {name: grpc, match: {path: '/tidegate.Test/{method}'}, upstream: grpc}
              - {name: echo, match: {path: '/{*rest}'}, upstream: echo, max_body: 8MiB}
            ",
            [
                ("echo", self.echo.target()),
                ("chat", self.chat.to_string()),
                ("grpc", self.grpc.to_string()),
            ],
        )
    }
}

/// Sends each body back, and answers a short one with its own body and trailers. A short body that
/// is there at once has a length here, though its client sent chunks.
fn echo() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let end = request.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let body = &request[end + 4..];
        if matches!(body, b"hi") || body.starts_with(b"2\r\nhi\r\n") {
            let response =
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                5\r\nhello\r\n0\r\nX-Sum: 532\r\n\r\n";
            return socket.write_all(response).is_ok();
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        socket.write_all(head.as_bytes()).is_ok() && socket.write_all(body).is_ok()
    })
}

/// The ports of the proxy in front, both of which accept either version of HTTP.
pub(crate) struct Front<'f> {
    pub(crate) clear: u16,
    pub(crate) tls: u16,
    /// The CA of the certificate for [`NAME`].
    pub(crate) ca: &'f Path,
    /// The servers behind it, for messages.
    pub(crate) case: String,
}

impl Front<'_> {
    fn ways(&self) -> [(u16, Option<&Path>); 2] {
        [(self.clear, None), (self.tls, Some(self.ca))]
    }

    /// Sends a body of 1 MiB and receives it, in each protocol, and calls `check` for each request.
    pub(crate) fn assert_bodies_pass(&self, files: &Files, mut check: impl FnMut(&str)) {
        let (file, bytes) = files.body(1 << 20);
        let body = format!("@{}", file.display());
        for way in &WAYS[..6] {
            let (scheme, port) = match way.listener {
                Listener::Clear => ("http", self.clear),
                _ => ("https", self.tls),
            };
            let arguments = [way.arguments, &["--data-binary", &body]].concat();
            let answer = curl(self.ca, &arguments, &format!("{scheme}://{NAME}:{port}/echo"));
            let case = format!("{}, {way:?}: {}", self.case, answer.log);
            assert_eq!((answer.status, &*answer.version), (200, way.http), "{case}");
            assert!(answer.body == bytes, "{} bytes, {case}", answer.body.len());
            check(&answer.head);
        }
    }

    /// Sends a chunked body with trailers over HTTP/1.1, and receives another one.
    pub(crate) fn assert_trailers_pass(&self, echo: &Upstream) {
        self.assert_response_trailers_pass();
        let received = echo.request_texts().pop().expect("a request").to_lowercase();
        assert!(received.contains("\r\n2\r\nhi\r\n0\r\n"), "{}: {received}", self.case);
        assert!(received.ends_with("\r\nx-sent: 209\r\n\r\n"), "{}: {received}", self.case);
    }

    /// Like [`Self::assert_trailers_pass`], without trailers of the request.
    pub(crate) fn assert_response_trailers_pass(&self) {
        let mut client = Client::connect(loopback(self.clear));
        client.send(format!(
            "POST /echo HTTP/1.1\r\nHost: {NAME}\r\nTE: trailers\r\nConnection: te\r\n\
             Transfer-Encoding: chunked\r\nTrailer: X-Sent\r\n\r\n2\r\nhi\r\n0\r\nX-Sent: 209\r\n\r\n"
        ));
        let (status, head) = client.read_head().expect("a head");
        assert_eq!(status, 200, "{}: {head}", self.case);
        let (body, trailers) = client.read_chunked().expect("a body");
        assert_eq!(body, b"hello", "{}", self.case);
        assert_eq!(trailers.to_lowercase(), "x-sum: 532\r\n", "{}: {head}", self.case);
    }

    /// Converses by WebSocket with echo.py.
    pub(crate) fn assert_websocket_passes(&self, client: &str) {
        for (port, ca) in self.ways() {
            let mut seen = converse(client, port, ca, 1_000, &self.case);
            // Only an HTTP/2 client reports it.
            let status = seen.as_object_mut().and_then(|seen| seen.remove("status"));
            assert!(status.is_none_or(|status| status == "200"), "{}", self.case);
            assert_eq!(
                seen,
                expected("pong", "version", "4001 by the client"),
                "{client}, {}",
                self.case
            );
        }
    }

    /// Makes gRPC calls of each kind, with metadata and trailers, successful and failing ones.
    pub(crate) fn assert_grpc_passes(&self) {
        for (port, ca) in self.ways() {
            let call = |case: &str| -> Value {
                let mut command = script("../../grpc/client.py");
                command.args([&loopback(port).to_string(), case]);
                if let Some(ca) = ca {
                    command.arg(ca).arg(NAME);
                }
                let output = run(&mut command).succeeded(&format!("{case}, {}", self.case));
                serde_json::from_str(&output.out).expect("JSON")
            };
            let unary = call("unary");
            let (small, case) = (&unary["small"], &self.case);
            assert_eq!((&small["code"], &small["replies"]), (&json!("OK"), &json!(["hello"])));
            assert_eq!(small["initial"]["x-initial"], "first", "{case}: {unary}");
            assert_eq!(small["trailing"]["x-received"], "by the client", "{case}: {unary}");
            assert_eq!(small["trailing"]["x-binary-bin"], "\u{0}\u{ff}", "{case}: {unary}");
            assert_eq!(unary["large_is_equal"], true, "{case}: {unary}");
            let chat = call("chat");
            let replies: Vec<_> = (0..50).map(|number| format!("re: {number}")).collect();
            assert_eq!(chat["replies"], json!(replies), "{case}: {chat}");
            let failures = call("failures");
            for (name, code) in [
                ("trailers_only", "FAILED_PRECONDITION"),
                ("late", "DATA_LOSS"),
                ("unknown_method", "UNIMPLEMENTED"),
            ] {
                assert_eq!(failures[name]["code"], code, "{case}: {failures}");
            }
            let streams = call("streams");
            let all = ["count", "none", "join", "join_none"];
            assert!(all.iter().all(|name| streams[name]["code"] == "OK"), "{case}: {streams}");
        }
    }
}
