//! The memory that responses hold while one client does not read them.

use std::{fs, io::Write, time::Duration};

use tempfile::TempDir;
use testkit::{
    client::{Response, get},
    http2_client::{Http2Client, Http2Exchange, request},
    http2_frames::{RawHttp2, kind, request as request_fields},
    process::Process,
    random::SplitMix64,
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};

use crate::tidegate_command;

const MIB: u64 = 1024 * 1024;

fn start(upstream: &Upstream, yaml: &str) -> (TempDir, Process) {
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = fill(yaml, [("target", upstream.target())]);
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let command = tidegate_command(directory.path(), &["serve", "--config", "t.yaml"]);
    let process = Process::start(command);
    (directory, process)
}

#[test]
fn unread_compressed_responses_of_one_client_hold_at_most_64_mib() {
    let mut random = SplitMix64(8);
    let text: Vec<u8> = (0..MIB).map(|_| b'a' + (random.below(16) as u8)).collect();
    let upstream = Upstream::with_handler(move |_, socket| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&text)).is_ok()
    });
    let (_directory, process) = start(
        &upstream,
        "
        listen: [{address: 127.0.0.1:0, http2: true}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 2
        upstreams: {origin: {targets: [{target}]}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, compress: {encodings: [zstd]}}
        ",
    );
    let encoders = || {
        let metrics = get(process.admin, "/metrics", "Connection: close\r\n").text();
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("tidegate_compression_bytes "));
        line.expect("the gauge").parse::<u64>().expect("a number")
    };
    assert_eq!(get(process.address, "/a", "").status, 200);
    let before = process.resident_bytes();
    let mut clients: Vec<_> = (0..6).map(|_| Http2Client::connect(process.address)).collect();
    let mut streams: Vec<Http2Exchange> = Vec::new();
    for client in &mut clients {
        for _ in 0..100 {
            let request = request("GET", "/a", "accept-encoding: zstd\r\n");
            streams.push(client.start(request, true).expect("a stream"));
        }
    }
    let heads = streams.iter_mut().map(|stream| stream.head().expect("a head"));
    let compressed =
        heads.filter(|head| head.headers().contains_key("content-encoding")).count() as u64;
    assert!((5..100).contains(&compressed), "{compressed} of 600 are compressed");
    assert!(encoders() <= 16 * MIB, "{}", encoders());
    let growth = process.resident_bytes().saturating_sub(before);
    assert!(growth <= 64 * MIB, "{} MiB", growth / MIB);
    #[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
    {
        println!("600 unread responses, {compressed} compressed: {} KiB", growth / 1024);
    }
    drop((streams, clients));
    eventually("the encoders are gone", || encoders() == 0);
}

/// A client has at most 1,024 requests in flight: about 64 KiB each, with the read part of the
/// response, and 256 KiB in the library for each connection. Without that bound, the library would
/// hold 2,000 complete responses of 64 KiB.
#[test]
fn unread_responses_of_one_client_hold_at_most_96_mib() {
    // As much as the library accepts for one stream.
    let text = vec![b'x'; 64 * 1024];
    let upstream = Upstream::with_handler(move |_, socket| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
        socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&text)).is_ok()
    });
    let (_directory, process) = start(
        &upstream,
        "
        listen: [{address: 127.0.0.1:0, http2: true}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 2
        upstreams: {origin: {targets: [{target}]}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    assert_eq!(get(process.address, "/a", "").status, 200);
    let before = process.resident_bytes();
    // Windows without a bound, and sockets that are not read.
    let window = 0x7fff_ffff_u32;
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let mut client = RawHttp2::connect_with(process.address, &[(4, window)]);
            client.frame(kind::WINDOW_UPDATE, 0, 0, &(window - 65_535).to_be_bytes());
            for index in 0..100 {
                client.headers(2 * index + 1, &request_fields("GET", "/a"), true);
            }
            client
        })
        .collect();
    eventually("the requests reach the upstream", || upstream.request_count() >= 20 * 4);
    let mut last = 0;
    eventually("nothing more is read", || {
        let now = upstream.request_count();
        let is_quiet = std::mem::replace(&mut last, now) == now;
        sleep(Duration::from_millis(200));
        is_quiet
    });
    let growth = process.resident_bytes().saturating_sub(before);
    assert!(growth <= 96 * MIB, "{} MiB for {} connections", growth / MIB, clients.len());
    #[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
    {
        println!("2,000 responses that are not read: {} KiB", growth / 1024);
    }
}

/// Asks for `path` in 300 streams of three connections, and reads only the heads. Returns the
/// growth in bytes and the number of bodies of `length` bytes.
fn growth_of_unread(process: &Process, path: &str, status: u16, length: u64) -> (u64, usize) {
    let before = process.resident_bytes();
    let mut clients: Vec<_> = (0..3).map(|_| Http2Client::connect(process.address)).collect();
    let mut streams: Vec<Http2Exchange> = Vec::new();
    for client in &mut clients {
        for _ in 0..100 {
            streams.push(client.start(request("GET", path, ""), true).expect("a stream"));
        }
    }
    let mut whole = 0;
    for stream in &mut streams {
        let head = stream.head().expect("a head");
        assert_eq!(head.status(), status);
        let declared = head.headers()["content-length"].to_str().expect("a text");
        whole += usize::from(declared.parse::<u64>().expect("a number") >= length);
    }
    let growth = process.resident_bytes().saturating_sub(before);
    #[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
    {
        println!("300 unread responses of {length} bytes, {whole} whole: {} KiB", growth / 1024);
    }
    (growth, whole)
}

/// The service's page is longer than an HTTP/2 window: it waits in the gateway for its reader.
#[test]
fn unread_refusals_of_a_service_hold_at_most_64_mib() {
    let mut random = SplitMix64(9);
    let page: Vec<u8> = (0..MIB).map(|_| b'a' + (random.below(16) as u8)).collect();
    let answer = page.clone();
    let service = Upstream::with_handler(move |_, socket| {
        let head = format!(
            "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nETag: \"page\"\r\nX-Own: kept\r\n\
             Content-Length: {}\r\n\r\n",
            answer.len()
        );
        socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&answer)).is_ok()
    });
    let (_directory, process) = start(
        &service,
        "
        listen: [{address: 127.0.0.1:0, http2: true}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 2
        auth: {sso: {forward: {to: '{target}/verify', request_headers: [cookie], timeout: 30s}}}
        upstreams: {app: {respond: {body: hello}}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app, auth: [sso]}
        ",
    );
    let read = |response: Response| {
        assert_eq!((response.status, response.header("etag")), (403, Some("\"page\"")));
        assert!(response.body == page, "{} bytes", response.body.len());
    };
    read(get(process.address, "/a", ""));
    read(Http2Client::connect(process.address).get("/a", ""));
    let (growth, whole) = growth_of_unread(&process, "/a", 403, MIB);
    assert!(growth <= 64 * MIB, "{} MiB", growth / MIB);
    assert!((1..=8).contains(&whole), "{whole} bodies");
    // The share is free again, when the streams are.
    eventually("a page is whole", || {
        let response = get(process.address, "/a", "");
        assert_eq!((response.status, response.header("x-own")), (403, Some("kept")));
        response.body == page
    });
}

#[test]
fn unread_pages_with_placeholders_hold_at_most_32_mib() {
    let length = 250 * 1024;
    let pages = tempfile::tempdir().expect("a directory");
    let page = pages.path().join("page.html");
    fs::write(&page, format!("{{limit}}{}", "x".repeat(length))).expect("a file");
    let upstream = Upstream::with_response("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let yaml = "
        listen: [{address: 127.0.0.1:0, http2: true}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 2
        limits: {few: {quota: 1, window: 100d, key: []}}
        upstreams: {origin: {targets: [{target}]}}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            limits: [few]
            error_bodies: {429: {file: 'PAGE', content_type: text/html}}
        ";
    let yaml = yaml.replace("PAGE", page.to_str().expect("a path"));
    let (_directory, process) = start(&upstream, &yaml);
    assert_eq!(get(process.address, "/a", "").status, 200);
    let expected = format!("few{}", "x".repeat(length));
    assert!(get(process.address, "/a", "").text() == expected, "over HTTP/1");
    assert!(Http2Client::connect(process.address).get("/a", "").text() == expected, "over HTTP/2");
    let (growth, whole) = growth_of_unread(&process, "/a", 429, length as u64);
    assert!(growth <= 32 * MIB, "{} MiB", growth / MIB);
    assert!((1..=33).contains(&whole), "{whole} bodies");
}

/// Heads without a body wait like bodies: a client that reads no socket gets the next one when it
/// has read the ones before.
#[test]
fn unread_heads_of_one_client_hold_at_most_128_mib() {
    let location = "x".repeat(48 * 1024);
    let upstream = Upstream::with_handler(move |_, socket| {
        let head =
            format!("HTTP/1.1 302 Found\r\nLocation: /{location}\r\nContent-Length: 0\r\n\r\n");
        socket.write_all(head.as_bytes()).is_ok()
    });
    let (_directory, process) = start(
        &upstream,
        "
        listen: [{address: 127.0.0.1:0, http2: true}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 2
        upstreams: {origin: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
    );
    assert_eq!(get(process.address, "/a", "").status, 302);
    let before = process.resident_bytes();
    let count = upstream.request_count();
    let clients: Vec<_> = (0..40)
        .map(|_| {
            let mut client = RawHttp2::connect_with(process.address, &[]);
            for index in 0..95 {
                client.headers(2 * index + 1, &request_fields("GET", "/a"), true);
            }
            client
        })
        .collect();
    eventually("the upstream has answered", || upstream.request_count() >= count + 1_000);
    // Until the gateway takes no more.
    let mut answered = 0;
    while answered < upstream.request_count() {
        answered = upstream.request_count();
        sleep(Duration::from_secs(1));
    }
    // At most 1,024 are in flight, and each connection has written about six heads.
    assert!(answered <= 2_000, "{answered} of 3,800 requests were answered");
    let growth = process.resident_bytes().saturating_sub(before);
    assert!(growth <= 128 * MIB, "{} MiB for {} heads", growth / MIB, upstream.request_count());
    #[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
    {
        println!("{} unread heads of 48 KiB: {} KiB", upstream.request_count(), growth / 1024);
    }
    drop(clients);
}
