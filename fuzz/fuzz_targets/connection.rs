//! A whole connection, whatever a client sends on it in whatever pieces: nothing panics, each request
//! has one answer, in order, and the connection ends or stays in step; what reaches the upstream is
//! well-formed. A gateway, an upstream and the client are threads of the one process, over loopback.
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
    framing::{AnswerHead, BodyDecoder, HeadBounds, RequestHead},
    server::Server,
};

/// What the configuration says of heads, too.
const BOUNDS: HeadBounds = HeadBounds { bytes: 8192, headers: 20 };
const PATIENCE: Duration = Duration::from_secs(10);

static GATEWAY: OnceLock<Server> = OnceLock::new();

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (cuts, sent) = input;
    let address = GATEWAY.get_or_init(start).addresses[0];
    let methods = requests(sent);
    let mut client = Client::connect(address);
    client.send(&cuts, sent);
    let mut answers = 0;
    while answers < methods.len() && client.answer(methods[answers]) {
        answers += 1;
    }
    // Either all were answered, or the gateway has closed the connection.
    let _ = client.socket.shutdown(Shutdown::Write);
    while client.more() {}
    if !client.held.is_empty() {
        // What has no end, or is none: refused, or answered before its end.
        let refusal = AnswerHead::read(&client.held).expect("a well-formed answer");
        assert!(refusal.is_some() || client.failed, "a cut answer");
    }
    let mut probe = Client::connect(address);
    probe.send(&[], b"GET /probe HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(probe.answer(false), "no answer to the probe");
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
    Server::start(&file, Clock::system()).unwrap_or_else(|error| panic!("{error}"))
}

/// Answers each request with its own body. Panics, which ends the run, if one is not well-formed.
fn echo(mut socket: TcpStream) {
    socket.set_nodelay(true).expect("no delay");
    let bounds = HeadBounds { bytes: 16384, headers: 40 };
    let mut held = Vec::new();
    loop {
        let (head, length) = loop {
            match RequestHead::read(&held, bounds).expect("a well-formed head") {
                Some(read) => break read,
                None if more(&mut socket, &mut held) => {}
                None => return,
            }
        };
        held.drain(..length);
        let (mut decoder, mut body) = (BodyDecoder::new(Some(head.body)), Vec::new());
        while !decoder.is_done() {
            let used = decoder.decode(&held, &mut body).expect("a well-formed body");
            held.drain(..used);
            if !decoder.is_done() && !more(&mut socket, &mut held) {
                return;
            }
        }
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        if head.method != http::Method::HEAD {
            answer.extend_from_slice(&body);
        }
        if socket.write_all(&answer).is_err() {
            return;
        }
    }
}

fn more(socket: &mut TcpStream, held: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    let count = socket.read(&mut buffer).unwrap_or_default();
    held.extend_from_slice(&buffer[..count]);
    count > 0
}

/// The whole requests that `sent` holds one behind the other, each with whether its method is HEAD.
fn requests(mut sent: &[u8]) -> Vec<bool> {
    let mut requests = Vec::new();
    loop {
        while let Some(rest) = sent.strip_prefix(b"\r\n") {
            sent = rest;
        }
        let Ok(Some((head, length))) = RequestHead::read(sent, BOUNDS) else { return requests };
        sent = &sent[length..];
        let mut decoder = BodyDecoder::new(Some(head.body));
        match decoder.decode(sent, &mut Vec::new()) {
            Ok(used) if decoder.is_done() => sent = &sent[used..],
            _ => return requests,
        }
        requests.push(head.method == http::Method::HEAD);
        if !head.is_persistent() {
            return requests;
        }
    }
}

struct Client {
    socket: TcpStream,
    held: Vec<u8>,
    /// Whether the connection was reset.
    failed: bool,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).expect("the gateway takes connections");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.set_nodelay(true).expect("no delay");
        // Reset when it is dropped: the system has no port left for thousands of connections a second
        // that are closed in order.
        let reset = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        reset.expect("no lingering");
        Self { socket, held: Vec::new(), failed: false }
    }

    /// Sends `bytes`, cut in at most eight pieces.
    fn send(&mut self, cuts: &[u8], mut bytes: &[u8]) {
        for cut in cuts.iter().take(7) {
            let (piece, rest) = bytes.split_at(usize::from(*cut).min(bytes.len()));
            // The gateway may have closed the connection already.
            if self.socket.write_all(piece).is_err() {
                return;
            }
            bytes = rest;
        }
        let _ = self.socket.write_all(bytes);
    }

    /// Reads one answer; says whether there was one.
    fn answer(&mut self, to_head: bool) -> bool {
        let head = loop {
            match AnswerHead::read(&self.held).expect("a well-formed answer") {
                Some((head, length)) if head.status < 200 => drop(self.held.drain(..length)),
                Some((head, length)) => {
                    self.held.drain(..length);
                    break head;
                }
                None if self.more() => {}
                None => return false,
            }
        };
        let mut decoder = match to_head {
            true => BodyDecoder::none(),
            false => BodyDecoder::new(head.length),
        };
        let mut body = Vec::new();
        while !decoder.is_done() {
            let used = decoder.decode(&self.held, &mut body).expect("a well-formed body");
            self.held.drain(..used);
            if !decoder.is_done() && !self.more() {
                assert!(self.failed || decoder.is_until_close(), "a cut answer");
                return true;
            }
        }
        true
    }

    fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.socket.read(&mut buffer) {
            Ok(count) => {
                self.held.extend_from_slice(&buffer[..count]);
                count > 0
            }
            Err(error) => {
                let waited = matches!(
                    error.kind(),
                    std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
                );
                assert!(!waited, "neither an answer nor the connection's end");
                self.failed = true;
                false
            }
        }
    }
}
