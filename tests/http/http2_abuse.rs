use std::{fs, io::Write, thread, time::Duration};

use tempfile::TempDir;
use testkit::{
    client::get,
    http2_client::Http2Client,
    http2_frames::{
        END_HEADERS, END_STREAM, Outcome, RawHttp2, block, frame, kind, request, settings,
    },
    process::Process,
    upstream::Upstream,
    wait::timed,
    yaml::fill,
};

use crate::tidegate_command;

/// Maximum memory that an attack may add.
const MAX_GROWTH: u64 = 32 << 20;
/// Maximum time that another client waits meanwhile.
const MAX_LATENCY: Duration = Duration::from_secs(3);
/// `ENHANCE_YOUR_CALM`.
pub(crate) const CALM: u32 = 11;

/// `REFUSED_STREAM`.
const REFUSED: u32 = 7;

/// Frames that break the protocol on a stream.
type Provoke = fn(u32) -> Vec<u8>;

/// A process with the configuration `yaml`, in which `{target}` is `upstream`.
fn start(upstream: &Upstream, yaml: &str) -> (TempDir, Process) {
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = fill(yaml, [("target", upstream.target())]);
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let process =
        Process::start(tidegate_command(directory.path(), &["serve", "--config", "t.yaml"]));
    assert_eq!(Http2Client::connect(process.address).get("/hello", "").status, 200);
    (directory, process)
}

const ORIGIN_AND_HELLO: &str = "
listen: [{address: 127.0.0.1:0, http2: true}]
admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
access_log: off
workers: 1
upstreams:
  hello: {respond: {body: hello}}
  origin: {targets: [{target}]}
routes:
  - {name: hello, match: {path: /hello}, upstream: hello}
  - {name: all, match: {path: '/{*rest}'}, upstream: origin}
";

/// Asserts that other clients are served, and that memory has not grown by much.
fn assert_unharmed(process: &Process, before: u64, what: &str) {
    let (status, took) = timed(|| get(process.address, "/hello", "").status);
    assert!(status == 200 && took < MAX_LATENCY, "{what}: {status} after {took:?}");
    let (status, took) = timed(|| Http2Client::connect(process.address).get("/hello", "").status);
    assert!(status == 200 && took < MAX_LATENCY, "{what}: {status} after {took:?}");
    let growth = process.resident_bytes().saturating_sub(before);
    assert!(growth <= MAX_GROWTH, "{what}: {} KiB more", growth / 1024);
    #[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
    {
        println!("{what}: {} KiB more, another client waited {took:?}", growth / 1024);
    }
}

/// Sends `flood` until the gateway ends the connection, at most `count` times. Returns the error
/// code of its GOAWAY; `None` if it has read everything.
pub(crate) fn send_until_ended(
    raw: &mut RawHttp2,
    count: usize,
    mut flood: impl FnMut(usize) -> Vec<u8>,
) -> Option<Outcome> {
    let mut reader = raw.socket.try_clone().expect("a socket");
    reader.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let reading = thread::spawn(move || {
        let mut received = Vec::new();
        // Reads while frames are sent: otherwise the gateway would be right to stop.
        let _ = std::io::copy(&mut reader, &mut received);
        received
    });
    for index in 0..count {
        if raw.try_send(flood(index)).is_err() {
            break;
        }
    }
    let _ = raw.socket.shutdown(std::net::Shutdown::Write);
    let received = reading.join().expect("no panic");
    let mut rest = &received[..];
    while rest.len() >= 9 {
        let length = u32::from_be_bytes([0, rest[0], rest[1], rest[2]]) as usize;
        if rest[3] == kind::GOAWAY && rest.len() >= 17 {
            let code = u32::from_be_bytes([rest[13], rest[14], rest[15], rest[16]]);
            if code != 0 {
                return Some(Outcome::GoAway(code));
            }
        }
        rest = rest.get(9 + length..).unwrap_or_default();
    }
    None
}

/// The stream of the `index`th request.
fn stream(index: usize) -> u32 {
    2 * index as u32 + 1
}

fn get_frame(index: usize, path: &str) -> Vec<u8> {
    let block = block(&request("GET", path));
    frame(kind::HEADERS, END_HEADERS | END_STREAM, stream(index), &block)
}

#[test]
fn rapid_resets_end_the_connection() {
    let upstream = Upstream::silent();
    let (_directory, process) = start(&upstream, ORIGIN_AND_HELLO);
    let before = process.resident_bytes();
    let mut raw = RawHttp2::connect(process.address);
    let ended = send_until_ended(&mut raw, 200_000, |index| {
        let mut bytes = get_frame(index, "/slow");
        bytes.extend(frame(kind::RST_STREAM, 0, stream(index), &8_u32.to_be_bytes()));
        bytes
    });
    assert_eq!(ended, Some(Outcome::GoAway(CALM)));
    assert!(upstream.connections() < 2000, "{} upstream requests", upstream.connections());
    assert_unharmed(&process, before, "rapid reset");
}

#[test]
fn a_client_that_cancels_now_and_then_is_kept() {
    let (_directory, process) = start(&Upstream::silent(), ORIGIN_AND_HELLO);
    let mut raw = RawHttp2::connect(process.address);
    // 100 at a time, as an ordinary client may.
    for round in 0..3 {
        for index in round * 100..(round + 1) * 100 {
            raw.send(get_frame(index, "/slow"));
        }
        for index in round * 100..(round + 1) * 100 {
            raw.frame(kind::RST_STREAM, 0, stream(index), &8_u32.to_be_bytes());
        }
    }
    raw.send(get_frame(300, "/hello"));
    assert_eq!(raw.outcome(stream(300)), Outcome::Status(200));
}

#[test]
fn resets_that_the_client_provokes_end_the_connection() {
    let upstream = Upstream::silent();
    let (_directory, process) = start(&upstream, ORIGIN_AND_HELLO);
    let provocations: [(&str, Provoke); 3] = [
        ("a window update of 0", |stream| frame(kind::WINDOW_UPDATE, 0, stream, &[0; 4])),
        ("a window that overflows", |stream| {
            frame(kind::WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes())
        }),
        ("DATA after the end", |stream| frame(kind::DATA, 0, stream, b"x")),
    ];
    for (what, provoke) in provocations {
        let before = process.resident_bytes();
        let mut raw = RawHttp2::connect(process.address);
        let ended = send_until_ended(&mut raw, 20_000, |index| {
            let mut bytes = get_frame(index, "/slow");
            bytes.extend(provoke(stream(index)));
            bytes
        });
        assert!(matches!(ended, Some(Outcome::GoAway(_))), "{what}: {ended:?}");
        assert_unharmed(&process, before, what);
    }
    assert!(upstream.connections() < 5000, "{} upstream requests", upstream.connections());
}

#[test]
fn floods_of_frames_end_the_connection_or_cost_little() {
    let (_directory, process) = start(&Upstream::silent(), ORIGIN_AND_HELLO);
    let many = |bytes: Vec<u8>| bytes.repeat(1000);
    let headers = frame(kind::HEADERS, 0, 1, &block(&request("POST", "/slow")));
    let open = frame(kind::HEADERS, END_HEADERS, 1, &block(&request("POST", "/slow")));
    // Whether the connection has to end, the first frame, and the flood.
    let floods: [(&str, bool, Vec<u8>, Vec<u8>); 8] = [
        ("CONTINUATION, empty", true, headers.clone(), many(frame(kind::CONTINUATION, 0, 1, b""))),
        (
            "CONTINUATION",
            true,
            headers,
            frame(kind::CONTINUATION, 0, 1, &block(&[("x", "y".repeat(1000))])).repeat(100),
        ),
        ("SETTINGS", false, Vec::new(), many(frame(kind::SETTINGS, 0, 0, &settings(&[(4, 1)])))),
        ("PING", false, Vec::new(), many(frame(kind::PING, 0, 0, &[7; 8]))),
        ("DATA, empty", true, open.clone(), many(frame(kind::DATA, 0, 1, b""))),
        ("DATA of one byte", false, open, many(frame(kind::DATA, 0, 1, b"x"))),
        (
            "WINDOW_UPDATE",
            false,
            Vec::new(),
            many(frame(kind::WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())),
        ),
        ("PRIORITY", false, Vec::new(), many(frame(2, 0, 1, &[0, 0, 0, 0, 1]))),
    ];
    for (what, must_end, first, flood) in floods {
        let before = process.resident_bytes();
        let mut raw = RawHttp2::connect(process.address);
        raw.send(first);
        let mut checked = false;
        let ended = send_until_ended(&mut raw, 1000, |index| {
            if index == 500 && !must_end {
                checked = true;
                assert_unharmed(&process, before, what);
            }
            flood.clone()
        });
        assert!(!must_end || matches!(ended, Some(Outcome::GoAway(_))), "{what}: {ended:?}");
        assert!(must_end || checked || ended.is_some(), "{what}");
        assert_unharmed(&process, before, what);
    }
}

#[test]
fn a_flood_whose_answers_are_not_read_is_bounded() {
    let (_directory, process) = start(&Upstream::silent(), ORIGIN_AND_HELLO);
    for (what, flood) in
        [("PING", frame(kind::PING, 0, 0, &[7; 8])), ("SETTINGS", frame(kind::SETTINGS, 0, 0, &[]))]
    {
        let before = process.resident_bytes();
        let mut raw = RawHttp2::connect(process.address);
        raw.socket.set_write_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        let flood = flood.repeat(1000);
        let mut taken = 0;
        // The gateway stops reading once the answers fill the kernel's buffers, or ends the
        // connection and discards the rest.
        while taken < 64 << 20
            && let Ok(count) = raw.socket.write(&flood)
        {
            taken += count;
        }
        assert_unharmed(&process, before, what);
    }
}

#[test]
fn a_bomb_of_header_fields_is_bounded() {
    let (_directory, process) = start(&Upstream::silent(), ORIGIN_AND_HELLO);
    let before = process.resident_bytes();
    // One field of 3,900 bytes in the table, and 16,000 references to it in each head: 60 MiB.
    let mut head = block(&request("GET", "/hello"));
    head.extend([0x40, 1, b'x', 0x7f, 0xbd, 0x1d]);
    head.extend([b'v'; 3900]);
    for connection in 0..5 {
        let mut raw = RawHttp2::connect(process.address);
        let ended = send_until_ended(&mut raw, 100, |index| {
            let mut bytes =
                if index == 0 { head.clone() } else { block(&request("GET", "/hello")) };
            bytes.resize(16_000, 0xbe);
            frame(kind::HEADERS, END_HEADERS | END_STREAM, stream(index), &bytes)
        });
        assert!(matches!(ended, Some(Outcome::GoAway(_))), "{connection}: {ended:?}");
    }
    assert_unharmed(&process, before, "HPACK bomb");
}

#[test]
fn long_heads_of_many_streams_are_bounded() {
    let upstream = Upstream::silent();
    let (_directory, process) = start(&upstream, ORIGIN_AND_HELLO);
    let before = process.resident_bytes();
    // One field of 320 bytes in the table, and 90 references to it in each head.
    let mut first = block(&request("GET", "/slow"));
    first.extend([0x40, 1, b'x', 0x7f, 0xc1, 0x01]);
    first.extend([b'v'; 320]);
    let mut connections = Vec::new();
    for connection in 0..5 {
        let mut raw = RawHttp2::connect(process.address);
        for index in 0..95 {
            let mut bytes =
                if index == 0 { first.clone() } else { block(&request("GET", "/slow")) };
            bytes.resize(bytes.len() + 90, 0xbe);
            raw.frame(kind::HEADERS, END_HEADERS | END_STREAM, stream(index), &bytes);
        }
        let reset = raw.read_until(kind::RST_STREAM).expect("refused streams");
        assert!(reset.stream > stream(20), "{connection}: stream {}", reset.stream);
        assert_eq!(reset.payload, REFUSED.to_be_bytes());
        raw.frame(kind::PING, 0, 0, &[0; 8]);
        raw.read_until(kind::PING).expect("all heads are read");
        connections.push(raw);
    }
    assert_unharmed(&process, before, "long heads");
}

#[test]
fn frames_that_break_a_rule_fill_no_log() {
    let (_directory, process) = start(&Upstream::silent(), ORIGIN_AND_HELLO);
    let is_acknowledgement = 1;
    for _ in 0..20 {
        let mut raw = RawHttp2::connect(process.address);
        raw.send(frame(kind::PING, is_acknowledgement, 0, &[7; 8]).repeat(900));
        raw.send(get_frame(0, "/hello"));
        assert_eq!(raw.outcome(1), Outcome::Status(200));
    }
    let log = process.log();
    assert!(log.len() < 10_000, "{} bytes: {}", log.len(), &log[log.len() - 500..]);
}

#[test]
fn stalled_windows_are_bounded() {
    let upstream = Upstream::with_handler(|_, socket| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
        socket.write_all(head.as_bytes()).is_ok()
            && (0..100).all(|_| socket.write_all(&vec![b'x'; 1_000_000]).is_ok())
    });
    let (_directory, process) = start(&upstream, ORIGIN_AND_HELLO);
    let before = process.resident_bytes();
    // Windows of streams: none, one byte, and the maximum with a small window of the connection.
    let connections: Vec<_> = [0, 1, 0x7fff_ffff]
        .into_iter()
        .map(|window| {
            let mut raw = RawHttp2::connect_with(process.address, &[(4, window)]);
            for index in 0..100 {
                raw.send(get_frame(index, "/large"));
            }
            for _ in 0..20 {
                raw.read_frame();
            }
            raw
        })
        .collect();
    assert_unharmed(&process, before, "stalled windows");
    drop(connections);
}

#[test]
fn slow_connections_of_every_kind_are_closed() {
    let upstream = Upstream::silent();
    let (_directory, process) = start(
        &upstream,
        "
        listen: [{address: 127.0.0.1:0, http2: true}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 1
        http: {head_timeout: 2s, idle_timeout: 2s, body_timeout: 2s}
        upstreams:
          hello: {respond: {body: hello}}
          origin: {targets: [{target}]}
        routes:
          - {name: hello, match: {path: /hello}, upstream: hello}
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    let before = process.resident_bytes();
    let post = block(&request("POST", "/slow"));
    let mut connections = Vec::new();
    for number in 0..200 {
        let mut raw = match number % 5 {
            // Half a preface.
            0 => {
                let socket = std::net::TcpStream::connect(process.address).expect("a connection");
                (&socket).write_all(b"PRI * HTTP/2.0\r\n").expect("sent");
                connections.push(socket);
                continue;
            }
            // Half a head.
            2 => {
                let mut raw = RawHttp2::connect(process.address);
                raw.frame(kind::HEADERS, 0, 1, &post);
                raw
            }
            // Nothing after the preface.
            _ => RawHttp2::connect(process.address),
        };
        match number % 5 {
            // A body that stalls; after it the connection is idle.
            3 => {
                raw.frame(kind::HEADERS, END_HEADERS, 1, &post);
                raw.frame(kind::DATA, 0, 1, b"x");
            }
            // Idle after a response.
            4 => {
                raw.send(get_frame(0, "/hello"));
            }
            _ => {}
        }
        connections.push(raw.socket);
    }
    assert_unharmed(&process, before, "200 slow connections");
    for (number, socket) in connections.into_iter().enumerate() {
        socket.set_read_timeout(Some(Duration::from_secs(15))).expect("a timeout");
        let mut reader = socket;
        let read = std::io::copy(&mut reader, &mut std::io::sink());
        let timed_out = read.is_err_and(|error| {
            matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        });
        assert!(!timed_out, "connection {number} (kind {}) stays open", number % 5);
    }
    assert_unharmed(&process, before, "afterwards");
}
