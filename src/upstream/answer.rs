//! An upstream's answer, read strictly: its head when it is whole and has one reading, its body to its
//! end and no further.

use std::{
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::{
    headers::{clean_trailers, named_by_connection},
    link::Link,
    pool::Pool,
    request::Outgoing,
};
use crate::framing::{
    AnswerHead, Fault,
    chunked::{Chunked, Piece},
    head::Length,
};

/// The longest head of an answer, in bytes, and the most interim answers before it.
const MAX_HEAD: usize = 64 * 1024;
const MAX_INTERIM: usize = 32;

/// How an answer's body ends.
#[derive(Debug)]
enum End {
    /// It has ended.
    Over,
    /// After so many bytes more.
    After(u64),
    /// With its last chunk.
    Chunked(Box<Chunks>),
    /// With the connection.
    Close,
}

/// A chunked body and the trailers that have come.
#[derive(Debug, Default)]
struct Chunks {
    frame: Chunked,
    trailers: HeaderMap,
}

/// An answer's head, and what it says of the connection.
pub(super) struct Answer {
    pub(super) response: Response<()>,
    end: End,
    persistent: bool,
}

impl Link {
    /// Reads the answer's head to a request of `method`; interim answers are passed over. `map` is
    /// reused for its headers.
    pub(super) fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        method: &Method,
        map: &mut HeaderMap,
    ) -> Poll<io::Result<Answer>> {
        loop {
            let count = ready!(self.held.fill(&mut self.socket, cx))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.heard = true;
            let held = self.held.bytes();
            // Only a line's end can make a head whole: one that trickles is not read anew each time.
            let lines = memchr::memchr(b'\n', &held[held.len() - count..]).is_some();
            match if lines { self.take_head()? } else { None } {
                Some((head, bytes)) => {
                    return Poll::Ready(Ok(read_head(&head, &bytes, method, std::mem::take(map))?));
                }
                None if self.held.bytes().len() > MAX_HEAD => {
                    return Poll::Ready(Err(Fault::HeadTooLarge.into()));
                }
                None => {}
            }
        }
    }

    /// Takes the final head out of what was read, once it is whole.
    fn take_head(&mut self) -> io::Result<Option<(AnswerHead, Bytes)>> {
        while let Some(head) = AnswerHead::check(self.held.bytes())? {
            let bytes = head.bytes;
            if bytes > MAX_HEAD {
                return Err(Fault::HeadTooLarge.into());
            }
            if head.status >= 200 {
                let taken = Bytes::copy_from_slice(&self.held.bytes()[..bytes]);
                self.held.skip(bytes);
                return Ok(Some((head, taken)));
            }
            self.held.skip(bytes);
            self.interim += 1;
            if self.interim > MAX_INTERIM {
                return Err(io::Error::other("too many interim answers"));
            }
        }
        Ok(None)
    }
}

/// Makes the response of a head that was checked: what concerns the connection alone is read and left
/// out.
fn read_head(
    head: &AnswerHead,
    bytes: &Bytes,
    method: &Method,
    mut headers: HeaderMap,
) -> io::Result<Answer> {
    headers.clear();
    let malformed = || io::Error::from(Fault::HeaderName);
    let (mut kept, mut closed) = (head.is_http_11, false);
    let mut named: Vec<HeaderName> = Vec::new();
    for (name, value) in &head.fields {
        let name = &bytes[name.start as usize..name.end as usize];
        let value = bytes.slice(value.start as usize..value.end as usize);
        let name = HeaderName::from_bytes(name).map_err(|_| malformed())?;
        if name == http::header::CONNECTION {
            // HTTP/1.0 keeps a connection where it says so; a `close` counts wherever it stands.
            match value.to_ascii_lowercase().as_slice() {
                b"keep-alive" => kept = true,
                b"close" => closed = true,
                other => {
                    named.extend(named_by_connection(other));
                    closed |= other.windows(5).any(|word| word == b"close");
                }
            }
        } else if !super::headers::is_hop_by_hop(name.as_str()) {
            let value = HeaderValue::from_maybe_shared(value).map_err(|_| malformed())?;
            headers.try_append(name, value).map_err(|_| io::Error::from(Fault::HeadTooLarge))?;
        }
    }
    for name in named {
        headers.remove(name);
    }
    let status =
        StatusCode::from_u16(head.status).map_err(|_| io::Error::from(Fault::StatusLine))?;
    let bodiless = *method == Method::HEAD || matches!(head.status, 204 | 304);
    if head.status == 204 && !matches!(head.length, None | Some(Length::Known(0))) {
        // It announces a body that it cannot have: what comes next has two readings.
        closed = true;
    }
    let end = match head.length {
        _ if bodiless => End::Over,
        Some(Length::Known(0)) => End::Over,
        Some(Length::Known(length)) => End::After(length),
        Some(Length::Chunked) => End::Chunked(Box::default()),
        None => End::Close,
    };
    let persistent = kept && !closed;
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(Answer { response, end, persistent })
}

/// The body of an upstream's answer, as it comes. Puts its connection back when it has ended.
pub struct AnswerStream {
    link: Option<Link>,
    /// What is still to be sent of the request.
    outgoing: Option<Outgoing>,
    end: End,
    persistent: bool,
    pool: Rc<Pool>,
}

impl Answer {
    pub(super) fn into_stream(
        self,
        link: Link,
        outgoing: Outgoing,
        pool: Rc<Pool>,
    ) -> Response<AnswerStream> {
        let outgoing = Some(outgoing).filter(|outgoing| !outgoing.is_sent());
        let Self { response, end, persistent } = self;
        response.map(|()| AnswerStream { link: Some(link), outgoing, end, persistent, pool })
    }
}

impl AnswerStream {
    /// Goes on with what is still to be sent. A failure is not the answer's: it may still be whole.
    fn send_on(&mut self, cx: &mut Context<'_>) {
        if let (Some(outgoing), Some(link)) = (&mut self.outgoing, &mut self.link) {
            match outgoing.poll_send(&mut link.socket, cx) {
                Poll::Ready(Ok(())) => self.outgoing = None,
                Poll::Ready(Err(_)) => {
                    self.outgoing = None;
                    self.persistent = false;
                }
                Poll::Pending => {}
            }
        }
    }

    /// The next part of the body among `held`, the bytes that were read. `None`: more must be read.
    fn next(&mut self) -> io::Result<Option<Frame<Bytes>>> {
        let Some(link) = &mut self.link else { return Ok(None) };
        let held = link.held.bytes();
        if held.is_empty() {
            return Ok(None);
        }
        let (count, frame) = match &mut self.end {
            End::Over => return Ok(None),
            End::After(left) => {
                let count = (*left).min(held.len() as u64);
                *left -= count;
                let count = count as usize;
                let frame = Frame::data(Bytes::copy_from_slice(&held[..count]));
                if *left == 0 {
                    self.end = End::Over;
                }
                (count, Some(frame))
            }
            End::Chunked(chunks) => {
                let (count, data) = chunks.read(held)?;
                // Trailers are a frame of their own, and the last.
                if chunks.frame.is_done() && chunks.trailers.is_empty() {
                    self.end = End::Over;
                }
                (count, (!data.is_empty()).then(|| Frame::data(data.into())))
            }
            End::Close => (held.len(), Some(Frame::data(Bytes::copy_from_slice(held)))),
        };
        link.held.skip(count);
        Ok(frame)
    }

    /// The trailers, once all data was handed on.
    fn trailers(&mut self) -> Option<HeaderMap> {
        let End::Chunked(chunks) = &mut self.end else { return None };
        chunks.frame.is_done().then(|| std::mem::take(&mut chunks.trailers))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        loop {
            if let Some(frame) = self.next()? {
                return Poll::Ready(Ok(Some(frame)));
            }
            if let Some(trailers) = self.trailers() {
                self.end = End::Over;
                return Poll::Ready(Ok(Some(Frame::trailers(trailers))));
            }
            if matches!(self.end, End::Over) {
                return Poll::Ready(Ok(None));
            }
            let Some(link) = &mut self.link else { return Poll::Ready(Ok(None)) };
            if ready!(link.held.fill(&mut link.socket, cx))? == 0 {
                self.persistent = false;
                return Poll::Ready(if matches!(self.end, End::Close) {
                    self.end = End::Over;
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                });
            }
        }
    }
}

impl Chunks {
    /// The data of as many chunks as `held` has, and how many bytes of it belong to the body.
    fn read(&mut self, held: &[u8]) -> Result<(usize, Vec<u8>), Fault> {
        let mut data = Vec::with_capacity(held.len());
        let trailers = &mut self.trailers;
        let count = self.frame.feed_with(held, |piece| match piece {
            Piece::Data(bytes) => data.extend_from_slice(bytes),
            Piece::Trailer(name, value) => {
                let field = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value));
                if let (Ok(name), Ok(value)) = field {
                    // Their bytes are bounded, and far fewer than the map can hold.
                    let _ = trailers.try_append(name, value);
                }
            }
        })?;
        Ok((count, data))
    }
}

impl Body for AnswerStream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        this.send_on(cx);
        let frame = ready!(this.poll_next(cx)).transpose();
        if let Some(Err(_)) = &frame {
            // Whatever comes now has no reading.
            this.link = None;
        }
        Poll::Ready(frame.map(|frame| frame.map(clean_trailers)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.end, End::Over)
    }

    fn size_hint(&self) -> SizeHint {
        match self.end {
            End::Over => SizeHint::with_exact(0),
            End::After(left) => SizeHint::with_exact(left),
            End::Chunked(_) | End::Close => SizeHint::default(),
        }
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        let ended = self.is_end_stream() && self.persistent && self.outgoing.is_none();
        if let Some(link) = self.link.take().filter(|_| ended) {
            self.pool.put(link);
        }
    }
}

#[cfg(test)]
mod tests;
