use std::{collections::VecDeque, task::Waker};

use tidegate_system::clock::CoarseClock;

use super::*;

/// An end whose reads and writes the test scripts.
#[derive(Default)]
struct ScriptedEnd {
    /// `None` is an error; an empty vector is the end of the stream.
    arriving: VecDeque<Option<Vec<u8>>>,
    /// Number of bytes to accept; `None`: writes fail.
    room: Option<usize>,
    written: Vec<u8>,
    is_closed: bool,
    is_aborted: bool,
    /// True if the connection fails while it is not read.
    is_reset: bool,
}

impl ScriptedEnd {
    fn new<const N: usize>(arriving: [Option<&str>; N], room: Option<usize>) -> Self {
        let arriving = arriving.into_iter().map(|bytes| bytes.map(|text| text.as_bytes().to_vec()));
        Self { arriving: arriving.collect(), room, ..Self::default() }
    }
}

impl TunnelEnd for ScriptedEnd {
    fn poll_read(&mut self, _cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        match self.arriving.pop_front() {
            None => Poll::Pending,
            Some(None) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Some(Some(bytes)) => {
                out.extend_from_slice(&bytes);
                Poll::Ready(Ok(bytes.len()))
            }
        }
    }

    fn read_ahead(&mut self, _cx: &mut Context<'_>) -> io::Result<()> {
        if self.is_reset { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    fn poll_write(&mut self, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(room) = &mut self.room else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if *room == 0 {
            return Poll::Pending;
        }
        let count = bytes.len().min(*room);
        *room -= count;
        self.written.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.is_closed = true;
        Poll::Ready(Ok(()))
    }

    fn poll_written(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        // Without room, the connection has not sent everything.
        if self.room == Some(0) { Poll::Pending } else { Poll::Ready(()) }
    }

    fn abort(&mut self) {
        self.is_aborted = true;
    }
}

type ScriptedTunnel = Tunnel<ScriptedEnd, ScriptedEnd>;

fn poll(tunnel: &mut ScriptedTunnel) -> Option<TunnelOutcome> {
    poll_at(tunnel, Millis::ZERO)
}

/// Polls `tunnel` when the coarse clock has run for this long.
fn poll_at(tunnel: &mut ScriptedTunnel, passed: Millis) -> Option<TunnelOutcome> {
    let state = StateCell::new(CoarseClock::new(CoarseTime::ZERO + passed));
    state.begin_request();
    state.begin_tunnel(None);
    match tunnel.poll(&mut Context::from_waker(Waker::noop()), &state) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

const ROOM: Option<usize> = Some(usize::MAX);

#[test]
fn the_end_of_one_direction_closes_only_that_one() {
    let client = ScriptedEnd::new([Some("a"), Some("")], ROOM);
    let upstream = ScriptedEnd::new([Some("b")], ROOM);
    let mut tunnel = Tunnel::new(client, upstream, Buffer::copy_of(b"head:"));
    assert_eq!(poll(&mut tunnel), None);
    assert_eq!((&*tunnel.client.written, &*tunnel.upstream.written), (&b"head:b"[..], &b"a"[..]));
    assert!(tunnel.upstream.is_closed && !tunnel.client.is_closed);
    tunnel.upstream.arriving = [Some(b"c".to_vec()), Some(Vec::new())].into();
    assert_eq!(poll(&mut tunnel), Some(TunnelOutcome::Complete));
    assert!(tunnel.client.is_closed && !tunnel.client.is_aborted);
    assert_eq!(tunnel.bytes(), (2, 1));
}

#[test]
fn nothing_is_read_while_a_side_does_not_accept() {
    let client = ScriptedEnd::new([], Some(1));
    let upstream = ScriptedEnd::new([Some("abc"), Some("def")], ROOM);
    let mut tunnel = Tunnel::new(client, upstream, Buffer::default());
    assert_eq!(poll(&mut tunnel), None);
    assert_eq!((&*tunnel.client.written, tunnel.upstream.arriving.len()), (&b"a"[..], 1));
    tunnel.client.room = ROOM;
    assert_eq!(poll(&mut tunnel), None);
    assert_eq!(tunnel.client.written, b"abcdef");
    assert_eq!(tunnel.download.bytes.capacity(), 0, "an idle tunnel holds no buffer");
}

#[test]
fn what_was_read_before_a_failure_is_written() {
    let client = ScriptedEnd::new([], Some(2));
    let upstream = ScriptedEnd::new([Some("last"), None], ROOM);
    let mut tunnel = Tunnel::new(client, upstream, Buffer::default());
    assert_eq!(poll(&mut tunnel), None);
    tunnel.client.room = ROOM;
    assert_eq!(poll(&mut tunnel), Some(TunnelOutcome::UpstreamFailed));
    assert_eq!(tunnel.client.written, b"last");
    assert!(tunnel.client.is_aborted && !tunnel.client.is_closed);
}

#[test]
fn a_reset_ends_a_tunnel_whose_other_side_does_not_accept() {
    for (is_client, outcome) in
        [(true, TunnelOutcome::ClientFailed), (false, TunnelOutcome::UpstreamFailed)]
    {
        let sender = ScriptedEnd::new([Some("unread"), Some("more")], ROOM);
        let reader = ScriptedEnd::new([], Some(0));
        let (client, upstream) = if is_client { (sender, reader) } else { (reader, sender) };
        let mut tunnel = Tunnel::new(client, upstream, Buffer::default());
        assert_eq!(poll(&mut tunnel), None);
        let sender = if is_client { &mut tunnel.client } else { &mut tunnel.upstream };
        sender.is_reset = true;
        assert_eq!(poll(&mut tunnel), None);
        assert_eq!(poll_at(&mut tunnel, FLUSH_TIMEOUT), None, "the other side may take it");
        assert_eq!(poll_at(&mut tunnel, FLUSH_TIMEOUT + Millis::MILLISECOND), Some(outcome));
    }
}

#[test]
fn what_waits_for_a_slow_side_is_written_after_a_reset() {
    let client = ScriptedEnd::new([], Some(0));
    // A socket reports its failure once, and then an end.
    let arriving = [Some("last"), Some(" bytes"), Some("")];
    let upstream = ScriptedEnd { is_reset: true, ..ScriptedEnd::new(arriving, ROOM) };
    let mut tunnel = Tunnel::new(client, upstream, Buffer::default());
    assert_eq!(poll(&mut tunnel), None);
    tunnel.upstream.is_reset = false;
    tunnel.client.room = ROOM;
    assert_eq!(poll(&mut tunnel), Some(TunnelOutcome::UpstreamFailed));
    assert_eq!(tunnel.client.written, b"last bytes");
    assert!(tunnel.client.is_aborted && !tunnel.client.is_closed);
}

#[test]
fn a_reset_waits_for_what_was_written_but_not_for_long() {
    for (is_client, outcome) in
        [(true, TunnelOutcome::ClientFailed), (false, TunnelOutcome::UpstreamFailed)]
    {
        for released_at in [Some(FLUSH_TIMEOUT), None] {
            let sender = ScriptedEnd::new([Some("last"), None], ROOM);
            let reader = ScriptedEnd::new([], Some("last".len()));
            let (client, upstream) = if is_client { (sender, reader) } else { (reader, sender) };
            let mut tunnel = Tunnel::new(client, upstream, Buffer::default());
            assert_eq!(poll(&mut tunnel), None);
            assert_eq!(poll_at(&mut tunnel, FLUSH_TIMEOUT), None);
            assert!(!tunnel.client.is_aborted && !tunnel.upstream.is_aborted);
            let reader = if is_client { &mut tunnel.upstream } else { &mut tunnel.client };
            assert_eq!(reader.written, b"last");
            reader.room = released_at.map_or(Some(0), |_| ROOM);
            let passed = released_at.unwrap_or(FLUSH_TIMEOUT + Millis::MILLISECOND);
            assert_eq!(poll_at(&mut tunnel, passed), Some(outcome));
            assert!(tunnel.client.is_aborted && tunnel.upstream.is_aborted);
        }
    }
}

#[test]
fn a_side_that_accepts_no_more_is_still_read_to_its_end() {
    let client = ScriptedEnd::new([Some("bye"), Some("")], None);
    let upstream = ScriptedEnd::new([Some("more")], ROOM);
    let mut tunnel = Tunnel::new(client, upstream, Buffer::default());
    assert_eq!(poll(&mut tunnel), Some(TunnelOutcome::ClientFailed));
    assert_eq!(tunnel.upstream.written, b"bye");

    let client = ScriptedEnd::new([Some("more")], ROOM);
    let upstream = ScriptedEnd::new([Some("bye"), Some("")], None);
    let mut tunnel = Tunnel::new(client, upstream, Buffer::default());
    assert_eq!(poll(&mut tunnel), Some(TunnelOutcome::Complete));
    assert_eq!(tunnel.client.written, b"bye");
}

#[test]
fn an_idle_tunnel_is_aborted() {
    let ends = [ScriptedEnd::new([], ROOM), ScriptedEnd::new([], ROOM)];
    let [client, upstream] = ends;
    let mut tunnel = Tunnel::new(client, upstream, Buffer::default());
    let state = StateCell::new(CoarseClock::new(CoarseTime::ZERO));
    state.begin_request();
    state.begin_tunnel(Some(Millis::from_ms(100)));
    state.expire(crate::connection_state::ExpiredDeadline::Tunnel);
    let polled = tunnel.poll(&mut Context::from_waker(Waker::noop()), &state);
    assert_eq!(polled, Poll::Ready(TunnelOutcome::TimedOut));
    assert!(tunnel.client.is_aborted && tunnel.upstream.is_aborted);
}
