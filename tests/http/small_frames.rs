//! Many small unread DATA frames do not end a connection, which others may share.

use std::net::TcpStream;

use testkit::{
    client::Client,
    gateway::Gateway,
    http2_frames::{END_HEADERS, END_STREAM, RawHttp2, frame, kind, request as fields},
    upstream::Upstream,
};

/// Ten bytes a frame: as many as a window of 128 KiB allows.
const FRAMES: usize = 13_000;
const PAYLOAD: [u8; 10] = *b"0123456789";

fn start(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "listen: [{{address: '127.0.0.1:0', http2: true}}]
workers: 1
upstreams: {{origin: {{targets: [{}], protocol: http2, retries: 0}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        upstream.target()
    ))
}

/// Frames of DATA on `stream`; the last ends it if `ends`.
fn small_frames(stream: u32, ends: bool) -> Vec<u8> {
    let flags = |n: usize| if ends && n + 1 == FRAMES { END_STREAM } else { 0 };
    (0..FRAMES).flat_map(|n| frame(kind::DATA, flags(n), stream, &PAYLOAD)).collect()
}

#[test]
fn a_client_that_does_not_read_small_messages_leaves_the_shared_upstream_connection_open() {
    // The first request on a connection gets many small frames, the others `hello`.
    let upstream = Upstream::on_connection(|socket: &mut TcpStream| {
        let socket = socket.try_clone().expect("a socket");
        let Some(mut raw) = RawHttp2::accept(socket, &[]) else { return };
        let mut is_first = true;
        while let Some(request) = raw.read_until(kind::HEADERS) {
            raw.frame(kind::HEADERS, END_HEADERS, request.stream, &[0x88]);
            if std::mem::take(&mut is_first) {
                raw.send(small_frames(request.stream, true));
            } else {
                raw.frame(kind::DATA, END_STREAM, request.stream, b"hello");
            }
        }
    });
    let gateway = start(&upstream);
    // SETTINGS_INITIAL_WINDOW_SIZE of 0: no byte of a body may be sent.
    let mut stalled = RawHttp2::connect_with(gateway.address(), &[(4, 0)]);
    stalled.headers(1, &fields("GET", "/"), true);
    stalled.read_until(kind::HEADERS).expect("a head");
    let mut other = Client::connect(gateway.address());
    for n in 0..20 {
        assert_eq!(other.get("/", "").text(), "hello", "{n}");
    }
    assert_eq!(upstream.connections(), 1);
    // Then opens the windows of the stream and of the connection.
    for stream in [0, 1] {
        stalled.frame(kind::WINDOW_UPDATE, 0, stream, &1_000_000_u32.to_be_bytes());
    }
    let mut body = Vec::new();
    loop {
        let frame = stalled.read_until(kind::DATA).expect("the whole body");
        body.extend(frame.payload);
        if frame.flags & END_STREAM != 0 {
            break;
        }
    }
    assert_eq!(body, PAYLOAD.repeat(FRAMES));
}

#[test]
fn small_messages_that_the_upstream_does_not_read_leave_the_clients_connection_open() {
    // Opens the stream's window only when asked for by a second request.
    let upstream = Upstream::on_connection(|socket: &mut TcpStream| {
        let socket = socket.try_clone().expect("a socket");
        let Some(mut raw) = RawHttp2::accept(socket, &[(4, 0)]) else { return };
        let upload = raw.read_until(kind::HEADERS).expect("an upload").stream;
        let second = raw.read_until(kind::HEADERS).expect("a request").stream;
        raw.frame(kind::HEADERS, END_HEADERS | END_STREAM, second, &[0x88]);
        for stream in [0, upload] {
            raw.frame(kind::WINDOW_UPDATE, 0, stream, &1_000_000_u32.to_be_bytes());
        }
        let mut received = 0;
        while let Some(frame) = raw.read_until(kind::DATA) {
            received += frame.payload.len();
            if frame.flags & END_STREAM != 0 {
                break;
            }
        }
        assert_eq!(received, FRAMES * PAYLOAD.len());
        raw.frame(kind::HEADERS, END_HEADERS | END_STREAM, upload, &[0x88]);
        while raw.read_frame().is_some() {}
    });
    let gateway = start(&upstream);
    let mut client = RawHttp2::connect(gateway.address());
    // They allow a larger window than the initial one.
    client.read_until(kind::SETTINGS).expect("settings");
    client.headers(1, &fields("POST", "/"), false);
    client.send(small_frames(1, true));
    client.headers(3, &fields("GET", "/"), true);
    let answered = [3, 1].map(|stream| {
        loop {
            let frame = client.read_until(kind::HEADERS).expect("a head");
            if frame.stream == stream {
                break frame.payload[0];
            }
        }
    });
    assert_eq!(answered, [0x88, 0x88], "200");
}
