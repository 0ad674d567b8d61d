//! Health checks of targets.

use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    thread,
};

use testkit::{
    client::get,
    gateway::Gateway,
    http2_upstream::Http2Upstream,
    tls::{Authority, TlsUpstream},
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};

/// Answers `/healthz` with the status, and all else with 200.
fn checked(status: &Arc<AtomicU16>) -> Upstream {
    let status = Arc::clone(status);
    Upstream::with_handler(move |request, socket| {
        let is_check = request.starts_with(b"GET /healthz?full=1 ");
        let status = if is_check { status.load(Ordering::SeqCst) } else { 200 };
        let response = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        socket.write_all(response.as_bytes()).is_ok()
    })
}

const ONE_TARGET: &str = "
upstreams:
  origin:
    targets: ['{target}']
    health:
      path: '/healthz?full=1'
      interval: 100ms
      timeout: 100ms
      unhealthy_after: 2
      healthy_after: 2
      status: [200-299, 404]
      host: check.test
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

/// A target that may pass its checks, beside one that does.
const TWO_TARGETS: &str = "
upstreams:
  origin:
    targets: ['{checked}', '{healthy}']
    balance: round_robin
    health:
      path: '/healthz?full=1'
      interval: 100ms
      timeout: 100ms
      unhealthy_after: 2
      healthy_after: 2
      status: [200-299, 404]
      host: check.test
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

#[test]
fn a_target_that_fails_its_checks_gets_no_requests_until_it_passes_them() {
    let status = Arc::new(AtomicU16::new(404));
    let (first, second) = (checked(&status), checked(&Arc::new(AtomicU16::new(204))));
    let yaml = fill(TWO_TARGETS, [("checked", first.target()), ("healthy", second.target())]);
    let gateway = Gateway::start(&yaml);
    eventually("checks are sent", || first.request_count() > 2);
    let check = first.request_texts().swap_remove(0).to_lowercase();
    assert!(check.starts_with("get /healthz?full=1 http/1.1\r\n"), "{check}");
    assert!(check.contains("\r\nhost: check.test\r\n"), "{check}");
    assert_eq!(gateway.metric("tidegate_target_healthy"), 2);

    status.store(500, Ordering::SeqCst);
    gateway.wait_for_metric("tidegate_target_healthy", 1);
    let targets = get(gateway.admin(), "/api/upstreams", "").json();
    let target = &targets["upstreams"][0]["targets"][0];
    assert_eq!(target["status"], "down");
    assert!(target["reason"].as_str().expect("a text").contains("status 500"), "{target}");
    let requests = |upstream: &Upstream| {
        let texts = upstream.request_texts();
        texts.iter().filter(|text| text.starts_with("GET /item")).count()
    };
    for _ in 0..10 {
        assert_eq!(get(gateway.address(), "/item", "").status, 200);
    }
    assert_eq!((requests(&first), requests(&second)), (0, 10));
    // The state outlives a reload.
    gateway.reload(&yaml.replace("unhealthy_after: 2", "unhealthy_after: 3")).expect("it succeeds");
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);

    status.store(200, Ordering::SeqCst);
    gateway.wait_for_metric("tidegate_target_healthy", 2);
}

#[test]
fn a_request_is_a_503_while_all_targets_fail_their_checks() {
    let status = Arc::new(AtomicU16::new(500));
    let upstream = checked(&status);
    let gateway = Gateway::start(&fill(ONE_TARGET, [("target", upstream.target())]));
    gateway.wait_for_metric("tidegate_target_healthy", 0);
    let response = get(gateway.address(), "/item", "");
    assert_eq!(response.status, 503);
    assert_eq!(response.json()["type"], "urn:tidegate:problem:upstreams-down");
    status.store(200, Ordering::SeqCst);
    gateway.wait_for_metric("tidegate_target_healthy", 1);
    assert_eq!(get(gateway.address(), "/item", "").status, 200);
}

#[test]
fn a_silent_target_fails_its_checks() {
    let (silent, working) = (Upstream::silent(), checked(&Arc::new(AtomicU16::new(200))));
    let gateway = Gateway::start(&fill(
        TWO_TARGETS,
        [("checked", silent.target()), ("healthy", working.target())],
    ));
    gateway.wait_for_metric("tidegate_target_healthy", 1);
    let targets = get(gateway.admin(), "/api/upstreams", "").json();
    let reason = targets["upstreams"][0]["targets"][0]["reason"].to_string();
    assert!(reason.contains("no response in time"), "{reason}");
}

#[test]
fn checks_of_an_http2_upstream_are_sent_over_http2() {
    let upstream = Http2Upstream::hello();
    let yaml = "
        upstreams:
          origin:
            targets: ['{target}']
            protocol: http2
            health: {path: '/healthz?full=1', interval: 100ms, timeout: 100ms, host: check.test}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ";
    let gateway = Gateway::start(&fill(yaml, [("target", upstream.target())]));
    eventually("checks are sent", || upstream.request_count() > 3);
    let check = upstream.request_texts().swap_remove(0);
    assert!(check.starts_with("GET http://check.test/healthz?full=1\n"), "{check}");
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);
    let plain = Upstream::hello();
    let gateway = Gateway::start(&fill(yaml, [("target", plain.target())]));
    gateway.wait_for_metric("tidegate_target_healthy", 0);
}

#[test]
fn checks_verify_the_certificate_of_the_target() {
    let directory = tempfile::tempdir().expect("it succeeds");
    let authority = Authority::new("checks");
    let ca = authority.write(directory.path(), "ca.pem").display().to_string();
    let upstream = TlsUpstream::hello(authority.issue(&["127.0.0.1"]).server());
    let target = format!("https://{}", upstream.address);
    let values = [("target", &target), ("ca", &ca)];
    let gateway = Gateway::start(&fill(
        "
        upstreams:
          origin:
            targets: ['{target}']
            tls: {ca: '{ca}'}
            health: {path: /healthz, interval: 100ms, timeout: 100ms}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        values,
    ));
    eventually("checks are sent", || upstream.requests().len() > 2);
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);
    let gateway = Gateway::start(&fill(
        "
        upstreams:
          origin:
            targets: ['{target}']
            tls: {ca: '{ca}', name: other.test}
            health: {path: /healthz, interval: 100ms, timeout: 100ms}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        values,
    ));
    gateway.wait_for_metric("tidegate_target_healthy", 0);
}

#[test]
fn checks_are_sent_to_a_unix_socket() {
    let directory = tempfile::tempdir().expect("it succeeds");
    let path = directory.path().join("app.sock");
    let listener = UnixListener::bind(&path).expect("it succeeds");
    let checks = Arc::new(AtomicU16::new(0));
    let counted = Arc::clone(&checks);
    thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let mut head = [0; 4096];
            let _ = socket.read(&mut head);
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        }
    });
    let target = format!("unix:{}", path.display());
    let gateway = Gateway::start(&fill(ONE_TARGET, [("target", target)]));
    eventually("checks are sent", || checks.load(Ordering::SeqCst) > 3);
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);
}

#[test]
fn the_bytes_read_of_a_check_are_bounded() {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let upstream = Upstream::with_handler(move |request, socket| {
        if !request.starts_with(b"GET /healthz") {
            return socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_ok();
        }
        let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100);
        while socket.write_all(&interim).is_ok() {
            counted.fetch_add(interim.len(), Ordering::SeqCst);
        }
        false
    });
    let gateway = Gateway::start(&fill(
        "
        upstreams:
          origin:
            targets: ['{target}']
            health: {path: /healthz, interval: 1m, timeout: 1m, unhealthy_after: 1}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    ));
    gateway.wait_for_metric("tidegate_target_healthy", 0);
    eventually("the connection is closed", || upstream.connections() > 0);
    // What the buffers of two sockets hold beside.
    assert!(sent.load(Ordering::SeqCst) < 8 << 20, "{sent:?}");
}

#[test]
fn a_check_fails_on_ambiguous_framing_as_a_request_would() {
    for (fields, healthy) in [
        ("Content-Length: 2\r\n", 1),
        ("Content-Length: 7\r\nTransfer-Encoding: chunked\r\n", 0),
        ("Content-Length: 2\r\nContent-Length: 3\r\n", 0),
    ] {
        let upstream = Upstream::with_handler(move |_, socket| {
            let response = format!("HTTP/1.1 200 OK\r\n{fields}\r\nok");
            socket.write_all(response.as_bytes()).is_ok()
        });
        let gateway = Gateway::start(&fill(
            "
            upstreams:
              origin:
                targets: ['{target}']
                health: {path: /healthz, interval: 100ms, timeout: 100ms, unhealthy_after: 1}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
            [("target", upstream.target())],
        ));
        eventually("checks are sent", || upstream.connections() > 2);
        gateway.wait_for_metric("tidegate_target_healthy", healthy);
    }
}
