//! Uploads that go on after an error response.
//!
//! The library resets a stream that is dropped before the client has ended it. A client that reads
//! the reset together with the response may report a broken stream instead of the status, as
//! curl 7.88 does. So the stream of an error lingers: it is kept, and what the client sends is
//! discarded, until the client has had time to read the response.

use std::{rc::Rc, task::Poll};

use tidegate_transport::Http2Receiver;
use tidegate_transport::connection_state::{CloseMode, ConnectionState, StateCell};

use super::{super::DRAIN_TIMEOUT, ClientHttp2Connection};

/// Maximum number of bytes of an upload to discard. A client that sends more than the window of a
/// stream has read the response, which is in front of the updates of the window.
const MAX_DISCARDED: usize = 1024 * 1024;
/// Maximum number of streams of a connection that linger at one time: they are open streams.
const MAX_LINGERING: u32 = 8;

/// An upload that lingers.
pub(super) struct LingeringUpload {
    upload: Http2Receiver,
    connection: Rc<ClientHttp2Connection>,
}

impl LingeringUpload {
    /// Takes `upload` if the client has not ended it, and if the connection has room for it. The
    /// result is boxed, because few requests have one.
    pub(super) fn take(
        connection: &Rc<ClientHttp2Connection>,
        upload: &mut Option<Http2Receiver>,
    ) -> Option<Box<Self>> {
        let count = connection.lingering.get();
        let upload = upload.take_if(|upload| count < MAX_LINGERING && !upload.has_ended())?;
        connection.lingering.set(count + 1);
        Some(Box::new(Self { upload, connection: Rc::clone(connection) }))
    }

    /// Discards the upload until the client ends or resets it, is silent or late, or has sent too
    /// much, or until the connection must close. Then the library resets the stream.
    pub(super) async fn discard(mut self: Box<Self>, state: &StateCell) {
        let deadline = state.now() + DRAIN_TIMEOUT;
        let note_progress =
            || state.enter(ConnectionState::Linger { since: state.now(), deadline });
        note_progress();
        let mut discarded = 0;
        std::future::poll_fn(|cx| {
            while state.expired_deadline().is_none()
                && state.close_mode() == CloseMode::KeepOpen
                && discarded <= MAX_DISCARDED
            {
                match self.upload.poll_data(cx, |_| {}) {
                    Poll::Ready(Ok(count @ 1..)) => discarded += count,
                    Poll::Ready(_) => break,
                    Poll::Pending => return Poll::Pending,
                }
                note_progress();
            }
            Poll::Ready(())
        })
        .await;
    }
}

impl Drop for LingeringUpload {
    fn drop(&mut self) {
        let count = &self.connection.lingering;
        count.set(count.get() - 1);
    }
}
