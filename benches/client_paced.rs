//! What bounded places cost and protect: uploads with and without `max_requests`, and another
//! client's requests while one address holds unsent bodies, unfinished uploads or unread responses.
//! Each figure is of one run of the binary.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![allow(clippy::disallowed_types, reason = "std's mutex is enough for a benchmark's threads")]

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use testkit::{
    client::Client,
    process::{Process, gateway_command},
    wait::sleep,
};
use tidegate::clock;

/// The requests of one attacking address.
const HELD: usize = 60;
/// The requests of the other client.
const OTHERS: usize = 500;
const LONG: usize = 5 << 20;

fn main() {
    let target = origin();
    println!(
        "| upload | CPU, us a request | with a bound | ratio | resident, MiB | with a bound |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    for (name, length, count) in
        [("1 KiB", 1 << 10, 20_000), ("64 KiB", 64 << 10, 4_000), ("10 MiB", 10 << 20, 100)]
    {
        let [(plain, memory), (bounded, bounded_memory)] =
            ["retries: 1", "max_requests: 1000"].map(|keys| uploads(target, keys, length, count));
        let ratio = bounded / plain;
        println!(
            "| {name} | {plain:.1} | {bounded:.1} | {ratio:.2} | {memory:.1} | {bounded_memory:.1} |"
        );
    }
    println!();
    println!("| held by one address | other requests served | median, ms | longest, ms |");
    println!("|---|---:|---:|---:|");
    for (name, head, body) in [
        ("nothing", "", 0),
        ("bodies of which one byte is sent", "POST / HTTP/1.1\r\nContent-Length: 100\r\n", 1),
        (
            "uploads that stop at 128 KiB",
            "POST / HTTP/1.1\r\nContent-Length: 9999999\r\n",
            128 << 10,
        ),
        ("5 MiB responses that are not read", "GET /long HTTP/1.1\r\n", 0),
    ] {
        let (served, median, longest) = beside(target, head, body);
        println!("| {name} | {served} of {OTHERS} | {median:.2} | {longest:.2} |");
    }
}

/// A target that reads requests and answers 204, or `/long` with [`LONG`] bytes.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            thread::spawn(move || serve(socket));
        }
    });
    address
}

/// Serves a connection until it ends.
fn serve(mut socket: TcpStream) -> Option<()> {
    let (mut buffer, mut read) = (vec![0; 1 << 20], 0);
    loop {
        let end = loop {
            if let Some(end) = memchr::memmem::find(&buffer[..read], b"\r\n\r\n") {
                break end + 4;
            }
            read += socket.read(&mut buffer[read..]).ok().filter(|count| *count > 0)?;
        };
        let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.map_or(Some(0), |length| length.trim().parse().ok())?;
        let mut left = length.saturating_sub(read - end);
        while left > 0 {
            left -= socket.read(&mut buffer).ok().filter(|count| *count > 0)?.min(left);
        }
        read = 0;
        if head.starts_with("get /long") {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n");
            socket.write_all(head.as_bytes()).ok()?;
            socket.write_all(&vec![b'x'; LONG]).ok()?;
        } else {
            socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").ok()?;
        }
    }
}

/// The binary before `target`, with these keys of the upstream.
fn gateway(target: SocketAddr, keys: &str) -> (Process, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = format!(
        "listen: [{{address: '127.0.0.1:0'}}]
admin: {{address: '127.0.0.1:0'}}
workers: 1
access_log: off
client: {{trusted_proxies: [127.0.0.1/32]}}
upstreams: {{app: {{targets: ['http://{target}'], {keys}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: app}}]"
    );
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    let binary = env!("CARGO_BIN_EXE_tidegate");
    (Process::start(gateway_command(binary, directory.path(), &["serve", "t.yaml"])), directory)
}

/// Sends uploads over eight connections. Returns the CPU of one, in us, and the gateway's resident
/// memory, in MiB.
fn uploads(target: SocketAddr, keys: &str, length: usize, count: usize) -> (f64, f64) {
    let (process, _directory) = gateway(target, keys);
    let send = |count: usize| {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut client = Client::connect(process.address);
                    let head =
                        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
                    let request = [head.into_bytes(), vec![b'x'; length]].concat();
                    for _ in 0..count / 8 {
                        client.send(&request);
                        assert_eq!(client.read_response().status, 204);
                    }
                });
            }
        });
    };
    send(count / 10);
    let before = process.cpu_time();
    send(count);
    let cpu = process.cpu_time().saturating_sub(before).as_secs_f64() * 1e6 / count as f64;
    (cpu, process.resident_bytes() as f64 / f64::from(1 << 20))
}

/// Another client's requests while one address holds [`HELD`] with this head and so many bytes of a
/// body. Returns those served, and the median and longest time of them, in ms.
fn beside(target: SocketAddr, head: &str, body: usize) -> (usize, f64, f64) {
    let (process, _directory) = gateway(target, "max_requests: 50");
    let mut held = Vec::new();
    for _ in 0..if head.is_empty() { 0 } else { HELD } {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a buffer");
        socket.connect(&process.address.into()).expect("a connection");
        let mut client = Client::from_socket(socket.into());
        client.send(format!("{head}Host: a\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n"));
        // The gateway reads no more of an upload that it refuses.
        let _ = client.socket.write_all(&vec![b'x'; body]);
        held.push(client);
    }
    sleep(Duration::from_millis(300));
    let mut client = Client::connect(process.address);
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..OTHERS {
        let start = clock::instant();
        if client.get("/", "X-Forwarded-For: 192.0.2.2\r\n").status == 204 {
            times.push(start.elapsed().as_secs_f64() * 1000.0);
        }
    }
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    (times.len(), median, times.last().copied().unwrap_or_default())
}
