//! How tunnels over streams end: half by half, when idle, and with the drain.

use std::{
    io::{Read, Write},
    net::{self, Shutdown},
    sync::Arc,
    time::Duration,
};

use testkit::wait::while_clock_advances;
use tidegate::clock::{Clock, StoreTime};

use super::*;

#[test]
fn half_close_is_kept_over_streams() {
    on_protocols(&HTTP2, |protocol| {
        let upstream = Upstream::with_handler(|request, socket| {
            let head = "HTTP/1.1 101 Ok\r\nConnection: upgrade\r\nUpgrade: foo\r\n\r\nahead, ";
            let _ = socket.write_all(head.as_bytes());
            if request.starts_with(b"GET /server") {
                let _ = socket.shutdown(Shutdown::Write);
            }
            let mut received = Vec::new();
            let _ = socket.read_to_end(&mut received);
            let _ = socket.write_all(&received);
            false
        });
        let gateway = start(&upstream);
        run(async {
            let connection = connect(protocol, &gateway).await;
            let mut stream = ask(&connection, extended_connect("/client", "foo")).await;
            stream.send.send_data("question".into(), true).expect("an open stream");
            assert_eq!(stream.receive(usize::MAX).await, b"ahead, question");
            let mut stream = ask(&connection, extended_connect("/server", "foo")).await;
            assert_eq!(stream.receive(usize::MAX).await, b"ahead, ");
            stream.send("still").await;
            stream.send.send_data(Bytes::new(), true).expect("an open stream");
        });
        gateway.wait_for_metric("tidegate_tunnels", 0);
    });
}

#[test]
fn an_idle_stream_is_cut() {
    on_protocols(&HTTP2, |protocol| {
        let gateway = Gateway::for_every_protocol_at(
            &fill(
                "
                upstreams: {app: {targets: ['http://{upstream}'], protocol: http2}}
                routes:
                  - {name: all, match: {path: '/{*rest}'}, upstream: app, tunnel_idle_timeout: 1s}
                ",
                [("upstream", http2_upstream(ExtendedConnect::Allowed))],
            ),
            Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        );
        let runtime = start_runtime();
        let (_connection, mut stream) = run_on(&runtime, async {
            let connection = connect(protocol, &gateway).await;
            let mut stream = ask(&connection, extended_connect("/x", "websocket")).await;
            stream.assert_echoes("hello").await;
            (connection, stream)
        });
        let end = gateway
            .assert_times_out(Duration::from_secs(1), || run_on(&runtime, stream.receive.data()));
        assert!(end.expect("no orderly end").is_err_and(|error| error.is_reset()));
    });
}

#[test]
fn a_stream_lives_until_the_drain_timeout() {
    on_protocols(&HTTP2, |protocol| {
        let upstream = accepting_upstream();
        let gateway = Arc::new(Gateway::for_every_protocol_at(
            &fill(
                "
                drain_timeout: 20s
                upstreams: {app: {targets: [{target}]}}
                routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
                ",
                [("target", upstream.target())],
            ),
            Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        ));
        run(async {
            let connection = connect(protocol, &gateway).await;
            let mut stream = ask(&connection, extended_connect("/x", "websocket")).await;
            let start = gateway.clock.uptime();
            // Only this test moves the clock, so that the echo comes in time on any machine.
            let stopping = thread::spawn({
                let gateway = Arc::clone(&gateway);
                move || gateway.server.stop()
            });
            eventually_async("it drains", async || {
                net::TcpStream::connect(protocol.address(&gateway)).is_err()
            })
            .await;
            gateway.clock.advance(Duration::from_secs(19));
            stream.assert_echoes("still here").await;
            let (end, _) = while_clock_advances(&gateway.clock, stream.receive.data()).await;
            assert!(end.is_none_or(|data| data.is_err()), "it is cut");
            assert!(gateway.clock.uptime() >= start + Duration::from_secs(20));
            gateway.while_time_passes(|| stopping.join().expect("it stops"));
        });
    });
}
