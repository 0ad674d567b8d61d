//! Client connections over HTTP/1 and HTTP/2: receive requests, pass them to the gateway, and write
//! the responses.
//!
//! [`serve`] runs a connection from accept to close in one task, which also drives its requests, so
//! nothing is sent between tasks and nothing is locked. Three users share it through `&self`: its
//! own loop, the request that reads its body ([`ClientStream`](tidegate_transport::ClientStream)),
//! and the worker's sweep, which checks its deadlines. An idle connection holds no buffer and no
//! request state.
//!
//! | file | content |
//! |---|---|
//! | `handshake`, `proxy_protocol` | the start of a connection, before HTTP: the PROXY protocol and the TLS handshake |
//! | `connection` | the life of an HTTP/1 connection: receive, respond, drain, linger |
//! | `input` | reads heads and bodies; the [`ClientStream`](tidegate_transport::ClientStream) |
//! | `output` | writes a response, with back-pressure; its loop over the body also serves HTTP/2 |
//! | `tunnel` | the bytes of another protocol, after an upgrade |
//! | `http2` | an HTTP/2 connection |

mod handshake;
mod http2;
mod input;
mod output;
pub mod proxy_protocol;
mod tunnel;

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

pub use self::handshake::{AcceptedConnection, Handshake, HandshakeError, accept_tls};
pub use self::http2::ClientHttp2Connection;
use tidegate_base::time::{CoarseTime, Millis};
use tidegate_http1::HeadBounds;
use tidegate_system::clock::CoarseClock;
use tidegate_transport::connection_state::{
    ClientTimeouts, CloseMode, ConnectionState, StateCell, Wait,
};
use tidegate_transport::{
    ReadBuffer, SharedSocket, Transport, read_buffer::poll_read, socket::yield_turn,
};

use self::input::{Input, ReceiveOutcome};
use crate::{Content, Gateway, Peer, Response};

/// Maximum length of an unread body that is drained so that the connection can be reused, in bytes.
const MAX_DRAINED: u64 = 64 * 1024;
/// Maximum time to drain a body.
const DRAIN_TIMEOUT: Millis = Millis::from_secs(10);
/// Maximum time to wait for the end of a body in chunks before the gateway's own response.
const CHUNKS_TIMEOUT: Millis = Millis::from_secs(1);
/// Maximum time to read from a client that still sends after the last response.
const LINGER_TIMEOUT: Millis = Millis::from_secs(30);
/// Time for which a connection keeps the memory of its last request ready for the next one.
const WARM_TIME: Millis = Millis::from_ms(200);

/// Maximum number of discarding reads in one poll. Then the task yields to others.
const MAX_DISCARDS_PER_POLL: usize = 2;

/// The data that a new client connection needs, for any HTTP version.
pub struct ConnectionStart {
    /// The client.
    pub peer: Peer,
    /// Whose requests it carries.
    pub senders: RequestSenders,
    /// The coarse clock of the worker.
    pub coarse_clock: CoarseClock,
    /// When the connection was accepted: the deadline of the first head counts from then.
    pub accepted_at: CoarseTime,
    /// The bounds of request heads.
    pub bounds: HeadBounds,
    /// Maximum number of requests that it may carry; `None` is unlimited.
    pub max_requests: Option<u32>,
}

/// Whose requests a connection carries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestSenders {
    /// Those of one client.
    OneClient,
    /// Those of the clients of a proxy.
    ManyClients,
}

impl ConnectionStart {
    fn state(&self) -> StateCell {
        let state = StateCell::new(self.coarse_clock.clone());
        state.enter(ConnectionState::Head { since: self.accepted_at });
        state
    }
}

/// One client connection.
pub struct Connection {
    socket: SharedSocket,
    state: StateCell,
    input: RefCell<Input>,
    peer: Peer,
    bounds: HeadBounds,
    /// Number of requests that the connection may still carry; `None` is unlimited.
    requests_left: Cell<Option<u32>>,
    /// True if unread bytes are pending while a request is served. The runtime then does not wake
    /// the task when the client closes, so the sweep has to.
    has_unread: Cell<bool>,
    /// True while the connection waits for a request and keeps the memory of the last one. The
    /// sweep sets it to false.
    is_warm: Cell<bool>,
}

/// The fate of a connection after a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Disposition {
    /// It receives the next request.
    Reuse,
    /// It is closed once the client has had time to read the response: see [`Connection::linger`].
    Linger,
    /// It is dropped at once: the client is gone, or the response was cut off.
    Abort,
}

/// A connection, of any protocol, that the worker's sweep checks.
pub trait Sweepable {
    /// Expires the deadlines that have passed at `now`.
    fn sweep(&self, now: CoarseTime, timeouts: &ClientTimeouts);

    /// Closes the connection as soon as `mode` requires.
    fn request_close(&self, mode: CloseMode);
}

impl Sweepable for Connection {
    fn sweep(&self, now: CoarseTime, timeouts: &ClientTimeouts) {
        // With unread bytes, the runtime does not wake the task when the client closes.
        if self.has_unread.get() {
            self.state.wake();
        }
        if let ConnectionState::Idle { since } = self.state.get()
            && now.since(since) >= WARM_TIME
            && self.is_warm.replace(false)
        {
            self.state.wake();
        }
        self.state.sweep(now, timeouts);
    }

    fn request_close(&self, mode: CloseMode) {
        self.state.request_close(mode);
    }
}

/// Serves a connection until it closes.
pub async fn serve(connection: Rc<Connection>, gateway: &Gateway) {
    connection.register().await;
    let mut disposition = Disposition::Reuse;
    while disposition == Disposition::Reuse {
        disposition = match connection.receive().await {
            ReceiveOutcome::Closed => connection.close(),
            // Boxed, so that an idle connection does not hold a request's state.
            received => {
                let requests = Box::pin(connection.clone().serve_requests(gateway, received));
                connection.while_open(requests).await.unwrap_or(Disposition::Abort)
            }
        };
    }
    if disposition == Disposition::Linger {
        connection.linger().await;
    }
}

impl Connection {
    /// A connection over `transport`. `already_read` are the bytes that were already read from it.
    pub fn new(transport: Transport, already_read: ReadBuffer, start: ConnectionStart) -> Rc<Self> {
        Rc::new(Self {
            socket: SharedSocket::new(transport),
            state: start.state(),
            input: RefCell::new(Input::new(already_read)),
            peer: start.peer,
            bounds: start.bounds,
            requests_left: Cell::new(start.max_requests),
            has_unread: Cell::new(false),
            is_warm: Cell::new(false),
        })
    }

    /// Registers the current task as the one that the sweep wakes.
    async fn register(&self) {
        std::future::poll_fn(|cx| {
            self.state.register(cx.waker());
            Poll::Ready(())
        })
        .await;
    }

    /// Drives `work` to its end; `None` if the client closes the connection first, or the worker
    /// closes it with [`CloseMode::Immediate`].
    async fn while_open<T>(&self, mut work: Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        std::future::poll_fn(|cx| {
            if self.state.close_mode() == CloseMode::Immediate && !self.is_warm.get() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            // In a tunnel, the client may close only one direction. While the connection is warm,
            // `work` itself reads.
            if matches!(self.state.get(), ConnectionState::Tunnel { .. }) || self.is_warm.get() {
                return Poll::Pending;
            }
            let open = self.poll_interim(cx).is_ok() && !self.is_client_closed(cx);
            if open { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }

    /// True if the runtime has reported that the client closed the connection. Reads nothing.
    fn is_client_closed(&self, cx: &mut Context<'_>) -> bool {
        let readable = self.socket.poll_readable(cx);
        self.has_unread.set(readable);
        readable && self.socket.is_read_closed(cx)
    }

    /// Answers the received request, and later ones that follow within about [`WARM_TIME`]. The
    /// future of a request is large; here one allocation serves them all.
    async fn serve_requests(
        self: Rc<Self>,
        gateway: &Gateway,
        first: ReceiveOutcome,
    ) -> Disposition {
        let mut received = first;
        while self.state.close_mode() != CloseMode::Immediate {
            let disposition = self.respond(gateway, received).await;
            if disposition != Disposition::Reuse {
                return disposition;
            }
            received = match self.receive_soon().await {
                None => return Disposition::Reuse,
                Some(ReceiveOutcome::Closed) => return self.close(),
                Some(received) => received,
            };
        }
        Disposition::Abort
    }

    /// Closes a connection that carries no more requests.
    fn close(&self) -> Disposition {
        self.socket.send_close_notify();
        Disposition::Abort
    }

    /// Passes the received request to the gateway, and writes the response.
    async fn respond(self: &Rc<Self>, gateway: &Gateway, received: ReceiveOutcome) -> Disposition {
        self.state.begin_request();
        let client = self.clone();
        let response = match received {
            ReceiveOutcome::Request(head) => gateway.handle(&self.peer, head, client).await,
            ReceiveOutcome::Malformed(error) => gateway.refuse_malformed(&self.peer, error, client),
            ReceiveOutcome::Closed => return Disposition::Abort,
        };
        if let Content::Tunnel(_) = response.content {
            // Boxed, so that other responses do not hold its state.
            return Box::pin(self.tunnel(response)).await;
        }
        if self.may_reach_body_end(&response) {
            // Boxed likewise.
            Box::pin(self.discard_chunks()).await;
        }
        let (out, framing, closes) = self.write_head(&response);
        let mut writer = self.body_writer(response, out, &framing);
        match writer.write(&framing).await {
            Ok(()) if closes => Disposition::Linger,
            Ok(()) => {
                drop(writer);
                self.drain_body().await
            }
            Err(_) => {
                if framing.until_close {
                    // An orderly close would look like the end of the body.
                    self.socket.reset_on_close();
                }
                Disposition::Abort
            }
        }
    }

    /// Counts the request. Returns true if another may follow on this connection.
    fn keep_alive(&self, response: &Response) -> bool {
        let requests_left = self.requests_left.get().map(|left| left.saturating_sub(1));
        self.requests_left.set(requests_left);
        response.request.is_persistent()
            && self.input.borrow().is_drainable(MAX_DRAINED)
            && requests_left != Some(0)
            && self.state.close_mode() == CloseMode::KeepOpen
    }

    /// True if only the end of a body in chunks, which nothing reads, keeps the connection from
    /// going on.
    fn may_reach_body_end(&self, response: &Response) -> bool {
        !matches!(response.content, Content::Stream(_))
            && self.input.borrow().awaits_chunks()
            && response.request.is_persistent()
            && self.state.close_mode() == CloseMode::KeepOpen
    }

    /// Waits for the end of a body in chunks that nothing reads: with a short one, which is about to
    /// arrive, the connection can go on.
    async fn discard_chunks(&self) {
        self.state.set_wait(Wait::Internal);
        self.state.shorten_request_timeout(CHUNKS_TIMEOUT);
        self.discard_body().await;
    }

    /// Discards the rest of the request's body until its end, [`MAX_DRAINED`] bytes or the deadline
    /// of the state, or a close that is asked for. True at the end.
    async fn discard_body(&self) -> bool {
        let mut left = MAX_DRAINED;
        std::future::poll_fn(|cx| match self.state.expired_deadline() {
            Some(_) => Poll::Ready(false),
            None if self.state.close_mode() != CloseMode::KeepOpen => Poll::Ready(false),
            None => self.input.borrow_mut().poll_drain_body(&self.socket, &mut left, cx),
        })
        .await
    }

    /// Reads and discards the rest of the request's body, if it is at most [`MAX_DRAINED`] long.
    async fn drain_body(&self) -> Disposition {
        if !self.input.borrow().is_drainable(MAX_DRAINED) {
            return Disposition::Linger;
        }
        if !self.input.borrow().is_body_read() {
            self.state.enter(ConnectionState::Drain { deadline: self.state.now() + DRAIN_TIMEOUT });
            if !self.discard_body().await {
                return Disposition::Linger;
            }
        }
        self.has_unread.set(false);
        self.state.enter(ConnectionState::Idle { since: self.state.now() });
        Disposition::Reuse
    }

    async fn linger(&self) {
        *self.input.borrow_mut() = Input::default();
        linger(&self.socket, &self.state, u64::MAX).await;
    }
}

/// Shuts down the write side and discards at most `max` bytes that the client still sends (RFC
/// 9112, 9.6). A close with unread bytes would reset the connection, and the client could lose the
/// response.
async fn linger(socket: &SharedSocket, state: &StateCell, max: u64) {
    socket.shutdown();
    let deadline = state.now() + LINGER_TIMEOUT;
    state.enter(ConnectionState::Linger { since: state.now(), deadline });
    let mut discarded = 0;
    std::future::poll_fn(|cx| {
        for _ in 0..MAX_DISCARDS_PER_POLL {
            if discarded > max
                || state.expired_deadline().is_some()
                || state.close_mode() == CloseMode::Immediate
            {
                return Poll::Ready(());
            }
            match poll_read(socket, cx, <[u8]>::len) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(count)) => {
                    discarded += count as u64;
                    state.enter(ConnectionState::Linger { since: state.now(), deadline });
                }
            }
        }
        yield_turn(cx);
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<F>(_: impl FnOnce(Rc<Connection>, &'static Gateway) -> F) -> usize {
        size_of::<F>()
    }

    /// An idle connection uses the memory of its task, its [`Connection`] and its socket.
    #[test]
    fn an_idle_connection_is_small() {
        let (task, connection) = (size_of_future(serve), size_of::<Connection>());
        assert!(task <= 256, "the task is {task} bytes");
        assert!(connection <= 512, "the connection is {connection} bytes");
    }
}
