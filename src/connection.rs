//! A client connection, from its first byte to its last.
//!
//! [`serve`] is its whole life. One task drives it and everything that its requests do, so there is
//! nothing to hand over and nothing to lock: the connection is shared, through `&self`, by the loop,
//! the request that reads its body ([`ClientStream`](crate::framing::ClientStream)), and the worker's sweep, which looks at its
//! state. While it waits for a request it holds no buffer and no request state.

mod input;
mod output;

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use tokio::net::TcpStream;

use self::input::{Input, Received};

use crate::{
    framing::{
        ConnectionState, HeadBounds, Socket, StateCell, Timeout, buffer::poll_read, state::Ending,
    },
    gateway::{Gateway, Peer},
};

/// An unread body of up to so many bytes is read to its end, so that the connection can go on.
const MAX_DRAINED: u64 = 64 * 1024;
/// And for so long, in ms.
const DRAIN_TIME: u64 = 10_000;
/// A connection that is closed while its client still sends takes that in for so long at the most, in
/// ms.
const LINGER_TIME: u64 = 30_000;

/// One client connection.
pub struct Connection {
    socket: Socket,
    state: StateCell,
    input: RefCell<Input>,
    peer: Peer,
    bounds: HeadBounds,
    /// Requests that may still come; `None`: any number.
    left: Cell<Option<u32>>,
    /// Whether bytes wait unread while a request is served: then the end of the stream is not told, and
    /// has to be asked for.
    unread: Cell<bool>,
}

/// What becomes of a connection after an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum After {
    /// The next request.
    Reuse,
    /// It is closed, once the client has had time to read what was written.
    Close,
    /// It is gone.
    Drop,
}

/// One client connection, from its first byte to its last.
pub async fn serve(connection: Rc<Connection>, gateway: &Gateway) {
    connection.register().await;
    let mut after = After::Reuse;
    while after == After::Reuse {
        after = match connection.receive().await {
            Received::End => After::Drop,
            // Boxed: a connection that waits for a request does not carry its state.
            received => {
                let answered = Box::pin(connection.clone().answer(gateway, received));
                connection.while_open(answered).await.unwrap_or(After::Drop)
            }
        };
    }
    if after == After::Close {
        connection.linger().await;
    }
}

impl Connection {
    /// A connection that was just accepted. `clock` holds the worker's coarse time, in ms; `requests`
    /// bounds how many it may carry.
    pub fn new(
        stream: TcpStream,
        peer: Peer,
        clock: Rc<Cell<u64>>,
        bounds: HeadBounds,
        requests: Option<u32>,
    ) -> Rc<Self> {
        Rc::new(Self {
            socket: Socket::new(stream),
            state: StateCell::new(clock),
            input: RefCell::default(),
            peer,
            bounds,
            left: Cell::new(requests),
            unread: Cell::new(false),
        })
    }

    /// What it waits for, for the worker's sweep.
    pub fn state(&self) -> &StateCell {
        &self.state
    }

    /// Whether it has to look by itself whether its client has gone.
    pub fn must_look(&self) -> bool {
        self.unread.get()
    }

    /// Makes this task the one that is woken.
    async fn register(&self) {
        std::future::poll_fn(|cx| {
            self.state.register(cx.waker());
            Poll::Ready(())
        })
        .await;
    }

    /// Does `work` unless the client goes away meanwhile, or the connection is cut off.
    async fn while_open<T>(&self, mut work: Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        std::future::poll_fn(|cx| {
            if self.state.ending() == Ending::Now {
                return Poll::Ready(None);
            }
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            let open = self.poll_interim(cx).is_ok() && !self.is_gone(cx);
            if open { Poll::Pending } else { Poll::Ready(None) }
        })
        .await
    }

    /// Whether the client has closed the connection, as far as is known without reading.
    fn is_gone(&self, cx: &mut Context<'_>) -> bool {
        let readable = self.socket.poll_readable(cx);
        self.unread.set(readable);
        readable && self.socket.is_read_closed(cx)
    }

    /// Answers what was received.
    async fn answer(self: Rc<Self>, gateway: &Gateway, received: Received) -> After {
        self.state.begin_request();
        let client = self.clone();
        let answer = match received {
            Received::Request(head) => gateway.handle(&self.peer, head, client).await,
            Received::Refused(fault) => gateway.refuse(&self.peer, fault, client),
            Received::End => return After::Drop,
        };
        match self.write(answer).await {
            After::Reuse => self.finish_body().await,
            after => after,
        }
    }

    /// Reads what is left of a request's body and throws it away, where it is short.
    async fn finish_body(&self) -> After {
        let left = self.input.borrow().unread_body();
        if left != Some(0) {
            if left.is_none_or(|left| left > MAX_DRAINED) {
                return After::Close;
            }
            self.state.enter(ConnectionState::Drain { until: self.state.now() + DRAIN_TIME });
            let drained = std::future::poll_fn(|cx| match self.state.timeout() {
                Some(Timeout::Close) => Poll::Ready(false),
                _ => self.input.borrow_mut().poll_discard(&self.socket, cx),
            });
            if !drained.await {
                return After::Close;
            }
        }
        self.unread.set(false);
        self.state.enter(ConnectionState::Idle { since: self.state.now() });
        After::Reuse
    }

    /// Closes this side and takes in what the client still sends: a close with bytes unread would reset
    /// the connection and could destroy the answer on its way.
    async fn linger(&self) {
        self.socket.shutdown();
        *self.input.borrow_mut() = Input::default();
        let until = self.state.now() + LINGER_TIME;
        self.state.enter(ConnectionState::Linger { since: self.state.now(), until });
        std::future::poll_fn(|cx| {
            loop {
                if self.state.timeout().is_some() || self.state.ending() == Ending::Now {
                    return Poll::Ready(());
                }
                match poll_read(&self.socket, cx, <[u8]>::len) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(_)) => {
                        self.state
                            .enter(ConnectionState::Linger { since: self.state.now(), until });
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

    /// Ten thousand connections that wait cost what these two numbers say, and their sockets.
    #[test]
    fn a_connection_that_waits_is_small() {
        let (task, connection) = (size_of_future(serve), size_of::<Connection>());
        assert!(task <= 256, "the task has {task} bytes");
        assert!(connection <= 512, "the connection has {connection} bytes");
    }
}
