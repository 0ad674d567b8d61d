//! The common part of the HTTP/1 and HTTP/2 writers of a response's body: its deadlines, and the wait for a
//! client that does not read.

use std::task::{Context, Poll};

use crate::{
    connection_state::{StateCell, Timeout},
    telemetry::CutReason,
    upstream::{ReadAheadOutcome, ResponseBody},
};

/// Maximum number of reads and writes in one poll. Then the task yields to others.
pub(super) const MAX_POLL_ROUNDS: usize = 16;

/// Checks that no deadline of the response has passed.
///
/// # Errors
///
/// The response must be cut off.
pub(super) fn check_deadlines(state: &StateCell) -> Result<(), CutReason> {
    match state.timeout() {
        Some(Timeout::ClientRead) => Err(CutReason::ClientTimeout),
        Some(Timeout::ResponseIdle) => Err(CutReason::UpstreamIdle),
        Some(Timeout::Response) => Err(CutReason::ResponseBodyTimeout),
        _ => Ok(()),
    }
}

/// Begins to wait for the client, and reads `body` ahead meanwhile. Ready only with an error, if the client
/// has lost its place at the upstream.
pub(super) fn await_client_read(
    state: &StateCell,
    body: Option<&mut ResponseBody>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), CutReason>> {
    state.begin_client_read_wait();
    match body.map(|body| body.read_ahead(cx)) {
        None | Some(ReadAheadOutcome::Unpaced) => Poll::Pending,
        Some(ReadAheadOutcome::Paced) => {
            state.set_wake_on_sweep(true);
            Poll::Pending
        }
        Some(ReadAheadOutcome::Lost) => Poll::Ready(Err(CutReason::ClientSlow)),
    }
}
