//! [`HeldReply`]: the body of a response that exists for one request only, counted until its client
//! has read it.

use std::sync::Arc;

use bytes::Bytes;

use super::{ClientHandle, ClientUsage};

/// Bodies up to this length are not counted, in bytes: they need no more memory than a response
/// that is streamed.
const UNCOUNTED: usize = 16 * 1024;
/// Most bytes of counted bodies that one client holds.
const MAX_BYTES_OF_CLIENT: u64 = 8 * 1024 * 1024;
/// Most bytes of counted bodies in the process.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// A body that is received or rendered for one request. Its bytes count for the client and the
/// process until the last part of them is dropped. If they are too many, the body is lost, and its
/// response needs a short one.
#[derive(Debug)]
pub struct HeldReply {
    share: ReplyShare,
    /// The bytes so far; `None` once they were too many.
    bytes: Option<Vec<u8>>,
}

/// What a body counts.
#[derive(Debug)]
struct ReplyShare {
    client: Arc<ClientUsage>,
    counted: u64,
}

impl HeldReply {
    /// An empty body for `client`.
    pub fn new(client: &ClientHandle) -> Self {
        let share = ReplyShare { client: Arc::clone(&client.0.0), counted: 0 };
        Self { share, bytes: Some(Vec::new()) }
    }

    /// Counts the `length` bytes that the body is going to have, before they arrive, and returns
    /// true; or, if the client or the process would then hold too many bytes, frees the body and
    /// returns false.
    pub fn reserve(&mut self, length: usize) -> bool {
        let Some(bytes) = &mut self.bytes else { return false };
        let is_counted = self.share.grow_to(length);
        if is_counted {
            bytes.reserve_exact(length.saturating_sub(bytes.len()));
        } else {
            self.free();
        }
        is_counted
    }

    /// Appends `part` and returns true; or, if the client or the process would then hold too many
    /// bytes, frees the body and returns false.
    pub fn append(&mut self, part: &[u8]) -> bool {
        let Some(bytes) = &mut self.bytes else { return false };
        let is_counted = self.share.grow_to(bytes.len() + part.len());
        if is_counted {
            bytes.extend_from_slice(part);
        } else {
            self.free();
        }
        is_counted
    }

    /// Frees the body.
    fn free(&mut self) {
        self.bytes = None;
        self.share.release();
    }

    /// The body, whose parts keep its bytes counted; `None` if it was freed.
    pub fn into_body(self) -> Option<Bytes> {
        let bytes = self.bytes?;
        if self.share.counted == 0 {
            return Some(Bytes::from(bytes));
        }
        // A buffer that has grown holds up to twice the bytes that were counted.
        let bytes = Bytes::from(bytes.into_boxed_slice());
        Some(Bytes::from_owner(CountedBytes { bytes, _share: self.share }))
    }

    /// The complete body `bytes` for `client`; `None` if the client or the process would then hold
    /// too many bytes.
    pub fn whole(client: &ClientHandle, bytes: Bytes) -> Option<Bytes> {
        if bytes.len() <= UNCOUNTED {
            return Some(bytes);
        }
        let mut held = Self::new(client);
        let is_counted = held.share.grow_to(bytes.len());
        is_counted.then(|| Bytes::from_owner(CountedBytes { bytes, _share: held.share }))
    }
}

/// Bytes with their share.
struct CountedBytes {
    bytes: Bytes,
    _share: ReplyShare,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ReplyShare {
    /// Counts a body of `length` bytes; false if the client or the process would then hold too
    /// many.
    fn grow_to(&mut self, length: usize) -> bool {
        if length <= UNCOUNTED {
            return true;
        }
        let more = (length as u64).saturating_sub(self.counted);
        if !self.client.reply_bytes.try_add(more, MAX_BYTES_OF_CLIENT) {
            return false;
        }
        let is_counted = self.client.all_reply_bytes.try_add(more, MAX_BYTES);
        if is_counted {
            self.counted += more;
        } else {
            self.client.reply_bytes.subtract(more);
        }
        is_counted
    }

    fn release(&mut self) {
        let bytes = std::mem::take(&mut self.counted);
        self.client.reply_bytes.subtract(bytes);
        self.client.all_reply_bytes.subtract(bytes);
    }
}

impl Drop for ReplyShare {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_usage::ClientTable;

    const BODY: usize = 1024 * 1024;

    fn body(client: &ClientHandle) -> Option<Bytes> {
        let mut held = HeldReply::new(client);
        for _ in 0..64 {
            held.append(&[b'x'; BODY / 64]);
        }
        held.into_body()
    }

    #[test]
    fn an_announced_body_counts_before_it_arrives() {
        let table = Arc::<ClientTable>::default();
        let client = ClientHandle::from(table.usage([192, 0, 2, 1].into()));
        let mut held: Vec<_> = (0..9).map(|_| HeldReply::new(&client)).collect();
        let reserved = held.iter_mut().map(|reply| reply.reserve(BODY)).filter(|is| *is).count();
        assert_eq!((reserved, client.reply_bytes.get()), (8, MAX_BYTES_OF_CLIENT));
        assert!(!held[8].append(b"x"), "the ninth is lost");
        assert!(held[7].append(&vec![b'x'; BODY]));
        let body = held.remove(7).into_body();
        assert_eq!(client.reply_bytes.get(), MAX_BYTES_OF_CLIENT, "it is counted once");
        drop((held, body));
        assert_eq!(client.reply_bytes.get(), 0);
    }

    #[test]
    fn a_client_and_the_process_are_bounded_until_the_last_part_is_dropped() {
        let table = Arc::<ClientTable>::default();
        let client = |last: u8| ClientHandle::from(table.usage([192, 0, 2, last].into()));
        let bodies = |last: u8| -> Vec<_> { (0..20).map_while(|_| body(&client(last))).collect() };
        let mut first = bodies(1);
        assert_eq!(first.len(), 8, "a client's share");
        assert!(HeldReply::whole(&client(1), Bytes::from(vec![b'x'; BODY])).is_none());
        assert!(HeldReply::whole(&client(1), Bytes::from(vec![b'x'; UNCOUNTED])).is_some());
        let part = first[0].split_off(BODY - 1);
        first.remove(0);
        assert!(body(&client(1)).is_none(), "a part is left");
        drop(part);
        first.extend(body(&client(1)));
        assert_eq!(first.len(), 8);
        let others: Vec<_> = (2..=8).flat_map(bodies).collect();
        assert_eq!(others.len(), 7 * 8);
        assert!(body(&client(9)).is_none(), "the process's bound");
        assert_eq!(client(9).reply_bytes.get(), 0);
        drop((first, others));
        assert_eq!(body(&client(9)).map(|body| body.len()), Some(BODY));
        assert!(table.is_empty());
    }
}
