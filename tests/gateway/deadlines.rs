use std::{
    io::{Read, Write},
    net::TcpListener,
    thread,
    time::Duration,
};

use tidegate::clock;

use crate::{
    client::{Client, get},
    gateway::Gateway,
    upstream::{Upstream, read_until_closed},
    wait::timed,
};

/// Every deadline here is 1 s. It may run from a little before what is timed, by a clock that is read
/// every 100 ms.
const LEAST: Duration = Duration::from_millis(500);

/// The machine may be busy; a deadline that was not set would be 10 s or more.
const MOST: Duration = Duration::from_secs(5);

fn start(http: &str, upstream: &str, route: &str) -> Gateway {
    Gateway::start(&format!(
        "http: {{{http}}}
upstreams:
  origin: {{{upstream}}}
  hello: {{respond: {{body: hi}}}}
routes:
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin{route}}}
  - {{name: hello, match: {{path: /hello}}, upstream: hello}}"
    ))
}

/// Asserts that `act`, from the connect or the last request on, ends with a deadline.
fn assert_late<T>(act: impl FnOnce() -> T) -> T {
    let (result, took) = timed(act);
    assert!(took >= LEAST && took < MOST, "{took:?}");
    result
}

#[test]
fn a_silent_connection_is_closed() {
    let gateway = start("head_timeout: 1s", "respond: {body: hi}", "");
    for bytes in ["", "\r\n\r\n"] {
        assert_late(|| {
            let mut client = Client::connect(gateway.address());
            assert!(client.send(bytes).is_closed(), "{bytes:?}");
        });
    }
}

#[test]
fn a_slow_head_is_a_408() {
    let upstream = Upstream::hello();
    let target = format!("targets: [{}]", upstream.target());
    let gateway = start("head_timeout: 1s", &target, "");
    for (before, bytes) in
        [(0, "GET / HTTP/1.1\r\nHo"), (0, "G"), (1, "GET / HTTP/1.1\r\nHost: a\r\n")]
    {
        let (mut client, reply) = assert_late(|| {
            let mut client = Client::connect(gateway.address());
            for _ in 0..before {
                assert_eq!(client.get("/hello", "").status, 200);
            }
            let reply = client.send(bytes).reply();
            (client, reply)
        });
        assert_eq!((reply.status, reply.header("connection")), (408, Some("close")));
        assert_eq!(reply.json()["title"], "Request Timeout");
        assert!(client.is_closed());
    }
    assert_eq!(upstream.raw(), b"");
}

#[test]
fn a_trickled_head_is_a_408_too() {
    let gateway = start("head_timeout: 1s", "respond: {body: hi}", "");
    let reply = assert_late(|| {
        let mut client = Client::connect(gateway.address());
        client.send("GET / HTTP/1.1\r\nX: ");
        client.socket.set_read_timeout(Some(Duration::from_millis(30))).expect("a timeout");
        let start = clock::instant();
        // Until there is an answer, or the end, to be read.
        while client.socket.peek(&mut [0]).is_err() && start.elapsed() < MOST {
            let _ = client.socket.write_all(b"y");
        }
        client.socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        client.reply()
    });
    assert_eq!(reply.status, 408);
}

#[test]
fn a_stalled_body_is_a_408_and_not_the_upstreams_fault() {
    let upstream = Upstream::hello();
    let target = format!("targets: [{}], response_timeout: 30s", upstream.target());
    let gateway = start("body_timeout: 1s", &target, "");
    for body in ["Content-Length: 10\r\n\r\n12345", "Transfer-Encoding: chunked\r\n\r\n5\r\n123"] {
        let (mut client, reply) = assert_late(|| {
            let mut client = Client::connect(gateway.address());
            let reply = client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{body}")).reply();
            (client, reply)
        });
        assert_eq!((reply.status, reply.header("connection")), (408, Some("close")));
        assert!(client.is_ended());
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
}

#[test]
fn a_slow_upstream_is_not_the_clients_stall() {
    // The upstream takes its time to read; the client has sent all that anybody wanted.
    let upstream = Upstream::raw_with(|socket| {
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let mut all = Vec::new();
        // A first read that waits long: nothing is taken from the socket meanwhile.
        let (listener, mut buffer) = (TcpListener::bind("127.0.0.1:0"), vec![0; 1 << 16]);
        let _ = listener.map(|listener| wait(&listener, Duration::from_millis(2500)));
        while !all.ends_with(b"END") {
            match socket.read(&mut buffer) {
                Ok(count) if count > 0 => all.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        }
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        read_until_closed(socket);
    });
    let target = format!("targets: [{}], response_timeout: 30s", upstream.target());
    let gateway = start("body_timeout: 900ms", &target, ", max_body: 100MiB");
    let mut client = Client::connect(gateway.address());
    let mut body = vec![b'x'; 20_000_000];
    body.extend(b"END");
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()));
    client.send(&body);
    assert_eq!(client.reply().status, 200);
}

/// Waits on a socket that stays silent.
fn wait(listener: &TcpListener, time: Duration) {
    let silent = std::net::TcpStream::connect(listener.local_addr().expect("an address"));
    if let Ok(mut silent) = silent {
        silent.set_read_timeout(Some(time)).expect("a timeout");
        let _ = silent.read(&mut [0]);
    }
}

#[test]
fn an_idle_connection_is_closed_whatever_was_asked_on_it() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = format!(
        "targets: ['http://{}'], response_timeout: 200ms",
        silent.local_addr().expect("an address")
    );
    let gateway = start("idle_timeout: 1s", &target, "");
    for (path, status) in [("/hello", 200), ("//", 504)] {
        let mut client = Client::connect(gateway.address());
        assert_eq!(client.get(path, "").status, status);
        assert_late(|| {
            assert_eq!(client.get(path, "").status, status);
            assert!(client.is_closed(), "after {status}");
        });
    }
}

#[test]
fn a_request_between_the_bounds_is_served() {
    let gateway = start(
        "idle_timeout: 1500ms, head_timeout: 1500ms, body_timeout: 1500ms",
        "respond: {body: hi}",
        "",
    );
    let mut client = Client::connect(gateway.address());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // All of them together are longer.
    for _ in 0..6 {
        wait(&listener, Duration::from_millis(200));
        client.send("POST / HTTP/1.1\r\nHost: a\r\n");
        wait(&listener, Duration::from_millis(100));
        client.send("Content-Length: 2\r\n\r\n1");
        wait(&listener, Duration::from_millis(100));
        client.send("2");
        assert_eq!(client.reply().status, 200);
    }
}

#[test]
fn a_reader_that_stands_still_is_cut() {
    let upstream = Upstream::with(|_, socket| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
        socket.write_all(head.as_bytes()).is_ok()
            && (0..100).all(|_| socket.write_all(&vec![b'x'; 1_000_000]).is_ok())
    });
    let target = format!("targets: [{}]", upstream.target());
    let gateway = start("body_timeout: 300ms", &target, "");
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (status, _) = client.head().expect("an answer");
    assert_eq!(status, 200);
    gateway.wait_for("tidegate_connections", 0);
    assert!(client.read_to_end().map_or(0, |all| all.len()) < 100_000_000, "not complete");
}

#[test]
fn an_upstream_that_never_answers_is_a_504() {
    let silent = Upstream::silent();
    let half = Upstream::raw_with(|socket| {
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-");
        read_until_closed(socket);
    });
    let interim = Upstream::raw_with(|socket| {
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n");
        read_until_closed(socket);
    });
    thread::scope(|scope| {
        for upstream in [silent, half, interim] {
            scope.spawn(move || check_late_answers(&upstream));
        }
    });
}

/// Asks twice over one connection what `upstream` never answers.
fn check_late_answers(upstream: &Upstream) {
    let target = format!("targets: [{}], response_timeout: 1s", upstream.target());
    let gateway = start("", &target, "");
    let mut client = Client::connect(gateway.address());
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
    ] {
        let reply = assert_late(|| {
            let first = client.send(request).reply();
            if first.status == 103 { client.reply() } else { first }
        });
        assert_eq!(reply.status, 504, "{}", reply.text());
        assert_eq!(reply.json()["title"], "Gateway Timeout");
    }
    assert_eq!(client.get("/hello", "").status, 200, "the connection goes on");
    let timeouts = "tidegate_upstream_failures_total{upstream=\"origin\",kind=\"timeout\"}";
    assert_eq!(gateway.metric(timeouts), 2);
}

#[test]
fn a_body_in_motion_keeps_the_answers_deadline_away() {
    let upstream = Upstream::hello();
    let target = format!("targets: [{}], response_timeout: 1s", upstream.target());
    let gateway = start("", &target, "");
    let mut client = Client::connect(gateway.address());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n");
    for _ in 0..10 {
        wait(&listener, Duration::from_millis(150));
        client.send("x");
    }
    assert_eq!(client.reply().status, 200);
}

#[test]
fn an_upstream_that_cannot_be_reached_is_a_502() {
    // A port that nobody listens on.
    let gateway = start("", "targets: ['http://127.0.0.1:1']", "");
    let mut client = Client::connect(gateway.address());
    let reply = client.get("/", "");
    assert_eq!((reply.status, reply.json()["title"].as_str()), (502, Some("Bad Gateway")));
    assert!(!reply.text().contains("127.0.0.1"), "{}", reply.text());
    assert_eq!(client.get("/", "").status, 502);
    let failures = "tidegate_upstream_failures_total{upstream=\"origin\",kind=\"connect\"}";
    assert_eq!(gateway.metric(failures), 2);
    // One server that is there is enough.
    let upstream = Upstream::hello();
    let target = format!("targets: ['http://127.0.0.1:1', {}]", upstream.target());
    let gateway = start("", &target, "");
    for _ in 0..4 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
}

#[test]
fn a_request_has_one_deadline_as_a_whole() {
    let silent = Upstream::silent();
    let target = format!("targets: [{}], response_timeout: 30s", silent.target());
    let gateway = start("", &target, ", request_timeout: 1s");
    let ask = |gateway: &Gateway| {
        let mut client = Client::connect(gateway.address());
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").try_reply()
    };
    assert_eq!(assert_late(|| ask(&gateway)).map(|reply| reply.status), Some(504));
    // Once the answer runs that deadline is over, and another holds where it is set: there is no status
    // left to send, so the answer breaks off.
    let endless = Upstream::raw_with(|socket| {
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while socket.write_all(b"1\r\nx\r\n").is_ok() {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            wait(&listener, Duration::from_millis(20));
        }
    });
    let target = format!("targets: [{}]", endless.target());
    let gateway = start("", &target, ", request_timeout: 1s, answer_timeout: 1s");
    assert!(assert_late(|| ask(&gateway)).is_none());
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert!(client.read_to_end().is_err(), "a close would look like the answer's end");
}
