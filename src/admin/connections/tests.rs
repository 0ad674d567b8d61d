use axum::{
    body::Bytes,
    routing::{get, put},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const SHORT: Duration = Duration::from_millis(200);

fn bounds() -> Bounds {
    Bounds { connections: 4, head: SHORT, request: SHORT, write: SHORT, body: 64 }
}

/// Runs `test` beside a server with these bounds.
async fn beside<T>(bounds: Bounds, test: impl AsyncFnOnce(std::net::SocketAddr) -> T) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let large = Bytes::from(vec![b'x'; 32 * 1024 * 1024]);
    let router = Router::new()
        .route("/", get(async || "ok"))
        .route("/large", get(async || large))
        .route("/body", put(async |body: Bytes| body.len().to_string()));
    tokio::select! {
        never = accept(listener, router, bounds) => match never {},
        told = test(address) => told,
    }
}

async fn send(address: std::net::SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// All that comes until the connection ends, which it does soon.
async fn until_closed(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    let read = stream.read_to_end(&mut all);
    // A reset is an end, too.
    let _ = timeout(SHORT * 10, read).await.expect("it ends");
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test]
async fn a_connection_that_does_not_ask_is_closed() {
    beside(bounds(), async |address| {
        for (sent, answer) in [
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
            let told = until_closed(send(address, sent).await).await;
            assert!(told.starts_with(answer), "{sent}: {told}");
            assert_eq!(told.is_empty(), answer.is_empty(), "{sent}: {told}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_head_that_drips_is_closed() {
    beside(bounds(), async |address| {
        let mut stream = send(address, "GET / HTTP/1.1\r\nX-A: ").await;
        for _ in 0..40 {
            if stream.write_all(b"a").await.is_err() {
                return;
            }
            sleep(SHORT / 4).await;
        }
        panic!("it still takes bytes");
    })
    .await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed() {
    beside(bounds(), async |address| {
        let stream = send(address, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
        sleep(SHORT * 4).await;
        let told = until_closed(stream).await;
        assert!(told.starts_with("HTTP/1.1 200"), "{}", &told[..20]);
        assert!(told.len() < 32 * 1024 * 1024, "it was cut: {}", told.len());
        // One that reads slowly, but reads, gets all of it.
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
async fn who_has_not_asked_for_the_longest_time_makes_room() {
    let long = Duration::from_mins(1);
    let bounds = Bounds { head: long, request: long, ..bounds() };
    beside(bounds, async |address| {
        let hello = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut regular = send(address, hello).await;
        let mut buffer = [0; 1024];
        assert!(regular.read(&mut buffer).await.unwrap() > 0);
        let mut held = Vec::new();
        for _ in 0..5 {
            for sent in
                ["", "GET / HT", "PUT /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"]
            {
                held.push(send(address, sent).await);
                // It asks, so it stays.
                regular.write_all(hello.as_bytes()).await.unwrap();
                assert!(regular.read(&mut buffer).await.unwrap() > 0);
            }
        }
        let last_three = held.split_off(held.len() - 3);
        for gone in held {
            let told = until_closed(gone).await;
            assert!(told.is_empty(), "{told}");
        }
        for mut kept in last_three {
            assert!(timeout(SHORT, kept.read(&mut buffer)).await.is_err(), "it is open");
        }
    })
    .await;
}
