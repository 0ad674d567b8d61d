//! Where a message is cut makes no difference: each of the framing suite, sent one byte at a time and in
//! two pieces cut anywhere, gives what it gives whole. The upstream's answers likewise.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use crate::{
    client::{Client, Reply},
    framing::{
        bodies_with_two_ends, heads_with_two_readings, malformed_chunks, post, without_one_host,
    },
    gateway::Gateway,
    upstream::Upstream,
    wait::pause,
};

/// Between two pieces, so that they are read one by one. One that is read together with the next
/// makes the test weaker, not wrong.
const BETWEEN: Duration = Duration::from_millis(1);
/// Cuts of one message at the most, spread over it; a short one is cut everywhere.
const MAX_CUTS: usize = 120;
/// So many connections at once.
const THREADS: usize = 16;

fn start(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "http: {{max_head: 8KiB, max_headers: 20}}
upstreams: {{origin: {{targets: [{}]}}}}
routes:
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin, max_body: 1KiB}}",
        upstream.target()
    ))
}

/// An upstream whose answer says what it has received.
fn mirror() -> Upstream {
    Upstream::with(|request, socket| {
        let text = String::from_utf8_lossy(request).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").expect("a whole head");
        let own = ["x-request-id", "via", "x-forwarded-for"];
        let kept = head.lines().filter(|line| !own.iter().any(|name| line.starts_with(name)));
        let mut told = kept.collect::<Vec<_>>().join("\n");
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { dechunked(body) } else { format!("\n\n{body}") };
        told.push_str(&body);
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", told.len());
        let body = if text.starts_with("HEAD") { "" } else { &*told };
        socket.write_all((answer + body).as_bytes()).is_ok()
    })
}

/// A chunked body without its frame, and its trailers.
fn dechunked(body: &str) -> String {
    let (mut told, mut rest) = (String::from("\n\n"), body);
    loop {
        let (size, after) = rest.split_once("\r\n").expect("a chunk's size");
        let size = usize::from_str_radix(size, 16).expect("no extension goes further");
        if size == 0 {
            return format!("{told}\ntrailers: {after:?}");
        }
        told.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").expect("a chunk's end");
    }
}

/// What a client reads: each answer, and whether the connection goes on behind the last.
#[derive(Debug, Eq, PartialEq)]
struct Outcome {
    answers: Vec<(u16, BTreeMap<String, String>, String)>,
    goes_on: bool,
}

/// Sends `pieces` one by one on a connection of their own and reads `count` answers.
fn outcome(address: SocketAddr, pieces: &[&[u8]], count: usize, to_head: bool) -> Outcome {
    let mut client = Client::connect(address);
    for (index, piece) in pieces.iter().enumerate() {
        if index > 0 {
            pause(BETWEEN);
        }
        // What is refused early is not read to its end.
        if client.socket.write_all(piece).is_err() {
            break;
        }
    }
    let mut answers = Vec::new();
    for _ in 0..count {
        let reply = if to_head {
            client.head().map(|(status, head)| Reply { status, head, body: Vec::new() })
        } else {
            client.try_reply()
        };
        let reply = reply.unwrap_or_else(|| panic!("no answer to {}", text(pieces)));
        answers.push(comparable(&reply));
    }
    let closing = answers.last().is_some_and(|(_, fields, _)| {
        fields.get("connection").is_some_and(|connection| connection == "close")
    });
    let goes_on = if closing {
        assert!(client.is_closed(), "{}", text(pieces));
        false
    } else {
        client.get("/probe", "").status == 200
    };
    Outcome { answers, goes_on }
}

fn text(pieces: &[&[u8]]) -> String {
    let pieces: Vec<_> = pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
    if pieces.len() > 2 {
        format!("single bytes of {:?}", pieces.concat())
    } else {
        format!("{pieces:?}")
    }
}

/// An answer without what differs from one to the next.
fn comparable(reply: &Reply) -> (u16, BTreeMap<String, String>, String) {
    let fields = reply.head.lines().skip(1).filter_map(|line| line.split_once(": "));
    let mut fields: BTreeMap<_, _> =
        fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    let id = fields.remove("x-request-id").expect("every answer has an id");
    fields.remove("date").expect("every answer has a date");
    (reply.status, fields, reply.text().replace(&id, "ID"))
}

/// Where `length` bytes are cut in two.
fn cuts(length: usize) -> impl Iterator<Item = usize> {
    (1..length).step_by(length.div_ceil(MAX_CUTS).max(1))
}

/// Does all of `work`, many at once.
fn at_once(work: &[Box<dyn Fn() + Send + Sync + '_>]) {
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

/// Asserts that each of `messages`, to which `count` answers come, is answered alike however it is cut.
fn assert_cuts_do_not_matter(address: SocketAddr, messages: &[Vec<u8>], count: usize) {
    let mut work: Vec<Box<dyn Fn() + Send + Sync>> = Vec::new();
    for message in messages {
        let to_head = message.starts_with(b"HEAD");
        let whole = std::sync::Arc::new(outcome(address, &[message], count, to_head));
        for at in cuts(message.len()) {
            let whole = whole.clone();
            work.push(Box::new(move || {
                let pieces = [&message[..at], &message[at..]];
                let cut = outcome(address, &pieces, count, to_head);
                assert_eq!(cut, *whole, "cut at {at}: {}", text(&pieces));
            }));
        }
        if message.len() <= 300 {
            work.push(Box::new(move || {
                let bytes: Vec<_> = message.chunks(1).collect();
                assert_eq!(outcome(address, &bytes, count, to_head), *whole, "{}", text(&bytes));
            }));
        }
    }
    at_once(&work);
}

#[test]
fn a_good_request_is_the_same_however_it_is_cut() {
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
    // As long as a head may be.
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
fn a_refused_request_is_refused_alike_however_it_is_cut() {
    let upstream = mirror();
    let gateway = start(&upstream);
    let mut messages = bodies_with_two_ends();
    messages.extend(heads_with_two_readings());
    messages.extend(without_one_host());
    messages.extend([
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"GET / HTTP/1.2\r\nHost: a\r\n\r\n".to_vec(),
        b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-maybe\r\n\r\n".to_vec(),
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "y".repeat(9000)).into_bytes(),
        format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(8161)).into_bytes(),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(20)).into_bytes(),
    ]);
    assert_cuts_do_not_matter(gateway.address(), &messages, 1);
    let told: Vec<_> = upstream.texts();
    assert!(told.iter().all(|text| text.starts_with("GET /probe ")), "{told:?}");
    // Of these the head is sent on before the fault is there.
    let mut messages = malformed_chunks();
    let chunks = format!("200\r\n{}\r\n", "y".repeat(512)).repeat(3);
    messages.push(post("Transfer-Encoding: chunked", &chunks));
    assert_cuts_do_not_matter(gateway.address(), &messages, 1);
    assert!(upstream.texts().iter().all(|text| text.starts_with("GET /probe ")));
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
}

/// What an upstream may answer, and whether it closes its connection then.
const ANSWERS: [(&str, &str, bool); 12] = [
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

/// Answers each request `/KIND/CUT` with an answer of [`ANSWERS`] cut there; 0 cuts it nowhere, and
/// [`usize::MAX`] everywhere.
fn cutting(socket: &mut TcpStream) {
    let _ = socket.set_nodelay(true);
    let mut held = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let mut buffer = [0; 4096];
            let count = socket.read(&mut buffer).unwrap_or_default();
            if count == 0 {
                return;
            }
            held.extend_from_slice(&buffer[..count]);
        };
        let head = String::from_utf8_lossy(&held[..end]).into_owned();
        held.drain(..end);
        let mut path = head.split(' ').nth(1).expect("a target").split('/').skip(1);
        let mut number = || path.next().and_then(|part| part.parse::<usize>().ok());
        let (kind, cut) = (number().expect("a kind"), number().expect("a cut"));
        let (_, answer, closes) = ANSWERS[kind];
        let bytes = answer.as_bytes();
        let step = if cut == usize::MAX { 1 } else { bytes.len() };
        let (first, second) = bytes.split_at(if cut < bytes.len() { cut } else { 0 });
        for piece in first.chunks(step).chain(second.chunks(step)) {
            if socket.write_all(piece).is_err() {
                return;
            }
            pause(BETWEEN);
        }
        if closes {
            return;
        }
    }
}

/// What a client reads of one answer: interim ones, the answer, its trailers, and that the connection
/// goes on.
fn exchange(address: SocketAddr, version: &str, kind: usize, cut: usize) -> String {
    let (method, ..) = ANSWERS[kind];
    let mut client = Client::connect(address);
    client.send(format!("{method} /{kind}/{cut} {version}\r\nHost: a\r\n\r\n"));
    let mut told = String::new();
    loop {
        let (status, head) = client.head().expect("a head");
        let reply = Reply { status, head, body: Vec::new() };
        if status < 200 {
            told.push_str(&reply.head);
            continue;
        }
        let (status, fields, _) = comparable(&reply);
        let _ = write!(told, "{status} {fields:?}");
        let length = fields.get("content-length").and_then(|value| value.parse::<usize>().ok());
        if method == "HEAD" || matches!(status, 204 | 304) {
        } else if fields.contains_key("transfer-encoding") {
            let _ = write!(told, "{:?}", client.chunks().expect("a whole body"));
        } else if let Some(length) = length.filter(|_| status == 200) {
            let body = client.take(length).expect("a whole body");
            let _ = write!(told, "{:?}", String::from_utf8_lossy(&body));
        }
        if fields.contains_key("connection") {
            let rest = client.read_to_end().expect("an end in order");
            let rest =
                if status == 502 { "a problem".into() } else { String::from_utf8_lossy(&rest) };
            let _ = write!(told, "then {rest:?}, closed");
        } else if status == 200 || status < 400 {
            client.send("GET /1/0 HTTP/1.1\r\nHost: a\r\n\r\n");
            let _ = write!(told, "then {}", client.reply().status);
        }
        return told;
    }
}

#[test]
fn an_upstreams_answer_is_the_same_however_it_is_cut() {
    let upstream = Upstream::raw_with(cutting);
    let gateway = start(&upstream);
    let address = gateway.address();
    let mut work: Vec<Box<dyn Fn() + Send + Sync>> = Vec::new();
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        for (kind, (_, answer, _)) in ANSWERS.iter().enumerate() {
            let whole = std::sync::Arc::new(exchange(address, version, kind, 0));
            for cut in cuts(answer.len()).chain([usize::MAX]) {
                let whole = whole.clone();
                work.push(Box::new(move || {
                    let told = exchange(address, version, kind, cut);
                    assert_eq!(told, *whole, "{version}, {answer:?} cut at {cut}");
                }));
            }
        }
    }
    at_once(&work);
}
