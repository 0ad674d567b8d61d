//! Calls to the service at a fixed rate, from several connections of one thread.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use prost::Message as _;
use testkit::rate_limit_client::descriptor;
use tidegate::{
    grpc::{decode_message, frame_message},
    rate_limit_service::{
        SHOULD_RATE_LIMIT,
        messages::{RateLimitRequest, RateLimitResponse, ResponseCode},
    },
};
use tokio::{
    net::TcpStream,
    runtime::Runtime,
    task::{JoinSet, yield_now},
};

/// The callers that take turns.
const USERS: u64 = 1_000;

/// A load.
pub(crate) struct Calls {
    /// Descriptors of each call, each with a counter of its own.
    pub(crate) descriptors: usize,
    /// Calls a second.
    pub(crate) rate: u64,
    pub(crate) duration: Duration,
}

/// The outcome of a load.
pub(crate) struct Run {
    /// Sorted; each from the time at which the call was due.
    pub(crate) latencies: Vec<Duration>,
    took: Duration,
}

impl Run {
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let at = (self.latencies.len() - 1) as f64 * share;
        self.latencies[at.round() as usize].as_secs_f64() * 1e6
    }

    /// Calls a second.
    pub(crate) fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.took.as_secs_f64()
    }
}

/// The connections.
pub(crate) struct Driver {
    runtime: Runtime,
    senders: Vec<SendRequest<Bytes>>,
}

impl Driver {
    pub(crate) fn connect(address: SocketAddr, connections: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let senders = runtime.block_on(async {
            let mut senders = Vec::new();
            for _ in 0..connections {
                let socket = TcpStream::connect(address).await.expect("a listener");
                socket.set_nodelay(true).expect("a socket");
                let (sender, connection) =
                    h2::client::handshake(socket).await.expect("a connection");
                tokio::spawn(connection);
                senders.push(sender);
            }
            senders
        });
        Self { runtime, senders }
    }

    /// One call on each connection.
    pub(crate) fn ask_once(&self) {
        self.runtime.block_on(async {
            for sender in &self.senders {
                ask(sender.clone(), message(0, 1)).await;
            }
        });
    }

    pub(crate) fn run(&self, calls: &Calls) -> Run {
        let count = calls.rate * calls.duration.as_millis() as u64 / 1000;
        let (mut latencies, took) = self.runtime.block_on(async {
            let start = Instant::now();
            let mut tasks = JoinSet::new();
            for number in 0..count {
                let due = start + Duration::from_nanos(number * 1_000_000_000 / calls.rate);
                // Timers have a resolution of 1 ms: a sleep would send calls in groups.
                while due > Instant::now() {
                    yield_now().await;
                }
                let sender = self.senders[number as usize % self.senders.len()].clone();
                let message = message(number, calls.descriptors);
                tasks.spawn(async move {
                    ask(sender, message).await;
                    due.elapsed()
                });
            }
            (tasks.join_all().await, start.elapsed())
        });
        latencies.sort_unstable();
        Run { latencies, took }
    }
}

/// The call of this number.
fn message(number: u64, descriptors: usize) -> Bytes {
    let user = number % USERS;
    let descriptors = (0..descriptors).map(|index| descriptor(&format!("user={user}-{index}")));
    let call = RateLimitRequest {
        domain: "edge".into(),
        descriptors: descriptors.collect(),
        hits_addend: 0,
    };
    frame_message(&call.encode_to_vec()).into()
}

async fn ask(sender: SendRequest<Bytes>, message: Bytes) {
    let mut sender = sender.ready().await.expect("an open connection");
    let request = Request::post(format!("http://service{SHOULD_RATE_LIMIT}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("a request");
    let (response, mut body) = sender.send_request(request, false).expect("a stream");
    body.send_data(message, true).expect("a stream");
    let mut response = response.await.expect("a response").into_body();
    let mut received = Vec::new();
    while let Some(bytes) = response.data().await {
        let bytes = bytes.expect("a body");
        response.flow_control().release_capacity(bytes.len()).expect("a window");
        received.extend_from_slice(&bytes);
    }
    let trailers = response.trailers().await.expect("a response").expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
    let message = decode_message(&received).expect("a message");
    let response = RateLimitResponse::decode(message).expect("a response");
    assert_eq!(response.overall_code(), ResponseCode::Ok);
}
