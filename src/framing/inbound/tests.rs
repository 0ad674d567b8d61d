use std::cell::Cell;

use tokio::io::AsyncReadExt;

use super::*;

/// What the HTTP library is handed when the client's bytes come in pieces of `step`.
async fn handed_over(sent: &[u8], step: usize) -> (Vec<u8>, Option<Fault>) {
    let wire = Rc::new(Wire::new(Rc::new(Cell::new(0))));
    let mut builder = tokio_test_io(sent, step);
    let bounds = HeadBounds { bytes: 200, headers: 10 };
    let mut inbound = Inbound::new(&mut builder, wire.clone(), bounds);
    let mut out = Vec::new();
    let mut buffer = [0; 64];
    while wire.fault().is_none() || inbound.checked > 0 {
        match inbound.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => out.extend_from_slice(&buffer[..count]),
        }
        wire.finish();
    }
    (out, wire.fault())
}

/// A reader that gives `step` bytes at a time, then the end.
fn tokio_test_io(sent: &[u8], step: usize) -> impl AsyncRead + Unpin {
    struct Steps(Vec<u8>, usize, usize);
    impl AsyncRead for Steps {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let end = (self.1 + self.2.min(buf.remaining())).min(self.0.len());
            buf.put_slice(&self.0[self.1..end]);
            self.1 = end;
            Poll::Ready(Ok(()))
        }
    }
    Steps(sent.to_vec(), 0, step)
}

#[tokio::test]
async fn well_formed_requests_come_through_unchanged_in_any_pieces() {
    let sent = b"\r\nPOST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello\
        POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
        GET /c HTTP/1.1\r\nHost: a\r\n\r\n";
    for step in [1, 2, 3, 7, 20, 64, 1000] {
        let (out, fault) = handed_over(sent, step).await;
        assert_eq!(fault, None, "step {step}");
        assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&sent[2..]));
    }
}

#[tokio::test]
async fn nothing_of_a_refused_head_is_handed_over() {
    for (sent, fault) in [
        (&b"GET / HTTP/1.1\r\nHost: a\r\nX: y\nHost: b\r\n\r\n"[..], Fault::BareLf),
        (b"GET /\n\n", Fault::BareLf),
        (&[b'G'; 300], Fault::TargetTooLong),
    ] {
        for step in [1, 5, 1000] {
            let (out, seen) = handed_over(sent, step).await;
            assert_eq!((out.as_slice(), seen), (STAND_IN, Some(fault)), "step {step}");
        }
    }
    let long = [&b"GET / HTTP/1.1\r\nHost: a\r\nX: "[..], &[b'y'; 300]].concat();
    assert_eq!(handed_over(&long, 64).await.1, Some(Fault::HeadTooLarge));
}

#[tokio::test]
async fn a_good_request_before_a_bad_one_is_whole() {
    let sent = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /\r\n\r\n";
    for step in [1, 9, 1000] {
        let (out, fault) = handed_over(sent, step).await;
        assert_eq!(fault, Some(Fault::RequestLine), "step {step}");
        let good = out.strip_suffix(STAND_IN).expect("the stand-in comes last");
        assert!(good.ends_with(b"\r\n\r\nhello"));
    }
}

#[tokio::test]
async fn a_malformed_chunk_ends_the_body_with_an_error() {
    let sent = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX";
    for step in [1, 1000] {
        let (out, fault) = handed_over(sent, step).await;
        assert_eq!(fault, Some(Fault::ChunkEnd));
        assert!(out.ends_with(b"\r\n\r\n") || out.ends_with(b"abc"));
    }
}
