//! HTTP/2 uploads that go on after an error response: the stream lingers until the client has had
//! time to read the status. The gateways' clocks stand unless a test moves them.

use std::{sync::Arc, thread, time::Duration};

use testkit::{
    gateway::Gateway,
    http2_frames::{END_STREAM, Outcome, RawHttp2, kind, request as fields},
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

/// What the gateway discards of an upload, in bytes.
const DISCARDED: usize = 1024 * 1024;
/// The window of a stream.
const WINDOW: usize = 128 * 1024;
/// A part of an upload.
const PART: [u8; 16 * 1024] = [b'x'; 16 * 1024];
const SECOND: Duration = Duration::from_secs(1);
/// The error code of an orderly reset.
const NO_ERROR: u32 = 0;

/// A gateway, and an upstream that refuses each upload before it has read the body.
struct Started {
    gateway: Gateway,
    _upstream: Upstream,
}

fn start() -> Started {
    let upstream = Upstream::impatient();
    let yaml = fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        limits: {one: {quota: 1, window: 1h, key: []}}
        upstreams:
          origin: {targets: [{target}]}
          hello: {respond: {body: hi}}
        routes:
          - {name: open, match: {path: /open}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
          - {name: limited, match: {path: /limited}, upstream: hello, limits: [one]}
          - {name: short, match: {path: /short}, upstream: origin, max_body: 10B}
          - {name: moved, match: {path: /moved}, redirect: {to: '/open'}}
          - {name: denied, match: {path: /denied}, upstream: hello, deny: [0.0.0.0/0]}
        ",
        [("target", upstream.target())],
    );
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    Started { gateway: Gateway::start_at(&yaml, clock), _upstream: upstream }
}

/// Connects, and accepts the gateway's settings: the windows of streams have their size.
fn connect(gateway: &Gateway) -> RawHttp2 {
    let mut raw = RawHttp2::connect(gateway.address());
    raw.read_until(kind::SETTINGS).expect("the settings");
    raw
}

/// Sends the head of an upload of 1 MiB.
fn begin(raw: &mut RawHttp2, stream: u32, path: &str, more: &[(&str, &str)]) {
    let mut head = fields("POST", path);
    head.push((b"content-length".to_vec(), DISCARDED.to_string().into_bytes()));
    head.extend(more.iter().map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into())));
    raw.headers(stream, &head, false);
}

/// Reads frames until one ends the response on `stream`.
fn read_response(raw: &mut RawHttp2, stream: u32) {
    loop {
        let received = raw.read_frame().expect("the rest of the response");
        assert_ne!(received.kind, kind::RST_STREAM, "{received:?}");
        let ends = matches!(received.kind, kind::HEADERS | kind::DATA);
        if ends && received.stream == stream && received.flags & END_STREAM != 0 {
            return;
        }
    }
}

/// The streams that the gateway resets until it has processed all that it was sent, with the codes.
fn resets(raw: &mut RawHttp2) -> Vec<(u32, u32)> {
    let mut resets = Vec::new();
    // The answer to the first PING may be written before streams are driven.
    for _ in 0..2 {
        raw.frame(kind::PING, 0, 0, &[0; 8]);
        loop {
            let received = raw.read_frame().expect("an answer");
            match received.kind {
                kind::RST_STREAM => resets.push((received.stream, code(&received.payload))),
                kind::PING => break,
                _ => {}
            }
        }
    }
    resets
}

fn code(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload.try_into().expect("four bytes"))
}

/// How an upload ended.
#[derive(Debug)]
struct Upload {
    sent: usize,
    /// The code of the gateway's reset; `None` if everything was sent.
    reset: Option<u32>,
}

/// Sends up to `length` bytes on the first stream, as its window allows.
fn upload(raw: &mut RawHttp2, length: usize) -> Upload {
    let (mut sent, mut window) = (0, WINDOW);
    while sent < length {
        if window >= PART.len() {
            raw.frame(kind::DATA, 0, 1, &PART);
            window -= PART.len();
            sent += PART.len();
            continue;
        }
        let received = raw.read_frame().expect("a window or a reset");
        match received.kind {
            kind::RST_STREAM => return Upload { sent, reset: Some(code(&received.payload)) },
            kind::WINDOW_UPDATE if received.stream == 1 => {
                window += code(&received.payload) as usize;
            }
            _ => {}
        }
    }
    Upload { sent, reset: None }
}

#[test]
fn an_upload_can_end_after_its_refusal() {
    let Started { gateway, _upstream } = start();
    let mut first = connect(&gateway);
    first.headers(1, &fields("GET", "/limited"), true);
    assert_eq!(first.outcome(1), Outcome::Status(200));
    let cases = [
        ("/limited", 429),
        ("/short", 413),
        ("/denied", 403),
        ("/nowhere", 404),
        ("/open", 413),
        ("/moved", 308),
    ];
    for (path, status) in cases {
        for more in [&[][..], &[("expect", "100-continue")]] {
            let mut raw = connect(&gateway);
            begin(&mut raw, 1, path, more);
            assert_eq!(raw.outcome(1), Outcome::Status(status), "{path}");
            // A redirect has no body.
            if status != 308 {
                read_response(&mut raw, 1);
            }
            let upload = upload(&mut raw, DISCARDED);
            assert_eq!(upload.reset, None, "{path} {upload:?}");
            raw.frame(kind::DATA, END_STREAM, 1, &[]);
            assert_eq!(resets(&mut raw), [], "{path}");
            raw.headers(3, &fields("GET", "/hello"), true);
            read_response(&mut raw, 3);
        }
    }
}

#[test]
fn an_upload_that_becomes_too_long_can_end_after_its_refusal() {
    let Started { gateway, _upstream } = start();
    let mut raw = connect(&gateway);
    raw.headers(1, &fields("POST", "/short"), false);
    raw.frame(kind::DATA, 0, 1, b"longer than ten bytes");
    assert_eq!(raw.outcome(1), Outcome::Status(413));
    read_response(&mut raw, 1);
    assert_eq!(upload(&mut raw, DISCARDED - PART.len()).reset, None);
    raw.frame(kind::DATA, END_STREAM, 1, &[]);
    assert_eq!(resets(&mut raw), []);
}

#[test]
fn an_upload_that_never_ends_is_reset_after_1_mib() {
    let Started { gateway, _upstream } = start();
    let mut raw = connect(&gateway);
    raw.headers(1, &fields("POST", "/denied"), false);
    assert_eq!(raw.outcome(1), Outcome::Status(403));
    let upload = upload(&mut raw, usize::MAX);
    assert_eq!(upload.reset, Some(NO_ERROR));
    let expected = DISCARDED + 1..=DISCARDED + WINDOW + PART.len();
    assert!(expected.contains(&upload.sent), "{upload:?}");
    raw.headers(3, &fields("GET", "/hello"), true);
    read_response(&mut raw, 3);
}

#[test]
fn eight_silent_uploads_of_a_connection_are_reset_after_two_seconds() {
    let Started { gateway, _upstream } = start();
    let mut raw = connect(&gateway);
    let streams = [1, 3, 5, 7, 9, 11, 13, 15];
    for stream in streams {
        begin(&mut raw, stream, "/denied", &[]);
        read_response(&mut raw, stream);
        assert_eq!(resets(&mut raw), []);
    }
    begin(&mut raw, 17, "/denied", &[]);
    read_response(&mut raw, 17);
    assert_eq!(resets(&mut raw), [(17, NO_ERROR)], "no place is left");
    gateway.assert_times_out(2 * SECOND, || {
        for _ in streams {
            let reset = raw.read_until(kind::RST_STREAM).expect("a reset");
            assert!(streams.contains(&reset.stream), "{reset:?}");
            assert_eq!(code(&reset.payload), NO_ERROR);
        }
    });
    begin(&mut raw, 19, "/denied", &[]);
    read_response(&mut raw, 19);
    assert_eq!(resets(&mut raw), [], "the places are free again");
}

#[test]
fn an_upload_that_trickles_is_reset_after_ten_seconds() {
    let Started { gateway, _upstream } = start();
    let mut raw = connect(&gateway);
    begin(&mut raw, 1, "/denied", &[]);
    read_response(&mut raw, 1);
    for second in 0..10 {
        raw.frame(kind::DATA, 0, 1, b"x");
        assert_eq!(resets(&mut raw), [], "after {second} s");
        gateway.clock.advance(SECOND);
    }
    raw.frame(kind::DATA, 0, 1, b"x");
    gateway.clock.advance(SECOND);
    assert_eq!(resets(&mut raw), [(1, NO_ERROR)]);
}

#[test]
fn uploads_after_a_success_or_to_grpc_are_reset_at_once() {
    let Started { gateway, _upstream } = start();
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    for (path, more) in [("/hello", &[][..]), ("/denied", &grpc), ("/open", &grpc)] {
        let mut raw = connect(&gateway);
        begin(&mut raw, 1, path, more);
        let reset = raw.read_until(kind::RST_STREAM).expect("a reset");
        assert_eq!((reset.stream, code(&reset.payload)), (1, NO_ERROR), "{path}");
    }
}

#[test]
fn a_stop_does_not_wait_for_refused_uploads() {
    let Started { gateway, _upstream } = start();
    let gateway = Arc::new(gateway);
    let mut raw = connect(&gateway);
    begin(&mut raw, 1, "/denied", &[]);
    read_response(&mut raw, 1);
    assert_eq!(resets(&mut raw), []);
    let stopping = thread::spawn({
        let gateway = Arc::clone(&gateway);
        move || gateway.server.stop()
    });
    let reset = raw.read_until(kind::RST_STREAM).expect("a reset");
    assert_eq!(code(&reset.payload), NO_ERROR);
    gateway.while_time_passes(|| stopping.join().expect("it stops"));
}
