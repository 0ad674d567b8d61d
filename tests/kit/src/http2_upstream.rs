//! An HTTP/2 upstream without TLS, with prior knowledge. Its own thread serves all connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    server::{Builder, SendResponse},
};
use http::{HeaderMap, Response, request::Parts};
use tokio::net::TcpListener;

use crate::http2_client::runtime;

/// One request on an upstream's connection.
pub struct UpstreamExchange {
    /// The request's head.
    pub request: Parts,
    /// The request's body.
    pub body: RecvStream,
    /// The response.
    pub respond: SendResponse<Bytes>,
    /// The connection's number, from 0.
    pub connection: usize,
}

/// An upstream on a free port. It lives as long as the test process.
pub struct Http2Upstream {
    /// Where it listens.
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl Http2Upstream {
    /// Answers every request with `200` and `hello`, after its body.
    pub fn hello() -> Self {
        Self::with_handler(Builder::new(), |mut exchange| async move {
            if exchange.read_body().await.is_ok() {
                exchange.answer(200, "hello");
            }
        })
    }

    /// Passes each request to `handler`, on connections with these settings.
    pub fn with_handler<F: Future<Output = ()> + Send + 'static>(
        builder: Builder,
        handler: impl Fn(UpstreamExchange) -> F + Send + Sync + 'static,
    ) -> Self {
        let (bound, binding) = mpsc::channel();
        let (requests, connections) = (Arc::<Mutex<Vec<String>>>::default(), Arc::default());
        let (recorded, counted) = (Arc::clone(&requests), Arc::<AtomicUsize>::clone(&connections));
        let handler = Arc::new(handler);
        thread::spawn(move || {
            runtime().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                let _ = bound.send(listener.local_addr().expect("a bound address"));
                while let Ok((socket, _)) = listener.accept().await {
                    let connection = counted.fetch_add(1, Ordering::SeqCst);
                    let (recorded, handler) = (Arc::clone(&recorded), Arc::clone(&handler));
                    let builder = builder.clone();
                    tokio::spawn(async move {
                        let Ok(mut server) = builder.handshake::<_, Bytes>(socket).await else {
                            return;
                        };
                        while let Some(Ok((request, respond))) = server.accept().await {
                            let (request, body) = request.into_parts();
                            recorded.lock().expect("no panic").push(text(&request));
                            let exchange = UpstreamExchange { request, body, respond, connection };
                            tokio::spawn(handler(exchange));
                        }
                    });
                }
            });
        });
        Self { address: binding.recv().expect("a bound address"), requests, connections }
    }

    /// The heads received so far: `METHOD URI`, and a line for each field.
    pub fn request_texts(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }

    /// Number of received requests.
    pub fn request_count(&self) -> usize {
        self.requests.lock().expect("no panic").len()
    }

    /// Number of accepted connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Its entry in a configuration's `targets`; the upstream needs `protocol: http2`.
    pub fn target(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn text(request: &Parts) -> String {
    let mut text = format!("{} {}\n", request.method, request.uri);
    for (name, value) in &request.headers {
        text = text + name.as_str() + ": " + &String::from_utf8_lossy(value.as_bytes()) + "\n";
    }
    text
}

impl UpstreamExchange {
    /// Reads the body to its end; its bytes and its trailers.
    ///
    /// # Errors
    ///
    /// The stream was reset, or the connection failed.
    pub async fn read_body(&mut self) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
        let mut all = Vec::new();
        while let Some(data) = self.body.data().await {
            let data = data?;
            let _ = self.body.flow_control().release_capacity(data.len());
            all.extend_from_slice(&data);
        }
        Ok((all, self.body.trailers().await?))
    }

    /// Sends a whole response.
    pub fn answer(&mut self, status: u16, body: &'static str) {
        let mut stream = self.start(status, &[]);
        let _ = stream.send_data(Bytes::from_static(body.as_bytes()), true);
    }

    /// Sends the head of a response with a body.
    pub fn start(&mut self, status: u16, fields: &[(&'static str, &str)]) -> SendStream<Bytes> {
        let mut response = Response::builder().status(status);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let response = response.body(()).expect("a valid response");
        self.respond.send_response(response, false).expect("an open stream")
    }
}
