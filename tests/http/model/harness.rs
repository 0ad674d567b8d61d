//! One gateway and one upstream for all sequences of requests.

use std::{
    collections::HashMap,
    io::Write,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use testkit::{client::Client, gateway::Gateway, upstream::Upstream};

/// The body of the upstream's response.
pub(crate) fn response_body(id: usize) -> String {
    format!("answer to {id}")
}

pub(crate) struct Harness {
    pub(crate) gateway: Gateway,
    _upstream: Upstream,
    /// For each request id, its position in the order of arrival at the upstream, and its body.
    pub(crate) received: Arc<Mutex<HashMap<usize, (usize, String)>>>,
    /// The id of the next request.
    pub(crate) next_id: AtomicUsize,
}

pub(crate) static HARNESS: LazyLock<Harness> = LazyLock::new(Harness::start);

impl Harness {
    fn start() -> Self {
        let received = Arc::<Mutex<HashMap<usize, (usize, String)>>>::default();
        let (recorded, count) = (received.clone(), AtomicUsize::new(0));
        let upstream = Upstream::with_handler(move |request, socket| {
            let text = String::from_utf8_lossy(request).into_owned();
            let mut path = text.split(' ').nth(1).unwrap_or_default().split('/').skip(2);
            let Some(id) = path.next().and_then(|id| id.parse::<usize>().ok()) else {
                return false;
            };
            let turn = count.fetch_add(1, Ordering::SeqCst);
            recorded.lock().expect("not poisoned").insert(id, (turn, body_of(&text)));
            let body = if text.starts_with("HEAD") { String::new() } else { response_body(id) };
            let length = response_body(id).len();
            let answer = match path.next().unwrap_or_default() {
                "Chunked" if body.is_empty() => {
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned()
                }
                "Chunked" => format!(
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                    &body[..1],
                    body.len() - 1,
                    &body[1..]
                ),
                "Close" => format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}"),
                "NoContent" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
                "NotModified" => {
                    "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n".to_owned()
                }
                "Interim" => format!(
                    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
                     HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
                ),
                _ => format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"),
            };
            socket.write_all(answer.as_bytes()).is_ok() && !answer.contains("Connection: close")
        });
        let gateway = Gateway::start(&format!(
            "upstreams: {{origin: {{targets: [{}]}}}}
limits: {{once: {{algorithm: sliding_window, quota: 1, window: 1h, key: []}}}}
routes:
  - {{name: open, match: {{path: '/open/{{*rest}}'}}, upstream: origin}}
  - {{name: short, match: {{path: '/short/{{*rest}}'}}, upstream: origin, max_body: 10B}}
  - {{name: limited, match: {{path: /limited}}, upstream: origin, limits: [once]}}",
            upstream.target()
        ));
        // This exhausts the limit.
        Client::connect(gateway.address()).send("GET /limited HTTP/1.0\r\n\r\n").read_head();
        Self { gateway, _upstream: upstream, received, next_id: AtomicUsize::new(0) }
    }
}

/// The body of a received request: its data and its trailers.
fn body_of(text: &str) -> String {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return body.to_owned();
    }
    let (mut data, mut rest) = (String::new(), body);
    loop {
        let (size, after) = rest.split_once("\r\n").expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a size without an extension");
        if size == 0 {
            let trailers = after.trim_end();
            return if trailers.is_empty() { data } else { data + "\n" + trailers };
        }
        data.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
}
