//! An upload over a slow line, which never stops.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use testkit::{
    client::Client,
    upstream::{Upstream, read_until_closed},
    wait::sleep,
};

use crate::proxies::Kind;

const LENGTH: usize = 10 << 20;
/// Bytes in each tenth of a second: 120 kB/s.
const STEP: usize = 12_000;
const TICK: Duration = Duration::from_millis(100);

/// How the body ends.
#[derive(Clone, Copy)]
enum Framing {
    Length,
    Chunks,
}

pub(crate) fn measure(program: &Path) {
    println!("| proxy | 10 MiB at 120 kB/s | status | seconds |");
    println!("|---|---|---:|---:|");
    let server = server();
    let proxies: Vec<_> = Kind::ALL
        .into_iter()
        .filter_map(|kind| Some((kind, kind.start(program, server.address)?)))
        .collect();
    thread::scope(|scope| {
        let mut running = Vec::new();
        for (kind, proxy) in &proxies {
            for (framing, name) in
                [(Framing::Length, "with a length"), (Framing::Chunks, "in chunks")]
            {
                let upload = scope.spawn(move || upload(Client::connect(proxy.address), framing));
                running.push((kind, name, upload));
            }
        }
        for (kind, name, upload) in running {
            let (status, time) = upload.join().expect("no panic");
            println!("| {kind} | {name} | {status} | {:.1} |", time.as_secs_f64());
        }
    });
}

/// A server that keeps no byte of an upload.
fn server() -> Upstream {
    Upstream::on_connection(receive)
}

/// Reads a body by its bytes alone: each request has a connection of its own, and at least
/// [`LENGTH`] bytes.
fn receive(socket: &mut TcpStream) {
    let (mut buffer, mut sum) = (vec![0; 64 * 1024], 0);
    let mut tail = Vec::new();
    while let Ok(count @ 1..) = socket.read(&mut buffer) {
        sum += count;
        tail.extend_from_slice(&buffer[..count]);
        tail.drain(..tail.len().saturating_sub(END.len()));
        if sum > LENGTH && tail == END {
            let response = "HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = socket.write_all(response.as_bytes());
            break;
        }
    }
    read_until_closed(socket);
}

/// The last bytes of a body, with a length or in chunks.
const END: &[u8] = b"\r\n0\r\n\r\n";

/// Sends the upload and returns the status, 0 without a response, and the time until it came.
fn upload(mut client: Client, framing: Framing) -> (u16, Duration) {
    let begin = Instant::now();
    let length = match framing {
        Framing::Length => format!("Content-Length: {LENGTH}"),
        Framing::Chunks => "Transfer-Encoding: chunked".to_owned(),
    };
    let head = format!("PUT /upload HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{length}\r\n\r\n");
    client.send(head);
    let body = vec![b'x'; LENGTH - END.len()];
    for (place, part) in body.chunks(STEP).enumerate() {
        let due = TICK * (place as u32);
        sleep(due.saturating_sub(begin.elapsed()));
        let sent = match framing {
            Framing::Length => client.socket.write_all(part),
            Framing::Chunks => {
                let chunk = [format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat();
                client.socket.write_all(&chunk)
            }
        };
        if sent.is_err() {
            break;
        }
    }
    // With a length, these are the last bytes of the body.
    let end = match framing {
        Framing::Length => END,
        Framing::Chunks => b"7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n",
    };
    let _ = client.socket.write_all(end);
    client.socket.set_read_timeout(Some(Duration::from_mins(1))).expect("a timeout");
    (client.try_read_response().map_or(0, |response| response.status), begin.elapsed())
}
