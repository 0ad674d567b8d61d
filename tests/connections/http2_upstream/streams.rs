//! Streams and connections: which a request takes, when it is sent again, and when a connection
//! ends.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use h2::server::Builder;
use testkit::{
    client::{Client, get},
    http2_frames::kind,
    http2_upstream::Http2Upstream,
};
use tidegate::clock::{Clock, StoreTime};

use super::{NO_RETRIES, ONE_RETRY, ORIGIN, answer, raw_upstream, read_request, start, start_at};

#[test]
fn requests_share_one_connection() {
    let (open, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, peak) = (open.clone(), most.clone());
    let upstream = Http2Upstream::with_handler(Builder::new(), move |mut exchange| {
        let (now, peak) = (now.clone(), peak.clone());
        async move {
            peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            // Until all requests are here.
            while exchange.request.uri.path() == "/wait" && peak.load(SeqCst) < 30 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            exchange.answer(200, "hello");
        }
    });
    let gateway = start(&upstream.target(), ORIGIN);
    // They also connect at the same time.
    let clients: Vec<_> = (0..30)
        .map(|_| {
            let address = gateway.address();
            thread::spawn(move || get(address, "/wait", "").status)
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().expect("no panic"), 200);
    }
    assert_eq!((upstream.connections(), most.load(SeqCst)), (1, 30));
}

#[test]
fn the_servers_bound_on_streams_is_respected() {
    let open = Arc::new(Mutex::new(Vec::new()));
    let seen = open.clone();
    let mut builder = Builder::new();
    builder.max_concurrent_streams(2);
    let upstream = Http2Upstream::with_handler(builder, move |mut exchange| {
        let seen = seen.clone();
        async move {
            seen.lock().expect("no panic").push(exchange.connection);
            while seen.lock().expect("no panic").len() < 7 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            exchange.answer(200, "hello");
        }
    });
    // No request waits behind one that is slow, and none is refused.
    let gateway = start(&upstream.target(), NO_RETRIES);
    let clients: Vec<_> = (0..7)
        .map(|_| {
            let address = gateway.address();
            thread::spawn(move || get(address, "/", "").status)
        })
        .collect();
    for client in clients {
        assert_eq!(client.join().expect("no panic"), 200);
    }
    let seen = open.lock().expect("no panic").clone();
    for connection in &seen {
        assert!(seen.iter().filter(|other| *other == connection).count() <= 2, "{seen:?}");
    }
}

#[test]
fn a_refused_stream_is_sent_again_and_the_connection_kept() {
    let upstream = raw_upstream(|raw, _| {
        let mut count = 0;
        while let Some(stream) = read_request(raw) {
            count += 1;
            if count % 2 == 1 {
                raw.frame(kind::RST_STREAM, 0, stream, &7_u32.to_be_bytes());
            } else {
                answer(raw, stream, b"hello");
            }
        }
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/", "").text(), "hello");
    // Safe for any method, while nothing of the body was read.
    client.send("POST / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "hello");
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_request_that_may_have_been_processed_is_not_sent_again() {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    // INTERNAL_ERROR, CANCEL, and the end of the connection.
    for end in [Some(2_u32), Some(8), None] {
        let count = count.clone();
        let upstream = raw_upstream(move |raw, _| {
            while let Some(stream) = read_request(raw) {
                count.fetch_add(1, SeqCst);
                match end {
                    Some(code) => raw.frame(kind::RST_STREAM, 0, stream, &code.to_be_bytes()),
                    None => return,
                };
            }
        });
        let gateway = start(&upstream.target(), ONE_RETRY);
        let mut client = Client::connect(gateway.address());
        requests.store(0, SeqCst);
        for post in ["Content-Length: 2\r\n\r\nhi", "\r\n"] {
            client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{post}"));
            assert_eq!(client.read_response().status, 502, "{end:?}");
        }
        assert_eq!(requests.load(SeqCst), 2, "{end:?}");
        // A GET is.
        assert_eq!(client.get("/", "").status, 502);
        assert_eq!(requests.load(SeqCst), 4, "{end:?}");
    }
}

#[test]
fn a_goaway_loses_no_request() {
    // Answers two requests, and refuses what follows.
    let upstream = raw_upstream(|raw, _| {
        for _ in 0..2 {
            let Some(stream) = read_request(raw) else { return };
            answer(raw, stream, b"hello");
        }
        let Some(stream) = read_request(raw) else { return };
        let last = (stream - 2).to_be_bytes();
        raw.frame(kind::GOAWAY, 0, 0, &[last, [0; 4]].concat());
        while raw.read_frame().is_some() {}
    });
    let gateway = start(&upstream.target(), NO_RETRIES);
    let mut client = Client::connect(gateway.address());
    for n in 0..7 {
        client.send("POST / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.read_response().text(), "hello", "{n}");
    }
    assert_eq!(upstream.connections(), 4);
}

#[test]
fn a_connection_that_hangs_takes_no_further_requests() {
    let upstream = raw_upstream(|raw, number| {
        while let Some(stream) = read_request(raw) {
            if number > 0 {
                answer(raw, stream, b"hello");
            }
        }
    });
    let gateway = start_at(
        Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        &upstream.target(),
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        upstreams:
          origin: {targets: [{target}], protocol: http2, response_timeout: 1s, retries: 0}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 100MiB}
        ",
    );
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let response = gateway.assert_times_out(Duration::from_secs(1), || client.read_response());
    assert_eq!(response.status, 504);
    assert_eq!(client.get("/", "").text(), "hello");
    assert_eq!(upstream.connections(), 2);
}

#[test]
fn a_connection_that_the_server_closed_is_replaced() {
    let upstream = raw_upstream(|raw, _| {
        let Some(stream) = read_request(raw) else { return };
        answer(raw, stream, b"hello");
        // Closes after one response.
    });
    let gateway = start(&upstream.target(), ONE_RETRY);
    let mut client = Client::connect(gateway.address());
    for _ in 0..5 {
        assert_eq!(client.get("/", "").text(), "hello");
    }
}

#[test]
fn an_idle_connection_is_closed() {
    let upstream = Http2Upstream::hello();
    let gateway = start_at(
        Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        &upstream.target(),
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        upstreams:
          origin: {targets: [{target}], protocol: http2, idle_timeout: 5s}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 100MiB}
        ",
    );
    assert_eq!(get(gateway.address(), "/", "").text(), "hello");
    let ((), took) = gateway.while_time_passes(|| {
        gateway.wait_for_metric("tidegate_upstream_connections ", 0);
    });
    assert!(took >= Duration::from_secs(5), "{took:?}");
    assert_eq!(get(gateway.address(), "/", "").text(), "hello");
    assert_eq!(upstream.connections(), 2);
}
