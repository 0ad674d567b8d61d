use std::{
    io::{ErrorKind, Write},
    net::TcpStream,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use testkit::{
    gateway::Gateway,
    protocol::{AnyClient, PROTOCOLS, Protocol, on_every_protocol},
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock;

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    Gateway::for_every_protocol(&fill(yaml, [("target", upstream.target())]))
}

const LONG_DRAIN: &str = "
drain_timeout: 20s
upstreams:
  origin: {targets: [{target}]}
  hello: {respond: {body: hi}}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin}
  - {name: hello, match: {path: /hello}, upstream: hello}
";

/// An upstream that sends each response after a message, but the first half of `/streaming` at
/// once.
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
    on_every_protocol(|protocol| {
        let (upstream, release) = waiting_upstream();
        let gateway = Arc::new(start(&upstream, LONG_DRAIN));
        let mut idle = protocol.connect(&gateway);
        assert_eq!(idle.get("/hello", "").status, 200);
        let mut fresh = protocol.connect(&gateway);
        let mut clients: Vec<(AnyClient, &str)> = Vec::new();
        for path in ["/waiting", "/streaming", "/uploading"] {
            let mut client = protocol.connect(&gateway);
            if path == "/uploading" {
                client.start("POST", path, "Content-Length: 5\r\n", true).send("12", false);
            } else {
                client.start_get(path);
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
                client.send("345", true);
            }
            let response =
                client.try_read_response().unwrap_or_else(|| panic!("no answer to {path}"));
            assert_eq!((response.status, response.text().as_str()), (200, "hello"), "{path}");
            assert!(client.is_closed(), "{path}");
        }
        stopping.join().expect("it stops");
    });
}

#[test]
fn requests_past_the_drain_timeout_are_cut() {
    on_every_protocol(|protocol| {
        let (upstream, release) = waiting_upstream();
        let gateway = start(
            &upstream,
            "
            drain_timeout: 300ms
            upstreams:
              origin: {targets: [{target}]}
              hello: {respond: {body: hi}}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
              - {name: hello, match: {path: /hello}, upstream: hello}
            ",
        );
        let mut client = protocol.connect(&gateway);
        client.start_get("/waiting");
        eventually("the request is at the upstream", || upstream.request_count() == 1);
        gateway.stop();
        assert!(client.try_read_response().is_none());
        drop(release);
    });
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
        let gateway = Arc::new(start(&upstream, LONG_DRAIN));
        let load = Arc::<DrainClients>::default();
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let (load, gateway) = (load.clone(), gateway.clone());
                thread::spawn(move || load.ask(PROTOCOLS[n / 2], &gateway, n % 2 == 0))
            })
            .collect();
        let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        eventually("responses arrive", || count(&load.answered) >= 200);
        load.stopped.set(clock::instant()).expect("one stop");
        gateway.stop();
        for client in clients {
            client.join().expect("no request is lost");
        }
        // A connection that the kernel completed during the close was never accepted. Every
        // accepted connection got a response to its first request if that arrived in time.
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
    fn ask(&self, protocol: Protocol, gateway: &Gateway, keep: bool) {
        while let Some(mut client) = AnyClient::try_connect(protocol, gateway) {
            let mut turn = 0;
            loop {
                let is_sent = client.try_start("GET", "/", "", false);
                let was_late = self.is_late();
                let response = if is_sent { client.try_read_response() } else { None };
                let Some(response) = response else {
                    let is_over = was_late || client.is_unprocessed();
                    assert!(turn == 0 || is_over, "no answer over {protocol:?} (keep: {keep})");
                    self.unanswered.fetch_add(usize::from(turn == 0 && is_over), Ordering::SeqCst);
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
        // With TLS, the connection may have been accepted.
        self.unanswered.fetch_add(usize::from(protocol.is_tls()), Ordering::SeqCst);
    }

    /// True if a request sent now may be too late: the gateway reads for another 100 ms.
    fn is_late(&self) -> bool {
        self.stopped.get().is_some_and(|stop| stop.elapsed() > Duration::from_millis(50))
    }
}
