//! A client connection (HTTP/1): receives requests, passes them to the gateway, and writes the
//! responses.
//!
//! [`serve`] runs a connection from accept to close in one task, which also drives its requests, so
//! nothing is sent between tasks and nothing is locked. Three users share it through `&self`: its
//! own loop, the request that reads its body ([`ClientStream`](crate::framing::ClientStream)), and
//! the worker's sweep, which checks its deadlines. An idle connection holds no buffer and no
//! request state.
//!
//! - `connection.rs`: the life of a connection: receive, respond, drain, linger.
//! - `input.rs`: reads heads and bodies; the [`ClientStream`](crate::framing::ClientStream).
//! - `output.rs`: writes a response, with back-pressure.

mod input;
mod output;

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use tokio::net::TcpStream;

use self::input::{Input, ReceiveOutcome};

use crate::{
    framing::{
        ConnectionState, HeadBounds, SharedSocket, StateCell, Timeout, buffer::poll_read,
        state::CloseMode,
    },
    gateway::{Gateway, Peer},
};

/// Longest unread body that is drained so that the connection can be reused, in bytes.
const MAX_DRAINED: u64 = 64 * 1024;
/// Longest time to drain a body, in ms.
const DRAIN_TIMEOUT: u64 = 10_000;
/// Longest time to read from a client that still sends after the last response, in ms.
const LINGER_TIMEOUT: u64 = 30_000;

/// One client connection.
pub struct Connection {
    socket: SharedSocket,
    state: StateCell,
    input: RefCell<Input>,
    peer: Peer,
    bounds: HeadBounds,
    /// Requests that the connection may still carry; `None` is unlimited.
    requests_left: Cell<Option<u32>>,
    /// Whether unread bytes are pending while a request is served. The runtime then does not wake
    /// the task when the client closes, so the sweep has to.
    has_unread: Cell<bool>,
}

/// What happens to a connection after a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Disposition {
    /// It receives the next request.
    Reuse,
    /// It is closed once the client has had time to read the response: see [`Connection::linger`].
    Linger,
    /// It is dropped at once: the client is gone, or the response was cut off.
    Abort,
}

/// Serves a connection until it closes.
pub async fn serve(connection: Rc<Connection>, gateway: &Gateway) {
    connection.register().await;
    let mut disposition = Disposition::Reuse;
    while disposition == Disposition::Reuse {
        disposition = match connection.receive().await {
            ReceiveOutcome::Closed => Disposition::Abort,
            // Boxed, so that an idle connection does not carry a request's state.
            received => {
                let exchange = Box::pin(connection.clone().respond(gateway, received));
                connection.while_open(exchange).await.unwrap_or(Disposition::Abort)
            }
        };
    }
    if disposition == Disposition::Linger {
        connection.linger().await;
    }
}

impl Connection {
    /// A connection that was just accepted. `coarse_clock` is the worker's, in ms. `max_requests` is
    /// the most requests that it may carry; `None` is unlimited.
    pub fn new(
        stream: TcpStream,
        peer: Peer,
        coarse_clock: Rc<Cell<u64>>,
        bounds: HeadBounds,
        max_requests: Option<u32>,
    ) -> Rc<Self> {
        Rc::new(Self {
            socket: SharedSocket::new(stream),
            state: StateCell::new(coarse_clock),
            input: RefCell::default(),
            peer,
            bounds,
            requests_left: Cell::new(max_requests),
            has_unread: Cell::new(false),
        })
    }

    /// The state and its deadline, for the worker's sweep.
    pub fn state(&self) -> &StateCell {
        &self.state
    }

    /// Whether the sweep must wake the task so that it notices a closed client.
    pub fn needs_close_check(&self) -> bool {
        self.has_unread.get()
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
            if self.state.close_mode() == CloseMode::Immediate {
                return Poll::Ready(None);
            }
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            let open = self.poll_interim(cx).is_ok() && !self.is_client_closed(cx);
            if open { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }

    /// Whether the runtime has reported that the client closed the connection. Reads nothing.
    fn is_client_closed(&self, cx: &mut Context<'_>) -> bool {
        let readable = self.socket.poll_readable(cx);
        self.has_unread.set(readable);
        readable && self.socket.is_read_closed(cx)
    }

    /// Passes what was received to the gateway, and writes the response.
    async fn respond(self: Rc<Self>, gateway: &Gateway, received: ReceiveOutcome) -> Disposition {
        self.state.begin_request();
        let client = self.clone();
        let response = match received {
            ReceiveOutcome::Request(head) => gateway.handle(&self.peer, head, client).await,
            ReceiveOutcome::Malformed(error) => gateway.refuse_malformed(&self.peer, error, client),
            ReceiveOutcome::Closed => return Disposition::Abort,
        };
        match self.write(response).await {
            Disposition::Reuse => self.drain_body().await,
            disposition => disposition,
        }
    }

    /// Reads and discards the rest of the request's body, if it is at most [`MAX_DRAINED`] long.
    async fn drain_body(&self) -> Disposition {
        let unread = self.input.borrow().unread_body_len();
        if unread != Some(0) {
            if unread.is_none_or(|unread| unread > MAX_DRAINED) {
                return Disposition::Linger;
            }
            self.state.enter(ConnectionState::Drain { deadline: self.state.now() + DRAIN_TIMEOUT });
            let drained = std::future::poll_fn(|cx| match self.state.timeout() {
                Some(Timeout::Close) => Poll::Ready(false),
                _ => self.input.borrow_mut().poll_drain_body(&self.socket, cx),
            });
            if !drained.await {
                return Disposition::Linger;
            }
        }
        self.has_unread.set(false);
        self.state.enter(ConnectionState::Idle { since: self.state.now() });
        Disposition::Reuse
    }

    /// Shuts down the write side and discards what the client still sends (RFC 9112, 9.6): a close
    /// with unread bytes resets the connection, and the client could lose the response.
    async fn linger(&self) {
        self.socket.shutdown();
        *self.input.borrow_mut() = Input::default();
        let deadline = self.state.now() + LINGER_TIMEOUT;
        self.state.enter(ConnectionState::Linger { since: self.state.now(), deadline });
        std::future::poll_fn(|cx| {
            loop {
                if self.state.timeout().is_some() || self.state.close_mode() == CloseMode::Immediate
                {
                    return Poll::Ready(());
                }
                match poll_read(&self.socket, cx, <[u8]>::len) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(_)) => {
                        self.state
                            .enter(ConnectionState::Linger { since: self.state.now(), deadline });
                    }
                }
            }
        })
        .await;
    }
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
