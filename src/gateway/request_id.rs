//! The name of a request in every log that it passes.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::framing::RequestHead;

/// The longest id that is taken over from a trusted proxy, in bytes.
const MAX_ID: usize = 128;

/// A request's id: short, and plain ASCII.
#[derive(Clone, Debug)]
pub(super) struct RequestId(SmallVec<[u8; 32]>);

impl RequestId {
    /// The id that a trusted proxy gave, where it is short and plain.
    pub(super) fn given(head: &RequestHead) -> Option<Self> {
        let given = head.fields.get("x-request-id")?;
        let plain = (1..=MAX_ID).contains(&given.len()) && given.iter().all(u8::is_ascii_graphic);
        plain.then(|| Self(SmallVec::from_slice(given)))
    }

    /// The id as it is written.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The id as text.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Gives each request of one worker a name that no other has: 32 hexadecimal digits, half of them
/// random for the worker, half counted up from a random start.
pub(super) struct RequestIds {
    /// The worker's half.
    worker: [u8; 16],
    next: Cell<u64>,
}

impl RequestIds {
    pub(super) fn new() -> Self {
        let random = ahash::RandomState::new();
        Self { worker: hexadecimal(random.hash_one(0)), next: Cell::new(random.hash_one(1)) }
    }

    pub(super) fn next(&self) -> RequestId {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let mut text = [0; 32];
        text[..16].copy_from_slice(&self.worker);
        text[16..].copy_from_slice(&hexadecimal(number));
        RequestId(SmallVec::from_buf(text))
    }
}

/// The digits of `number`, the highest first. Eight at a time, as the bytes of one word: each byte is
/// its digit's value, then `0` or `a` less 10 is added to it.
fn hexadecimal(number: u64) -> [u8; 16] {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let digits = |half: u64| {
        let pairs = (half << 16 | half) & 0x0000_ffff_0000_ffff;
        let bytes = (pairs << 8 | pairs) & 0x00ff_00ff_00ff_00ff;
        let values = (bytes << 4 | bytes) & (ONES * 0x0f);
        let letters = ((values + ONES * 6) >> 4) & ONES;
        values + ONES * u64::from(b'0') + letters * u64::from(b'a' - b'0' - 10)
    };
    let mut text = [0; 16];
    text[..8].copy_from_slice(&digits(number >> 32).to_be_bytes());
    text[8..].copy_from_slice(&digits(number & 0xffff_ffff).to_be_bytes());
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_two_requests_share_an_id() {
        let (one, other) = (RequestIds::new(), RequestIds::new());
        let mut ids: Vec<_> = (0..1000)
            .flat_map(|_| [one.next(), other.next()])
            .map(|id| id.as_str().to_owned())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 2000);
        assert!(ids.iter().all(|id| id.len() == 32));
    }

    proptest! {
        #[test]
        fn digits_are_the_numbers(number: u64) {
            let digits = hexadecimal(number).map(char::from).into_iter().collect::<String>();
            prop_assert_eq!(digits, format!("{number:016x}"));
        }
    }
}
