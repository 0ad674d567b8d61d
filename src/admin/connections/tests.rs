use axum::{
    body::Bytes,
    routing::{get, put},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use std::sync::Arc;

use super::*;
use crate::{
    admin::{AdminListener, BoundAddress},
    config::{AdminAddress, ListenAddress},
};

const SHORT: Duration = Duration::from_millis(200);

fn bounds() -> ConnectionBounds {
    ConnectionBounds {
        connections: 4,
        head_timeout: SHORT,
        request_timeout: SHORT,
        write_timeout: SHORT,
        max_body: 64,
    }
}

/// Runs `test` against a server with these bounds.
async fn with_server<T>(
    bounds: ConnectionBounds,
    test: impl AsyncFnOnce(std::net::SocketAddr) -> T,
) -> T {
    let listener = AdminListener::open(
        &AdminAddress::Tcp(ListenAddress(([127, 0, 0, 1], 0).into())),
        Arc::default(),
    );
    let listener = listener.unwrap();
    let Some(BoundAddress::Tcp(address)) = listener.address() else { panic!() };
    let listener = listener.into_accepting().unwrap();
    let leave = CancellationToken::new();
    let large = Bytes::from(vec![b'x'; 32 * 1024 * 1024]);
    let router = Router::new()
        .route("/", get(async || "ok"))
        .route("/large", get(async || large))
        .route("/body", put(async |body: Bytes| body.len().to_string()));
    tokio::select! {
        never = serve(listener, router, || None, bounds, leave) => match never {},
        result = test(address) => result,
    }
}

async fn send(address: std::net::SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Everything that is received until the connection is closed, which must be soon.
async fn until_closed(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    let read = stream.read_to_end(&mut all);
    // A reset also closes it.
    let _ = timeout(SHORT * 10, read).await.expect("the connection is not closed");
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test]
async fn an_idle_or_incomplete_request_is_closed() {
    with_server(bounds(), async |address| {
        for (sent, expected) in [
            ("", ""),
            ("GET / HT", ""),
            ("GET / HTTP/1.1\r\nHost: a\r\nX-A: ", ""),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200"),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /", "HTTP/1.1 200"),
            ("PUT /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1234", "HTTP/1.1 408"),
            (
                "PUT /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12",
                "HTTP/1.1 408",
            ),
            ("PUT /body HTTP/1.1\r\nHost: a\r\nContent-Length: 65\r\n\r\n", "HTTP/1.1 413"),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", "HTTP/1.1 200"),
        ] {
            let received = until_closed(send(address, sent).await).await;
            assert!(received.starts_with(expected), "{sent}: {received}");
            assert_eq!(received.is_empty(), expected.is_empty(), "{sent}: {received}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_slow_head_is_closed() {
    with_server(bounds(), async |address| {
        let mut stream = send(address, "GET / HTTP/1.1\r\nX-A: ").await;
        for _ in 0..40 {
            if stream.write_all(b"a").await.is_err() {
                return;
            }
            sleep(SHORT / 4).await;
        }
        panic!("the connection still accepts bytes");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed() {
    with_server(bounds(), async |address| {
        let stream = send(address, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
        sleep(SHORT * 4).await;
        let received = until_closed(stream).await;
        assert!(received.starts_with("HTTP/1.1 200"), "{}", &received[..20]);
        assert!(received.len() < 32 * 1024 * 1024, "the response is complete: {}", received.len());
        // A client that reads slowly receives everything.
        let mut slow =
            send(address, "GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        let (mut buffer, mut got) = (vec![0; 8 * 1024 * 1024], 0);
        loop {
            match slow.read(&mut buffer).await.unwrap() {
                0 => break,
                count => got += count,
            }
            sleep(Duration::from_millis(2)).await;
        }
        assert!(got > 32 * 1024 * 1024, "{got}");
    })
    .await;
}

#[tokio::test]
async fn the_connection_with_the_least_recent_request_is_evicted() {
    let long = Duration::from_mins(1);
    let bounds = ConnectionBounds { head_timeout: long, request_timeout: long, ..bounds() };
    with_server(bounds, async |address| {
        let hello = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut regular = send(address, hello).await;
        let mut buffer = [0; 1024];
        assert!(regular.read(&mut buffer).await.unwrap() > 0);
        let mut idle = Vec::new();
        for _ in 0..5 {
            for sent in
                ["", "GET / HT", "PUT /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"]
            {
                idle.push(send(address, sent).await);
                // Its requests keep it open.
                regular.write_all(hello.as_bytes()).await.unwrap();
                assert!(regular.read(&mut buffer).await.unwrap() > 0);
            }
        }
        let last_three = idle.split_off(idle.len() - 3);
        for evicted in idle {
            let received = until_closed(evicted).await;
            assert!(received.is_empty(), "{received}");
        }
        for mut kept in last_three {
            assert!(
                timeout(SHORT, kept.read(&mut buffer)).await.is_err(),
                "the connection was closed"
            );
        }
    })
    .await;
}
