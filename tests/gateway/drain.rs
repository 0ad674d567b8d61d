use std::{
    io::{ErrorKind, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use testkit::{client::Client, gateway::Gateway, upstream::Upstream, wait::eventually};
use tidegate::clock;

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

/// An upstream that sends each response after a message, but the first half of `/streaming` at once.
fn waiting_upstream() -> (Upstream, mpsc::Sender<()>) {
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::with_handler(move |request, socket| {
        if request.starts_with(b"GET /streaming") {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe");
            let _ = wait.lock().expect("not poisoned").recv();
            return socket.write_all(b"llo").is_ok();
        }
        let _ = wait.lock().expect("not poisoned").recv();
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    (upstream, release)
}

#[test]
fn requests_in_flight_are_finished_and_idle_connections_closed() {
    let (upstream, release) = waiting_upstream();
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
    eventually("all are at the upstream", || {
        upstream.request_count() >= 2 && upstream.connections() >= 3
    });
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.stop()
    });
    assert!(idle.is_closed(), "an orderly close");
    assert!(fresh.is_closed(), "an orderly close");
    eventually("the listener is closed", || {
        let refused = TcpStream::connect(gateway.address()).err();
        refused.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    assert!(!stopping.is_finished());
    for _ in 0..3 {
        release.send(()).expect("the upstream waits");
    }
    for (mut client, path) in clients {
        if path == "/uploading" {
            client.send("345");
        }
        let response = client.try_read_response().unwrap_or_else(|| panic!("no answer to {path}"));
        assert_eq!((response.status, response.text().as_str()), (200, "hello"), "{path}");
        assert!(client.is_closed(), "{path}");
    }
    stopping.join().expect("it stops");
}

#[test]
fn requests_past_the_drain_timeout_are_cut() {
    let (upstream, release) = waiting_upstream();
    let gateway = start(&upstream, "drain_timeout: 300ms");
    let mut client = Client::connect(gateway.address());
    client.send("GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("the request is at the upstream", || upstream.request_count() == 1);
    gateway.stop();
    assert!(client.try_read_response().is_none());
    drop(release);
}

/// What clients observed during the drain.
#[derive(Default)]
struct DrainClients {
    /// Set just before the stop.
    stopped: OnceLock<Instant>,
    /// Responses.
    answered: AtomicUsize,
    /// Connections whose first request got a response.
    served: AtomicUsize,
    /// Connections whose first request was too late and got none.
    unanswered: AtomicUsize,
}

#[test]
fn no_request_is_lost_while_stopping() {
    for _ in 0..5 {
        let upstream = Upstream::hello();
        let gateway = Arc::new(start(&upstream, "drain_timeout: 20s"));
        let load = Arc::<DrainClients>::default();
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let (load, address) = (load.clone(), gateway.address());
                thread::spawn(move || load.ask(address, n % 2 == 0))
            })
            .collect();
        let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        eventually("responses arrive", || count(&load.answered) >= 200);
        load.stopped.set(clock::instant()).expect("one stop");
        gateway.stop();
        for client in clients {
            client.join().expect("no request is lost");
        }
        // A connection that the kernel completed during the close was never accepted. Every accepted
        // connection got a response to its first request if that arrived in time.
        let [_, accepted, ..] = gateway.server.shared.metrics.connections();
        let (served, unanswered) = (count(&load.served) as u64, count(&load.unanswered) as u64);
        assert!(
            served <= accepted && accepted <= served + unanswered,
            "{served} {accepted} {unanswered}"
        );
        assert!(upstream.request_count() >= count(&load.answered));
    }
}

impl DrainClients {
    /// Sends requests until the gateway closes or stops accepting; panics if a response is missing.
    fn ask(&self, address: SocketAddr, keep: bool) {
        while let Ok(socket) = TcpStream::connect(address) {
            let mut client = Client::from_socket(socket);
            let mut turn = 0;
            loop {
                let sent = client.socket.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                let was_late = self.is_late();
                let Some(response) = sent.ok().and_then(|()| client.try_read_response()) else {
                    assert!(turn == 0 || was_late, "a request has no answer (keep: {keep})");
                    self.unanswered.fetch_add(usize::from(turn == 0 && was_late), Ordering::SeqCst);
                    return;
                };
                assert_eq!(response.status, 200);
                self.served.fetch_add(usize::from(turn == 0), Ordering::SeqCst);
                self.answered.fetch_add(1, Ordering::SeqCst);
                if response.header("connection") == Some("close") {
                    return;
                }
                if !keep {
                    break;
                }
                turn += 1;
            }
        }
    }

    /// Whether a request sent now may be too late: the gateway reads for another 100 ms.
    fn is_late(&self) -> bool {
        self.stopped.get().is_some_and(|stop| stop.elapsed() > Duration::from_millis(50))
    }
}
