//! Reads the body of a unary call from a client.

use std::task::{Context, Poll, ready};

use tidegate_http1::BodyEncoder;
use tidegate_transport::connection_state::Wait;
use tidegate_transport::{BodyError, ClientStream, socket::yield_turn};

use super::{
    frame::{MAX_BODY, decode_message, too_long},
    status::{GrpcError, GrpcStatus},
};

/// Maximum number of reads in one poll. Then the task yields to others.
const MAX_READS_PER_POLL: usize = 16;

/// Reads the one message of a unary call to its end.
///
/// # Errors
///
/// The body did not arrive in time or was cut off, or is not one message that [`decode_message`]
/// accepts.
pub async fn read_message(client: &dyn ClientStream) -> Result<Vec<u8>, GrpcError> {
    let mut body = Vec::new();
    let state = client.state();
    let read = std::future::poll_fn(|cx| {
        if state.expired_deadline().is_some() {
            return Poll::Ready(Err(BodyError::TimedOut.into()));
        }
        let read = poll_read(client, cx, &mut body);
        if read.is_pending() {
            state.begin_client_body_wait();
        }
        read
    });
    let read = read.await;
    state.set_wait(Wait::Internal);
    read?;
    let length = decode_message(&body)?.len();
    body.drain(..body.len() - length);
    Ok(body)
}

fn poll_read(
    client: &dyn ClientStream,
    cx: &mut Context<'_>,
    body: &mut Vec<u8>,
) -> Poll<Result<(), GrpcError>> {
    for _ in 0..MAX_READS_PER_POLL {
        let count = ready!(client.poll_body(cx, BodyEncoder::Plain, body))?;
        if count == 0 {
            return Poll::Ready(Ok(()));
        }
        if body.len() > MAX_BODY {
            client.abandon_body();
            return Poll::Ready(Err(too_long()));
        }
        if !client.reserve_message(count) {
            client.abandon_body();
            let text = "the incomplete messages of this connection are too long together";
            return Poll::Ready(Err(GrpcError::new(GrpcStatus::ResourceExhausted, text)));
        }
        client.state().set_wait(Wait::Internal);
    }
    yield_turn(cx);
    Poll::Pending
}

impl From<BodyError> for GrpcError {
    fn from(error: BodyError) -> Self {
        let status = match error {
            BodyError::TimedOut | BodyError::TooSlow => GrpcStatus::DeadlineExceeded,
            BodyError::TooLong => GrpcStatus::ResourceExhausted,
            BodyError::Malformed(_) | BodyError::Unreadable => GrpcStatus::Internal,
            BodyError::ClientClosed => GrpcStatus::Cancelled,
        };
        Self::new(status, error.to_string())
    }
}
