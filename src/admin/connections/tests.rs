use axum::{
    body::Bytes,
    routing::{get, put},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};

use super::*;
use crate::{
    admin::{AdminListener, AdminToken, BoundAddress, token::check_token},
    config::{AdminAddress, ListenAddress},
};

const SHORT: Duration = Duration::from_millis(200);
const TOKEN: &str = "0123456789abcdef";

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
    let events = async || {
        let tick = |()| async { Some((sleep(SHORT / 4).await, ())) };
        let ticks = futures_util::stream::unfold((), tick);
        axum::body::Body::from_stream(ticks.map(|()| Ok::<_, Infallible>("tick\n")))
    };
    let token = AdminToken::new(TOKEN).unwrap();
    let router = Router::new()
        .route("/", get(async || "ok"))
        .route("/large", get(async || large))
        .route("/events", get(events))
        .route("/body", put(async |body: Bytes| body.len().to_string()))
        .layer(from_fn_with_state(token, check_token));
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
            ("PUT /body HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer 0123456789abcdef\r\nContent-Length: 9\r\n\r\n1234", "HTTP/1.1 408"),
            (
                "PUT /body HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer 0123456789abcdef\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12",
                "HTTP/1.1 408",
            ),
            ("PUT /body HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer 0123456789abcdef\r\nContent-Length: 65\r\n\r\n", "HTTP/1.1 413"),
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
        let stream = send(address, "GET /large HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n").await;
        sleep(SHORT * 4).await;
        let received = until_closed(stream).await;
        assert!(received.starts_with("HTTP/1.1 200"), "{}", &received[..20]);
        assert!(received.len() < 32 * 1024 * 1024, "the response is complete: {}", received.len());
        // A client that reads slowly receives everything.
        let mut slow =
            send(address, "GET /large HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer 0123456789abcdef\r\nConnection: close\r\n\r\n").await;
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
async fn silent_connections_end_neither_event_streams_nor_changes() {
    let long = Duration::from_mins(1);
    let bounds = ConnectionBounds { head_timeout: long, request_timeout: long, ..bounds() };
    with_server(bounds, async |address| {
        let mut buffer = [0; 1024];
        let mut idle = send(address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(idle.read(&mut buffer).await.unwrap() > 0);
        let authorized = format!("Host: a\r\nAuthorization: Bearer {TOKEN}\r\n");
        let mut events = send(address, &format!("GET /events HTTP/1.1\r\n{authorized}\r\n")).await;
        assert!(events.read(&mut buffer).await.unwrap() > 0);
        let change = format!("PUT /body HTTP/1.1\r\n{authorized}Content-Length: 9\r\n\r\n1");
        let mut change = send(address, &change).await;
        let mut silent = Vec::new();
        for _ in 0..32 {
            silent.push(send(address, "").await);
            silent.push(send(address, "GET / HT").await);
            // One request is refused, the other needs no token. Both connections are idle after
            // their response.
            for path in ["/events", "/"] {
                let mut one =
                    send(address, &format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
                assert!(one.read(&mut buffer).await.unwrap() > 0);
                silent.push(one);
            }
        }
        change.write_all(b"23456789").await.unwrap();
        let count = change.read(&mut buffer).await.unwrap();
        assert!(buffer[..count].starts_with(b"HTTP/1.1 200"), "the change was cut off");
        for _ in 0..20 {
            assert!(events.read(&mut buffer).await.unwrap() > 0, "the event stream was ended");
        }
        assert_eq!(idle.read(&mut buffer).await.unwrap_or(0), 0, "it was idle the longest");
    })
    .await;
}

#[test]
fn of_several_connections_the_one_with_the_least_claim_is_closed() {
    let sequence = Arc::default();
    let connection = || Activity::accepted(&sequence);
    let respond = |one: &Arc<Activity>| {
        let answered = Arc::clone(one).track(std::future::ready(Ok::<_, ()>(Response::default())));
        answered.now_or_never().unwrap().unwrap()
    };
    let first = connection();
    // Connections with a stronger reason to be kept had their last change earlier.
    let (change, refused, slow, quick) = (connection(), connection(), connection(), connection());
    let _authenticated = respond(&change);
    change.set_authenticated(true);
    let _in_progress = respond(&refused);
    // The request on `slow` began first, and its response ended last.
    let slow_response = respond(&slow);
    drop(respond(&quick));
    drop(slow_response);
    let (early, late) = (connection(), connection());
    // Accepted before `refused`, but its request began later.
    let _also_in_progress = respond(&first);
    let mut all = [
        ("later in progress", &first),
        ("in progress", &refused),
        ("change", &change),
        ("slow", &slow),
        ("late", &late),
        ("quick", &quick),
        ("early", &early),
    ];
    all.sort_by_key(|(_, one)| one.eviction_order());
    let order = all.map(|(name, _)| name);
    assert_eq!(
        order,
        ["early", "late", "quick", "slow", "in progress", "later in progress", "change"]
    );
}

#[tokio::test]
async fn a_silent_connection_is_evicted_before_one_with_requests() {
    let long = Duration::from_mins(1);
    let bounds = ConnectionBounds { head_timeout: long, request_timeout: long, ..bounds() };
    with_server(bounds, async |address| {
        let hello = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut regular = send(address, hello).await;
        let mut buffer = [0; 1024];
        assert!(regular.read(&mut buffer).await.unwrap() > 0);
        let mut idle = Vec::new();
        for _ in 0..5 {
            for sent in ["", "GET / HT", "GET / HTTP/1.1\r\nHost:"] {
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
