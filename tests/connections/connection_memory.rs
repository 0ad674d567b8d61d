use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use testkit::{
    client::{Client, get},
    process::Process,
    upstream::Upstream,
    wait::sleep,
};

use crate::tidegate_command;

const MIB: u64 = 1024 * 1024;
/// MiB that each of these clients sends or receives; `TIDEGATE_PROOF_MIB` overrides it.
const DEFAULT_MIB: u64 = 64;
/// Allowed growth without a leak: pooled buffers, and memory that the allocator retains.
const SLACK: u64 = 12 * MIB;

#[expect(clippy::disallowed_methods, reason = "a manual run may raise it")]
fn volume_bytes() -> u64 {
    let given = std::env::var("TIDEGATE_PROOF_MIB").ok();
    given.and_then(|given| given.parse().ok()).unwrap_or(DEFAULT_MIB) * MIB
}

/// Starts a process that answers `/hello` itself and forwards everything else to `upstream`. It has
/// served one request.
fn start(upstream: &Upstream) -> (TempDir, Process) {
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = format!(
        "listen: [{{address: 127.0.0.1:0}}]
admin: {{address: 127.0.0.1:0, hosts: [gateway.test]}}
access_log: off
workers: 1
http: {{max_head: 32KiB}}
upstreams:
  hello: {{respond: {{body: hello}}}}
  origin: {{targets: [{}]}}
routes:
  - {{name: hello, match: {{path: /hello}}, upstream: hello}}
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}
",
        upstream.target()
    );
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let process =
        Process::start(tidegate_command(directory.path(), &["serve", "--config", "t.yaml"]));
    assert_eq!(get(process.address, "/hello", "").status, 200);
    (directory, process)
}

/// Asserts that the memory of `process` has not grown since `before`.
fn assert_flat(process: &Process, before: u64, what: &str) {
    let now = process.resident_bytes();
    let growth = now.saturating_sub(before) / 1024;
    assert!(now <= before + SLACK, "{what}: {growth} KiB more than before");
    #[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
    {
        println!("{what}: {growth} KiB more than {} KiB", before / 1024);
    }
}

#[test]
fn abandoned_heads_leak_no_memory() {
    let (_folder, process) = start(&Upstream::silent());
    let before = process.resident_bytes();
    let mut client = Client::connect(process.address);
    let mut reader = Client::from_socket(client.socket.try_clone().expect("a socket"));
    let head = format!("GET /hello HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(16_000));
    let (half, rest) = head.split_at(head.len() / 2);
    let step = [rest, half].concat();
    let count = volume_bytes() / step.len() as u64;
    let reading = thread::spawn(move || {
        for _ in 0..count {
            assert_eq!(reader.read_response().status, 200);
        }
    });
    client.send(half);
    for _ in 0..count {
        client.send(&step);
    }
    reading.join().expect("every complete request gets a response");
    assert_flat(&process, before, "half a head unread, connection open");
    drop(client);
    assert_flat(&process, before, "half a head unread, connection closed");
}

#[test]
fn idle_connections_keep_no_memory_of_their_requests() {
    const CONNECTIONS: u64 = 3_000;
    // Measured: 2.4 KiB, and 6.7 KiB if each kept the state of its request.
    const MAX_BYTES: u64 = 5 * 1024;
    let (_folder, process) = start(&Upstream::silent());
    let before = process.resident_bytes();
    let mut clients = Vec::new();
    for number in 0..CONNECTIONS {
        // An address may have only some of the connections.
        let source = [127, 0, 0, 2 + (number / 250) as u8];
        let mut client = Client::connect_from(source, process.address);
        assert_eq!(client.get("/hello", "").status, 200);
        clients.push(client);
    }
    let bytes = process.resident_bytes().saturating_sub(before) / CONNECTIONS;
    assert!(bytes < MAX_BYTES, "{bytes} bytes a connection");
}

#[test]
fn unread_pipelines_leak_no_memory() {
    let upstream = Upstream::with_response("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    for path in ["/hello", "/other"] {
        let (_folder, process) = start(&upstream);
        let before = process.resident_bytes();
        let mut client = Client::connect(process.address);
        client.socket.set_write_timeout(Some(Duration::from_secs(1))).expect("a timeout");
        let many = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(2000);
        let mut taken = 0;
        // Sends until no byte is accepted for a second: the kernel's buffers are full in both
        // directions.
        while let Ok(count) = client.socket.write(many.as_bytes()) {
            taken += count as u64;
            assert!(taken < 64 * MIB, "the gateway never stops reading");
        }
        assert_flat(&process, before, "unread responses");
        assert_eq!(get(process.address, "/hello", "").status, 200, "others are served meanwhile");
    }
}

#[test]
fn slow_readers_leak_no_memory() {
    let length = volume_bytes();
    let upstream = Upstream::with_handler(move |_, socket| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let _ = socket.write_all(head.as_bytes());
        let chunk = vec![b'x'; 64 * 1024];
        (0..length / chunk.len() as u64).all(|_| socket.write_all(&chunk).is_ok())
    });
    let (_folder, process) = start(&upstream);
    let before = process.resident_bytes();
    let mut client = Client::from_socket(connect_narrow(process.address));
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_head().expect("a response").0, 200);
    // The upstream is always ahead of the client.
    read_slowly(&mut client.socket, length * 7 / 8);
    assert_flat(&process, before, "a response read slowly");
}

/// Connects with small segments and a small window, as over a slow link: the kernel buffers little.
fn connect_narrow(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small window");
    socket.set_tcp_mss(536).expect("small segments");
    socket.connect(&address.into()).expect("a connection");
    socket.into()
}

/// Reads `length` bytes, a few at a time.
fn read_slowly(socket: &mut TcpStream, length: u64) {
    let (mut buffer, mut sum) = ([0; 2048], 0);
    while sum < length {
        let count = socket.read(&mut buffer).expect("the response continues");
        assert!(count > 0, "the response ends early");
        sum += count as u64;
        if sum % (32 * 1024) < count as u64 {
            sleep(Duration::from_micros(500));
        }
    }
}
