//! Ejection of failing targets, retries on others, and upstreams of which all targets are down.

use std::{
    io::{Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    port::free_address,
    process::Process,
    protocol::on_every_protocol,
    upstream::{Upstream, read_until_closed},
    wait::eventually,
};
use tidegate::clock::{Clock, StoreTime, instant};

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

fn yaml(targets: &[String], more: &str) -> String {
    format!(
        "upstreams: {{origin: {{targets: ['{}']{more}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        targets.join("', '")
    )
}

fn answering(status: u16) -> Upstream {
    Upstream::with_handler(move |_, socket| {
        let response = format!("HTTP/1.1 {status} X\r\nContent-Length: 5\r\n\r\nfails");
        socket.write_all(response.as_bytes()).is_ok()
    })
}

/// An address that refuses connections.
fn refusing() -> String {
    format!("http://{}", free_address())
}

#[test]
fn a_target_that_refuses_connections_is_ejected_for_all_workers() {
    let upstream = Upstream::hello();
    let refusing = refusing();
    let more = ", balance: round_robin, retries: 1";
    let gateway =
        Gateway::start(&format!("workers: 4\n{}", yaml(&[refusing, upstream.target()], more)));
    for _ in 0..40 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    // Each worker may have met it before the first ejection, no more.
    let refused = gateway.metric("tidegate_target_failures_total{upstream=\"origin\"");
    assert!((1..=4).contains(&refused), "{refused}");
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);
    assert_eq!(upstream.request_count(), 40);
}

#[test]
fn all_down_is_a_503_at_once_and_the_first_response_ends_it() {
    let is_up = Arc::new(AtomicBool::new(false));
    let (answers, calls) = (Arc::clone(&is_up), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&calls);
    let upstream = Upstream::with_handler(move |_, socket| {
        counted.fetch_add(1, Ordering::SeqCst);
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        answers.load(Ordering::SeqCst) && socket.write_all(response).is_ok()
    });
    let gateway = Gateway::start_at(
        &format!("workers: 1\n{}", yaml(&[upstream.target()], ", retries: 0")),
        Clock::simulated(START),
    );
    for _ in 0..5 {
        assert_eq!(get(gateway.address(), "/", "").status, 502);
    }
    let before = calls.load(Ordering::SeqCst);
    let response = get(gateway.address(), "/", "");
    assert_eq!(response.status, 503);
    assert_eq!(response.json()["type"], "urn:tidegate:problem:upstreams-down");
    let retry_after = response.number("retry-after");
    assert!((1..=10).contains(&retry_after), "{retry_after}");
    assert_eq!(response.json()["retry-after"], retry_after);
    assert_eq!(calls.load(Ordering::SeqCst), before, "nothing was sent");
    assert_eq!(
        gateway.metric("tidegate_upstream_refused_total{upstream=\"origin\",reason=\"down\""),
        1
    );
    is_up.store(true, Ordering::SeqCst);
    gateway.clock.advance(Duration::from_secs(retry_after));
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    assert_eq!(get(gateway.address(), "/", "").status, 200);
}

#[test]
fn a_call_of_grpc_to_an_upstream_that_is_down_is_unavailable() {
    let yaml = yaml(&[refusing()], ", retries: 0, ejection: {failures: 1}");
    let gateway = Gateway::for_every_protocol(&yaml);
    get(gateway.address(), "/", "");
    on_every_protocol(|protocol| {
        let response = protocol.get(&gateway, "/", "content-type: application/grpc\r\n");
        if protocol.is_http2() {
            assert_eq!((response.status, response.header("grpc-status")), (200, Some("14")));
        } else {
            assert_eq!(response.status, 503);
        }
        assert!(response.number("retry-after") >= 1);
    });
}

#[test]
fn a_failing_status_is_retried_on_another_target_where_listed() {
    for (more, expected) in [("", 503), (", retry_on: [503]", 200), (", retry_on: [502]", 503)] {
        let (failing, working) = (answering(503), Upstream::hello());
        let more = format!("{more}, balance: round_robin, ejection: {{max_share: 0}}");
        let targets = [failing.target(), working.target()];
        let gateway = Gateway::start(&format!("workers: 1\n{}", yaml(&targets, &more)));
        let mut client = Client::connect(gateway.address());
        let statuses = [client.get("/", "").status, client.get("/", "").status];
        assert_eq!(statuses.iter().max(), Some(&expected), "{more}");
        assert!(statuses.contains(&200));
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
        let statuses = [client.read_response().status, client.read_response().status];
        assert!(statuses.contains(&503), "a POST is not sent again: {statuses:?}");
        let sent = failing.request_texts().into_iter().chain(working.request_texts());
        assert_eq!(sent.filter(|request| request.starts_with("POST")).count(), 2);
    }
}

/// The client has nothing of such a response, so the request may go to another target.
#[test]
fn a_response_whose_head_breaks_off_is_retried_on_another_target() {
    for broken in ["HTTP/1.1 200 OK\r\nContent-Le", "HTTP/1.1 200 OK\r\nbad header\r\n\r\n"] {
        let failing = Upstream::with_handler(move |_, socket| {
            let _ = socket.write_all(broken.as_bytes());
            false
        });
        let upstream = Upstream::hello();
        let targets = [failing.target(), upstream.target()];
        let gateway = Gateway::start(&format!(
            "workers: 1\n{}",
            yaml(&targets, ", balance: round_robin, ejection: {max_share: 0}")
        ));
        for _ in 0..4 {
            assert_eq!(get(gateway.address(), "/", "").status, 200, "{broken}");
        }
        assert_eq!(failing.request_count(), 2, "{broken}");
        let mut client = Client::connect(gateway.address());
        let post = |client: &mut Client| {
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
            client.read_response().status
        };
        let mut statuses = [post(&mut client), post(&mut client)];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 502], "{broken}: not sent twice");
    }
}

/// Their heads are successes, so nothing else would tell.
#[test]
fn a_target_that_breaks_off_its_bodies_is_ejected() {
    let is_whole = Arc::new(AtomicBool::new(false));
    let whole = Arc::clone(&is_whole);
    let cutting = Upstream::with_handler(move |_, socket| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        let is_whole = whole.load(Ordering::SeqCst);
        is_whole && socket.write_all(b" more").is_ok()
    });
    let upstream = Upstream::hello();
    let targets = [cutting.target(), upstream.target()];
    let gateway = Gateway::start_at(
        &format!("workers: 1\n{}", yaml(&targets, ", balance: round_robin, slow_start: 0s")),
        Clock::simulated(START),
    );
    let broken = || {
        let mut client = Client::connect(gateway.address());
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.try_read_response().is_none()
    };
    let count = |requests: usize| (0..requests).filter(|_| broken()).count();
    assert_eq!(count(8), 4);
    is_whole.store(true, Ordering::SeqCst);
    assert_eq!(count(2), 0, "a whole one begins another row");
    is_whole.store(false, Ordering::SeqCst);
    assert_eq!(count(8), 4);
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 0);
    assert_eq!(count(40), 1, "the fifth in a row ejects it");
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
    assert_eq!(gateway.metric("tidegate_target_failures_total"), 9);
}

/// A silence within a declared length is a failure; one within a stream may be meant.
#[test]
fn a_target_that_stalls_within_its_bodies_is_ejected() {
    for (head, ejections) in [
        ("Content-Length: 9\r\n\r\nhalf", 1),
        ("Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", 0),
    ] {
        let stalling = Upstream::with_handler(move |_, socket| {
            let _ = socket.write_all(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes());
            read_until_closed(socket);
            false
        });
        let upstream = Upstream::hello();
        let targets = [stalling.target(), upstream.target()];
        let more = ", balance: round_robin, slow_start: 0s";
        let yaml = yaml(&targets, more)
            .replace("upstream: origin", "upstream: origin, response_idle_timeout: 100ms");
        let gateway = Gateway::start(&format!("workers: 1\n{yaml}"));
        let cut = (0..16).filter(|_| {
            let mut client = Client::connect(gateway.address());
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            client.try_read_response().is_none()
        });
        assert_eq!(cut.count(), if ejections > 0 { 5 } else { 8 }, "{head}");
        assert_eq!(gateway.metric("tidegate_target_ejections_total"), ejections, "{head}");
    }
}

#[test]
fn a_silent_target_is_retried_on_another_one_after_its_timeout() {
    let (silent, working) = (Upstream::silent(), Upstream::hello());
    let more = ", balance: round_robin, retry_on: [timeout], response_timeout: 300ms";
    let targets = [silent.target(), working.target()];
    let gateway = Gateway::for_every_protocol(&format!("workers: 1\n{}", yaml(&targets, more)));
    on_every_protocol(|protocol| {
        let started = instant();
        for _ in 0..4 {
            assert_eq!(protocol.get(&gateway, "/", "").status, 200);
        }
        assert!(started.elapsed() < Duration::from_secs(20));
    });
    // Found after five timeouts in a row.
    assert_eq!(gateway.metric("tidegate_target_failures_total{upstream=\"origin\",target"), 5);
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
}

#[test]
fn a_silent_target_is_ejected_by_the_timeout_of_its_requests() {
    let (silent, working) = (Upstream::silent(), Upstream::hello());
    let gateway = Gateway::start(&format!(
        "workers: 1
upstreams: {{origin: {{targets: ['{}', '{}'], balance: round_robin}}}}
routes: [{{name: all, upstream: origin, request_timeout: 200ms}}]",
        silent.target(),
        working.target()
    ));
    let statuses: Vec<u16> = (0..10).map(|_| get(gateway.address(), "/", "").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 504).count(), 5, "{statuses:?}");
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
    for _ in 0..10 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
}

#[test]
fn retries_of_a_failing_upstream_stay_within_the_budget() {
    let (first, second) = (answering(503), answering(503));
    let more = ", retries: 5, retry_on: [503], ejection: {max_share: 0}";
    let targets = [first.target(), second.target()];
    let gateway = Gateway::start(&yaml(&targets, more));
    let started = instant();
    let mut client = Client::connect(gateway.address());
    for _ in 0..300 {
        assert_eq!(client.get("/", "").status, 503);
    }
    let received = first.request_count() + second.request_count();
    let elapsed = started.elapsed().as_secs_f64();
    // A fifth of 300, 10 at the start, and 10 a second.
    let allowed = 300.0 + 60.0 + 12.0 + 10.0 * elapsed;
    assert!(received as f64 <= allowed, "{received} of {allowed}");
    assert!(received > 320, "{received}");
    assert!(gateway.metric("tidegate_upstream_retry_budget_exhausted_total") > 0);
}

#[test]
fn an_ejection_outlives_a_reload() {
    let (upstream, refusing) = (Upstream::hello(), refusing());
    let targets = [refusing, upstream.target()];
    let gateway = Gateway::start(&yaml(&targets, ", balance: round_robin"));
    for _ in 0..8 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
    gateway.reload(&yaml(&targets, ", balance: round_robin, retries: 0")).expect("it succeeds");
    for _ in 0..20 {
        assert_eq!(get(gateway.address(), "/", "").status, 200, "it is not tried again");
    }
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);
    // Its metrics end with it.
    gateway.reload(&yaml(&targets[1..], "")).expect("it succeeds");
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 0);
}

#[test]
fn the_admin_api_tells_the_health_and_load_of_each_target() {
    let (upstream, refusing) = (Upstream::hello(), refusing());
    let yaml = format!(
        "workers: 1
upstreams: {{origin: {{targets: [{{url: '{}', weight: 3}}, '{refusing}'], balance: peak_ewma}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        upstream.target(),
    );
    let gateway = Gateway::start(&yaml);
    eventually("the failing target is found", || {
        get(gateway.address(), "/", "");
        gateway.metric("tidegate_target_ejections_total") == 1
    });
    let list = || get(gateway.admin(), "/api/upstreams", "").json();
    // A request ends a little after its client has read the response.
    eventually("no request is in flight", || {
        list()["upstreams"][0]["targets"][0]["in_flight"] == 0
    });
    let listed = list();
    let origin = &listed["upstreams"][0];
    assert_eq!((&origin["name"], &origin["balance"]), (&"origin".into(), &"peak_ewma".into()));
    let [good, bad] = [&origin["targets"][0], &origin["targets"][1]];
    assert_eq!((&good["status"], &good["weight"]), (&"up".into(), &3.into()));
    assert!(good["latency_ms"].as_f64().expect("it succeeds") > 0.0 && good["reason"].is_null());
    assert_eq!(good["target"], upstream.address.to_string());
    assert_eq!(bad["status"], "ejected");
    assert!(bad["latency_ms"].is_null(), "it has never responded: {bad}");
    assert!(bad["reason"].as_str().expect("a text").contains("connect"), "{}", bad["reason"]);
    assert!(bad["since_ms"].as_u64().expect("it succeeds") > START.as_unix_ms());
    assert_eq!(good["connections"], 1);
}

#[test]
fn a_change_of_health_is_one_line_with_its_reason() {
    let (upstream, refusing) = (Upstream::hello(), refusing());
    let directory = tempfile::tempdir().expect("it succeeds");
    let yaml = yaml(&[refusing.clone(), upstream.target()], ", balance: round_robin");
    let listen =
        "listen: [{address: '127.0.0.1:0'}]\nadmin: {address: '127.0.0.1:0'}\nworkers: 2\n";
    std::fs::write(directory.path().join("tidegate.yaml"), format!("{listen}{yaml}"))
        .expect("it succeeds");
    let command =
        crate::tidegate_command(directory.path(), &["serve", "--config", "tidegate.yaml"]);
    let mut process = Process::start(command);
    for _ in 0..40 {
        assert_eq!(get(process.address, "/", "").status, 200);
    }
    process.signal(Signal::TERM);
    process.wait_exit();
    let log = process.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("ejected")).collect();
    let [line] = lines[..] else { panic!("{log}") };
    let line: serde_json::Value = serde_json::from_str(line).expect("it succeeds");
    let text = line.to_string();
    for part in ["\"origin\"", &refusing["http://".len()..], "connect failed", "10000"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn failing_targets_mix_no_bodies_and_leave_no_place_taken() {
    let echo = |fails_every: usize| {
        let count = AtomicUsize::new(1);
        Upstream::with_handler(move |request, socket| {
            let path = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default().to_vec();
            let is_failing = count.fetch_add(1, Ordering::SeqCst).is_multiple_of(fails_every);
            let length = path.len() + usize::from(is_failing);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            // One that fails is cut in its body, or before its head.
            let cut = if length.is_multiple_of(2) { &path[..0] } else { &path[..] };
            if is_failing && cut.is_empty() {
                return false;
            }
            let written = socket.write_all(&[head.as_bytes(), cut].concat()).is_ok();
            let rest = &path[cut.len()..];
            written && socket.write_all(rest).is_ok() && !is_failing
        })
    };
    let targets = [echo(usize::MAX), echo(3), echo(7)].map(|upstream| upstream.target());
    let more = ", max_requests: 3, max_pending: 4, ejection: {failures: 2, duration: 100ms}";
    let gateway = Gateway::start(&yaml(&targets, more));
    std::thread::scope(|scope| {
        for thread in 0..12 {
            let gateway = &gateway;
            scope.spawn(move || {
                for number in 0..60 {
                    let path = format!("/{thread}/{}", 10_usize.pow(number % 7));
                    let mut client = Client::connect(gateway.address());
                    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
                    if number % 9 == 0 {
                        continue;
                    }
                    // `None`: cut off, as the upstream's was.
                    let Some(response) = client.try_read_response() else { continue };
                    match response.status {
                        200 => assert_eq!(response.text(), path),
                        status => assert!(matches!(status, 502 | 503), "{status}"),
                    }
                }
            });
        }
    });
    gateway.wait_for_metric("tidegate_target_in_flight", 0);
    gateway.wait_for_metric("tidegate_upstream_pending", 0);
}

#[test]
fn failed_connects_are_retried_as_often_as_retries_says() {
    for (retries, expected) in [(0, 1), (1, 2), (3, 4)] {
        for method in ["GET", "POST"] {
            let targets: Vec<_> = (0..8).map(|_| refusing()).collect();
            let more = format!(", retries: {retries}, ejection: {{max_share: 0}}");
            let gateway = Gateway::start(&format!("workers: 1\n{}", yaml(&targets, &more)));
            let mut client = Client::connect(gateway.address());
            client.send(format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
            assert_eq!(client.read_response().status, 502);
            assert_eq!(gateway.metric("tidegate_target_requests_total"), expected, "{method}");
        }
    }
}

/// Answers the first request of each connection, and closes after it has read the second.
fn closing_after_one() -> Upstream {
    Upstream::on_connection(|socket| {
        let mut bytes = [0; 4096];
        if matches!(socket.read(&mut bytes), Ok(1..)) {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            let _ = socket.read(&mut bytes);
        }
    })
}

#[test]
fn a_request_that_an_idle_connection_loses_is_repeated_or_counted() {
    let upstream = closing_after_one();
    let yaml = yaml(&[upstream.target()], "");
    let gateway = Gateway::start(&format!("workers: 1\n{yaml}"));
    let mut client = Client::connect(gateway.address());
    // RFC 9112, 9.3.1: an idempotent request may be sent again on another connection.
    (0..10).for_each(|_| assert_eq!(client.get("/", "").status, 200));
    assert_eq!(gateway.metric("tidegate_target_failures_total"), 0);
    let mut failed = 0;
    for _ in 0..10 {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
        failed += u64::from(client.read_response().status == 502);
    }
    assert!(failed > 0);
    let counted = "tidegate_target_failures_total{upstream=\"origin\"";
    assert_eq!(gateway.metric(counted), failed);
    assert_eq!(gateway.metric("tidegate_upstream_failures_total"), failed);
}

#[test]
fn what_idle_connections_to_a_failing_target_lose_goes_to_another_one() {
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fails);
    let first = Upstream::with_handler(move |_, socket| {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        !failing.load(Ordering::SeqCst) && socket.write_all(answer).is_ok()
    });
    let second = Upstream::hello();
    let more = ", balance: round_robin, ejection: {max_share: 0}";
    let yaml = yaml(&[first.target(), second.target()], more);
    let gateway = Gateway::start(&format!("workers: 1\n{yaml}"));
    let mut clients: Vec<_> = (0..8).map(|_| Client::connect(gateway.address())).collect();
    // Idle connections to both.
    for _ in 0..2 {
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
    }
    fails.store(true, Ordering::SeqCst);
    for client in &mut clients {
        assert_eq!(client.get("/", "").status, 200);
    }
}
