//! The upstream behind each proxy: records each complete request in a normal form and answers it.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

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
        let kept = requests.clone();
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let kept = kept.clone();
                thread::spawn(move || serve(socket, address, &kept));
            }
        });
        Self { address, requests }
    }

    /// The requests since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().expect("no thread panics with it"))
    }
}

fn serve(mut socket: TcpStream, own: SocketAddr, requests: &Mutex<Vec<String>>) {
    let _ = socket.set_nodelay(true);
    let mut held = Vec::new();
    while let Some(request) = request(&mut socket, &mut held, own) {
        let is_head = request.starts_with("HEAD ");
        let closes = request.contains("/upstream-closes");
        requests.lock().expect("no thread panics with it").push(request);
        let answer: &[u8] = match (is_head, closes) {
            (true, _) => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n",
            (false, false) => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            (false, true) => b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok",
        };
        if socket.write_all(answer).is_err() || closes {
            return;
        }
    }
}

/// Reads one request: `METHOD TARGET host=HOST BODY`, and its trailers.
fn request(socket: &mut TcpStream, held: &mut Vec<u8>, own: SocketAddr) -> Option<String> {
    let head = until(socket, held, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let start = lines.next()?.to_owned();
    let (mut host, mut length, mut chunked, mut kept) =
        (String::from("none"), None, false, String::new());
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let (name, value) = (name.to_ascii_lowercase(), value.trim());
        match &*name {
            "host" if value == own.to_string() => "own".clone_into(&mut host),
            "host" => value.clone_into(&mut host),
            "content-length" => length = Some(value.parse::<usize>().ok()?),
            "transfer-encoding" => chunked = true,
            // The fields under test.
            "x-kept" | "te" | "upgrade" | "expect" | "keep-alive" | "trailer" | "x_kept"
            | "proxy-connection" => {
                kept = format!("{kept} {name}={value:?}");
            }
            _ => {}
        }
    }
    let line = start.strip_suffix(" HTTP/1.1").unwrap_or(&start);
    let mut text = format!("{line} host={host}{kept}");
    if chunked {
        let mut body = Vec::new();
        loop {
            let size = until(socket, held, b"\r\n")?;
            let size = usize::from_str_radix(String::from_utf8_lossy(&size).trim(), 16);
            // A forwarded chunk extension is recorded.
            let Ok(size) = size else { return Some(text + " chunk extension") };
            if size == 0 {
                break;
            }
            body.extend(exactly(socket, held, size)?);
            exactly(socket, held, 2)?;
        }
        text = format!("{text} chunked={:?}", String::from_utf8_lossy(&body));
        loop {
            let line = until(socket, held, b"\r\n")?;
            if line == b"\r\n" {
                break;
            }
            text = format!("{text} trailer={:?}", lower(&line));
        }
    } else if let Some(length) = length {
        let body = exactly(socket, held, length)?;
        text = format!("{text} length={:?}", short(&body));
    }
    Some(text)
}

/// A field with its name in lower case.
fn lower(line: &[u8]) -> String {
    let line = String::from_utf8_lossy(line);
    let (name, value) = line.trim().split_once(':').unwrap_or((&line, ""));
    format!("{}:{value}", name.to_ascii_lowercase())
}

/// A body, or the size of a long one.
fn short(body: &[u8]) -> String {
    match body.len() {
        0..=40 => String::from_utf8_lossy(body).into_owned(),
        length => format!("{length} bytes"),
    }
}

fn until(socket: &mut TcpStream, held: &mut Vec<u8>, end: &[u8]) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = held.windows(end.len()).position(|window| window == end) {
            return Some(held.drain(..at + end.len()).collect());
        }
        more(socket, held)?;
    }
}

fn exactly(socket: &mut TcpStream, held: &mut Vec<u8>, length: usize) -> Option<Vec<u8>> {
    while held.len() < length {
        more(socket, held)?;
    }
    Some(held.drain(..length).collect())
}

fn more(socket: &mut TcpStream, held: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 16 * 1024];
    let count = socket.read(&mut buffer).ok().filter(|count| *count > 0)?;
    held.extend_from_slice(&buffer[..count]);
    Some(())
}
