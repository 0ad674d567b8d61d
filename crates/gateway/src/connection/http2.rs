//! An HTTP/2 client connection (RFC 9113): accepts streams and drives them.
//!
//! One task drives the connection and all of its streams, so nothing is locked or sent between
//! tasks of the gateway. Each stream is one request with a state and deadlines of its own:
//! `stream.rs`. The `h2` crate handles frames and most of their bounds. This module bounds the
//! rest: resets by the client, control frames, the bytes read in one poll, and the time of every
//! phase. It refuses streams after GOAWAY; `stream.rs` refuses those whose heads have no room.

mod flood;
mod input;
mod lingering;
mod output;
mod send_budget;
mod stream;

use std::{
    cell::{Cell, RefCell},
    rc::{Rc, Weak},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::{Reason, server};
use tidegate_base::time::{CoarseTime, Millis};
use tidegate_http1::HeadBounds;
use tidegate_system::clock::CoarseClock;
use tidegate_transport::connection_state::{ClientTimeouts, CloseMode, ConnectionState, StateCell};
use tidegate_transport::{
    ClientStream, ReadBuffer, Transport, frame_counter::MAX_EMPTY_FRAMES, socket::yield_turn,
};

use self::{
    flood::FloodDetector,
    input::{PrefixedStream, ReadBudget},
    output::write,
    send_budget::SendBudget,
    stream::Http2Stream,
};
use super::{ConnectionStart, LINGER_TIMEOUT, MAX_DRAINED, RequestSenders, Sweepable, linger};
use crate::{Gateway, ListenerPurpose, Peer};

/// Maximum number of streams open at once.
const MAX_STREAMS: u32 = 100;
/// The same on the listener of the rate limit service. Envoy admits the requests whose calls are
/// refused, and begins as many calls before it has read the settings.
const MAX_CALLS: u32 = 1024;
/// Maximum number of bytes that a client may send ahead on one stream.
const STREAM_WINDOW: u32 = 128 * 1024;
/// Maximum number of bytes that a client may send ahead on all streams of a connection.
const CONNECTION_WINDOW: u32 = 512 * 1024;
/// Maximum overhead, in bytes, of a connection's unread DATA frames: the library charges each frame
/// below 256 bytes the difference to 256, until its stream is polled and reads it. The budget
/// suffices for one stream's whole window in frames of ten bytes.
const SMALL_FRAME_BUDGET: usize = 4 * 1024 * 1024;
/// Maximum number of bytes of a response that wait for the client, on one stream.
const SEND_BUFFER: usize = 64 * 1024;
/// Maximum number of streams, at one time, that the client has reset before they are accepted.
/// Ordinary clients that cancel calls reach the crate's default of 20; [`FloodDetector`] bounds the
/// rate.
const MAX_PENDING_RESETS: usize = 500;
/// The same for a proxy.
const MAX_PROXY_PENDING_RESETS: usize = 5_000;
/// Maximum number of streams that the library resets because the client broke the protocol, over
/// the life of a connection. This is how a client can force resets of forwarded requests
/// (CVE-2025-8671).
const MAX_ERROR_RESETS: usize = 200;
/// Maximum number of reset streams to remember. For a second after the reset, late frames of a
/// remembered stream, such as the rest of a refused upload, are ignored.
const MAX_REMEMBERED_RESETS: usize = 1024;
/// Maximum time for the client to acknowledge a GOAWAY. Streams that it opens later are refused,
/// and an idle connection is closed.
const GOAWAY_TIMEOUT: Millis = Millis::from_secs(1);
/// Maximum number of bytes of the heads of all open streams. With references to the HPACK table, a
/// client can send a long head in few bytes.
const MAX_HEAD_BYTES: usize = 1024 * 1024;
/// Maximum number of bytes of the heads of all open streams of one client address: by default, it
/// may have 1,024 requests in flight, with heads of at most 32 KiB. A refused request holds its
/// head as well, until the client reads the response.
const MAX_CLIENT_HEAD_BYTES: u64 = 32 * 1024 * 1024;
/// Memory of a field besides its name and its value, in bytes.
const FIELD_OVERHEAD: usize = 64;
/// Maximum number of bytes of the gRPC messages of all open streams, which the gateway reads to
/// their ends.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of streams to accept in one poll. Then the task yields.
const MAX_ACCEPTS_PER_POLL: usize = 16;
/// Maximum number of streams to drive in one poll. The others follow after other tasks.
const MAX_STREAMS_PER_POLL: u32 = 16;

/// Number of streams for which [`ClientHttp2Connection::streams`] has room at first.
const MIN_STREAM_ROOM: usize = 8;

type Http2Server = server::Connection<PrefixedStream, Bytes>;

/// An HTTP/2 client connection.
pub struct ClientHttp2Connection {
    state: StateCell,
    coarse_clock: CoarseClock,
    /// The open streams, for the sweep.
    streams: RefCell<Vec<Weak<Http2Stream>>>,
    peer: Peer,
    senders: RequestSenders,
    bounds: HeadBounds,
    /// Number of requests that the connection may still carry; `None` is unlimited.
    requests_left: Cell<Option<u32>>,
    flood: FloodDetector,
    /// The empty DATA frames that the client has sent.
    empty_frames: Cell<u64>,
    /// The time at which the client was asked to open no further streams.
    closing_since: Cell<Option<CoarseTime>>,
    /// Number of bytes of the heads of the open streams.
    head_bytes: Cell<usize>,
    /// Number of bytes of the gRPC messages of the open streams.
    message_bytes: Cell<usize>,
    /// Number of streams that linger after an error response.
    lingering: Cell<u32>,
    /// Number of streams that may still be driven in this poll.
    streams_left: Cell<u32>,
    /// The data that waits for the socket.
    send_budget: SendBudget,
}

/// The client broke the protocol, or floods the gateway with frames. Few of its further bytes are
/// read.
struct ClientAbuse;

impl Sweepable for ClientHttp2Connection {
    fn sweep(&self, now: CoarseTime, timeouts: &ClientTimeouts) {
        self.state.sweep(now, timeouts);
        self.streams.borrow_mut().retain(|stream| {
            let Some(stream) = stream.upgrade() else { return false };
            stream.state().sweep(now, timeouts);
            true
        });
    }

    fn request_close(&self, mode: CloseMode) {
        self.state.request_close(mode);
        for stream in self.streams.borrow().iter().filter_map(Weak::upgrade) {
            stream.state().request_close(mode);
        }
    }
}

impl ClientHttp2Connection {
    /// A connection that was just accepted.
    pub fn new(start: ConnectionStart) -> Rc<Self> {
        Rc::new(Self {
            state: start.state(),
            coarse_clock: start.coarse_clock,
            streams: RefCell::default(),
            peer: start.peer,
            senders: start.senders,
            bounds: start.bounds,
            requests_left: Cell::new(start.max_requests),
            flood: match start.senders {
                RequestSenders::OneClient => FloodDetector::of_client(),
                RequestSenders::ManyClients => FloodDetector::of_proxy(),
            },
            empty_frames: Cell::new(0),
            closing_since: Cell::new(None),
            head_bytes: Cell::new(0),
            message_bytes: Cell::new(0),
            lingering: Cell::new(0),
            streams_left: Cell::new(0),
            send_budget: SendBudget::default(),
        })
    }

    /// Serves the connection over `transport` until it closes. `already_read` are the bytes that
    /// were already read from `transport`.
    pub async fn serve(
        self: Rc<Self>,
        transport: Transport,
        already_read: ReadBuffer,
        gateway: &Gateway,
    ) {
        let transport = PrefixedStream::new(already_read, transport);
        let (socket, turn) = (transport.socket(), transport.read_budget());
        // A stream may be a tunnel.
        socket.enable_tcp_keepalive();
        let mut is_abuse = false;
        // Boxed, so that an idle connection does not keep its state.
        if let Some(server) = Box::pin(self.handshake(transport, &turn)).await {
            is_abuse = self.serve_streams(server, &turn, gateway).await.is_err();
        }
        if self.state.close_mode() < CloseMode::Immediate {
            // A close with unread frames would reset the connection, and the client could lose the
            // last responses.
            let max = if is_abuse { MAX_DRAINED } else { u64::MAX };
            linger(&socket, &self.state, max).await;
        }
    }

    /// Serves streams until the connection must close, and writes the last frames. Fails if the
    /// client broke the protocol or floods.
    async fn serve_streams(
        self: &Rc<Self>,
        mut server: Box<Http2Server>,
        turn: &ReadBudget,
        gateway: &Gateway,
    ) -> Result<(), ClientAbuse> {
        let mut streams = FuturesUnordered::new();
        let (mut is_over, mut is_flood) = (false, false);
        std::future::poll_fn(|cx| {
            self.state.register(cx.waker());
            let frames = turn.begin();
            self.flood.count_frames(self.coarse_clock.now(), frames);
            self.empty_frames.set(self.empty_frames.get() + frames.empty);
            self.streams_left.set(MAX_STREAMS_PER_POLL);
            for _ in 0..MAX_ACCEPTS_PER_POLL {
                if !is_over && self.close_if_due(&mut server) {
                    (is_over, is_flood) = (true, self.flood.is_detected());
                    streams.clear();
                    let (since, deadline) = (self.state.now(), self.state.now() + LINGER_TIMEOUT);
                    self.state.enter(ConnectionState::Linger { since, deadline });
                }
                if is_over {
                    let closed = server.poll_closed(cx).is_ready();
                    let is_late = self.state.expired_deadline().is_some()
                        || self.state.close_mode() == CloseMode::Immediate;
                    return match closed || is_late {
                        false => Poll::Pending,
                        true if is_flood => Poll::Ready(Err(ClientAbuse)),
                        true => Poll::Ready(Ok(())),
                    };
                }
                match server.poll_accept(cx) {
                    Poll::Ready(Some(Ok((_, mut respond)))) if self.is_past_goaway() => {
                        respond.send_reset(Reason::REFUSED_STREAM);
                        gateway.metrics().streams_refused.add(1);
                    }
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        let stream = self.accept();
                        streams.push(stream.serve(gateway, request, respond));
                        self.state.begin_request();
                    }
                    Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(ClientAbuse)),
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => {
                        // The library has written everything, unless the socket accepts no more.
                        if !turn.is_write_blocked() {
                            self.send_budget.clear();
                        }
                        self.poll_streams(cx, &mut streams);
                        if !self.must_close(&server) {
                            return Poll::Pending;
                        }
                    }
                }
            }
            self.poll_streams(cx, &mut streams);
            yield_turn(cx);
            Poll::Pending
        })
        .await
    }

    /// Exchanges the settings, within the deadline of a first head. The result is boxed, because it
    /// is moved several times, and the state of a connection has room for each.
    async fn handshake(
        &self,
        transport: PrefixedStream,
        turn: &ReadBudget,
    ) -> Option<Box<Http2Server>> {
        let max_streams = match self.peer.purpose {
            ListenerPurpose::Routes => MAX_STREAMS,
            ListenerPurpose::RateLimits => MAX_CALLS,
        };
        let max_pending_resets = match self.senders {
            RequestSenders::OneClient => MAX_PENDING_RESETS,
            RequestSenders::ManyClients => MAX_PROXY_PENDING_RESETS,
        };
        let mut handshake = std::pin::pin!(
            server::Builder::new()
                .max_concurrent_streams(max_streams)
                .max_header_list_size(max_header_list(self.bounds))
                .initial_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_send_buffer_size(SEND_BUFFER)
                .max_pending_accept_reset_streams(max_pending_resets)
                .max_local_error_reset_streams(Some(MAX_ERROR_RESETS))
                .max_concurrent_reset_streams(MAX_REMEMBERED_RESETS)
                .data_frame_budget(SMALL_FRAME_BUDGET)
                .enable_connect_protocol()
                .handshake::<_, Bytes>(transport)
        );
        std::future::poll_fn(|cx| {
            self.state.register(cx.waker());
            turn.begin();
            let is_over = self.state.expired_deadline().is_some()
                || self.state.close_mode() >= CloseMode::WhenIdle;
            match handshake.as_mut().poll(cx) {
                Poll::Ready(server) => Poll::Ready(server.ok().map(Box::new)),
                Poll::Pending if is_over => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// True if the connection must end now, with its streams. Once it is closing and has no
    /// streams, also bounds its wait for the acknowledgement of the GOAWAY.
    fn must_close(&self, server: &Http2Server) -> bool {
        if self.closing_since.get().is_some() && !server.has_streams() {
            self.begin_goaway_wait();
        }
        self.state.close_mode() == CloseMode::Immediate
            || self.state.expired_deadline().is_some()
            || self.flood.is_detected()
    }

    /// True if the client has had the time to acknowledge a GOAWAY.
    fn is_past_goaway(&self) -> bool {
        self.closing_since.get().is_some_and(|since| self.state.now() > since + GOAWAY_TIMEOUT)
    }

    /// Counts the bytes of a stream's head. True if there is room for them; a single head always
    /// has room.
    fn reserve_head(&self, bytes: usize) -> bool {
        let before = self.head_bytes.get();
        let has_room = before == 0 || before + bytes <= MAX_HEAD_BYTES;
        if has_room {
            self.head_bytes.set(before + bytes);
        }
        has_room
    }

    /// Stops counting the bytes of a head.
    fn release_head(&self, bytes: usize) {
        self.head_bytes.set(self.head_bytes.get() - bytes);
    }

    /// Bounds the time that an idle connection waits for the client to acknowledge its GOAWAY. The
    /// library closes the connection on the acknowledgement.
    fn begin_goaway_wait(&self) {
        let state = self.state.get();
        if !matches!(state, ConnectionState::Request { .. } | ConnectionState::Linger { .. }) {
            let (since, deadline) = (self.state.now(), self.state.now() + GOAWAY_TIMEOUT);
            self.state.enter(ConnectionState::Linger { since, deadline });
        }
    }

    /// Begins to close the connection if it must close. True if it ends now, with its streams.
    fn close_if_due(&self, server: &mut Http2Server) -> bool {
        if self.must_close(server) {
            let is_abuse = self.flood.is_detected();
            server.abrupt_shutdown(if is_abuse {
                Reason::ENHANCE_YOUR_CALM
            } else {
                Reason::NO_ERROR
            });
            return true;
        }
        let mode = self.state.close_mode();
        let is_used_up =
            self.requests_left.get() == Some(0) || self.empty_frames.get() >= MAX_EMPTY_FRAMES;
        if (mode > CloseMode::KeepOpen || is_used_up) && self.closing_since.get().is_none() {
            self.closing_since.set(Some(self.state.now()));
            server.graceful_shutdown();
        }
        false
    }

    /// True if one more stream may be driven in this poll.
    fn take_stream_turn(&self) -> bool {
        let left = self.streams_left.get();
        self.streams_left.set(left.saturating_sub(1));
        left > 0
    }

    /// Registers a new stream.
    fn accept(self: &Rc<Self>) -> Rc<Http2Stream> {
        self.flood.count_accepted(self.coarse_clock.now());
        self.requests_left.set(self.requests_left.get().map(|left| left.saturating_sub(1)));
        let stream = Http2Stream::new(Rc::clone(self));
        stream.state().request_close(self.state.close_mode());
        let mut streams = self.streams.borrow_mut();
        if streams.len() == streams.capacity() {
            // A weak reference keeps the memory of its stream.
            streams.retain(|stream| stream.strong_count() > 0);
            let open = streams.len();
            streams.reserve(open.max(MIN_STREAM_ROOM));
        }
        streams.push(Rc::downgrade(&stream));
        stream
    }

    /// Drives the streams, and starts the idle time if none is left.
    fn poll_streams<F: Future<Output = ()>>(
        &self,
        cx: &mut Context<'_>,
        streams: &mut FuturesUnordered<F>,
    ) {
        while let Poll::Ready(Some(())) = streams.poll_next_unpin(cx) {}
        let is_busy = matches!(self.state.get(), ConnectionState::Request { .. });
        if streams.is_empty() && is_busy {
            self.state.enter(ConnectionState::Idle { since: self.state.now() });
        }
    }
}

/// Maximum size of a header list in bytes, counted as in RFC 9113, 6.5.2, which adds 32 to each
/// field. A head that slightly exceeds `bounds` does not exceed this size, so the gateway answers
/// it with its own 431.
fn max_header_list(bounds: HeadBounds) -> u32 {
    (bounds.bytes + 32 * (bounds.headers + 16)) as u32
}
