//! Servers that break off, do not speak HTTP/2, or flood.

use std::io::{Read, Write};

use h2::Reason;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_frames::{END_HEADERS, END_STREAM, RawHttp2, block, frame, kind, settings},
    upstream::{Upstream, read_until_closed},
};
use tidegate::clock::Clock;

use super::{End, NO_RETRIES, ORIGIN, answer, raw_upstream, read_request, start, start_at};

#[test]
fn a_body_that_breaks_off_is_never_complete() {
    let head = |raw: &mut RawHttp2, stream, length: &str| {
        let mut bytes = vec![0x88];
        if !length.is_empty() {
            bytes.extend(block(&[("content-length", length)]));
        }
        raw.frame(kind::HEADERS, END_HEADERS, stream, &bytes);
        raw.frame(kind::DATA, 0, stream, b"hello");
    };
    let cases: [(&str, &str, End); 7] = [
        ("the server closes", "", |_, _| {}),
        ("the server closes", "10", |_, _| {}),
        ("a reset", "", |raw, stream| {
            raw.frame(kind::RST_STREAM, 0, stream, &2_u32.to_be_bytes());
        }),
        ("a reset without an error", "", |raw, stream| {
            raw.frame(kind::RST_STREAM, 0, stream, &0_u32.to_be_bytes());
        }),
        ("GOAWAY and a close", "", |raw, stream| {
            raw.frame(kind::GOAWAY, 0, 0, &[stream.to_be_bytes(), [0; 4]].concat());
        }),
        ("too short", "10", |raw, stream| {
            raw.frame(kind::DATA, END_STREAM, stream, b"abc");
            raw.read_frame();
        }),
        ("too long", "6", |raw, stream| {
            raw.frame(kind::DATA, END_STREAM, stream, b"abc");
            raw.read_frame();
        }),
    ];
    for (what, length, end) in cases {
        let upstream = raw_upstream(move |raw, _| {
            while let Some(stream) = read_request(raw) {
                head(raw, stream, length);
                end(raw, stream);
                if !what.contains("reset") {
                    return;
                }
            }
        });
        let gateway = start(&upstream.target(), NO_RETRIES);
        let mut http1 = Client::connect(gateway.address());
        http1.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let response = http1.try_read_response();
        assert!(
            response.as_ref().is_none_or(|response| response.status == 502),
            "{what}: {response:?}"
        );
        let mut http2 = Http2Client::connect(gateway.address());
        let result = http2.try_ask(request("GET", "/", ""), b"");
        assert!(result.is_err() || result.is_ok_and(|response| response.status == 502), "{what}");
    }
}

#[test]
fn a_repeated_length_is_a_502() {
    let upstream = raw_upstream(|raw, _| {
        while let Some(stream) = read_request(raw) {
            let lengths = block(&[("content-length", "2"), ("content-length", "2")]);
            let mut head = vec![0x88];
            head.extend(lengths);
            raw.frame(kind::HEADERS, END_HEADERS, stream, &head);
            raw.frame(kind::DATA, END_STREAM, stream, b"hi");
        }
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    assert_eq!(get(gateway.address(), "/", "").status, 502);
}

/// A gRPC client reads the initial metadata of a call, and the messages before its failure.
#[test]
fn what_arrived_before_a_body_broke_off_reaches_an_http2_client() {
    for data in [&b""[..], b"hello"] {
        let upstream = raw_upstream(move |raw, _| {
            let Some(stream) = read_request(raw) else { return };
            let mut bytes = frame(kind::HEADERS, END_HEADERS, stream, &[0x88]);
            if !data.is_empty() {
                bytes.extend(frame(kind::DATA, 0, stream, data));
            }
            bytes.extend(frame(kind::RST_STREAM, 0, stream, &2_u32.to_be_bytes()));
            raw.send(bytes);
            raw.read_frame();
        });
        let gateway = start(&upstream.target(), NO_RETRIES);
        assert_eq!(read_until_reset(&gateway), data);
    }
    for length in [5, 3_000_000] {
        let upstream = Upstream::with_handler(move |_, socket| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", length + 1);
            let _ = socket.write_all(&[head.into_bytes(), vec![b'x'; length]].concat());
            false
        });
        let gateway = start(&upstream.target(), &NO_RETRIES.replace("protocol: http2, ", ""));
        assert_eq!(read_until_reset(&gateway).len(), length);
    }
}

#[test]
fn what_was_compressed_before_a_body_broke_off_reaches_an_http2_client() {
    let upstream = Upstream::with_handler(|_, socket| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n";
        let body = "x".repeat(1000);
        let _ = socket.write_all(format!("{head}{body}\r\n").as_bytes());
        false
    });
    let gateway = start(
        &upstream.target(),
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams:
          origin: {targets: [{target}], retries: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, compress: {types: ['*/*'], min_size: 1B}}
        ",
    );
    // The break is often read together with the bytes.
    for _ in 0..40 {
        let encoded = read_until_reset(&gateway);
        let mut decoded = Vec::new();
        let _ = flate2::read::GzDecoder::new(&encoded[..]).read_to_end(&mut decoded);
        assert_eq!(decoded.len(), 1000);
    }
}

/// Reads a response with status 200 that is cut off; the part of its body before the reset.
fn read_until_reset(gateway: &Gateway) -> Vec<u8> {
    let mut client = Http2Client::connect(gateway.address());
    let get = request("GET", "/", "accept-encoding: gzip\r\n");
    let mut exchange = client.start(get, true).expect("a stream");
    assert_eq!(exchange.head().expect("a head before the reset").status(), 200);
    let mut body = Vec::new();
    loop {
        match exchange.read() {
            Ok(data) => body.extend_from_slice(&data.expect("no orderly end")),
            Err(error) => {
                assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
                return body;
            }
        }
    }
}

#[test]
fn a_server_that_does_not_speak_http2_is_a_502() {
    let http1 = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        false
    });
    let gateway = start(&http1.target(), ORIGIN);
    assert_eq!(get(gateway.address(), "/", "").status, 502);
    // And one that says nothing.
    let silent = Upstream::silent();
    let gateway = start_at(
        Clock::system(),
        &silent.target(),
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        upstreams:
          origin: {targets: [{target}], protocol: http2, connect_timeout: 200ms}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 100MiB}
        ",
    );
    assert!(matches!(get(gateway.address(), "/", "").status, 502 | 504));
}

/// The library reads an empty length as 0.
#[test]
fn a_length_that_is_no_number_is_a_502() {
    for length in ["", " ", "+5", "5x"] {
        let upstream = raw_upstream(move |raw, _| {
            while let Some(stream) = read_request(raw) {
                let head = block(&[(":status", "200"), ("content-length", length)]);
                raw.frame(kind::HEADERS, END_HEADERS, stream, &head);
                raw.frame(kind::DATA, END_STREAM, stream, b"hello");
            }
        });
        let gateway = start(&upstream.target(), NO_RETRIES);
        assert_eq!(get(gateway.address(), "/", "").status, 502, "{length:?}");
    }
}

#[test]
fn a_status_beyond_599_is_a_502() {
    let upstream = raw_upstream(|raw, _| {
        while let Some(stream) = read_request(raw) {
            let head = block(&[(":status", "999")]);
            raw.frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &head);
        }
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    assert_eq!(get(gateway.address(), "/", "").status, 502);
}

#[test]
fn a_hostile_server_is_bounded() {
    // Interim responses without end, settings and pings without end, and a bomb of header fields.
    let upstream = raw_upstream(|raw, _| {
        while let Some(stream) = read_request(raw) {
            let hints = block(&[(":status", "103"), ("link", "</a>")]);
            for _ in 0..1000 {
                raw.frame(kind::HEADERS, END_HEADERS, stream, &hints);
            }
        }
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    let mut client = Client::connect(gateway.address());
    let mut response = client.get("/", "");
    let mut count = 0;
    while response.status == 103 {
        count += 1;
        response = client.read_response();
    }
    assert_eq!(response.status, 502);
    assert!(count <= 32, "{count}");
    let upstream = raw_upstream(|raw, _| {
        let Some(stream) = read_request(raw) else { return };
        let mut bytes = vec![0x88, 0x40, 1, b'x', 0x7f, 0x81, 0x1e];
        bytes.extend([b'v'; 4000]);
        // Each byte is a field of 4,000.
        bytes.extend([0xbe; 10_000]);
        raw.frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &bytes);
        while raw.read_frame().is_some() {}
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    assert_eq!(get(gateway.address(), "/", "").status, 502);
    let upstream = raw_upstream(|raw, _| {
        let Some(stream) = read_request(raw) else { return };
        for _ in 0..50_000 {
            raw.frame(kind::SETTINGS, 0, 0, &settings(&[(4, 70_000)]));
            raw.frame(kind::PING, 0, 0, &[1; 8]);
        }
        answer(raw, stream, b"hello");
        read_until_closed(&mut raw.socket);
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    let status = get(gateway.address(), "/", "").status;
    assert!(matches!(status, 200 | 502), "{status}");
}
