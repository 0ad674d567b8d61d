//! The upstream's end of a tunnel, over HTTP/1 or HTTP/2.

use std::{
    io,
    task::{Context, Poll},
};

use tidegate_transport::{tunnel::Http2TunnelEnd, tunnel::TunnelEnd, tunnel::poll_read_socket};

use super::{
    connection::UpstreamHttp1Connection, endpoint::InFlight, http2::Http2Slot,
    request::OutgoingRequest, response::ResponseBody, upgrade::UpgradeRequest,
};

/// The content after the head of an upstream's response.
pub enum UpstreamContent {
    /// A body.
    Body(ResponseBody),
    /// Another protocol.
    Tunnel(Box<UpstreamTunnel>),
}

/// The upstream's end of a tunnel. Its connection is not reused.
pub struct UpstreamTunnel {
    /// The protocol, as the client asked for it.
    pub protocol: Box<str>,
    end: End,
    _in_flight: InFlight,
}

enum End {
    Http1(Box<UpstreamHttp1Connection>),
    /// A stream, and its place on the connection.
    Http2 {
        end: Http2TunnelEnd,
        _slot: Http2Slot,
    },
}

impl UpstreamTunnel {
    /// The tunnel that begins after the 101 on `connection`.
    pub(super) fn http1(
        outgoing: &OutgoingRequest,
        connection: Box<UpstreamHttp1Connection>,
        in_flight: InFlight,
    ) -> Self {
        connection.socket.enable_tcp_keepalive();
        let end = End::Http1(connection);
        Self { protocol: protocol_of(outgoing), end, _in_flight: in_flight }
    }

    /// The tunnel that a 2xx on a stream opens.
    pub(super) fn http2(
        outgoing: &OutgoingRequest,
        end: Http2TunnelEnd,
        slot: Http2Slot,
        in_flight: InFlight,
    ) -> Self {
        let end = End::Http2 { end, _slot: slot };
        Self { protocol: protocol_of(outgoing), end, _in_flight: in_flight }
    }
}

fn protocol_of(outgoing: &OutgoingRequest) -> Box<str> {
    outgoing.upgrade().map(UpgradeRequest::protocol).unwrap_or_default().into()
}

impl TunnelEnd for UpstreamTunnel {
    fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        match &mut self.end {
            End::Http1(connection) => {
                poll_read_socket(&mut connection.buffer, &connection.socket, cx, out)
            }
            End::Http2 { end, .. } => end.poll_read(cx, out),
        }
    }

    fn read_ahead(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match &mut self.end {
            End::Http1(connection) => connection.socket.check_error(),
            End::Http2 { end, .. } => end.read_ahead(cx),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.end {
            End::Http1(connection) => connection.socket.poll_write(cx, bytes),
            End::Http2 { end, .. } => end.poll_write(cx, bytes),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.end {
            End::Http1(connection) => connection.socket.poll_flush(cx),
            End::Http2 { end, .. } => end.poll_flush(cx),
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.end {
            End::Http1(connection) => connection.socket.poll_shutdown(cx),
            End::Http2 { end, .. } => end.poll_close(cx),
        }
    }

    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.end {
            End::Http1(connection) => connection.socket.poll_flush(cx).map(drop),
            End::Http2 { end, .. } => end.poll_written(cx),
        }
    }

    fn abort(&mut self) {
        match &mut self.end {
            End::Http1(connection) => connection.socket.reset_on_close(),
            End::Http2 { end, .. } => end.abort(),
        }
    }
}
