//! What becomes of a request's body that nobody read, so that the connection stays in step.
//!
//! An answer may come before the body was read. Then the rest is read and thrown away where it is
//! short, and the connection goes on; otherwise the connection is closed after the answer, once the
//! client has had time to read it. It is never reused out of step.

use std::time::Duration;

use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::{Peer, visit::Visit};
use crate::{
    error::GatewayError,
    framing::{Phase, Wire},
};

/// A body of up to so many bytes is read to its end, so that the connection can go on.
const DRAINED: u64 = 64 * 1024;
/// And for so long: no route's deadline holds any more. Then the connection closes.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// Sees to the unread body of `visit`. Returns whether the connection must close after the answer.
pub(super) fn settle(visit: &mut Visit, peer: &Peer, failed: bool) -> bool {
    leaves_unread(visit, peer, failed) || peer.wire.is_last()
}

fn leaves_unread(visit: &mut Visit, peer: &Peer, failed: bool) -> bool {
    if peer.wire.fault().is_some() {
        return true;
    }
    let Some(body) = visit.body.take() else {
        // It went to the upstream, which may not have read it all.
        return failed && peer.wire.lingers();
    };
    if body.is_end_stream() {
        return false;
    }
    peer.wire.linger();
    if visit.expects {
        // Reading would tell the client to send it.
        return true;
    }
    if body.size_hint().exact().is_some_and(|length| length <= DRAINED) {
        tokio::task::spawn_local(timeout(DRAIN_TIME, drain(body)));
        return false;
    }
    true
}

async fn drain(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// What was wrong with the body that the client sent, if that is why the exchange failed.
pub(super) fn body_fault(wire: &Wire) -> Option<GatewayError> {
    match wire.body_fault()? {
        true => Some(GatewayError::BodyTooLong),
        false if wire.expired() == Some(Phase::Body) => Some(GatewayError::BodyTimeout),
        false => Some(wire.fault().map_or(GatewayError::BodyMalformed, GatewayError::Framing)),
    }
}
