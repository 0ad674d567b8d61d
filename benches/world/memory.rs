//! The memory that unread responses hold, by what made them.

use std::{collections::BTreeMap, fs, io::Write, path::Path};

use testkit::{
    client::get,
    http2_client::{Http2Client, Http2Exchange, request},
    random::SplitMix64,
    upstream::Upstream,
    yaml::fill,
};

use crate::proxies::gateway;

/// The connections, and the streams of each.
const CONNECTIONS: usize = 9;
const STREAMS: usize = 100;
const MIB: f64 = 1024.0 * 1024.0;

/// What makes an answer.
#[derive(Clone, Copy)]
struct Answer {
    name: &'static str,
    /// The path in [`YAML`].
    path: &'static str,
    length: usize,
}

const ANSWERS: [Answer; 5] = [
    Answer { name: "upstream, 1 MiB", path: "/upstream", length: 1 << 20 },
    Answer { name: "refusal of an auth service, 1 MiB", path: "/service", length: 1 << 20 },
    Answer { name: "the same in chunks", path: "/chunks", length: 1 << 20 },
    Answer { name: "page with a placeholder, 250 KiB", path: "/page", length: 250 << 10 },
    Answer { name: "problem document", path: "/problem", length: 1 },
];

const YAML: &str = "
    listen: [{address: 127.0.0.1:0, http2: true}]
    admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
    access_log: off
    workers: 2
    auth:
      sso: {forward: {to: '{refusing}/verify', request_headers: [cookie], timeout: 30s}}
      chunks: {forward: {to: '{chunked}/verify', request_headers: [cookie], timeout: 30s}}
    limits: {few: {quota: 1, window: 100d, key: [route]}}
    upstreams: {app: {targets: ['{target}']}}
    routes:
      - {name: upstream, match: {path: /upstream}, upstream: app}
      - {name: service, match: {path: /service}, upstream: app, auth: [sso]}
      - {name: chunks, match: {path: /chunks}, upstream: app, auth: [chunks]}
      - {name: problem, match: {path: /problem}, upstream: app, limits: [few]}
      - name: page
        match: {path: /page}
        upstream: app
        limits: [few]
        error_bodies: {429: {file: '{page}', content_type: text/html}}
    ";

pub(crate) fn measure(program: &Path) {
    println!(
        "| {} unread streams | answered whole | statuses | growth, MiB |",
        CONNECTIONS * STREAMS
    );
    println!("|---|---:|---|---:|");
    for answer in ANSWERS {
        measure_one(program, answer);
    }
}

fn measure_one(program: &Path, Answer { name, path, length }: Answer) {
    let [server, refusing] =
        ["200 OK", "403 Forbidden"].map(|status| answering(status, Framing::Length));
    let chunked = answering("403 Forbidden", Framing::Chunks);
    let directory = tempfile::tempdir().expect("a directory");
    let page = directory.path().join("page.html");
    fs::write(&page, format!("{{limit}}{}", "x".repeat(250 << 10))).expect("a file");
    let yaml = fill(
        YAML,
        [
            ("target", server.target()),
            ("refusing", refusing.target()),
            ("chunked", chunked.target()),
            ("page", page.display().to_string()),
        ],
    );
    let process = gateway(program, directory.path(), &yaml);
    // The limits of the pages are used up.
    for _ in 0..2 {
        get(process.address, path, "");
    }
    let before = process.resident_bytes();
    let mut clients: Vec<_> =
        (0..CONNECTIONS).map(|_| Http2Client::connect(process.address)).collect();
    let mut streams: Vec<Http2Exchange> = Vec::new();
    for client in &mut clients {
        for _ in 0..STREAMS {
            streams.push(client.start(request("GET", path, ""), true).expect("a stream"));
        }
    }
    let (mut whole, mut statuses) = (0, BTreeMap::<u16, usize>::new());
    for head in streams.iter_mut().map(Http2Exchange::head) {
        // 0 is no response.
        let status = head.as_ref().map_or(0, |head| head.status().as_u16());
        *statuses.entry(status).or_default() += 1;
        let declared = head.ok().and_then(|head| {
            head.headers().get("content-length")?.to_str().ok()?.parse::<usize>().ok()
        });
        whole += usize::from(declared.is_some_and(|declared| declared >= length));
    }
    let growth = process.resident_bytes().saturating_sub(before) as f64 / MIB;
    println!("| {name} | {whole} | {statuses:?} | {growth:.1} |");
}

/// How a server says where its body ends.
#[derive(Clone, Copy)]
enum Framing {
    Length,
    Chunks,
}

/// A server that answers each request with 1 MiB that does not repeat.
fn answering(status: &'static str, framing: Framing) -> Upstream {
    let mut random = SplitMix64(7);
    let body: Vec<u8> = (0..1 << 20).map(|_| b'a' + (random.below(16) as u8)).collect();
    let mut answer = format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n").into_bytes();
    match framing {
        Framing::Length => {
            answer.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            answer.extend_from_slice(&body);
        }
        Framing::Chunks => {
            answer.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for chunk in body.chunks(8 << 10) {
                answer.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                answer.extend_from_slice(chunk);
                answer.extend_from_slice(b"\r\n");
            }
            answer.extend_from_slice(b"0\r\n\r\n");
        }
    }
    Upstream::with_handler(move |_, socket| socket.write_all(&answer).is_ok())
}
