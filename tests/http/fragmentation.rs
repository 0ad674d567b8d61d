//! Fragmentation makes no difference: each message of the framing suite, in single bytes and in two
//! fragments cut anywhere, has the same result as in one piece. The same for upstream responses.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    upstream::Upstream,
    wait::sleep,
};

use crate::framing::{
    ambiguous_body_lengths, ambiguous_heads, malformed_chunks, post, without_exactly_one_host,
};

/// Pause between two fragments, so that they are read separately. If they are read together, the
/// test is weaker, not wrong.
const FRAGMENT_PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of cuts of one message, spread over it. A short message is cut at every byte.
const MAX_CUTS: usize = 120;
/// Concurrent connections.
const THREADS: usize = 16;

fn start(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "http: {{max_head: 8KiB, max_headers: 20}}
upstreams: {{origin: {{targets: [{}], connect_timeout: 20s, ejection: {{max_share: 0}}}}}}
routes:
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin, max_body: 1KiB}}",
        upstream.target()
    ))
}

/// An upstream whose response describes the request that it received.
fn mirror() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").expect("a whole head");
        // A body that is there at once has a length, another one is chunked.
        let framing = ["content-length", "transfer-encoding"];
        let own = ["x-request-id", "via", "x-forwarded-for", framing[0], framing[1]];
        let forwarded = head.lines().filter(|line| !own.iter().any(|name| line.starts_with(name)));
        let mut summary = forwarded.collect::<Vec<_>>().join("\n");
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { dechunked(body) } else { content(body, "\r\n") };
        summary.push_str(&body);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", summary.len());
        let body = if text.starts_with("HEAD") { "" } else { &*summary };
        socket.write_all((answer + body).as_bytes()).is_ok()
    })
}

/// A body and its trailers.
fn content(body: &str, trailers: &str) -> String {
    format!("\n\n{body}\ntrailers: {trailers:?}")
}

/// The content and the trailers of a chunked body.
fn dechunked(body: &str) -> String {
    let (mut data, mut rest) = (String::new(), body);
    loop {
        let (size, after) = rest.split_once("\r\n").expect("a chunk's size");
        let size = usize::from_str_radix(size, 16).expect("a size without an extension");
        if size == 0 {
            return content(&data, after);
        }
        data.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").expect("a chunk's end");
    }
}

/// A client's observations: each response, and true if the connection is kept after the last.
#[derive(Debug, Eq, PartialEq)]
struct Observation {
    responses: Vec<(u16, BTreeMap<String, String>, String)>,
    is_kept: bool,
}

/// Sends `pieces` one by one on a new connection and reads `count` responses.
fn observe(address: SocketAddr, pieces: &[&[u8]], count: usize, to_head: bool) -> Observation {
    let mut client = Client::connect(address);
    for (index, piece) in pieces.iter().enumerate() {
        if index > 0 {
            sleep(FRAGMENT_PAUSE);
        }
        // A request refused early is not read to its end, so writes may fail.
        if client.socket.write_all(piece).is_err() {
            break;
        }
    }
    let mut responses = Vec::new();
    for _ in 0..count {
        let response = if to_head {
            client.read_head().map(|(status, head)| Response { status, head, body: Vec::new() })
        } else {
            client.try_read_response()
        };
        let response = response.unwrap_or_else(|| panic!("no response to {}", text(pieces)));
        responses.push(comparable(&response));
    }
    let closing = responses.last().is_some_and(|(_, fields, _)| {
        fields.get("connection").is_some_and(|connection| connection == "close")
    });
    let is_kept = if closing {
        assert!(client.is_closed(), "{}", text(pieces));
        false
    } else {
        client.get("/probe", "").status == 200
    };
    Observation { responses, is_kept }
}

fn text(pieces: &[&[u8]]) -> String {
    let pieces: Vec<_> = pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
    if pieces.len() > 2 {
        format!("single bytes of {:?}", pieces.concat())
    } else {
        format!("{pieces:?}")
    }
}

/// A response without the fields that differ between requests.
fn comparable(response: &Response) -> (u16, BTreeMap<String, String>, String) {
    let fields = response.head.lines().skip(1).filter_map(|line| line.split_once(": "));
    let mut fields: BTreeMap<_, _> =
        fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let id = fields.remove("x-request-id").expect("every response has an id");
    fields.remove("date").expect("every response has a date");
    (response.status, fields, response.text().replace(&id, "ID"))
}

/// The positions at which `length` bytes are cut in two.
fn cuts(length: usize) -> impl Iterator<Item = usize> {
    (1..length).step_by(length.div_ceil(MAX_CUTS).max(1))
}

/// Runs all of `work` concurrently.
fn run_concurrently(work: &[Box<dyn Fn() + Send + Sync + '_>]) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(work) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work();
                }
            });
        }
    });
}

/// Asserts that each of `messages` gets the same `count` responses, however it is fragmented.
fn assert_cuts_do_not_matter(address: SocketAddr, messages: &[Vec<u8>], count: usize) {
    let mut work: Vec<Box<dyn Fn() + Send + Sync>> = Vec::new();
    for message in messages {
        let to_head = message.starts_with(b"HEAD");
        let whole = std::sync::Arc::new(observe(address, &[message], count, to_head));
        for at in cuts(message.len()) {
            let whole = whole.clone();
            work.push(Box::new(move || {
                let pieces = [&message[..at], &message[at..]];
                let cut = observe(address, &pieces, count, to_head);
                assert_eq!(cut, *whole, "cut at {at}: {}", text(&pieces));
            }));
        }
        if message.len() <= 300 {
            work.push(Box::new(move || {
                let bytes: Vec<_> = message.chunks(1).collect();
                assert_eq!(observe(address, &bytes, count, to_head), *whole, "{}", text(&bytes));
            }));
        }
    }
    run_concurrently(&work);
}

#[test]
fn valid_requests_are_parsed_alike_however_fragmented() {
    let upstream = mirror();
    let gateway = start(&upstream);
    let mut messages = vec![
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a\r\nX:y\r\nx: \xc3\xa9\tz \r\nEmpty:\r\n\r\n".to_vec(),
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET /a?b=c|d&e[]=%20' HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(),
        b"GET http://a:80/x?y HTTP/1.1\r\nHost: ignored\r\n\r\n".to_vec(),
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        post("Content-Length: 5", "hello"),
        post("content-length:\t005 ", "hello"),
        post("Content-Length: 0", ""),
        post("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
        post("Transfer-Encoding: chunked", "0\r\n\r\n"),
        post(
            "transfer-encoding:  CHUNKED ",
            "5;a=b;c=\"d;\\\"e\"\r\nhello\r\n00\r\nX-Sum: 1\r\n\r\n",
        ),
        b"POST /a HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello".to_vec(),
    ];
    // The largest permitted head.
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(8160));
    assert_eq!(long.len(), 8192);
    messages.push(long.into_bytes());
    assert_cuts_do_not_matter(gateway.address(), &messages, 1);
    let pipelined = [
        &b"\r\nGET /1 HTTP/1.1\r\nHost: a\r\n\r\n\r\n\r\n"[..],
        &post("Transfer-Encoding: chunked", "1\r\nx\r\n0\r\n\r\n"),
        &post("Content-Length: 2", "hi"),
        b"GET /4 HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
    .concat();
    assert_cuts_do_not_matter(gateway.address(), &[pipelined], 4);
    assert_eq!(gateway.metric("tidegate_malformed_requests_total"), 0);
}

#[test]
fn invalid_requests_are_refused_alike_however_fragmented() {
    let upstream = mirror();
    let gateway = start(&upstream);
    let mut messages = ambiguous_body_lengths();
    messages.extend(ambiguous_heads());
    messages.extend(without_exactly_one_host());
    messages.extend([
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"GET / HTTP/3.0\r\nHost: a\r\n\r\n".to_vec(),
        b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-maybe\r\n\r\n".to_vec(),
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "y".repeat(9000)).into_bytes(),
        format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(8161)).into_bytes(),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(20)).into_bytes(),
    ]);
    assert_cuts_do_not_matter(gateway.address(), &messages, 1);
    let summary: Vec<_> = upstream.request_texts();
    assert!(summary.iter().all(|text| text.starts_with("GET /probe ")), "{summary:?}");
    // The head of these is forwarded before the fault arrives.
    let mut messages = malformed_chunks();
    let chunks = format!("200\r\n{}\r\n", "y".repeat(512)).repeat(3);
    messages.push(post("Transfer-Encoding: chunked", &chunks));
    assert_cuts_do_not_matter(gateway.address(), &messages, 1);
    assert!(upstream.request_texts().iter().all(|text| text.starts_with("GET /probe ")));
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
}

/// Responses of an upstream, each with true if it closes the connection afterwards.
const RESPONSES: [(&str, &str, bool); 12] = [
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello", false),
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
             3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\nX-Sum: 1\r\n\r\n",
        false,
    ),
    ("GET", "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", true),
    ("GET", "HTTP/1.0 200 OK\r\n\r\nhello", true),
    (
        "GET",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
             HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        false,
    ),
    ("GET", "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", false),
    ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 5\r\n\r\n", false),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false),
    ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false),
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", true),
    ("GET", "HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", false),
];

/// Answers each request `/KIND/CUT` with the response `KIND`, cut at byte `CUT`; 0 does not cut it,
/// [`usize::MAX`] cuts it at every byte.
fn serve_fragmented(socket: &mut TcpStream) {
    let _ = socket.set_nodelay(true);
    let mut buffered = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = buffered.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let mut buffer = [0; 4096];
            let count = socket.read(&mut buffer).unwrap_or_default();
            if count == 0 {
                return;
            }
            buffered.extend_from_slice(&buffer[..count]);
        };
        let head = String::from_utf8_lossy(&buffered[..end]).into_owned();
        buffered.drain(..end);
        let mut path = head.split(' ').nth(1).expect("a target").split('/').skip(1);
        let mut number = || path.next().and_then(|part| part.parse::<usize>().ok());
        let (kind, cut) = (number().expect("a kind"), number().expect("a cut"));
        let (_, answer, closes) = RESPONSES[kind];
        let bytes = answer.as_bytes();
        let step = if cut == usize::MAX { 1 } else { bytes.len() };
        let (first, second) = bytes.split_at(if cut < bytes.len() { cut } else { 0 });
        for piece in first.chunks(step).chain(second.chunks(step)) {
            if socket.write_all(piece).is_err() {
                return;
            }
            sleep(FRAGMENT_PAUSE);
        }
        if closes {
            return;
        }
    }
}

/// The bytes that a client reads: interim responses, the response, its trailers, and whether the
/// connection is kept.
fn exchange(address: SocketAddr, version: &str, kind: usize, cut: usize) -> String {
    let (method, ..) = RESPONSES[kind];
    let mut client = Client::connect(address);
    client.send(format!("{method} /{kind}/{cut} {version}\r\nHost: a\r\n\r\n"));
    let mut summary = String::new();
    loop {
        let (status, head) = client.read_head().expect("a head");
        let response = Response { status, head, body: Vec::new() };
        if status < 200 {
            summary.push_str(&response.head);
            continue;
        }
        let (status, fields, _) = comparable(&response);
        let _ = write!(summary, "{status} {fields:?}");
        let length = fields.get("content-length").and_then(|value| value.parse::<usize>().ok());
        if method == "HEAD" || matches!(status, 204 | 304) {
        } else if fields.contains_key("transfer-encoding") {
            let _ = write!(summary, "{:?}", client.read_chunked().expect("a whole body"));
        } else if let Some(length) = length.filter(|_| status == 200) {
            let body = client.read_exact(length).expect("a whole body");
            let _ = write!(summary, "{:?}", String::from_utf8_lossy(&body));
        }
        if fields.contains_key("connection") {
            let rest = client.read_to_end().expect("an orderly end");
            let rest =
                if status == 502 { "a problem".into() } else { String::from_utf8_lossy(&rest) };
            let _ = write!(summary, "then {rest:?}, closed");
        } else if status == 200 || status < 400 {
            client.send("GET /1/0 HTTP/1.1\r\nHost: a\r\n\r\n");
            let _ = write!(summary, "then {}", client.read_response().status);
        }
        return summary;
    }
}

#[test]
fn responses_are_parsed_alike_however_fragmented() {
    let upstream = Upstream::on_connection(serve_fragmented);
    let gateway = start(&upstream);
    let address = gateway.address();
    let mut work: Vec<Box<dyn Fn() + Send + Sync>> = Vec::new();
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        for (kind, (_, answer, _)) in RESPONSES.iter().enumerate() {
            let whole = std::sync::Arc::new(exchange(address, version, kind, 0));
            for cut in cuts(answer.len()).chain([usize::MAX]) {
                let whole = whole.clone();
                work.push(Box::new(move || {
                    let summary = exchange(address, version, kind, cut);
                    assert_eq!(summary, *whole, "{version}, {answer:?} cut at {cut}");
                }));
            }
        }
    }
    run_concurrently(&work);
}
