//! How tunnels end: orderly, by a reset, by a timeout, with the drain, and what they hold until
//! then.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use testkit::{
    client::{Client, Stream},
    gateway::Gateway,
    protocol::{HTTP1, Protocol, connect_tls, on_protocols},
    upstream::Upstream,
    wait::{TIMEOUT, eventually},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

use super::{SWITCHING, access_line, assert_echoes, echo_upstream, request, start, upgraded};

#[test]
fn half_close_is_kept_in_both_directions() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = Upstream::with_handler(|request, socket| {
            let _ = socket.write_all(SWITCHING.as_bytes());
            let mut received = Vec::new();
            if request.starts_with(b"GET /server") {
                let _ = socket.write_all(b"done");
                let _ = socket.shutdown(Shutdown::Write);
                let _ = socket.read_to_end(&mut received);
                // Shows on the next connection.
                assert_eq!(received, b"the client continues");
                return false;
            }
            let _ = socket.read_to_end(&mut received);
            let _ = socket.write_all(&[&received[..], b" and the answer"].concat());
            false
        });
        let gateway = start(&upstream);
        let mut client = upgraded(protocol, &gateway, "/client");
        client.send("the question").socket.half_close().expect("a half-close");
        assert_eq!(client.read_to_end().expect("an orderly end"), b"the question and the answer");

        let mut client = upgraded(protocol, &gateway, "/server");
        assert_eq!(client.read_to_end().expect("an orderly end"), b"done");
        gateway.wait_for_metric("tidegate_tunnels", 1);
        client.send("the client ").send("continues");
        client.socket.half_close().expect("a half-close");
        gateway.wait_for_metric("tidegate_tunnels", 0);
    });
}

#[test]
fn a_reset_of_one_side_resets_the_other() {
    let upstream = echo_upstream();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.send(request("/x")).read_head().expect("a response").0, 101);
    reset_on_drop(&client.socket);
    drop(client);
    gateway.wait_for_metric("tidegate_tunnels", 0);

    let broken = Upstream::with_handler(|_, socket| {
        let _ = socket.write_all(format!("{SWITCHING}half").as_bytes());
        let _ = socket.read(&mut [0]);
        reset_on_drop(socket);
        false
    });
    let gateway = start(&broken);
    let mut client = upgraded(Protocol::Http1, &gateway, "/x");
    assert_eq!(client.read_exact(4).as_deref(), Some(&b"half"[..]));
    client.send("x");
    let error = client.read_to_end().expect_err("a reset, not an orderly end");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Sends until the other side reads no more.
fn send_until_blocked(socket: &mut TcpStream) {
    socket.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    while socket.write_all(&[b'x'; 16 * 1024]).is_ok() {}
}

/// Makes the end of this connection a reset.
fn reset_on_drop(socket: &TcpStream) {
    socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO)).expect("an option");
}

#[test]
fn a_reset_ends_a_tunnel_whose_other_side_does_not_read() {
    let (release, hold) = mpsc::channel::<()>();
    let hold = Mutex::new(hold);
    let upstream = Upstream::with_handler(move |request, socket| {
        let _ = socket.write_all(SWITCHING.as_bytes());
        if request.starts_with(b"GET /flood") {
            send_until_blocked(socket);
            reset_on_drop(socket);
            return false;
        }
        let _ = hold.lock().expect("not poisoned").recv();
        false
    });
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.send(request("/x")).read_head().expect("a response").0, 101);
    send_until_blocked(&mut client.socket);
    assert_eq!(gateway.metric("tidegate_tunnels"), 1);
    reset_on_drop(&client.socket);
    drop(client);
    gateway.wait_for_metric("tidegate_tunnels", 0);
    drop(release);

    let mut client = Client::connect(gateway.address());
    assert_eq!(client.send(request("/flood")).read_head().expect("a response").0, 101);
    gateway.wait_for_metric("tidegate_tunnels", 0);
    assert!(client.read_to_end().is_err(), "a reset, not an orderly end");
}

/// The end of the connection without the end of the session: what was sent may be incomplete.
#[test]
fn a_tls_session_that_is_cut_off_resets_the_upstream() {
    let (ended, end) = mpsc::channel();
    let ended = Mutex::new(ended);
    let upstream = Upstream::with_handler(move |_, socket| {
        let _ = socket.write_all(SWITCHING.as_bytes());
        let mut received = Vec::new();
        let result = socket.read_to_end(&mut received).map_err(|error| error.kind());
        let _ = ended.lock().expect("no panic").send((result, received));
        false
    });
    let gateway = start(&upstream);
    for is_orderly in [true, false] {
        let mut client = connect_tls(&gateway);
        assert_eq!(client.send(request("/x")).read_head().expect("a response").0, 101);
        client.send("half");
        if is_orderly {
            client.socket.half_close().expect("a half-close");
        } else {
            client.socket.sock.shutdown(Shutdown::Write).expect("a half-close");
        }
        let (result, received) = end.recv_timeout(TIMEOUT).expect("the end of the stream");
        let expected = if is_orderly { Ok(4) } else { Err(ErrorKind::ConnectionReset) };
        assert_eq!((result, &received[..]), (expected, &b"half"[..]), "orderly: {is_orderly}");
        gateway.wait_for_metric("tidegate_tunnels", 0);
    }
}

#[test]
fn an_idle_tunnel_is_cut_and_a_busy_one_is_not() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("access.log");
        let gateway = Gateway::for_every_protocol_at(
            &fill(
                "
                access_log: {log}
                http: {idle_timeout: 2s, body_timeout: 2s}
                upstreams: {app: {targets: [{target}]}}
                routes:
                  - {name: brief, match: {path: /brief}, upstream: app, tunnel_idle_timeout: 1s}
                  - {name: long, match: {path: /long}, upstream: app}
                ",
                [("log", log.display().to_string()), ("target", upstream.target())],
            ),
            Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        );
        let (mut brief, mut long) =
            (upgraded(protocol, &gateway, "/brief"), upgraded(protocol, &gateway, "/long"));
        // In total longer than any timeout but that of `long`.
        for _ in 0..20 {
            gateway.clock.advance(Duration::from_millis(400));
            assert_echoes(&mut brief, "x");
        }
        gateway.assert_times_out(Duration::from_secs(1), || assert!(brief.is_closed_or_reset()));
        assert_echoes(&mut long, "the default is an hour");
        let line = gateway.while_time_passes(|| access_line(&log, "/brief")).0;
        assert_eq!(
            (&line["cut"], &line["complete"]),
            (&"tunnel_idle".into(), &false.into()),
            "{line}"
        );
    });
}

#[test]
fn a_tunnel_lives_until_the_drain_timeout() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("access.log");
        let gateway = Arc::new(Gateway::for_every_protocol_at(
            &fill(
                "
                access_log: {log}
                drain_timeout: 20s
                upstreams: {app: {targets: [{target}]}}
                routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
                ",
                [("log", log.display().to_string()), ("target", upstream.target())],
            ),
            Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        ));
        let mut client = upgraded(protocol, &gateway, "/x");
        let stopping = thread::spawn({
            let gateway = Arc::clone(&gateway);
            move || gateway.stop()
        });
        let start = gateway.clock.uptime();
        let ten = Duration::from_secs(10);
        eventually("half of the time", || gateway.clock.uptime() > start + ten);
        assert_echoes(&mut client, "still here");
        assert!(client.is_closed_or_reset());
        assert!(gateway.clock.uptime() >= start + 2 * ten);
        assert!(stopping.join().expect("it stops") >= 2 * ten);
        let line = access_line(&log, "/x");
        assert_eq!((&line["cut"], &line["bytes"]), (&"drain_timeout".into(), &10.into()), "{line}");
    });
}

#[test]
fn a_tunnel_that_ends_does_not_delay_the_drain() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let gateway = Arc::new(Gateway::for_every_protocol(&fill(
            "
            drain_timeout: 20s
            upstreams: {app: {targets: [{target}]}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
            ",
            [("target", upstream.target())],
        )));
        let client = upgraded(protocol, &gateway, "/x");
        let stopping = thread::spawn({
            let gateway = Arc::clone(&gateway);
            move || gateway.stop()
        });
        drop(client);
        assert!(stopping.join().expect("it stops") < Duration::from_secs(10));
    });
}

#[test]
fn a_tunnel_holds_its_concurrency_permit() {
    on_protocols(&HTTP1, |protocol| {
        let upstream = echo_upstream();
        let gateway = Gateway::for_every_protocol_at(
            &fill(
                "
                limits: {one: {algorithm: concurrency, quota: 1, window: 3s, key: []}}
                upstreams: {app: {targets: [{target}]}}
                routes: [{name: open, match: {path: /open}, upstream: app, limits: [one]}]
                ",
                [("target", upstream.target())],
            ),
            Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        );
        let mut client = upgraded(protocol, &gateway, "/open");
        let refused = protocol.get(&gateway, "/open", "");
        assert_eq!(refused.status, 429);
        // Leases of 3 s are renewed.
        gateway.while_time_passes(|| {
            let until = gateway.clock.uptime() + Duration::from_secs(10);
            eventually("time passes", || gateway.clock.uptime() > until);
        });
        assert_echoes(&mut client, "open");
        assert_eq!(protocol.get(&gateway, "/open", "").status, 429);
        drop(client);
        gateway.wait_for_metric("tidegate_tunnels", 0);
        let mut client = upgraded(protocol, &gateway, "/open");
        assert_echoes(&mut client, "again");
    });
}
