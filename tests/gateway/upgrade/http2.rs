//! Tunnels over HTTP/2 streams (RFC 8441), on the client's side, the upstream's, or both.

mod resets;

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    thread,
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Reason, RecvStream, SendStream,
    client::SendRequest,
    ext::Protocol as TunnelProtocol,
    server::{Connection as ServerConnection, SendResponse},
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_client::open_socket,
    protocol::{HTTP1, HTTP2, Protocol, on_protocols},
    upstream::Upstream,
    wait::{TIMEOUT, eventually_async, while_clock_advances},
};
use tidegate::{
    clock::{Clock, StoreTime},
    http1::upgrade::websocket_accept,
};
use tokio::net::{TcpListener, TcpStream};

use super::{configuration, echo_upstream, request};

/// For the library's bound on small frames: enough for any burst of these tests.
const MANY_SMALL_FRAMES: usize = 64 * 1024 * 1024;

/// Runs `future` on a runtime of its own, at most [`TIMEOUT`].
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let timed = runtime.block_on(async { tokio::time::timeout(TIMEOUT, future).await });
    timed.expect("it ends in time")
}

fn start(target: &str, clock: Clock) -> Gateway {
    Gateway::for_every_protocol_at(&configuration(target, ""), clock)
}

fn http1(upstream: &Upstream) -> String {
    format!("targets: [\"{}\"]", upstream.target())
}

fn http2(address: SocketAddr) -> String {
    format!("targets: [\"http://{address}\"], protocol: http2")
}

/// A stream whose head was answered.
struct Stream {
    status: StatusCode,
    headers: HeaderMap,
    send: SendStream<Bytes>,
    receive: RecvStream,
}

/// A connection to a gateway, and its protocol.
struct Connection {
    send: SendRequest<Bytes>,
    protocol: Protocol,
}

/// Connects, and waits for the gateway's settings.
async fn connect(protocol: Protocol, gateway: &Gateway) -> Connection {
    let socket = open_socket(protocol.address(gateway), protocol.is_tls()).await;
    let mut builder = h2::client::Builder::new();
    let builder = builder.data_frame_budget(MANY_SMALL_FRAMES);
    let (send, driver) = builder.handshake(socket.expect("a socket")).await.expect("HTTP/2");
    tokio::spawn(driver);
    eventually_async("the settings", async || send.is_extended_connect_protocol_enabled()).await;
    Connection { send, protocol }
}

fn extended_connect(path: &str, protocol: &str) -> http::request::Builder {
    Request::builder()
        .method(Method::CONNECT)
        .uri(format!("http://gateway.test{path}"))
        .header("sec-websocket-version", "13")
        .extension(TunnelProtocol::from(protocol))
}

/// Sends `request`, whose stream stays open.
async fn ask(connection: &Connection, request: http::request::Builder) -> Stream {
    let mut send = connection.send.clone().ready().await.expect("an open connection");
    let mut request = request.body(()).expect("a request");
    let mut uri = request.uri().clone().into_parts();
    if uri.scheme.is_some() {
        uri.scheme = connection.protocol.scheme().parse().ok();
    }
    *request.uri_mut() = uri.try_into().expect("a URI");
    let (response, send) = send.send_request(request, false).expect("it is sent");
    let (parts, receive) = response.await.expect("a response").into_parts();
    Stream { status: parts.status, headers: parts.headers, send, receive }
}

/// Sends all of `bytes` as the window allows.
async fn send(stream: &mut SendStream<Bytes>, mut bytes: Bytes) {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let allowed = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let allowed = allowed.expect("an open stream").expect("an open stream");
        let part = bytes.split_to(allowed.min(bytes.len()));
        stream.send_data(part, false).expect("an open stream");
    }
}

impl Stream {
    async fn send(&mut self, bytes: impl Into<Bytes>) {
        send(&mut self.send, bytes.into()).await;
    }

    /// Receives `length` bytes, or fewer if the stream ends before.
    async fn receive(&mut self, length: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < length {
            let Some(data) = self.receive.data().await else { break };
            let data = data.expect("the stream is not reset");
            let _ = self.receive.flow_control().release_capacity(data.len());
            all.extend_from_slice(&data);
        }
        all
    }

    async fn assert_echoes(&mut self, text: &'static str) {
        self.send(text).await;
        assert_eq!(self.receive(text.len()).await, text.as_bytes());
    }
}

/// An HTTP/2 upstream on a thread of its own.
fn http2_upstream(allows_connect: bool) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    listener.set_nonblocking(true).expect("an option");
    thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            while let Ok((socket, _)) = listener.accept().await {
                let mut builder = h2::server::Builder::new();
                builder.data_frame_budget(MANY_SMALL_FRAMES);
                if allows_connect {
                    builder.enable_connect_protocol();
                }
                tokio::spawn(async move {
                    let server = builder.handshake(socket).await;
                    serve(server.expect("HTTP/2")).await;
                });
            }
        });
    });
    address
}

async fn serve(mut server: ServerConnection<TcpStream, Bytes>) {
    while let Some(Ok((request, respond))) = server.accept().await {
        tokio::spawn(answer(request, respond));
    }
}

/// Echoes on an extended CONNECT, except to `/refused`. The response has the request's headers, prefixed.
async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let request_path = request.uri().path().to_owned();
    let mut response = Response::builder();
    let protocol = request.extensions().get::<TunnelProtocol>();
    response = response.header("x-protocol", protocol.map_or("", TunnelProtocol::as_str));
    response = response.header("x-method", request.method().as_str());
    for name in ["sec-websocket-key", "upgrade", "connection", "sec-websocket-version"] {
        if request.headers().contains_key(name) {
            response = response.header(format!("x-got-{name}"), "yes");
        }
    }
    match (&*request_path, request.headers().get("sec-websocket-key")) {
        ("/accepted", Some(key)) => {
            response = response.header("sec-websocket-accept", websocket_accept(key.as_bytes()));
        }
        ("/wrong", _) => response = response.header("sec-websocket-accept", "wrong"),
        _ => {}
    }
    let is_refused = protocol.is_none() || request_path == "/refused";
    let status = if is_refused { 403 } else { 200 };
    let response = response.status(status).body(()).expect("a response");
    let Ok(mut stream) = respond.send_response(response, false) else { return };
    let mut body = request.into_body();
    if request_path == "/reset" {
        let _ = body.data().await;
        let _ = stream.send_data("last".into(), false);
        for _ in 0..10 {
            // The connection sends the data. A reset would discard it.
            tokio::task::yield_now().await;
        }
        return stream.send_reset(Reason::CONNECT_ERROR);
    }
    if request_path == "/count" {
        return resets::count(body).await;
    }
    if is_refused {
        let _ = stream.send_data("no".into(), true);
        return;
    }
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        send(&mut stream, data).await;
    }
    let _ = stream.send_data(Bytes::new(), true);
}

#[test]
fn a_stream_becomes_a_tunnel_to_either_version() {
    on_protocols(&HTTP2, |protocol| {
        let echo = echo_upstream();
        for target in [http1(&accepting_upstream()), http2(http2_upstream(true))] {
            let gateway = start(&target, Clock::system());
            run(async {
                let connection = connect(protocol, &gateway).await;
                let mut stream = ask(&connection, extended_connect("/few?x", "websocket")).await;
                assert_eq!(stream.status, 200);
                assert_eq!(stream.headers["x-ratelimit-remaining"], "1");
                for name in ["upgrade", "connection", "sec-websocket-accept", "content-length"] {
                    assert!(!stream.headers.contains_key(name), "{name}");
                }
                stream.assert_echoes("hello").await;
                stream.assert_echoes("again").await;
                // Another request on the same connection meanwhile.
                let other = ask(&connection, extended_connect("/few", "websocket")).await;
                assert_eq!(other.status, 200);
                stream.send.send_data("last".into(), true).expect("an open stream");
                assert_eq!(stream.receive(usize::MAX).await, b"last");
            });
            gateway.wait_for_metric("tidegate_tunnels", 0);
        }
        // The answer to another key.
        let gateway = start(&http1(&echo), Clock::system());
        run(async {
            let connection = connect(protocol, &gateway).await;
            let stream = ask(&connection, extended_connect("/x", "websocket")).await;
            assert_eq!(stream.status, 502);
            // A 2xx would be the beginning of a tunnel.
            let stream = ask(&connection, extended_connect("/plain", "websocket")).await;
            assert_eq!(stream.status, 501);
            let stream = ask(&connection, extended_connect("/fixed", "websocket")).await;
            assert_eq!(stream.status, 501);
        });
        let sent = echo.request_texts()[0].to_ascii_lowercase();
        assert!(sent.starts_with("get /x http/1.1\r\n"), "{sent}");
        assert!(
            sent.contains("\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: ")
        );
        assert!(sent.contains("\r\nsec-websocket-version: 13\r\n"), "{sent}");
    });
}

/// An HTTP/1 upstream that answers the key as RFC 6455 says, and echoes.
fn accepting_upstream() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let key = text.lines().find_map(|line| line.strip_prefix("sec-websocket-key: "));
        let accept = websocket_accept(key.unwrap_or("").as_bytes());
        let head = format!(
            "HTTP/1.1 101 Ok\r\nConnection: upgrade\r\nUpgrade: WebSocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        let _ = socket.write_all(head.as_bytes());
        super::echo(socket);
        false
    })
}

/// A key, and what answers it.
const KEY: (&str, &str) = ("dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");

#[test]
fn a_key_on_a_stream_is_answered_by_either_version() {
    on_protocols(&HTTP2, |protocol| {
        for (target, paths) in [
            (http1(&accepting_upstream()), &["/x"][..]),
            // Whether or not it answers the key itself.
            (http2(http2_upstream(true)), &["/x", "/accepted"]),
        ] {
            let gateway = start(&target, Clock::system());
            run(async {
                let connection = connect(protocol, &gateway).await;
                for path in paths {
                    let request = extended_connect(path, "websocket");
                    let request = request.header("sec-websocket-key", KEY.0);
                    let mut stream = ask(&connection, request).await;
                    assert_eq!(stream.status, 200, "{target}{path}");
                    let accept: Vec<_> =
                        stream.headers.get_all("sec-websocket-accept").iter().collect();
                    assert_eq!(accept, [KEY.1], "{target}{path}");
                    stream.assert_echoes("hello").await;
                }
            });
        }
    });
}

#[test]
fn a_wrong_answer_to_a_key_is_a_502() {
    let http2_server = http2(http2_upstream(true));
    on_protocols(&HTTP2, |protocol| {
        // It answers the key of RFC 6455, whatever it received.
        let echo = echo_upstream();
        for (target, path) in [(&http1(&echo), "/x"), (&http2_server, "/wrong")] {
            let gateway = start(target, Clock::system());
            run(async {
                let connection = connect(protocol, &gateway).await;
                let request = || extended_connect(path, "websocket");
                for request in
                    [request(), request().header("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==")]
                {
                    assert_eq!(ask(&connection, request).await.status, 502, "{target}");
                }
            });
        }
    });
    on_protocols(&HTTP1, |protocol| {
        let gateway = start(&http2_server, Clock::system());
        for (path, status) in [("/wrong", 502), ("/accepted", 101), ("/x", 101)] {
            let mut client = protocol.connect_http1(&gateway);
            let response = client.send(request(path)).read_response();
            assert_eq!(response.status, status, "{path}");
            let accept = response.header("sec-websocket-accept");
            assert_eq!(accept, (status == 101).then_some(KEY.1), "{path}");
        }
    });
}

#[test]
fn a_client_of_http1_reaches_an_upstream_of_http2() {
    on_protocols(&HTTP1, |protocol| {
        let gateway = start(&http2(http2_upstream(true)), Clock::system());
        let mut client = protocol.connect_http1(&gateway);
        let response = client.send(request("/few") + "early").read_response();
        assert_eq!((response.status, response.header("upgrade")), (101, Some("websocket")));
        assert_eq!(response.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(response.header("x-protocol"), Some("websocket"));
        assert_eq!(response.header("x-method"), Some("CONNECT"));
        assert_eq!(response.header("x-got-sec-websocket-version"), Some("yes"));
        assert_eq!(response.header("x-got-sec-websocket-key"), Some("yes"));
        for name in ["x-got-upgrade", "x-got-connection"] {
            assert_eq!(response.header(name), None);
        }
        assert_eq!(client.read_exact(5).as_deref(), Some(&b"early"[..]));
        super::assert_echoes(&mut client, "hello");
        client.send("last").socket.half_close().expect("a half-close");
        assert_eq!(client.read_to_end().expect("an orderly end"), b"last");
        gateway.wait_for_metric("tidegate_tunnels", 0);

        let mut client = protocol.connect_http1(&gateway);
        let refused = client.send(request("/refused")).read_response();
        assert_eq!((refused.status, refused.text().as_str()), (403, "no"));
        // Without GET there is no extended CONNECT for it: an ordinary request.
        let post = request("/few").replacen("GET", "POST", 1);
        let response = client.send(post).read_response();
        assert_eq!((response.status, response.header("x-method")), (403, Some("POST")));
        assert_eq!(response.header("x-got-upgrade"), None);
    });
}

#[test]
fn an_upstream_without_extended_connect_is_a_501() {
    on_protocols(&HTTP2, |protocol| {
        let gateway = start(&http2(http2_upstream(false)), Clock::system());
        let mut client = Client::connect(gateway.address());
        for _ in 0..2 {
            assert_eq!(client.send(request("/x")).read_response().status, 501);
        }
        assert_eq!(client.get("/x", "").status, 403, "other requests are answered");
        run(async {
            let connection = connect(protocol, &gateway).await;
            assert_eq!(ask(&connection, extended_connect("/x", "websocket")).await.status, 501);
        });
        assert_eq!(gateway.metric("tidegate_upstream_failures_total"), 0);
    });
}

#[test]
fn refusals_of_an_extended_connect_are_ordinary_responses() {
    on_protocols(&HTTP2, |protocol| {
        let upstream = accepting_upstream();
        let gateway = start(&http1(&upstream), Clock::system());
        run(async {
            let connection = connect(protocol, &gateway).await;
            for expected in [200, 200, 429] {
                let stream = ask(&connection, extended_connect("/few", "websocket")).await;
                assert_eq!(stream.status, expected);
            }
            let grpc =
                extended_connect("/few", "websocket").header("content-type", "application/grpc");
            assert_eq!(ask(&connection, grpc).await.status, 429, "a 200 would begin a tunnel");
            for other in ["h2c", "HTTP/2.0", "tls"] {
                assert_eq!(ask(&connection, extended_connect("/x", other)).await.status, 405);
            }
            let plain = Request::builder().method(Method::CONNECT).uri("gateway.test:80");
            assert_eq!(ask(&connection, plain).await.status, 405);
            let trace = Request::builder().method(Method::TRACE).uri("http://gateway.test/x");
            assert_eq!(ask(&connection, trace).await.status, 405);
            let length = extended_connect("/x", "websocket").header("content-length", "0");
            assert_eq!(ask(&connection, length).await.status, 400);
            let mut stream = ask(&connection, extended_connect("/x", "websocket")).await;
            stream.assert_echoes("the connection is still good").await;
        });
        assert_eq!(upstream.request_count(), 3);
    });
}

#[test]
fn half_close_is_kept_over_streams() {
    on_protocols(&HTTP2, |protocol| {
        let upstream = Upstream::with_handler(|request, socket| {
            let head = "HTTP/1.1 101 Ok\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\nahead, ";
            let _ = socket.write_all(head.as_bytes());
            if request.starts_with(b"GET /server") {
                let _ = socket.shutdown(Shutdown::Write);
            }
            let mut received = Vec::new();
            let _ = socket.read_to_end(&mut received);
            let _ = socket.write_all(&received);
            false
        });
        let gateway = start(&http1(&upstream), Clock::system());
        run(async {
            let connection = connect(protocol, &gateway).await;
            let mut stream = ask(&connection, extended_connect("/client", "foo")).await;
            stream.send.send_data("question".into(), true).expect("an open stream");
            assert_eq!(stream.receive(usize::MAX).await, b"ahead, question");
            let mut stream = ask(&connection, extended_connect("/server", "foo")).await;
            assert_eq!(stream.receive(usize::MAX).await, b"ahead, ");
            stream.send("still").await;
            stream.send.send_data(Bytes::new(), true).expect("an open stream");
        });
        gateway.wait_for_metric("tidegate_tunnels", 0);
    });
}

#[test]
fn a_reset_stream_ends_its_tunnel() {
    on_protocols(&HTTP2, |protocol| {
        let upstream = accepting_upstream();
        let gateway = start(&http1(&upstream), Clock::system());
        run(async {
            let connection = connect(protocol, &gateway).await;
            let mut stream = ask(&connection, extended_connect("/open", "websocket")).await;
            assert_eq!(ask(&connection, extended_connect("/open", "websocket")).await.status, 429);
            stream.send.send_reset(h2::Reason::CANCEL);
            eventually_async("the permit is free", async || {
                ask(&connection, extended_connect("/open", "websocket")).await.status == 200
            })
            .await;
        });
    });
}

#[test]
fn ten_thousand_small_messages_pass_over_streams() {
    on_protocols(&HTTP2, |protocol| {
        for target in [http1(&accepting_upstream()), http2(http2_upstream(true))] {
            let gateway = start(&target, Clock::system());
            run(async {
                let connection = connect(protocol, &gateway).await;
                let mut stream = ask(&connection, extended_connect("/x", "websocket")).await;
                for burst in 0..10_u32 {
                    let numbers = burst * 1000..(burst + 1) * 1000;
                    for n in numbers.clone() {
                        stream.send(n.to_be_bytes().to_vec()).await;
                    }
                    let expected: Vec<u8> = numbers.flat_map(u32::to_be_bytes).collect();
                    assert!(stream.receive(4000).await == expected, "burst {burst}");
                }
            });
        }
    });
}

#[test]
fn bytes_before_a_reset_of_the_upstream_arrive() {
    let server = http2(http2_upstream(true));
    on_protocols(&HTTP2, |protocol| {
        let gateway = start(&server, Clock::system());
        run(async {
            let connection = connect(protocol, &gateway).await;
            for _ in 0..20 {
                let request = extended_connect("/reset", "websocket");
                let mut stream = ask(&connection, request).await;
                stream.send("go").await;
                assert_eq!(stream.receive(4).await, b"last");
                let end = stream.receive.data().await;
                assert!(end.is_some_and(|data| data.is_err()), "it is no orderly end");
            }
        });
    });
}

#[test]
fn an_idle_stream_is_cut() {
    on_protocols(&HTTP2, |protocol| {
        let gateway = start(
            &http2(http2_upstream(true)),
            Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        );
        let ((), took) = gateway.while_time_passes(|| {
            run(async {
                let connection = connect(protocol, &gateway).await;
                let mut stream = ask(&connection, extended_connect("/brief", "websocket")).await;
                stream.assert_echoes("hello").await;
                let end = stream.receive.data().await.expect("no orderly end");
                assert!(end.is_err_and(|error| error.is_reset()));
            });
        });
        assert!(took >= Duration::from_secs(1), "{took:?}");
    });
}

#[test]
fn a_stream_lives_until_the_drain_timeout() {
    on_protocols(&HTTP2, |protocol| {
        let configuration = configuration(&http1(&accepting_upstream()), "drain_timeout: 20s");
        let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
        let gateway = Arc::new(Gateway::for_every_protocol_at(&configuration, clock));
        run(async {
            let connection = connect(protocol, &gateway).await;
            let mut stream = ask(&connection, extended_connect("/x", "websocket")).await;
            let start = gateway.clock.uptime();
            // Only this test moves the clock, so that the echo comes in time on any machine.
            let stopping = thread::spawn({
                let gateway = Arc::clone(&gateway);
                move || gateway.server.stop()
            });
            eventually_async("it drains", async || {
                std::net::TcpStream::connect(protocol.address(&gateway)).is_err()
            })
            .await;
            gateway.clock.advance(Duration::from_secs(19));
            stream.assert_echoes("still here").await;
            let (end, _) = while_clock_advances(&gateway.clock, stream.receive.data()).await;
            assert!(end.is_none_or(|data| data.is_err()), "it is cut");
            assert!(gateway.clock.uptime() >= start + Duration::from_secs(20));
            gateway.while_time_passes(|| stopping.join().expect("it stops"));
        });
    });
}
