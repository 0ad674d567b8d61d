//! The client's end of a tunnel over HTTP/2 (RFC 8441): opens it with a 200, and drives it to its end.

use crate::{
    gateway::{Content, Response},
    http1::Buffer,
    telemetry::CutReason,
    transport::{ClientStream, Tunnel, TunnelOutcome, tunnel::Http2End},
};

use super::{output::response_head, stream::Http2Stream};

/// Sends the head of `response`, and moves bytes in both directions until the tunnel ends.
pub(super) async fn tunnel(stream: &Http2Stream, response: Response) {
    let head = response_head(&response);
    let Response { content: Content::Tunnel(upstream), mut request, timeouts, .. } = response
    else {
        return;
    };
    let respond = stream.respond.borrow_mut().take();
    let sent = respond.map(|mut respond| respond.send_response(head, false));
    let (Some(Ok(send)), Some(receive)) = (sent, stream.take_tunnel()) else {
        stream.count_reset();
        return request.ledger_mut().mark_cut(CutReason::ClientClosed);
    };
    stream.state().begin_tunnel(timeouts.tunnel_idle);
    let client = Http2End::new(send, receive);
    let mut tunnel = Tunnel::new(client, *upstream, Buffer::default());
    let outcome = std::future::poll_fn(|cx| {
        let before = tunnel.bytes();
        let outcome = tunnel.poll(cx, stream.state());
        let bytes = tunnel.bytes();
        stream.count_sent(bytes.0 - before.0);
        // The future may be dropped at any time.
        request.ledger_mut().set_tunnel_bytes(bytes);
        outcome
    });
    let outcome = outcome.await;
    if outcome == TunnelOutcome::ClientFailed {
        stream.count_reset();
    }
    request.ledger_mut().mark_tunnel_end(outcome);
}
