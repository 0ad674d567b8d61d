//! The client's end of a tunnel over HTTP/1: opens it with a 101, and drives it to its end.

use std::{
    io,
    task::{Context, Poll},
};

use tidegate_http1::Buffer;
use tidegate_transport::{ReadBuffer, Tunnel, TunnelEnd, TunnelOutcome, tunnel::poll_read_socket};

use super::{Connection, Disposition, output::write_status};
use crate::{Content, Response};

struct ClientEnd<'c> {
    connection: &'c Connection,
    /// Bytes that arrived after the request's head.
    already_read: ReadBuffer,
}

impl Connection {
    /// Writes the head of `response`, a 101, and moves bytes in both directions until the tunnel
    /// ends.
    pub(super) async fn tunnel(&self, response: Response) -> Disposition {
        // The rest of a body would become bytes of the tunnel. The upstream's connection waits for
        // the whole request before it accepts a 101.
        debug_assert!(self.input.borrow().is_body_read(), "a tunnel begins within a body");
        if !self.input.borrow().is_body_read() {
            return Disposition::Abort;
        }
        let mut head = self.input.borrow_mut().take_interim();
        if head.is_empty() {
            head = Buffer::with_capacity(512);
        }
        write_status(&mut head, response.status);
        response.write_fields(&mut *head);
        let (Content::Tunnel(upstream), mut request) = response.into_content() else {
            return Disposition::Abort;
        };
        head.extend_from_slice(b"connection: upgrade\r\nupgrade: ");
        head.extend_from_slice(upstream.protocol.as_bytes());
        head.extend_from_slice(b"\r\n\r\n");
        self.has_unread.set(false);
        self.socket.enable_tcp_keepalive();
        self.state.begin_tunnel(request.timeouts().tunnel_idle);
        let client =
            ClientEnd { connection: self, already_read: self.input.borrow_mut().take_unread() };
        let mut tunnel = Tunnel::new(client, *upstream, head);
        let outcome = std::future::poll_fn(|cx| {
            let outcome = tunnel.poll(cx, &self.state);
            // Recorded at each poll, because the future may be dropped at any time.
            request.ledger_mut().set_tunnel_bytes(tunnel.bytes());
            outcome
        });
        let outcome = outcome.await;
        request.ledger_mut().mark_tunnel_end(outcome);
        match outcome {
            // The client may still send although the upstream receives no more.
            TunnelOutcome::Complete => Disposition::Linger,
            _ => Disposition::Abort,
        }
    }
}

impl TunnelEnd for ClientEnd<'_> {
    fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        poll_read_socket(&mut self.already_read, &self.connection.socket, cx, out)
    }

    fn read_ahead(&mut self, _cx: &mut Context<'_>) -> io::Result<()> {
        self.connection.socket.check_error()
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.connection.socket.poll_write(cx, bytes)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.socket.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.socket.poll_shutdown(cx)
    }

    fn abort(&mut self) {
        self.connection.socket.reset_on_close();
    }
}
