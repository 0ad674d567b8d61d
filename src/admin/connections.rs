//! The port's connections, each bounded in time and all of them in number: the port shares the process's
//! descriptors with clients, and must answer while others hold connections open that ask nothing.
//!
//! When as many are open as may be, the one that has not asked for the longest time is closed. So a
//! connection that asks at once is served, however many wait.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use http_body::Body;
use hyper::{server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    task::AbortHandle,
    time::{Sleep, sleep, timeout},
};

use super::problem;

/// How long accepting pauses after it failed, as without a free descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// What one connection, and all of them, may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Open at once.
    pub(super) connections: usize,
    /// From the accept, or the last answer, to the end of a request's head.
    pub(super) head: Duration,
    /// From a request's head to its answer, its body inside.
    pub(super) request: Duration,
    /// The longest gap in a client's reading.
    pub(super) write: Duration,
    /// A request's body, in bytes.
    pub(super) body: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let time = Duration::from_secs(10);
        Self { connections: 64, head: time, request: time, write: time, body: 1024 * 1024 }
    }
}

/// Serves `router` on each connection that `listener` accepts.
pub(super) async fn accept(listener: TcpListener, router: Router, bounds: Bounds) -> Infallible {
    let router = router
        .layer(DefaultBodyLimit::max(bounds.body))
        .layer(from_fn_with_state(bounds, within_bounds));
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if connections.make_room(bounds.connections) {
                    // Lets the one that was closed go, and its descriptor.
                    tokio::task::yield_now().await;
                }
                connections.open(stream, &router, bounds);
            }
            Err(error) => {
                tracing::warn!(%error, "admin cannot accept a connection");
                sleep(PAUSE).await;
            }
        }
    }
}

/// The open connections. Dropping it closes them.
#[derive(Default)]
struct Connections {
    open: Vec<Connection>,
    /// Counts accepts and requests: it tells which were earlier.
    turn: Arc<AtomicU64>,
}

struct Connection {
    task: AbortHandle,
    /// The turn of its last request, or of its accept.
    asked: Arc<AtomicU64>,
}

impl Connections {
    /// Closes those that have not asked for the longest time until one more may be opened; says whether there
    /// were any.
    fn make_room(&mut self, most: usize) -> bool {
        self.open.retain(|connection| !connection.task.is_finished());
        let full = self.open.len() >= most;
        while self.open.len() >= most {
            let asked = |(_, one): &(usize, &Connection)| one.asked.load(Ordering::Relaxed);
            let Some((oldest, _)) = self.open.iter().enumerate().min_by_key(asked) else { break };
            self.open.swap_remove(oldest).task.abort();
        }
        full
    }

    fn open(&mut self, stream: TcpStream, router: &Router, bounds: Bounds) {
        let (turn, routes) = (Arc::clone(&self.turn), TowerToHyperService::new(router.clone()));
        let asked = Arc::new(AtomicU64::new(turn.fetch_add(1, Ordering::Relaxed)));
        let noted = Arc::clone(&asked);
        let service = hyper::service::service_fn(move |request| {
            noted.store(turn.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            routes.call(request)
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(bounds.head);
        let stream = TokioIo::new(BoundedWrites { stream, bound: bounds.write, stalled: None });
        let connection = http.serve_connection(stream, service);
        // How a connection ended is the operator's client's business.
        let task = tokio::spawn(async move { drop(connection.await) });
        self.open.push(Connection { task: task.abort_handle(), asked });
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.open.iter().for_each(|connection| connection.task.abort());
    }
}

/// Ends a request that is too long, or whose body does not come.
async fn within_bounds(State(bounds): State<Bounds>, request: Request, next: Next) -> Response {
    if request.body().size_hint().lower() > bounds.body as u64 {
        let detail = format!("the body is too long; expected at most {} bytes", bounds.body);
        return problem(StatusCode::PAYLOAD_TOO_LARGE, &detail, &[]);
    }
    let answer = timeout(bounds.request, next.run(request)).await;
    answer.unwrap_or_else(|_| {
        let detail = format!("the request's body did not come within {:?}", bounds.request);
        let late = problem(StatusCode::REQUEST_TIMEOUT, &detail, &[]);
        ([(header::CONNECTION, "close")], late).into_response()
    })
}

/// A socket that fails when the other side has read nothing for too long.
struct BoundedWrites {
    stream: TcpStream,
    bound: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl BoundedWrites {
    fn watch(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(self.bound)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for BoundedWrites {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for BoundedWrites {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
