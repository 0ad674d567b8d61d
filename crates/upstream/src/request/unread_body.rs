//! [`UnreadBody`]: what a request still reads of its client's body; [`KeptBody`]: one that may have
//! to be sent again.

use std::{
    cell::Cell,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use tidegate_http1::BodyEncoder;
use tidegate_transport::{BodyError, ClientStream};

use crate::headers::ProtectedHeaders;

/// The unread rest of a body.
pub(super) struct UnreadBody {
    pub(super) client: Rc<dyn ClientStream>,
    pub(super) encoder: BodyEncoder,
    /// True if the last read from the client was pending.
    pub(super) client_pending: bool,
    pub(super) protected: ProtectedHeaders,
    /// The bytes to send again in place of the client's; empty once they were read.
    pub(super) replay: Option<Bytes>,
    /// True while the client waits for the server's `100 Continue`. Nothing is read meanwhile.
    pub(super) awaits_continue: Option<Rc<Cell<bool>>>,
}

/// A body that was read, with its bytes.
pub(super) struct KeptBody {
    pub(super) body: Box<UnreadBody>,
    pub(super) bytes: Bytes,
}

impl UnreadBody {
    /// Appends the next bytes to `out`, encoded by `encoder`. Ready with their number; 0 at the end
    /// of the body.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        if self.awaits_continue.as_ref().is_some_and(|waits| waits.get()) {
            self.client_pending = false;
            return Poll::Pending;
        }
        if let Some(bytes) = &mut self.replay {
            let bytes = std::mem::take(bytes);
            if !bytes.is_empty() {
                encoder.write(out, |out| out.extend_from_slice(&bytes));
            }
            return Poll::Ready(Ok(bytes.len()));
        }
        let polled = self.client.poll_body(cx, encoder, out);
        self.client_pending = polled.is_pending();
        polled
    }
}
