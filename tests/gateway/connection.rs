//! The life of a connection and each of its bounds.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::{Upstream, read_until_closed},
    wait::{eventually, sleep, timed},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const HELLO: &str = "upstreams: {hello: {respond: {body: hello}}}
routes: [{name: a, match: {path: /a}, upstream: hello}]";

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    start_at(upstream, yaml, Clock::system())
}

const ORIGIN: &str = "
upstreams:
  origin: {targets: [{target}]}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin}
";

fn start_at(upstream: &Upstream, yaml: &str, clock: Clock) -> Gateway {
    Gateway::start_at(&fill(yaml, [("target", upstream.target())]), clock)
}

#[test]
fn request_trailers_have_no_effect() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "upstreams: {{origin: {{targets: [{}]}}}}
limits: {{small: {{quota: 9, window: 1m, key: ['header:X-Caller'], cost: 'header:X-Cost', max_cost: 3}}}}
routes: [{{name: all, match: {{path: /a}}, upstream: origin, limits: [small]}}]",
        upstream.target()
    ));
    let forbidden = [
        "X-Caller",
        "x_caller",
        "X-Cost",
        "Content-Length",
        "Transfer-Encoding",
        "Host",
        "Authorization",
        "Cookie",
        "X-Forwarded-For",
        "x_forwarded_for",
        "X-Request-Id",
        "Via",
        "Forwarded",
        "Connection",
        "X-RateLimit-Limit",
        "TE",
        "Expect",
    ];
    let trailers = forbidden.map(|name| format!("{name}: 1\r\n")).concat();
    let mut client = Client::connect(gateway.address());
    client.send(format!(
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         5;secret=extension\r\nhello\r\n0;more\r\n{trailers}X-Sum: 1\r\n\r\n"
    ));
    assert_eq!(client.read_response().status, 200);
    let text = &upstream.request_texts()[0];
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    assert_eq!(body, "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", "{head}");
}

#[test]
fn options_asterisk_is_answered_by_the_gateway() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream, ORIGIN);
    let mut client = Client::connect(gateway.address());
    for target in ["*", "http://b.test", "http://b.test:80"] {
        let asked = format!("OPTIONS {target} HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n");
        let response = client.send(asked).read_response();
        assert!((200..300).contains(&response.status), "{target}: {}", response.head);
        assert!(response.header("allow").is_some(), "{}", response.head);
    }
    assert_eq!(client.get("/a", "").status, 200);
    assert_eq!(upstream.request_count(), 1, "only the GET is forwarded");
}

#[test]
fn hosts_are_limited_to_255_bytes_and_one_trailing_dot() {
    let gateway = Gateway::start(
        "upstreams: {named: {respond: {body: named}}, other: {respond: {body: other}}}
routes:
  - {name: named, match: {host: api.test, path: /a}, upstream: named}
  - {name: v6, match: {host: '[2001:db8::1]', path: /a}, upstream: named}
  - {name: other, match: {path: /a}, upstream: other}",
    );
    let ask = |host: &str| {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET /a HTTP/1.1\r\nHost: {host}\r\n\r\n")).read_response()
    };
    for host in ["api.test", "API.test.", "api.test:80", "api.test.:80", "[2001:db8::1]:80"] {
        assert_eq!(ask(host).text(), "named", "{host}");
    }
    let long = format!("{}b", "a.".repeat(127));
    assert_eq!((long.len(), ask(&long).text().as_str()), (255, "other"));
    for host in [&format!("{long}c"), "api.test..", ".", "[2001:db8::1", "2001:db8::1"] {
        assert_eq!(ask(host).status, 400, "{host}");
    }
}

#[test]
fn head_answered_204_with_a_length_is_a_204_without_one() {
    let upstream = Upstream::with_response("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n");
    let gateway = start(&upstream, ORIGIN);
    let mut client = Client::connect(gateway.address());
    for _ in 0..3 {
        client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (status, head) = client.read_head().expect("a response");
        assert_eq!(status, 204);
        assert!(!head.to_ascii_lowercase().contains("content-length"), "{head}");
    }
}

#[test]
fn a_loop_through_the_gateway_is_a_508() {
    let upstream = Upstream::hello();
    let yaml = |target: &str, protocol: &str| {
        format!(
            "listen: [{{address: '127.0.0.1:0', http2: true}}]
upstreams: {{origin: {{targets: ['{target}'], protocol: {protocol}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]"
        )
    };
    let gateway = Gateway::start(&yaml(&upstream.target(), "http1"));
    assert_eq!(get(gateway.address(), "/", "Via: 1.0 other\r\n").status, 200);
    let text = upstream.request_texts()[0].clone();
    assert!(text.contains("Via: 1.0 other\r\n") && text.contains("\r\nvia: 1.1 tidegate-"));
    for protocol in ["http1", "http2"] {
        let target = format!("http://{}", gateway.address());
        gateway.reload(&yaml(&target, protocol)).expect("sound rules");
        let before = gateway.metric("tidegate_requests_total");
        assert_eq!(get(gateway.address(), "/", "").status, 508, "{protocol}");
        gateway.wait_for_metric("tidegate_requests_total", before + 2);
    }
}

#[test]
fn via_has_the_version_that_the_client_spoke() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        upstream.target()
    ));
    for version in ["1.0", "1.1"] {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_response().status, 200);
        let received = upstream.request_texts().pop().expect("a request");
        assert!(received.contains(&format!("\r\nvia: {version} tidegate-")), "{received}");
    }
}

#[test]
fn connections_are_bounded_exactly_over_all_workers() {
    for workers in [2, 4] {
        let gateway =
            Gateway::start(&format!("workers: {workers}\nhttp: {{max_connections: 5}}\n{HELLO}"));
        let connect = |_| {
            let mut client = Client::connect(gateway.address());
            client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
            client.socket.set_nonblocking(true).expect("a socket");
            client
        };
        let mut waiting: Vec<_> = (0..13).map(connect).collect();
        let mut served: Vec<Client> = Vec::new();
        let has_answer = |client: &Client| client.socket.peek(&mut [0]).is_ok();
        for left in [8, 7, 6, 5, 4, 3, 2, 1, 0] {
            eventually("all permitted connections are open", || {
                waiting.iter().filter(|client| has_answer(client)).count() + served.len() >= 5
            });
            // The gauge counts the five accepted connections, not those in the backlog.
            let (now, later): (Vec<_>, Vec<_>) = waiting.into_iter().partition(has_answer);
            served.extend(now);
            waiting = later;
            assert_eq!((served.len(), waiting.len()), (5, left), "{workers} workers");
            assert_eq!(gateway.metric("tidegate_connections "), 5);
            drop(served.pop());
        }
    }
}

#[test]
fn connections_above_the_limit_per_client_are_closed_and_counted() {
    let yaml = |more: &str| format!("http: {{max_connections_per_client: 3}}\n{more}\n{HELLO}");
    let gateway = Gateway::start(&yaml(""));
    let refused = || gateway.metric("tidegate_connections_refused_total");
    let mut all: Vec<_> = (0..3).map(|_| Client::connect(gateway.address())).collect();
    assert!(all.iter_mut().all(|client| client.get("/a", "").status == 200));
    for count in 1..=4 {
        assert!(Client::connect(gateway.address()).is_closed_or_reset());
        assert_eq!(refused(), count);
    }
    assert!(all.iter_mut().all(|client| client.get("/a", "").status == 200));
    drop(all.pop());
    gateway.wait_for_metric("tidegate_connections ", 2);
    all.push(Client::connect(gateway.address()));
    assert_eq!(all[2].get("/a", "").status, 200);
    // A trusted proxy carries many clients.
    let gateway = Gateway::start(&yaml("client: {trusted_proxies: [127.0.0.0/8]}"));
    let mut all: Vec<_> = (0..9).map(|_| Client::connect(gateway.address())).collect();
    assert!(all.iter_mut().all(|client| client.get("/a", "").status == 200));
}

#[test]
fn the_last_request_of_a_connection_gets_connection_close() {
    let gateway = Gateway::start(&format!("http: {{max_requests_per_connection: 3}}\n{HELLO}"));
    let mut client = Client::connect(gateway.address());
    client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(5));
    for closes in [None, None, Some("close")] {
        assert_eq!(client.read_response().header("connection"), closes);
    }
    assert!(client.is_closed_or_reset());
}

#[test]
fn disabled_timeouts_never_fire() {
    let upstream = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nh");
        read_until_closed(socket) == 0
    });
    let bounded = start(
        &upstream,
        "
        http: {head_timeout: 300ms, idle_timeout: 300ms, body_timeout: 300ms}
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, response_idle_timeout: 300ms}
        ",
    );
    let endless = start(
        &upstream,
        "
        http: {head_timeout: off, idle_timeout: off, body_timeout: off}
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            response_idle_timeout: off
            request_timeout: off
        ",
    );
    let open = |gateway: &Gateway| {
        [
            "",
            "GET / HT",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n1",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        ]
        .map(|sent| {
            let mut client = Client::connect(gateway.address());
            client.send(sent);
            client
        })
    };
    let mut on_endless = open(&endless);
    // When the bounded connections have ended, the endless ones have waited at least as long.
    for mut client in open(&bounded) {
        let _ = client.read_to_end();
    }
    for client in &mut on_endless {
        client.socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        let mut buffer = [0; 4096];
        let end = loop {
            match client.socket.read(&mut buffer) {
                Ok(0) => break None,
                Ok(_) => {}
                Err(error) => break Some(error.kind()),
            }
        };
        let waits = [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut];
        assert!(end.is_some_and(|kind| waits.contains(&kind)), "{end:?}");
    }
}

#[test]
fn event_streams_may_outlast_the_request_timeout() {
    const EVENT: &[u8] = b"9\r\ndata: x\n\n\r\n";
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let (next, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::with_handler(move |_, socket| {
        let _ = socket.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        let wait = wait.lock().expect("not poisoned");
        (0..12).all(|_| wait.recv().is_ok() && socket.write_all(EVENT).is_ok())
            && socket.write_all(b"0\r\n\r\n").is_ok()
    });
    let gateway = start_at(
        &upstream,
        "
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            request_timeout: 300ms
            response_idle_timeout: 900ms
        ",
        clock.clone(),
    );
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: gateway.test\r\n\r\n");
    assert_eq!(client.read_head().expect("a head").0, 200);
    for _ in 0..12 {
        clock.advance(Duration::from_millis(100));
        next.send(()).expect("the upstream waits");
        assert_eq!(client.read_exact(EVENT.len()).expect("an event"), EVENT);
    }
    assert_eq!(client.read_exact(5).expect("the end"), b"0\r\n\r\n");
    assert!(
        clock.uptime().as_duration() > Duration::from_secs(1),
        "longer than the request timeout"
    );
}

#[test]
fn a_stalled_response_is_cut() {
    let upstream = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        read_until_closed(socket) == 0
    });
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = start_at(
        &upstream,
        "
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, response_idle_timeout: 300ms}
        ",
        clock,
    );
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_head().expect("a head").0, 200);
    let (rest, took) = gateway.while_time_passes(|| client.read_to_end());
    assert!(rest.is_err() || rest.is_ok_and(|rest| rest == b"hello"));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// The URL of a listener with a full backlog, where connects time out, and the sockets that fill it.
fn start_unreachable() -> (String, Vec<socket2::Socket>) {
    use socket2::{Domain, Socket, Type};
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let listener = socket();
    listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    listener.listen(0).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let mut sockets = vec![listener];
    for _ in 0..4 {
        let filling = socket();
        filling.set_nonblocking(true).expect("a socket");
        let _ = filling.connect(&address);
        sockets.push(filling);
    }
    let port = address.as_socket().expect("an address").port();
    (format!("http://127.0.0.1:{port}"), sockets)
}

#[test]
fn connects_and_retries_count_towards_the_request_timeout() {
    let (unreachable, _sockets) = start_unreachable();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let upstream_clock = clock.clone();
    // Each attempt takes 600 ms of the gateway's clock, fails, and may be retried.
    let closing = Upstream::on_connection(move |socket| {
        let _ = socket.read(&mut [0; 4096]);
        let end = upstream_clock.uptime() + Duration::from_millis(600);
        while upstream_clock.uptime() < end {
            sleep(Duration::from_millis(1));
        }
    });
    for target in [
        format!("targets: ['{unreachable}'], connect_timeout: 30s"),
        format!("targets: [{}], retries: 10", closing.target()),
    ] {
        let yaml = format!(
            "upstreams: {{origin: {{{target}}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: origin, request_timeout: 1s}}]"
        );
        let gateway = Gateway::start_at(&yaml, clock.clone());
        let (response, took) = gateway.while_time_passes(|| get(gateway.address(), "/a", ""));
        assert_eq!(response.status, 504, "{target}");
        assert!(took > Duration::from_millis(700) && took < Duration::from_secs(4), "{took:?}");
    }
}

#[test]
fn a_slow_body_past_the_request_timeout_is_a_client_error() {
    let upstream = Upstream::hello();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = start_at(
        &upstream,
        "
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, request_timeout: 1s}
        ",
        clock,
    );
    let mut client = Client::connect(gateway.address());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    let mut writer = client.socket.try_clone().expect("a socket");
    let trickling = thread::spawn(move || {
        while writer.write_all(b"x").is_ok() {
            sleep(Duration::from_millis(1));
        }
    });
    let (response, _) = gateway.while_time_passes(|| client.read_response());
    assert_eq!(response.status, 408);
    drop(client.socket.shutdown(std::net::Shutdown::Both));
    trickling.join().expect("it only writes");
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
}

#[test]
fn only_the_first_request_waits_for_an_unreachable_server() {
    let (unreachable, _sockets) = start_unreachable();
    for bad in [unreachable.as_str(), "http://127.0.0.1:1"] {
        let good = Upstream::hello();
        let gateway = Gateway::start(&format!(
            "workers: 1
upstreams: {{origin: {{targets: ['{bad}', {}], connect_timeout: 1s}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: origin}}]",
            good.target()
        ));
        let mut slow = 0;
        for _ in 0..20 {
            let (response, took) = timed(|| get(gateway.address(), "/a", ""));
            assert_eq!(response.status, 200);
            slow += usize::from(took > Duration::from_millis(800));
        }
        assert!(slow <= 1, "{bad}: {slow} requests waited for it");
        let retries = gateway.metric("tidegate_upstream_retries_total{upstream=\"origin\"");
        assert_eq!(retries, 1, "{bad}: the retry is counted");
    }
}

#[test]
fn a_head_begun_before_the_drain_is_answered() {
    let gateway = Arc::new(Gateway::start(&format!("drain_timeout: 20s\n{HELLO}")));
    let mut client = Client::connect(gateway.address());
    client.send("GET /a HTTP/1.1\r\nHo");
    gateway.wait_for_metric("tidegate_connections ", 1);
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.stop()
    });
    eventually("the listener is closed", || TcpStream::connect(gateway.address()).is_err());
    client.send("st: a\r\n\r\n");
    let response = client.read_response();
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    assert!(client.is_closed());
    stopping.join().expect("it stops");
}

#[test]
fn a_slow_sender_receives_its_refusal() {
    let upstream = Upstream::hello();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = start_at(
        &upstream,
        "
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 1KiB}
        ",
        clock.clone(),
    );
    let mut client = Client::connect(gateway.address());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
    for _ in 0..50 {
        client.send([b'x'; 1000]);
        clock.advance(Duration::from_millis(100));
    }
    assert_eq!(client.read_response().status, 413);
    assert!(client.is_closed(), "an orderly close");
}

#[test]
fn a_disconnect_is_detected_behind_buffered_bytes() {
    let (notify, disconnected) = mpsc::channel();
    let notify = Mutex::new(notify);
    let upstream = Upstream::on_connection(move |socket| {
        read_until_closed(socket);
        let _ = notify.lock().expect("not poisoned").send(());
    });
    let gateway = start(&upstream, ORIGIN);
    for behind in ["", "GET /next HTTP/1.1\r\nHost: a\r\n\r\n", "GET /ne"] {
        let connections = upstream.connections();
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n\r\n{behind}"));
        eventually("the request is at the upstream", || upstream.connections() > connections);
        if !behind.is_empty() {
            // Also for bytes that arrive after the request was forwarded.
            client.send(behind);
        }
        drop(client);
        disconnected
            .recv_timeout(Duration::from_secs(5))
            .expect("the upstream connection is closed");
    }
    gateway.wait_for_metric("tidegate_connections ", 0);
}
