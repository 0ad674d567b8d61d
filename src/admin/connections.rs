//! Bounds the connections of the admin port in number and time. The port shares the process's file
//! descriptors with clients, and must stay responsive while idle connections are open.
//!
//! When the maximum number is open, the next accept closes one: the oldest without a request so
//! far, else the one that has been idle the longest, else one with a request in progress, those
//! without the token first. So a client without the token cannot cut off an event stream or a
//! change, and a connection that sends its request promptly is served, however many others are
//! idle.

mod activity;

use std::{
    convert::Infallible,
    future::pending,
    io,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{Method, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::AbortHandle,
    time::{Sleep, sleep, timeout},
};

use tokio_util::sync::CancellationToken;

pub(super) use self::activity::Activity;
use super::{MAX_ADMIN_BODY, listener::AcceptingListener, problem::problem};
use crate::{
    connection::accept_tls,
    tls::ServerCertificates,
    transport::{RawSocket, Transport},
};

/// Maximum number of open connections of the admin port.
pub const MAX_CONNECTIONS: usize = 64;
/// How long accepting pauses after a failure, for example without a free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The bounds of the admin port's connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionBounds {
    /// Maximum number of open connections.
    pub(super) connections: usize,
    /// Timeout from the accept or the last response to the end of a request's head; also that of
    /// the TLS handshake.
    pub(super) head_timeout: Duration,
    /// Timeout from a request's head to its response, including the request's body.
    pub(super) request_timeout: Duration,
    /// Maximum time of a write without progress.
    pub(super) write_timeout: Duration,
    /// Maximum length of a request's body, in bytes.
    pub(super) max_body: usize,
}

impl Default for ConnectionBounds {
    fn default() -> Self {
        let time = Duration::from_secs(10);
        Self {
            connections: MAX_CONNECTIONS,
            head_timeout: time,
            request_timeout: time,
            write_timeout: time,
            max_body: MAX_ADMIN_BODY,
        }
    }
}

/// Serves `router` on each connection that `listener` accepts, with the certificates that `tls`
/// returns at that time. No further connection is accepted after `stop_accepting`.
pub(super) async fn serve(
    listener: AcceptingListener,
    router: Router,
    tls: impl Fn() -> Option<Arc<ServerCertificates>>,
    bounds: ConnectionBounds,
    stop_accepting: CancellationToken,
) -> Infallible {
    let router = router
        .layer(DefaultBodyLimit::max(bounds.max_body))
        .layer(from_fn_with_state(bounds, enforce_bounds));
    let mut connections = OpenConnections::default();
    while let Some(accepted) = stop_accepting.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok(socket) => {
                if connections.evict(bounds.connections) {
                    // Lets the closed connection's task end and release its file descriptor.
                    tokio::task::yield_now().await;
                }
                connections.open(socket, tls(), &router, bounds);
            }
            Err(error) => {
                tracing::warn!(%error, "the admin port cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    pending().await
}

/// The open connections. Dropping this closes them.
#[derive(Default)]
struct OpenConnections {
    open: Vec<AdminConnection>,
    /// The number of accepts, requests and responses so far, which orders them.
    sequence: Arc<AtomicU64>,
}

struct AdminConnection {
    task: AbortHandle,
    activity: Arc<Activity>,
}

impl OpenConnections {
    /// Closes connections, by [`Activity::eviction_order`], until fewer than `max` are open.
    /// Returns true if one was closed.
    fn evict(&mut self, max: usize) -> bool {
        self.open.retain(|connection| !connection.task.is_finished());
        let is_full = self.open.len() >= max;
        while self.open.len() >= max {
            let order = |(_, one): &(usize, &AdminConnection)| one.activity.eviction_order();
            let Some((first, _)) = self.open.iter().enumerate().min_by_key(order) else { break };
            self.open.swap_remove(first).task.abort();
        }
        is_full
    }

    fn open(
        &mut self,
        socket: RawSocket,
        tls: Option<Arc<ServerCertificates>>,
        router: &Router,
        bounds: ConnectionBounds,
    ) {
        let routes = TowerToHyperService::new(router.clone());
        let activity = Activity::accepted(&self.sequence);
        let tracked = Arc::clone(&activity);
        let service = hyper::service::service_fn(move |mut request: http::Request<Incoming>| {
            request.extensions_mut().insert(Arc::clone(&tracked));
            Arc::clone(&tracked).track(routes.call(request))
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(bounds.head_timeout);
        let task = tokio::spawn(async move {
            let opening = timeout(bounds.head_timeout, open(socket, tls));
            // A connection's error concerns only its client.
            let Ok(Some(stream)) = opening.await else { return };
            let timeout = bounds.write_timeout;
            let stream = TokioIo::new(WriteTimeout { stream, timeout, stalled: None });
            let _ = http.serve_connection(stream, service).await;
        });
        self.open.push(AdminConnection { task: task.abort_handle(), activity });
    }
}

impl Drop for OpenConnections {
    fn drop(&mut self) {
        self.open.iter().for_each(|connection| connection.task.abort());
    }
}

/// Refuses a request whose body is too long or too slow.
async fn enforce_bounds(
    State(bounds): State<ConnectionBounds>,
    request: Request,
    next: Next,
) -> Response {
    let has_body = !request.body().is_end_stream();
    let is_read = request.method() != Method::GET;
    let response = answer_within(bounds, request, next).await;
    // What does not read a body may close the connection: the client must not send its next request
    // there.
    if has_body && !(is_read && response.status().is_success()) {
        return ([(header::CONNECTION, "close")], response).into_response();
    }
    response
}

async fn answer_within(bounds: ConnectionBounds, request: Request, next: Next) -> Response {
    if request.body().size_hint().lower() > bounds.max_body as u64 {
        let detail =
            format!("the request's body is too long; expected at most {} bytes", bounds.max_body);
        return problem(StatusCode::PAYLOAD_TOO_LARGE, &detail, &[]);
    }
    let response = timeout(bounds.request_timeout, next.run(request)).await;
    response.unwrap_or_else(|_| {
        let detail =
            format!("the request's body did not arrive within {:?}", bounds.request_timeout);
        problem(StatusCode::REQUEST_TIMEOUT, &detail, &[])
    })
}

/// The stream of `socket`, after the handshake if there is one; `None` if it failed.
async fn open(socket: RawSocket, tls: Option<Arc<ServerCertificates>>) -> Option<Transport> {
    match (tls, socket) {
        (Some(names), RawSocket::Tcp(socket)) => {
            let (stream, _) = accept_tls(socket, &names, None).await.ok()?;
            Some(tokio_rustls::TlsStream::Server(stream).into())
        }
        (_, socket) => Some(Transport::Plain(socket)),
    }
}

/// A socket whose writes fail if they make no progress for too long.
struct WriteTimeout {
    stream: Transport,
    timeout: Duration,
    /// The timer of a write that is blocked.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    /// Fails with `TimedOut` if `written` has been pending for the timeout.
    fn check_progress(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_progress(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_progress(context, written)
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
