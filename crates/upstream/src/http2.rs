//! HTTP/2 connections to one server, shared by the requests of a worker.
//!
//! - `http2.rs`: the connections, and the places on them.
//! - `exchange.rs`: one exchange: the request, and the head of its response.
//! - `body.rs`: the bodies of the request and of the response.
//! - `counted_transport.rs`: counts the empty frames of the server.

mod body;
mod counted_transport;
mod exchange;

use std::{
    cell::{Cell, RefCell},
    io,
    pin::Pin,
    rc::{Rc, Weak},
    task::Poll,
};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::task::AbortHandle;

pub use self::body::RequestLost;
use self::counted_transport::CountedTransport;
pub(super) use self::{
    body::Http2Body,
    exchange::{Http2Response, is_connection_lost, max_resends, requires_http1},
};
use tidegate_base::time::{CoarseTime, Millis};
use tidegate_system::clock::CoarseClock;
use tidegate_tls::HandshakeFailure;
use tidegate_transport::{Transport, frame_counter::MAX_EMPTY_FRAMES};

use super::{endpoint::ConnectionGuard, target_health::NoHttp2};

/// Maximum number of bytes that a server may send ahead on one stream.
const STREAM_WINDOW: u32 = 128 * 1024;
/// Maximum number of bytes that a server may send ahead on all streams of a connection. It suffices
/// for all of them, so that clients that do not read never block the responses of others.
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MAX_STREAMS as u32;
/// Maximum number of bytes of a request's body that wait for the server, on one stream.
const SEND_BUFFER: usize = 64 * 1024;
/// Maximum overhead, in bytes, of a connection's unread DATA frames: the library charges each frame
/// below 256 bytes the difference to 256. It allows about 130,000 tiny frames until the streams'
/// tasks run. One stream's window allows 13,000 frames of ten bytes.
const SMALL_FRAME_BUDGET: usize = 32 * 1024 * 1024;
/// Maximum number of exchanges, cancelled in the last second, whose late frames are ignored.
const MAX_REMEMBERED_RESETS: usize = 1024;
/// Maximum size of a head or of trailers, in bytes of their lines.
const MAX_HEAD: usize = 64 * 1024;
/// Maximum size of a header list that the library reads, by its own measure. Beyond it, the library
/// drops fields of trailers without an error, so it is far above the gateway's bounds.
const MAX_HEADER_LIST: u32 = 256 * 1024;
/// Maximum number of streams on one connection, even if the server allows more.
const MAX_STREAMS: usize = 128;
/// Maximum time to send the last frames of a connection without exchanges. A hung server does not
/// read them.
const CLOSE_TIMEOUT: Millis = Millis::from_secs(5);

/// The HTTP/2 connections to one server.
#[derive(Default)]
pub(super) struct Http2Connections {
    open: RefCell<Vec<Rc<UpstreamHttp2Connection>>>,
    closing: RefCell<Vec<Closing>>,
}

/// A connection that takes no further exchanges, and is closed after the ones in flight.
struct Closing {
    connection: Weak<UpstreamHttp2Connection>,
    driver: AbortHandle,
    /// The time at which it was found without exchanges.
    since: Option<CoarseTime>,
}

/// One connection, which its own task drives.
struct UpstreamHttp2Connection {
    send: SendRequest<Bytes>,
    /// The number of open exchanges on it.
    streams: Cell<usize>,
    /// True if it takes no further exchanges: it has failed or is closing, or a response was late.
    is_retired: Cell<bool>,
    /// The empty DATA frames that the server has sent.
    empty_frames: Rc<Cell<u64>>,
    /// The time at which the last exchange ended.
    idle_since: Cell<CoarseTime>,
    driver: AbortHandle,
}

/// A place for one exchange on a connection.
pub(super) struct Http2Slot {
    connection: Rc<UpstreamHttp2Connection>,
    coarse_clock: CoarseClock,
    /// True if the connection has carried an exchange before.
    pub(super) is_reused: bool,
    /// True once an interim response has been forwarded.
    pub(super) has_sent_interim: Cell<bool>,
}

impl Http2Connections {
    /// A place on a connection that has room for another exchange.
    pub(super) fn take(&self, coarse_clock: &CoarseClock) -> Option<Http2Slot> {
        let connections = self.open.borrow();
        let connection = connections.iter().find(|connection| connection.has_room())?;
        Some(Http2Slot::on_reused(Rc::clone(connection), coarse_clock))
    }

    /// Begins HTTP/2 on `transport`, and waits for the server's settings, which contain the number
    /// of streams that it allows and show that it speaks HTTP/2. `guard` counts the connection as
    /// open.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) async fn open(
        &self,
        transport: Transport,
        guard: ConnectionGuard,
        coarse_clock: &CoarseClock,
    ) -> io::Result<Http2Slot> {
        // A stream may be a tunnel.
        transport.enable_tcp_keepalive();
        let transport = CountedTransport::new(transport);
        let empty_frames = transport.empty_frames();
        let handshake = Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(MAX_HEADER_LIST)
            .data_frame_budget(SMALL_FRAME_BUDGET)
            .max_concurrent_reset_streams(MAX_REMEMBERED_RESETS)
            // Late frames of forgotten streams count here, and must not end the other streams.
            .max_local_error_reset_streams(None)
            // Until the server's settings arrive.
            .initial_max_send_streams(0)
            .handshake::<_, Bytes>(transport);
        let (send, mut driver) = handshake.await.map_err(opening_error)?;
        std::future::poll_fn(|cx| match Pin::new(&mut driver).poll(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(opening_error(error))),
            Poll::Ready(Ok(())) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Pending if send.current_max_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        })
        .await?;
        let connection = Rc::new_cyclic(|driven: &Weak<UpstreamHttp2Connection>| {
            let driven = driven.clone();
            let driving = tokio::task::spawn_local(async move {
                // The exchanges get the failure themselves.
                let _ = driver.await;
                drop(guard);
                if let Some(connection) = driven.upgrade() {
                    connection.is_retired.set(true);
                }
            });
            UpstreamHttp2Connection {
                send,
                streams: Cell::new(0),
                is_retired: Cell::new(false),
                empty_frames,
                idle_since: Cell::new(coarse_clock.now()),
                driver: driving.abort_handle(),
            }
        });
        self.open.borrow_mut().push(Rc::clone(&connection));
        Ok(Http2Slot::on_new(connection, coarse_clock))
    }

    /// Closes connections that are retired, or have been idle for longer than `limit`; all idle
    /// ones if it is zero.
    pub(super) fn sweep(&self, now: CoarseTime, limit: Millis) {
        let mut closing = self.closing.borrow_mut();
        self.open.borrow_mut().retain(|connection| {
            let is_idle = connection.streams.get() == 0;
            let idle_time = now.since(connection.idle_since.get());
            let closes = connection.is_over() || is_idle && (limit.is_zero() || idle_time > limit);
            if closes {
                let driver = connection.driver.clone();
                let connection = Rc::downgrade(connection);
                closing.push(Closing { connection, driver, since: None });
            }
            !closes
        });
        closing.retain_mut(|closing| !closing.is_over(now));
    }

    /// The number of connections without an exchange.
    /// True if there is a connection for new requests.
    pub(super) fn is_open(&self) -> bool {
        !self.open.borrow().is_empty()
    }

    pub(super) fn idle_count(&self) -> usize {
        self.open.borrow().iter().filter(|connection| connection.streams.get() == 0).count()
    }
}

impl Closing {
    /// True if the connection is closed. Aborts it after [`CLOSE_TIMEOUT`] without exchanges.
    fn is_over(&mut self, now: CoarseTime) -> bool {
        if self.driver.is_finished() || self.connection.strong_count() > 0 {
            return self.driver.is_finished();
        }
        let is_late = now.since(*self.since.get_or_insert(now)) > CLOSE_TIMEOUT;
        if is_late {
            self.driver.abort();
        }
        is_late
    }
}

impl UpstreamHttp2Connection {
    fn has_room(&self) -> bool {
        !self.is_over() && self.streams.get() < self.max_streams()
    }

    /// True if it takes no further exchanges. The library would end it for too many empty frames,
    /// with the exchanges that are in flight.
    fn is_over(&self) -> bool {
        self.is_retired.get() || self.empty_frames.get() >= MAX_EMPTY_FRAMES
    }

    /// Maximum number of concurrent exchanges.
    fn max_streams(&self) -> usize {
        self.send.current_max_send_streams().min(MAX_STREAMS)
    }
}

impl Drop for Http2Slot {
    fn drop(&mut self) {
        self.connection.streams.set(self.connection.streams.get() - 1);
        self.connection.idle_since.set(self.coarse_clock.now());
    }
}

impl Http2Slot {
    /// A place on a connection that was opened for it.
    fn on_new(connection: Rc<UpstreamHttp2Connection>, coarse_clock: &CoarseClock) -> Self {
        connection.streams.set(connection.streams.get() + 1);
        let coarse_clock = coarse_clock.clone();
        Self { connection, coarse_clock, is_reused: false, has_sent_interim: Cell::new(false) }
    }

    /// A place on a connection that has served before.
    fn on_reused(connection: Rc<UpstreamHttp2Connection>, coarse_clock: &CoarseClock) -> Self {
        let mut slot = Self::on_new(connection, coarse_clock);
        slot.is_reused = true;
        slot
    }

    /// Maximum number of concurrent exchanges on its connection.
    pub(super) fn max_streams(&self) -> usize {
        self.connection.max_streams()
    }
}

fn io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
    }
    io::Error::other(error)
}

/// The error of a connection on which no settings arrived.
fn opening_error(error: h2::Error) -> io::Error {
    // With TLS 1.3, a server refuses a client's certificate only after the handshake.
    if error.get_io().is_some_and(|error| HandshakeFailure::of(error).is_some()) {
        return io_error(error);
    }
    let kind = error.get_io().map_or(io::ErrorKind::Other, io::Error::kind);
    io::Error::new(kind, NoHttp2(format!(": {error}")))
}

#[cfg(test)]
mod tests {
    use tidegate_transport::{RawSocket, tunnel::poll_capacity};
    use tokio::{io::AsyncWriteExt, net::UnixStream, runtime::LocalOptions};

    use super::*;
    use crate::endpoint::EndpointState;

    /// SETTINGS with the largest window for each stream, and as much for the connection.
    const SERVER: &[u8] = b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\
                            \0\0\x04\x08\0\0\0\0\0\x7f\0\0\0";

    #[test]
    fn a_connection_that_its_server_no_longer_reads_is_closed_in_time() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(async {
            let (near, mut server) = UnixStream::pair().unwrap();
            server.write_all(SERVER).await.unwrap();
            let (connections, clock) =
                (Http2Connections::default(), CoarseClock::new(CoarseTime::ZERO));
            let transport = Transport::Plain(RawSocket::Unix(near));
            let guard = ConnectionGuard::open(&EndpointState::for_test("a"), None).unwrap();
            let slot = connections.open(transport, guard, &clock).await.unwrap();
            let driver = slot.connection.driver.clone();
            let (response, mut stream) = slot
                .connection
                .send
                .clone()
                .send_request(http::Request::post("http://a/").body(()).unwrap(), false)
                .unwrap();
            // Until neither the kernel nor the library accepts more.
            let mut rounds_without_capacity = 0;
            while rounds_without_capacity < 100 {
                let capacity = std::future::poll_fn(|cx| {
                    Poll::Ready(poll_capacity(&mut stream, cx, 16 * 1024))
                });
                rounds_without_capacity += 1;
                if let Poll::Ready(count) = capacity.await {
                    stream.send_data(vec![0; count.unwrap()].into(), false).unwrap();
                    rounds_without_capacity = 0;
                }
                tokio::task::yield_now().await;
            }
            slot.connection.is_retired.set(true);
            drop((slot, stream, response));
            for (now, is_closed) in [(0, false), (5_000, false), (5_001, true)] {
                connections.sweep(CoarseTime::from_ms(now), Millis::from_mins(1));
                tokio::task::yield_now().await;
                assert_eq!(driver.is_finished(), is_closed, "{now}");
            }
            assert!(connections.closing.borrow().is_empty());
        });
    }
}
