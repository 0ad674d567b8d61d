//! What one side of a tunnel sends right before it resets its stream reaches the other side.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// The tunnels at the same time on one connection: more than the gateway drives in one turn.
const TUNNELS: usize = 50;
/// The tunnels on the path `/count` that have received `last` before their end.
pub(super) static RECEIVED: AtomicUsize = AtomicUsize::new(0);

/// Sends `last` and, as soon as it is written, a reset.
async fn send_last(stream: &mut SendStream<Bytes>) {
    let _ = stream.send_data("last".into(), false);
    for _ in 0..10 {
        // The connection sends the data. A reset would discard it.
        tokio::task::yield_now().await;
    }
    stream.send_reset(Reason::CONNECT_ERROR);
}

/// Counts the tunnel in [`RECEIVED`] if `last` arrives before its end, which is not orderly.
pub(super) async fn count(mut body: RecvStream) {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        match data {
            Ok(data) => all.extend_from_slice(&data),
            Err(_) if all == b"last" => {
                RECEIVED.fetch_add(1, Ordering::Relaxed);
                return;
            }
            Err(_) => return,
        }
    }
}

async fn open(connection: &Connection, path: &str) -> Vec<Stream> {
    let mut streams = Vec::new();
    for _ in 0..TUNNELS {
        streams.push(ask(connection, extended_connect(path, "websocket")).await);
    }
    streams
}

#[test]
fn bytes_before_resets_of_many_streams_of_the_upstream_arrive() {
    let server = http2_upstream(ExtendedConnect::Allowed);
    on_protocols(&HTTP2, |protocol| {
        let gateway = start_to_http2(server);
        run(async {
            let connection = connect(protocol, &gateway).await;
            let mut streams = open(&connection, "/reset").await;
            for stream in &mut streams {
                stream.send("go").await;
            }
            for (n, stream) in streams.iter_mut().enumerate() {
                let data = stream.receive.data().await.expect("no orderly end");
                assert_eq!(data.expect("data before the reset"), "last", "{n}");
                let end = stream.receive.data().await;
                assert!(end.is_some_and(|data| data.is_err()), "it is no orderly end");
            }
        });
        gateway.wait_for_metric("tidegate_tunnels", 0);
    });
}

#[test]
fn bytes_before_resets_of_many_streams_of_the_client_arrive() {
    let server = http2_upstream(ExtendedConnect::Allowed);
    on_protocols(&HTTP2, |protocol| {
        let gateway = start_to_http2(server);
        let expected = RECEIVED.load(Ordering::Relaxed) + TUNNELS;
        run(async {
            let connection = connect(protocol, &gateway).await;
            let mut streams = open(&connection, "/count").await;
            let sending = streams.iter_mut().map(|stream| send_last(&mut stream.send));
            futures_util::future::join_all(sending).await;
            eventually_async("all are received", async || {
                RECEIVED.load(Ordering::Relaxed) >= expected
            })
            .await;
            assert_eq!(RECEIVED.load(Ordering::Relaxed), expected);
        });
        gateway.wait_for_metric("tidegate_tunnels", 0);
    });
}

#[test]
fn bytes_before_a_reset_of_the_upstream_arrive() {
    let server = http2_upstream(ExtendedConnect::Allowed);
    on_protocols(&HTTP2, |protocol| {
        let gateway = start_to_http2(server);
        run(async {
            let connection = connect(protocol, &gateway).await;
            for _ in 0..20 {
                let request = extended_connect("/reset", "websocket");
                let mut stream = ask(&connection, request).await;
                stream.send("go").await;
                assert_eq!(stream.receive(4).await, b"last");
                let end = stream.receive.data().await;
                assert!(end.is_some_and(|data| data.is_err()), "it is no orderly end");
            }
        });
    });
}

#[test]
fn a_reset_stream_ends_its_tunnel() {
    on_protocols(&HTTP2, |protocol| {
        let upstream = accepting_upstream();
        let gateway = Gateway::for_every_protocol(&fill(
            "
            limits: {one: {algorithm: concurrency, quota: 1, window: 3s, key: []}}
            upstreams: {app: {targets: [{target}]}}
            routes: [{name: open, match: {path: /open}, upstream: app, limits: [one]}]
            ",
            [("target", upstream.target())],
        ));
        run(async {
            let connection = connect(protocol, &gateway).await;
            let mut stream = ask(&connection, extended_connect("/open", "websocket")).await;
            assert_eq!(ask(&connection, extended_connect("/open", "websocket")).await.status, 429);
            stream.send.send_reset(Reason::CANCEL);
            eventually_async("the permit is free", async || {
                ask(&connection, extended_connect("/open", "websocket")).await.status == 200
            })
            .await;
        });
    });
}
