use std::{
    io::{Read, Write},
    net::Shutdown,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::{Upstream, read_until_closed},
    wait::{eventually, timed},
    yaml::fill,
};

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    Gateway::start(&fill(yaml, [("target", upstream.target())]))
}

/// One worker, hence one pool.
const ORIGIN: &str = "
workers: 1
upstreams:
  origin: {targets: [{target}]}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 1GiB}
";

const NO_RETRIES: &str = "
workers: 1
upstreams:
  origin: {targets: [{target}], retries: 0}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 1GiB}
";

const FIVE_RETRIES: &str = "
workers: 1
upstreams:
  origin: {targets: [{target}], retries: 5}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 1GiB}
";

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn upstream_connections_are_reused_across_clients() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream, ORIGIN);
    for _ in 0..10 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    let mut client = Client::connect(gateway.address());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert_eq!(client.read_response().status, 200);
    assert_eq!(client.get("/", "").status, 200);
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_connection_with_an_unfinished_response_is_not_reused() {
    let upstream = Upstream::with_handler(|request, socket| {
        if request.starts_with(b"GET /long") {
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n";
            return socket.write_all(head.as_bytes()).is_ok()
                && socket.write_all(&vec![b'x'; 1_000_000]).is_ok();
        }
        socket.write_all(HELLO).is_ok()
    });
    let gateway = start(&upstream, ORIGIN);
    for _ in 0..5 {
        let mut client = Client::connect(gateway.address());
        client.send("GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_head().expect("a response").0, 200);
        drop(client);
        assert_eq!(get(gateway.address(), "/", "").text(), "hello");
    }
}

#[test]
fn stale_connections_are_replaced_transparently() {
    // Responds once per connection and closes it shortly after.
    let (closed, wait) = mpsc::channel();
    let upstream = Upstream::with_handler(move |_, socket| {
        let _ = socket.write_all(HELLO);
        let _ = socket.shutdown(Shutdown::Both);
        let _ = closed.send(());
        false
    });
    for (retries, yaml) in [("default", ORIGIN), ("none", NO_RETRIES)] {
        let gateway = start(&upstream, yaml);
        let mut client = Client::connect(gateway.address());
        for round in 0..10 {
            let response = if round % 2 == 0 {
                client.get("/", "")
            } else {
                client
                    .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345")
                    .read_response()
            };
            assert_eq!(
                (response.status, response.text().as_str()),
                (200, "hello"),
                "retries: {retries}, {round}"
            );
            wait.recv_timeout(Duration::from_secs(30)).expect("the upstream has closed");
            // This request gives the close time to reach the gateway.
            assert_eq!(client.get("/nowhere/../../", "").status, 400);
            client = Client::connect(gateway.address());
        }
    }
}

#[test]
fn closed_idle_connections_cost_no_retry_budget() {
    let (upstream, _) = closing_upstream();
    let gateway = start(&upstream, ORIGIN);
    let mut client = Client::connect(gateway.address());
    // More than the budget of 20 retries allows.
    for round in 0..100 {
        assert_eq!(client.get("/", "").status, 200, "{round}");
    }
}

/// An upstream that answers the first request of a connection and closes after it has read the
/// second.
fn closing_upstream() -> (Upstream, Arc<AtomicUsize>) {
    let sum = Arc::new(AtomicUsize::new(0));
    let requests = sum.clone();
    let upstream = Upstream::on_connection(move |socket| {
        let mut buffer = [0; 4096];
        for turn in 0..2 {
            if !matches!(socket.read(&mut buffer), Ok(count) if count > 0) {
                return;
            }
            requests.fetch_add(1, Ordering::SeqCst);
            if turn == 1 {
                return;
            }
            let _ = socket.write_all(HELLO);
        }
    });
    (upstream, sum)
}

#[test]
fn a_get_on_a_closed_connection_is_retried() {
    for method in ["GET", "HEAD", "OPTIONS", "DELETE"] {
        let (upstream, requests) = closing_upstream();
        let gateway = start(
            &upstream,
            "
            workers: 1
            upstreams:
              origin: {targets: [{target}], retries: 1}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 1GiB}
            ",
        );
        let mut client = Client::connect(gateway.address());
        assert_eq!(client.get("/", "").status, 200);
        client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_head().expect("a response").0, 200, "{method}");
        assert_eq!(requests.load(Ordering::SeqCst), 3);
        assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"origin\""), 0);
    }
}

#[test]
fn unsafe_requests_are_not_retried() {
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "PATCH / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let (upstream, requests) = closing_upstream();
        let gateway = start(&upstream, FIVE_RETRIES);
        let mut client = Client::connect(gateway.address());
        assert_eq!(client.get("/", "").status, 200);
        assert_eq!(client.send(request).read_response().status, 502, "{request}");
        assert_eq!(requests.load(Ordering::SeqCst), 2, "{request}");
    }
    let (upstream, requests) = closing_upstream();
    let gateway = start(&upstream, NO_RETRIES);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/", "").status, 200);
    assert_eq!(client.get("/", "").status, 502, "no retry with `retries: 0`");
    assert_eq!(requests.load(Ordering::SeqCst), 2);
}

#[test]
fn nothing_is_retried_after_the_response_has_begun() {
    let upstream = Upstream::with_handler(|_, socket| {
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf").is_err()
    });
    let gateway = start(&upstream, FIVE_RETRIES);
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.try_read_response().is_none());
    assert_eq!(upstream.request_count(), 1);
}

#[test]
fn retries_do_not_multiply_the_load() {
    let upstream = Upstream::with_handler(|_, _| false);
    // The budget begins with the gateway.
    let ((), took) = timed(|| {
        let gateway = start(
            &upstream,
            "
            workers: 1
            upstreams:
              origin: {targets: [{target}], retries: 3, ejection: {max_share: 0}}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 1GiB}
            ",
        );
        let mut client = Client::connect(gateway.address());
        for _ in 0..100 {
            assert_eq!(client.get("/", "").status, 502);
        }
    });
    // 100 requests earn 20 retries, the budget held 10, and each second adds 10.
    let retries = 30 + (took.as_secs_f64() * 10.0).ceil() as usize;
    assert!(upstream.request_count() <= 100 + retries, "{} in {took:?}", upstream.request_count());
    assert!(upstream.request_count() > 100);
}

#[test]
fn a_disconnected_client_cancels_its_upstream_request() {
    let (notify, disconnected) = mpsc::channel();
    let notify = std::sync::Mutex::new(notify);
    let upstream = Upstream::with_handler(move |_, socket| {
        read_until_closed(socket);
        let _ = notify.lock().expect("not poisoned").send(());
        false
    });
    let gateway = start(&upstream, ORIGIN);
    for request in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345",
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let before = upstream.request_count();
        let mut client = Client::connect(gateway.address());
        client.send(request);
        eventually("the request is at the upstream", || upstream.request_count() > before);
        drop(client);
        disconnected
            .recv_timeout(Duration::from_secs(30))
            .expect("the upstream connection is closed");
    }
    gateway.wait_for_metric("tidegate_connections", 0);
    assert_eq!(get(gateway.admin(), "/healthz", "").status, 200);
}

#[test]
fn back_pressure_bounds_memory_for_a_client_that_does_not_read() {
    let (notify, stuck) = mpsc::channel();
    let notify = std::sync::Mutex::new(notify);
    let upstream = Upstream::with_handler(move |_, socket| {
        socket.set_write_timeout(Some(Duration::from_millis(700))).expect("a timeout");
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n");
        let (chunk, mut sum) = (vec![b'x'; 64 * 1024], 0);
        while let Ok(count) = socket.write(&chunk) {
            sum += count;
        }
        let _ = notify.lock().expect("not poisoned").send(sum);
        false
    });
    let gateway = start(&upstream, ORIGIN);
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_head().expect("a response").0, 200);
    let taken: usize =
        stuck.recv_timeout(Duration::from_secs(30)).expect("the writes of the upstream stall");
    assert!(taken < 16_000_000, "{taken} bytes were read for a client that reads none");
    assert!(taken > 100_000);
    let rest = client.read_to_end().expect("the bytes sent, then the end");
    assert!(rest.len() <= taken && rest.len() > 100_000);
}

#[test]
fn back_pressure_bounds_memory_for_an_upstream_that_does_not_read() {
    let (release, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Upstream::on_connection(move |_| {
        let _ = wait.lock().expect("not poisoned").recv();
    });
    let gateway = start(&upstream, ORIGIN);
    let mut client = Client::connect(gateway.address());
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
    client.socket.set_write_timeout(Some(Duration::from_millis(700))).expect("a timeout");
    let chunk = vec![b'x'; 64 * 1024];
    let mut taken = 0;
    while let Ok(count) = client.socket.write(&chunk) {
        taken += count;
    }
    assert!(taken < 16_000_000, "{taken} bytes were read for an upstream that reads none");
    drop(release);
}

#[test]
fn long_bodies_stream_completely_in_both_directions() {
    let upstream = Upstream::on_connection(|socket| {
        let mut buffer = vec![0; 64 * 1024];
        let mut left = 20_000_000;
        let mut head = true;
        while left > 0 {
            let count = socket.read(&mut buffer).expect("the request");
            let mut bytes = &buffer[..count];
            if std::mem::take(&mut head) {
                let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
                bytes = &bytes[end + 4..];
                let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                socket.write_all(head).expect("the gateway reads");
            }
            left -= bytes.len();
            if !bytes.is_empty() {
                let size = format!("{:x}\r\n", bytes.len());
                let chunk = [size.as_bytes(), bytes, b"\r\n"].concat();
                socket.write_all(&chunk).expect("the gateway reads");
            }
        }
        let _ = socket.write_all(b"0\r\n\r\n");
    });
    let gateway = start(&upstream, ORIGIN);
    let mut client = Client::connect(gateway.address());
    let mut writer = client.socket.try_clone().expect("a second handle");
    let body: Vec<u8> = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect();
    let sent = body.clone();
    let writing = std::thread::spawn(move || {
        let head = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", sent.len());
        writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(&sent))
    });
    let response = client.read_response();
    assert!(response.body == body, "an echo of {} bytes came back", response.body.len());
    writing.join().expect("no panic").expect("the whole body is written");
}

/// The body of a request is never sent on a connection without its head.
#[test]
fn a_body_is_never_sent_before_its_head() {
    let first_bytes = Arc::new(Mutex::new(Vec::new()));
    let upstream = Upstream::on_connection({
        let first_bytes = first_bytes.clone();
        move |socket| {
            // Reads only the head, then closes without a response.
            let mut bytes = [0; 4096];
            let count = socket.read(&mut bytes).unwrap_or(0);
            first_bytes.lock().expect("no panic").push(bytes[..count].to_vec());
        }
    });
    let gateway = start(
        &upstream,
        "
        workers: 1
        upstreams:
          origin: {targets: [{target}], retries: 3}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 1GiB}
        ",
    );
    let body = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    for framing in [
        format!("Content-Length: {}\r\n\r\n", body.len()),
        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n", body.len()),
    ] {
        let before = upstream.connections();
        let mut client = Client::connect(gateway.address());
        client.send(format!("PUT / HTTP/1.1\r\nHost: a\r\n{framing}"));
        eventually("the upstream is connected", || upstream.connections() > before);
        let _ = client.socket.write_all(body.as_bytes());
        assert_eq!(client.read_response().status, 502, "no server answers");
    }
    let first_bytes = first_bytes.lock().expect("no panic");
    assert!(first_bytes.iter().all(|bytes| bytes.starts_with(b"PUT / ")), "{first_bytes:?}");
}
