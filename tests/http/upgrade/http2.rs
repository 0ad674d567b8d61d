//! Tunnels over HTTP/2 streams (RFC 8441), on the client's side, the upstream's, or both.

/// How tunnels over streams end.
mod end;
/// The response to an extended CONNECT.
mod handshake;
/// Resets of streams.
mod resets;

use std::{io::Write, net::SocketAddr, thread};

use bytes::Bytes;
use h2::{
    Reason, RecvStream, SendStream,
    client::SendRequest,
    ext::Protocol as TunnelProtocol,
    server::{Connection as ServerConnection, SendResponse},
};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use testkit::{
    gateway::Gateway,
    http2_client::open_socket,
    protocol::{HTTP2, Protocol, on_protocols},
    upstream::Upstream,
    wait::{TIMEOUT, eventually_async},
    yaml::fill,
};
use tidegate::upstream::websocket_accept;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

use super::{echo_upstream, request, start};

/// For the library's bound on small frames: enough for any burst of these tests.
const MANY_SMALL_FRAMES: usize = 64 * 1024 * 1024;

/// Runs `future` on a runtime of its own, at most [`TIMEOUT`].
fn run<T>(future: impl Future<Output = T>) -> T {
    run_on(&start_runtime(), future)
}

fn start_runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// Runs `future` on `runtime`, at most [`TIMEOUT`].
fn run_on<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    let timed = runtime.block_on(async { tokio::time::timeout(TIMEOUT, future).await });
    timed.expect("it ends in time")
}

/// A gateway that forwards every request to an HTTP/2 upstream.
fn start_to_http2(upstream: SocketAddr) -> Gateway {
    Gateway::for_every_protocol(&fill(
        "
        upstreams: {app: {targets: ['http://{upstream}'], protocol: http2}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("upstream", upstream)],
    ))
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

/// What the settings of an HTTP/2 upstream permit.
#[derive(Clone, Copy, Eq, PartialEq)]
enum ExtendedConnect {
    Allowed,
    Absent,
}

/// An HTTP/2 upstream on a thread of its own, which echoes on a tunnel.
fn http2_upstream(extended_connect: ExtendedConnect) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    listener.set_nonblocking(true).expect("an option");
    thread::spawn(move || {
        start_runtime().block_on(async move {
            let listener = TcpListener::from_std(listener).expect("a listener");
            while let Ok((socket, _)) = listener.accept().await {
                let mut builder = h2::server::Builder::new();
                builder.data_frame_budget(MANY_SMALL_FRAMES);
                if extended_connect == ExtendedConnect::Allowed {
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

/// Echoes on an extended CONNECT, except to `/refused`. The response has the request's headers,
/// prefixed.
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

#[test]
fn ten_thousand_small_messages_pass_over_streams() {
    on_protocols(&HTTP2, |protocol| {
        for gateway in
            [start(&accepting_upstream()), start_to_http2(http2_upstream(ExtendedConnect::Allowed))]
        {
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
