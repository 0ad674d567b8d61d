//! Frames without content end an HTTP/2 connection once there are many; frames with content never
//! do. The gateway's clock stands, so that all of them are sent within a second.

use std::io::Write;

use testkit::{
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_frames::{END_STREAM, Outcome, RawHttp2, frame, kind, request as fields, settings},
    upstream::Upstream,
};
use tidegate::clock::{Clock, StoreTime};

use crate::{
    http2::LISTEN,
    http2_abuse::{CALM, send_until_ended},
};

/// Control frames in a second that are allowed without content.
const MAX_FRAMES: usize = 1000;
/// Bytes of a body.
const BODY: usize = 4 << 20;

fn start(upstream: &Upstream) -> Gateway {
    let yaml = format!(
        "{LISTEN}upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        upstream.target()
    );
    Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)))
}

#[test]
fn many_frames_without_content_end_the_connection() {
    let gateway = start(&Upstream::hello());
    let acknowledges = 1;
    let frames = [
        ("PING", frame(kind::PING, 0, 0, &[7; 8])),
        ("PING, acknowledged", frame(kind::PING, acknowledges, 0, &[7; 8])),
        ("SETTINGS", frame(kind::SETTINGS, 0, 0, &settings(&[(4, 1)]))),
        ("WINDOW_UPDATE", frame(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
        ("PRIORITY", frame(2, 0, 1, &[0, 0, 0, 0, 1])),
        ("of an unknown type", frame(0xee, 0, 0, b"unknown")),
    ];
    for (what, bytes) in frames {
        let mut few = RawHttp2::connect(gateway.address());
        few.send(bytes.repeat(MAX_FRAMES - 100)).headers(1, &fields("GET", "/"), true);
        assert_eq!(few.outcome(1), Outcome::Status(200), "{what}");
        let mut many = RawHttp2::connect(gateway.address());
        let ended = send_until_ended(&mut many, 1000, |_| bytes.repeat(100));
        assert_eq!(ended, Some(Outcome::GoAway(CALM)), "{what}");
    }
}

/// The library ends a connection at its 101st empty DATA frame. Before that, the client is asked to
/// open another one.
#[test]
fn empty_data_asks_for_another_connection_and_loses_no_request() {
    let gateway = start(&Upstream::hello());
    let mut client = RawHttp2::connect(gateway.address());
    let mut asked_at = None;
    for number in 0..60 {
        let stream = 2 * number + 1;
        client.headers(stream, &fields("POST", "/"), false);
        client.frame(kind::DATA, 0, stream, b"").frame(kind::DATA, END_STREAM, stream, b"a");
        loop {
            let received = client.read_frame().expect("a response");
            if received.kind == kind::GOAWAY {
                assert_eq!(received.payload[4..8], [0; 4], "an orderly one");
                asked_at.get_or_insert(number);
            } else if (received.kind, received.stream) == (kind::HEADERS, stream) {
                break;
            }
        }
    }
    assert!(asked_at.is_some_and(|number| (45..55).contains(&number)), "{asked_at:?}");
}

#[test]
fn windows_of_single_bytes_end_the_connection() {
    let upstream = Upstream::with_handler(|_, socket| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
        socket.write_all(head.as_bytes()).is_ok() && socket.write_all(&vec![b'x'; BODY]).is_ok()
    });
    let gateway = start(&upstream);
    // SETTINGS_INITIAL_WINDOW_SIZE
    let mut raw = RawHttp2::connect_with(gateway.address(), &[(4, 1)]);
    raw.headers(1, &fields("GET", "/"), true);
    let update = frame(kind::WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes());
    let ended = send_until_ended(&mut raw, 100_000, |_| update.clone());
    assert_eq!(ended, Some(Outcome::GoAway(CALM)));
    // An ordinary client also returns its windows.
    let mut client = Http2Client::connect(gateway.address());
    for _ in 0..4 {
        assert_eq!(client.get("/", "").body.len(), BODY);
    }
}

#[test]
fn bodies_are_no_flood_even_in_small_frames() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Http2Client::connect(gateway.address());
    for _ in 0..3 {
        let mut exchange = client.start(request("POST", "/", ""), false).expect("a stream");
        for number in 0..10_000 {
            exchange.send(&[b'x'; 100], number == 9_999).expect("sent");
        }
        assert_eq!(exchange.finish().expect("a response").status, 200);
    }
    let body = vec![b'y'; BODY];
    assert_eq!(client.ask("POST", "/", "", &body).status, 200);
    assert_eq!(client.get("/", "").status, 200);
    assert!(upstream.received_bytes().len() > 3_000_000 + body.len());
}
