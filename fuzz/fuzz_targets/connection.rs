//! A client connection with arbitrary bytes in arbitrary pieces: nothing panics, each request has
//! one response, in order, and the upstream receives only well-formed requests. The gateway, the
//! upstream and the client are threads of this process and use the loopback interface.
#![no_main]

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::OnceLock,
    thread,
    time::Duration,
};

use libfuzzer_sys::fuzz_target;
use tidegate::{
    clock::Clock,
    http1::{BodyDecoder, HeadBounds, RequestHead, ResponseHead},
    server::Server,
};

/// The bounds of heads, as in the gateway's configuration below.
const BOUNDS: HeadBounds = HeadBounds { bytes: 8192, headers: 20 };
const READ_TIMEOUT: Duration = Duration::from_secs(10);

static GATEWAY: OnceLock<Server> = OnceLock::new();

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (piece_lengths, sent) = input;
    let address = GATEWAY.get_or_init(start).addresses[0];
    let requests = complete_requests(sent);
    let mut client = Client::connect(address);
    client.send(&piece_lengths, sent);
    for is_head in requests {
        if !client.read_response(is_head) {
            break;
        }
    }
    // Now all requests have responses, or the gateway has closed the connection.
    let _ = client.socket.shutdown(Shutdown::Write);
    while client.fill() {}
    if !client.buffer.is_empty() {
        // The response to an incomplete or malformed request.
        let refusal = ResponseHead::read(&client.buffer).expect("a well-formed response");
        assert!(refusal.is_some() || client.is_reset, "a truncated response");
    }
    let mut probe = Client::connect(address);
    probe.send(&[], b"GET /probe HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(probe.read_response(false), "no response to the probe");
});

fn start() -> Server {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let target = upstream.local_addr().expect("an address");
    thread::spawn(move || {
        for socket in upstream.incoming().flatten() {
            thread::spawn(move || echo(socket));
        }
    });
    let folder = std::env::temp_dir().join(format!("tidegate-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("tidegate.yaml");
    let yaml = format!(
        "listen: [{{address: \"127.0.0.1:0\"}}]
workers: 1
access_log: off
http: {{max_head: 8KiB, max_headers: 20}}
upstreams:
  echo: {{targets: [http://{target}]}}
  hello: {{respond: {{body: hello}}}}
routes:
- {{name: echo, match: {{path: '/{{*rest}}'}}, upstream: echo, max_body: 1KiB}}
- {{name: probe, match: {{path: /probe}}, upstream: hello}}
"
    );
    std::fs::write(&file, yaml).expect("a file");
    Server::builder(Clock::system()).start_file(&file).unwrap_or_else(|error| panic!("{error}"))
}

/// Answers each request with the request's body. Panics, which ends the run, on a malformed
/// request.
fn echo(mut socket: TcpStream) {
    socket.set_nodelay(true).expect("no delay");
    let bounds = HeadBounds { bytes: 16384, headers: 40 };
    let mut buffer = Vec::new();
    loop {
        let (head, length) = loop {
            match RequestHead::read(&buffer, bounds).expect("a well-formed head") {
                Some(read) => break read,
                None if fill(&mut socket, &mut buffer) => {}
                None => return,
            }
        };
        buffer.drain(..length);
        let (mut decoder, mut body) = (BodyDecoder::of_request(head.length), Vec::new());
        while !decoder.is_done() {
            let used = decoder.decode(&buffer, &mut body).expect("a well-formed body");
            buffer.drain(..used);
            if !decoder.is_done() && !fill(&mut socket, &mut buffer) {
                return;
            }
        }
        let mut response =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        if head.method != http::Method::HEAD {
            response.extend_from_slice(&body);
        }
        if socket.write_all(&response).is_err() {
            return;
        }
    }
}

/// Reads once from `socket`. Returns whether bytes arrived.
fn fill(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    let mut chunk = [0; 4096];
    let count = socket.read(&mut chunk).unwrap_or_default();
    buffer.extend_from_slice(&chunk[..count]);
    count > 0
}

/// The complete requests at the start of `sent`: for each, whether its method is HEAD.
fn complete_requests(mut sent: &[u8]) -> Vec<bool> {
    let mut is_head = Vec::new();
    loop {
        while let Some(rest) = sent.strip_prefix(b"\r\n") {
            sent = rest;
        }
        let Ok(Some((head, length))) = RequestHead::read(sent, BOUNDS) else { return is_head };
        sent = &sent[length..];
        let mut decoder = BodyDecoder::of_request(head.length);
        match decoder.decode(sent, &mut Vec::new()) {
            Ok(used) if decoder.is_done() => sent = &sent[used..],
            _ => return is_head,
        }
        is_head.push(head.method == http::Method::HEAD);
        if !head.is_persistent() {
            return is_head;
        }
    }
}

struct Client {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Whether the connection was reset.
    is_reset: bool,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).expect("the gateway takes connections");
        socket.set_read_timeout(Some(READ_TIMEOUT)).expect("a timeout");
        socket.set_nodelay(true).expect("no delay");
        // Reset on drop: in TIME_WAIT, thousands of connections a second would exhaust the ports.
        let reset = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        reset.expect("no lingering");
        Self { socket, buffer: Vec::new(), is_reset: false }
    }

    /// Sends `bytes`, split into at most eight pieces.
    fn send(&mut self, piece_lengths: &[u8], mut bytes: &[u8]) {
        for length in piece_lengths.iter().take(7) {
            let (piece, rest) = bytes.split_at(usize::from(*length).min(bytes.len()));
            // The gateway may have closed the connection already.
            if self.socket.write_all(piece).is_err() {
                return;
            }
            bytes = rest;
        }
        let _ = self.socket.write_all(bytes);
    }

    /// Reads the response to a request, whose method was HEAD if `is_head`. Returns whether there
    /// was one.
    fn read_response(&mut self, is_head: bool) -> bool {
        let head = loop {
            match ResponseHead::read(&self.buffer).expect("a well-formed response") {
                Some((head, length)) if head.status < 200 => drop(self.buffer.drain(..length)),
                Some((head, length)) => {
                    self.buffer.drain(..length);
                    break head;
                }
                None if self.fill() => {}
                None => return false,
            }
        };
        let mut decoder =
            if is_head { BodyDecoder::none() } else { BodyDecoder::of_response(head.length) };
        let mut body = Vec::new();
        while !decoder.is_done() {
            let used = decoder.decode(&self.buffer, &mut body).expect("a well-formed body");
            self.buffer.drain(..used);
            if !decoder.is_done() && !self.fill() {
                assert!(self.is_reset || decoder.is_close_delimited(), "a truncated response");
                return true;
            }
        }
        true
    }

    /// Reads once. Returns whether bytes arrived.
    fn fill(&mut self) -> bool {
        let mut chunk = [0; 4096];
        match self.socket.read(&mut chunk) {
            Ok(count) => {
                self.buffer.extend_from_slice(&chunk[..count]);
                count > 0
            }
            Err(error) => {
                let timed_out = matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                );
                assert!(!timed_out, "neither a response nor the end of the connection");
                self.is_reset = true;
                false
            }
        }
    }
}
