//! Draining HTTP/2 connections: GOAWAY, its acknowledgement, and the timeout.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use h2::Reason;
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_frames::{Outcome, RawHttp2, kind, request as fields},
    upstream::{ResponseGate, Upstream},
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const SECOND: Duration = Duration::from_secs(1);

fn start(yaml: &str) -> Gateway {
    Gateway::start_at(yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)))
}

#[test]
fn requests_in_flight_are_finished_while_stopping() {
    let gate = ResponseGate::default();
    let held = gate.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        held.wait();
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n");
        socket.write_all(&[b'x'; 10_000]).is_ok()
    });
    let gateway = Arc::new(Gateway::start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        drain_timeout: 20s
        upstreams:
          origin: {targets: [{target}]}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", upstream.target())],
    )));
    let mut idle = Http2Client::connect(gateway.address());
    assert_eq!(idle.get("/hello", "").status, 200);
    let mut busy = Http2Client::connect(gateway.address());
    let mut exchanges: Vec<_> =
        (0..5).map(|_| busy.start(request("GET", "/", ""), true).expect("a stream")).collect();
    eventually("all are at the upstream", || upstream.request_count() == 5);
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.stop()
    });
    idle.wait_closed().expect("an orderly end");
    assert!(!busy.is_closed() && !stopping.is_finished());
    gate.open();
    for exchange in &mut exchanges {
        assert_eq!(exchange.finish().expect("a whole response").body.len(), 10_000);
    }
    busy.wait_closed().expect("an orderly end");
    stopping.join().expect("it stops");
}

#[test]
fn a_stream_that_was_opened_before_the_goaway_arrived_is_served() {
    let gateway = Arc::new(start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        workers: 1
        upstreams: {hello: {respond: {body: hi}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    ));
    let mut raw = RawHttp2::connect(gateway.address());
    raw.headers(1, &fields("GET", "/"), true);
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    let mut idle = Client::connect(gateway.address());
    assert_eq!(idle.get("/", "").status, 200);
    let stopping = thread::spawn({
        let gateway = gateway.clone();
        move || gateway.server.stop()
    });
    raw.read_until(kind::GOAWAY).expect("the gateway stops");
    // The GOAWAY is not yet acknowledged when the gateway closes idle connections.
    let ping = raw.read_until(kind::PING).expect("a ping");
    gateway.clock.advance(Duration::from_millis(300));
    assert!(idle.is_closed());
    raw.headers(3, &fields("GET", "/"), true);
    assert_eq!(raw.read_until(kind::HEADERS).expect("a response").stream, 3);
    let is_acknowledgement = 1;
    raw.frame(kind::PING, is_acknowledgement, 0, &ping.payload);
    let last = raw.read_until(kind::GOAWAY).expect("an orderly end").payload;
    assert_eq!(last[..8], [0, 0, 0, 3, 0, 0, 0, 0]);
    gateway.while_time_passes(|| stopping.join().expect("it stops"));
}

#[test]
fn a_client_that_does_not_acknowledge_delays_the_stop_by_a_second() {
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams: {hello: {respond: {body: hi}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    let mut raw = RawHttp2::connect(gateway.address());
    raw.headers(1, &fields("GET", "/"), true);
    assert_eq!(raw.outcome(1), Outcome::Status(200));
    let reading = thread::spawn(move || raw.is_ended());
    gateway.assert_times_out(SECOND, || gateway.server.stop());
    assert!(reading.join().expect("no panic"));
}

#[test]
fn no_request_is_lost_while_stopping() {
    for _ in 0..5 {
        let upstream = Upstream::hello();
        let gateway = Arc::new(Gateway::start(&fill(
            "
            listen: [{address: '127.0.0.1:0', http2: true}]
            drain_timeout: 20s
            upstreams:
              origin: {targets: [{target}]}
              hello: {respond: {body: hi}}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
              - {name: hello, match: {path: /hello}, upstream: hello}
            ",
            [("target", upstream.target())],
        )));
        let answered = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (answered, address) = (answered.clone(), gateway.address());
                thread::spawn(move || {
                    let mut client = Http2Client::connect(address);
                    loop {
                        let Ok(mut exchange) = client.start(request("GET", "/", ""), true) else {
                            return;
                        };
                        match exchange.finish() {
                            Ok(response) => assert_eq!(response.status, 200),
                            // The client knows that it was not processed: its stream is above the
                            // last one of the GOAWAY.
                            Err(error) => {
                                assert!(error.is_go_away() && error.is_remote(), "{error}");
                                assert_eq!(error.reason(), Some(Reason::NO_ERROR), "{error}");
                                return;
                            }
                        }
                        answered.fetch_add(1, SeqCst);
                    }
                })
            })
            .collect();
        eventually("responses arrive", || answered.load(SeqCst) >= 100);
        gateway.stop();
        for client in clients {
            client.join().expect("no request is lost");
        }
        assert_eq!(upstream.request_count(), answered.load(SeqCst), "each was answered");
    }
}

#[test]
fn responses_past_the_drain_timeout_are_cut() {
    let (done, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Upstream::with_handler(move |_, _| {
        let _ = wait.lock().expect("no panic").recv();
        false
    });
    let gateway = Gateway::start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        drain_timeout: 300ms
        upstreams:
          origin: {targets: [{target}]}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", upstream.target())],
    ));
    let mut client = Http2Client::connect(gateway.address());
    let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
    eventually("the request is at the upstream", || upstream.request_count() == 1);
    gateway.stop();
    assert!(exchange.finish().is_err());
    drop(done);
}
