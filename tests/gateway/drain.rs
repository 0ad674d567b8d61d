use std::{
    io::{ErrorKind, Write},
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use crate::{client::Client, gateway::Gateway, upstream::Upstream};

fn start(upstream: &Upstream, more: &str) -> Gateway {
    Gateway::start(&format!(
        "{more}
upstreams:
  origin: {{targets: [{}]}}
  hello: {{respond: {{body: hi}}}}
routes:
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}
  - {{name: hello, match: {{path: /hello}}, upstream: hello}}",
        upstream.target()
    ))
}

/// Answers the head at once and the body when it is told to.
fn held() -> (Upstream, mpsc::Sender<()>) {
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::with(move |request, socket| {
        if request.starts_with(b"GET /streaming") {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe");
            let _ = wait.lock().expect("no test panics with it").recv();
            return socket.write_all(b"llo").is_ok();
        }
        let _ = wait.lock().expect("no test panics with it").recv();
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    (upstream, release)
}

#[test]
fn requests_in_flight_are_finished_and_idle_connections_closed() {
    let (upstream, release) = held();
    let gateway = Arc::new(start(&upstream, "drain_timeout: 20s"));
    let mut idle = Client::connect(gateway.address());
    assert_eq!(idle.get("/hello", "").status, 200);
    let mut fresh = Client::connect(gateway.address());
    let mut clients: Vec<(Client, &str)> = Vec::new();
    for path in ["/waiting", "/streaming", "/uploading"] {
        let mut client = Client::connect(gateway.address());
        if path == "/uploading" {
            client.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12"));
        } else {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        }
        clients.push((client, path));
    }
    while upstream.count() < 2 || upstream.connections() < 3 {
        thread::yield_now();
    }
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.server.stop()
    });
    assert!(idle.is_closed(), "in order");
    assert!(fresh.is_closed(), "in order");
    let refused = TcpStream::connect(gateway.address()).expect_err("nobody accepts any more");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert!(!stopping.is_finished());
    for _ in 0..3 {
        release.send(()).expect("the upstream waits");
    }
    for (mut client, path) in clients {
        if path == "/uploading" {
            client.send("345");
        }
        let reply = client.try_reply().unwrap_or_else(|| panic!("no answer to {path}"));
        assert_eq!((reply.status, reply.text().as_str()), (200, "hello"), "{path}");
        assert!(client.is_closed(), "{path}");
    }
    stopping.join().expect("it stops");
}

#[test]
fn what_does_not_finish_in_time_is_cut() {
    let (upstream, release) = held();
    let gateway = start(&upstream, "drain_timeout: 300ms");
    let mut client = Client::connect(gateway.address());
    client.send("GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n");
    while upstream.count() == 0 {
        thread::yield_now();
    }
    gateway.server.stop();
    assert!(client.try_reply().is_none());
    drop(release);
}

#[test]
fn no_request_is_lost_while_stopping() {
    for _ in 0..5 {
        let upstream = Upstream::hello();
        let gateway = Arc::new(start(&upstream, "drain_timeout: 20s"));
        let answered = Arc::new(AtomicUsize::new(0));
        let served = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let (answered, served) = (answered.clone(), served.clone());
                let address = gateway.address();
                thread::spawn(move || load(address, n % 2 == 0, &answered, &served))
            })
            .collect();
        while answered.load(Ordering::SeqCst) < 200 {
            thread::yield_now();
        }
        gateway.server.stop();
        for client in clients {
            client.join().expect("no request is lost");
        }
        // A connection that the kernel made in the instant of the close was never accepted; all that
        // were accepted had a request, and its answer.
        let [_, accepted, _] = gateway.server.shared.metrics.connections();
        assert_eq!(served.load(Ordering::SeqCst) as u64, accepted);
        assert!(upstream.count() >= answered.load(Ordering::SeqCst));
    }
}

/// Asks until the gateway says that it closes, or nobody accepts; panics if an answer is missing.
fn load(address: std::net::SocketAddr, keep: bool, answered: &AtomicUsize, served: &AtomicUsize) {
    loop {
        let Ok(socket) = TcpStream::connect(address) else { return };
        let mut client = Client::adopt(socket);
        for turn in 0.. {
            let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
            let sent = client.socket.write_all(request.as_bytes());
            let reply = sent.ok().and_then(|()| client.try_reply());
            if turn == 0 {
                served.fetch_add(usize::from(reply.is_some()), Ordering::SeqCst);
            }
            let Some(reply) = reply else {
                if turn == 0 {
                    return;
                }
                panic!("an accepted request has no answer (keep: {keep})");
            };
            assert_eq!(reply.status, 200);
            answered.fetch_add(1, Ordering::SeqCst);
            if reply.header("connection") == Some("close") {
                return;
            }
            if !keep {
                break;
            }
        }
    }
}
