//! An upstream's answer: its head as it may go further, and its body as it comes.

use std::{
    io,
    rc::Rc,
    task::{Context, Poll, ready},
};

use http::Method;

use super::{
    headers::{Named, Protected, is_hop_by_hop, may_trail},
    link::Link,
    pool::Pool,
    request::Outgoing,
};
use crate::framing::{AnswerHead, BodyDecoder, BodyEncoder, Fault, Length, buffer::poll_read};

/// The body of an upstream's answer, as it comes. Puts its connection back when it has ended.
pub struct AnswerStream {
    link: Option<Link>,
    /// What is still to be sent of the request.
    outgoing: Option<Outgoing>,
    decoder: BodyDecoder,
    /// The length that the head announces, also where no body follows.
    announced: Option<u64>,
    persistent: bool,
    pool: Rc<Pool>,
}

impl AnswerStream {
    /// The body behind `head`, which answers a request of `method` on `link`.
    pub(super) fn new(
        head: &AnswerHead,
        method: &Method,
        link: Link,
        outgoing: Outgoing,
        pool: Rc<Pool>,
    ) -> Self {
        let bodiless = *method == Method::HEAD || matches!(head.status, 204 | 304);
        let decoder = if bodiless { BodyDecoder::none() } else { BodyDecoder::new(head.length) };
        // It announces a body that it cannot have: what comes next has two readings.
        let doubtful = head.status == 204 && !matches!(head.length, None | Some(Length::Known(0)));
        let announced = match head.length {
            Some(Length::Known(length)) if head.status != 204 => Some(length),
            _ => None,
        };
        let persistent = head.is_persistent() && !doubtful;
        let outgoing = Some(outgoing).filter(|outgoing| !outgoing.is_sent());
        Self { link: Some(link), outgoing, decoder, announced, persistent, pool }
    }

    /// The length that the head announces, also where no body follows, as after HEAD.
    pub fn announced(&self) -> Option<u64> {
        self.announced
    }

    /// Whether the upstream is still being sent the request's body.
    pub fn takes_body(&self) -> bool {
        self.outgoing.is_some()
    }

    /// Whether all of it was read.
    pub fn is_done(&self) -> bool {
        self.decoder.is_done()
    }

    /// Adds to `out`, written by `encoder`, what is there of the body; at its end the trailers, too.
    /// Ready with how many bytes of the body came; 0 at its end.
    pub fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        self.send_on(cx);
        let added = ready!(self.poll_decode(cx, encoder, out));
        if added.is_err() {
            // Whatever comes now has no reading.
            self.link = None;
        }
        if self.is_done() {
            let trailers = self.decoder.take_trailers();
            encoder.finish(out, |out| {
                if let Some(trailers) = trailers {
                    trailers.write_to(out, |name, _| may_trail(name, &Protected::default()));
                }
            });
        }
        Poll::Ready(added)
    }

    fn poll_decode(
        &mut self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let Self { link, decoder, persistent, .. } = self;
        let Some(link) = link else { return Poll::Ready(Err(Fault::Incomplete.into())) };
        loop {
            if decoder.is_done() {
                return Poll::Ready(Ok(0));
            }
            if let Some(fault) = decoder.fault() {
                return Poll::Ready(Err(fault.into()));
            }
            let added = if link.buffer.is_empty() {
                let buffer = &mut link.buffer;
                ready!(poll_read(&link.socket, cx, |bytes| {
                    if bytes.is_empty() {
                        *persistent = false;
                        return decoder.end_of_stream().map(|()| 0);
                    }
                    let (used, added) = decoder.transfer(bytes, encoder, out)?;
                    buffer.push(&bytes[used..]);
                    Ok(added)
                }))?
            } else {
                let (used, added) = decoder.transfer(link.buffer.bytes(), encoder, out)?;
                link.buffer.consume(used);
                Ok(added)
            }?;
            if added > 0 {
                return Poll::Ready(Ok(added));
            }
        }
    }

    /// Goes on with what is still to be sent. A failure is not the answer's: it may still be whole.
    fn send_on(&mut self, cx: &mut Context<'_>) {
        if let (Some(outgoing), Some(link)) = (&mut self.outgoing, &self.link) {
            match outgoing.poll_send(&link.socket, cx) {
                Poll::Ready(Ok(())) => self.outgoing = None,
                Poll::Ready(Err(_)) => {
                    self.outgoing = None;
                    self.persistent = false;
                }
                Poll::Pending => {}
            }
        }
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        let ended = self.is_done() && self.persistent && self.outgoing.is_none();
        if let Some(link) = self.link.take().filter(|_| ended) {
            self.pool.put(link);
        }
    }
}

/// Writes the fields of an upstream's head that may go further and that `keep` wants, each as a line
/// with its end. The length is not among them: it is the body's matter.
pub fn write_fields(head: &AnswerHead, out: &mut Vec<u8>, mut keep: impl FnMut(&[u8]) -> bool) {
    let named = if head.connection.names { Named::of(&head.fields) } else { Named::default() };
    head.fields.write_to(out, |name, _| {
        let is_length = name.len() == 14 && name.eq_ignore_ascii_case(b"content-length");
        !is_length && !is_hop_by_hop(name) && !named.contains(name) && keep(name)
    });
}

#[cfg(test)]
mod tests;
