//! The upstream behind each proxy: records each complete request in a normal form and answers it.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use crate::answers::{self, Then};

/// An upstream on a free port, for the life of the test's process.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Recorder {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let recorded = requests.clone();
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let recorded = recorded.clone();
                thread::spawn(move || serve(socket, address, &recorded));
            }
        });
        Self { address, requests }
    }

    /// Takes the requests since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().expect("not poisoned"))
    }
}

fn serve(mut socket: TcpStream, own_address: SocketAddr, requests: &Mutex<Vec<String>>) {
    let _ = socket.set_nodelay(true);
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut buffer, own_address) {
        let is_head = request.starts_with("HEAD ");
        let closes = request.contains("/upstream-closes");
        let refuses = request.contains(REFUSED_EARLY);
        let answer = answers::to_request(&request);
        requests.lock().expect("not poisoned").push(request);
        if let Some(answer) = answer {
            if socket.write_all(answer.bytes.as_bytes()).is_err() {
                return;
            }
            if answer.then == Then::Tunnels && read_exactly(&mut socket, &mut buffer, 4).is_some() {
                let _ = socket.write_all(b"pong");
            }
            match answer.then {
                Then::Keeps => continue,
                Then::Closes | Then::Tunnels => return,
            }
        }
        if refuses {
            let _ = socket.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno");
            return;
        }
        let response: &[u8] = match (is_head, closes) {
            (true, _) => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
            (false, false) => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            (false, true) => b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok",
        };
        if socket.write_all(response).is_err() || closes {
            return;
        }
    }
}

/// At this path, the upstream refuses a request before its body, and closes.
const REFUSED_EARLY: &str = "/refused-early";
/// At this path, it asks for the body that a client announces with `Expect`.
const CONTINUES: &str = "/continues";
/// At this path, it records which proxies the request went through.
const VIA: &str = "/via";
/// At this path, it records whether the body had a length.
const FRAMED: &str = "/framed";

/// Reads one request: `METHOD TARGET host=HOST BODY`, and its trailers. Whether the body has a
/// length or chunks depends on what had arrived when it was forwarded, so a record does not say
/// that.
fn read_request(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
    own_address: SocketAddr,
) -> Option<String> {
    let head = read_until(socket, buffer, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let start = lines.next()?.to_owned();
    let (mut host, mut length, mut chunked, mut fields) =
        (String::from("none"), None, false, String::new());
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let (name, value) = (name.to_ascii_lowercase(), value.trim());
        match &*name {
            "host" if value == own_address.to_string() => "own".clone_into(&mut host),
            "host" => value.clone_into(&mut host),
            "content-length" => length = Some(value.parse::<usize>().ok()?),
            "transfer-encoding" => chunked = true,
            // The fields under test.
            "x-kept" | "te" | "upgrade" | "expect" | "keep-alive" | "trailer" | "x_kept"
            | "x.kept" | "proxy-connection" => {
                fields = format!("{fields} {name}={value:?}");
            }
            "via" if start.contains(VIA) => {
                // The number of a gateway is a random one.
                let value = value.split_once("tidegate-").map_or(value, |_| "1.1 tidegate");
                fields = format!("{fields} via={value:?}");
            }
            _ => {}
        }
    }
    let line = start.strip_suffix(" HTTP/1.1").unwrap_or(&start);
    let mut record = format!("{line} host={host}{fields}");
    if line.contains(REFUSED_EARLY) {
        return Some(record);
    }
    if line.contains(CONTINUES) && fields.contains("expect=") {
        socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    if line.contains(FRAMED) {
        record += if chunked { " in chunks" } else { " with a length" };
    }
    if chunked {
        let mut body = Vec::new();
        loop {
            let size = read_until(socket, buffer, b"\r\n")?;
            let size = usize::from_str_radix(String::from_utf8_lossy(&size).trim(), 16);
            // A forwarded chunk extension is recorded.
            let Ok(size) = size else { return Some(record + " chunk extension") };
            if size == 0 {
                break;
            }
            body.extend(read_exactly(socket, buffer, size)?);
            read_exactly(socket, buffer, 2)?;
        }
        record = format!("{record} body={:?}", abbreviate(&body));
        loop {
            let line = read_until(socket, buffer, b"\r\n")?;
            if line == b"\r\n" {
                break;
            }
            record = format!("{record} trailer={:?}", with_lower_case_name(&line));
        }
    } else if let Some(length) = length {
        let body = read_exactly(socket, buffer, length)?;
        record = format!("{record} body={:?}", abbreviate(&body));
    }
    Some(record)
}

/// A field with its name in lower case.
fn with_lower_case_name(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let (name, value) = line.trim().split_once(':').unwrap_or((&line, ""));
    format!("{}:{value}", name.to_ascii_lowercase())
}

/// A body, or the size of a long one.
fn abbreviate(body: &[u8]) -> String {
    match body.len() {
        0..=40 => String::from_utf8_lossy(body).into_owned(),
        length => format!("{length} bytes"),
    }
}

fn read_until(socket: &mut TcpStream, buffer: &mut Vec<u8>, end: &[u8]) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = buffer.windows(end.len()).position(|window| window == end) {
            return Some(buffer.drain(..at + end.len()).collect());
        }
        read_more(socket, buffer)?;
    }
}

fn read_exactly(socket: &mut TcpStream, buffer: &mut Vec<u8>, length: usize) -> Option<Vec<u8>> {
    while buffer.len() < length {
        read_more(socket, buffer)?;
    }
    Some(buffer.drain(..length).collect())
}

fn read_more(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut bytes = [0; 16 * 1024];
    let count = socket.read(&mut bytes).ok().filter(|count| *count > 0)?;
    buffer.extend_from_slice(&bytes[..count]);
    Some(())
}
