//! Streams that end early, on either side: frames that were on their way disturb no other stream of
//! the connection. The gateways' clocks stand, so that all of it happens within a second.

use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use testkit::{
    gateway::Gateway,
    http2_frames::{END_HEADERS, END_STREAM, RawHttp2, block, frame, kind, request as fields},
    upstream::{ResponseGate, Upstream},
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

/// The status 200 in HPACK.
const OK: [u8; 1] = [0x88];
/// Bytes of a body that a client sends at once: less than a stream's window.
const BODY: [u8; 16_000] = [b'x'; 16_000];

/// Refuses what follows the first request to `/limited`.
const LIMITED: &str = "
listen: [{address: '127.0.0.1:0', http2: true}]
workers: 1
upstreams: {hello: {respond: {body: hi}}}
limits: {one: {quota: 1, window: 1h, key: []}}
routes: [{name: limited, match: {path: /limited}, upstream: hello, limits: [one]}]
";

fn start(yaml: &str) -> Gateway {
    Gateway::start_at(yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)))
}

/// The `index`th stream of a client.
fn stream(index: u32) -> u32 {
    2 * index + 1
}

#[test]
fn late_frames_of_cancelled_exchanges_end_no_other_exchange() {
    // Answers the first request when `gate` opens, and every other one once it is cancelled.
    let (received, gate) = (ResponseGate::default(), ResponseGate::default());
    let (receiving, opened) = (received.clone(), gate.clone());
    let exchanges = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&exchanges);
    let upstream = Upstream::on_connection(move |socket: &mut TcpStream| {
        let mut writer = socket.try_clone().expect("a socket");
        let socket = socket.try_clone().expect("a socket");
        let Some(mut raw) = RawHttp2::accept(socket, &[]) else { return };
        let first = raw.read_until(kind::HEADERS).expect("a request").stream;
        receiving.open();
        let opened = opened.clone();
        thread::spawn(move || {
            opened.wait();
            let mut bytes = frame(kind::HEADERS, END_HEADERS, first, &OK);
            bytes.extend(frame(kind::DATA, END_STREAM, first, b"kept"));
            std::io::Write::write_all(&mut writer, &bytes)
        });
        while let Some(received) = raw.read_frame() {
            match received.kind {
                kind::HEADERS => drop(counted.fetch_add(1, SeqCst)),
                kind::RST_STREAM => {
                    raw.frame(kind::HEADERS, END_HEADERS | END_STREAM, received.stream, &OK);
                }
                _ => {}
            }
        }
    });
    let gateway = start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        upstreams: {origin: {targets: [{target}], protocol: http2}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    ));
    let mut kept = RawHttp2::connect(gateway.address());
    kept.headers(1, &fields("GET", "/kept"), true);
    received.wait();
    // More than the library allows such errors on a connection if nothing else is said: 1,024.
    for round in 1..=15 {
        let mut client = RawHttp2::connect(gateway.address());
        for index in 0..90 {
            client.headers(stream(index), &fields("GET", "/cancelled"), true);
        }
        eventually("the exchanges", || exchanges.load(SeqCst) == round * 90);
        for index in 0..90 {
            client.frame(kind::RST_STREAM, 0, stream(index), &8_u32.to_be_bytes());
        }
        client.frame(kind::PING, 0, 0, &[0; 8]);
        client.read_until(kind::PING).expect("the resets are read");
    }
    gate.open();
    let data = kept.read_until(kind::DATA).expect("a response");
    assert_eq!((data.stream, &*data.payload), (1, &b"kept"[..]));
    assert_eq!(upstream.connections(), 1);
}

/// An upload with the start of its body.
fn upload(index: u32, frames: usize) -> Vec<u8> {
    let mut head = fields("POST", "/limited");
    head.push((b"content-length".to_vec(), b"1000000".to_vec()));
    let mut bytes = frame(kind::HEADERS, END_HEADERS, stream(index), &block(&head));
    bytes.extend(frame(kind::DATA, 0, stream(index), &BODY).repeat(frames));
    bytes
}

/// Reads until the head of a response.
fn read_response(client: &mut RawHttp2) {
    loop {
        let received = client.read_frame().expect("the connection is kept");
        assert_ne!(received.kind, kind::GOAWAY, "{received:?}");
        if received.kind == kind::HEADERS {
            return;
        }
    }
}

/// A client of a gateway whose `/limited` refuses everything from now on.
fn refused_client(gateway: &Gateway) -> RawHttp2 {
    let mut client = RawHttp2::connect(gateway.address());
    // For the bodies of all responses.
    client.frame(kind::WINDOW_UPDATE, 0, 0, &10_000_000_u32.to_be_bytes());
    client.headers(1, &fields("GET", "/limited"), true);
    client.read_until(kind::HEADERS).expect("a response");
    client
}

#[test]
fn late_frames_of_refused_uploads_keep_the_connection() {
    let gateway = start(LIMITED);
    let mut client = refused_client(&gateway);
    // 50 of each batch would be remembered if nothing else is said, and 200 errors end a
    // connection.
    for batch in 0..6 {
        let batch = batch * 90 + 1..(batch + 1) * 90 + 1;
        for index in batch.clone() {
            client.send(upload(index, 0));
        }
        batch.clone().for_each(|_| read_response(&mut client));
        for index in batch {
            client.frame(kind::DATA, 0, stream(index), b"late");
        }
    }
    client.send(upload(600, 0));
    read_response(&mut client);
}

#[test]
fn uploads_that_are_refused_one_by_one_do_not_end_the_connection() {
    let gateway = start(LIMITED);
    let mut client = refused_client(&gateway);
    for index in 1..=60 {
        client.send(upload(index, 7));
        read_response(&mut client);
    }
}
