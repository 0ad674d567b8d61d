//! [`RequestId`]: the value of `X-Request-Id` to the upstream, to the client and in the access log.

use std::cell::RefCell;

use smallvec::SmallVec;
use tidegate_http1::RequestHead;

/// The longest id that is accepted from a trusted proxy, in bytes.
const MAX_ID_LEN: usize = 128;

/// A request's id: 1 to [`MAX_ID_LEN`] visible ASCII characters.
#[derive(Clone, Debug)]
pub(super) struct RequestId(SmallVec<[u8; 32]>);

impl RequestId {
    /// The id in the head of a trusted proxy's request, if it is valid.
    pub(super) fn from_head(head: &RequestHead) -> Option<Self> {
        let value = head.fields.get("x-request-id")?;
        let is_valid =
            (1..=MAX_ID_LEN).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
        is_valid.then(|| Self(SmallVec::from_slice(value)))
    }

    /// The id as bytes.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The id as text.
    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Makes ids of 128 random bits, in 32 hexadecimal digits. An id thus reveals neither the traffic
/// of others nor the worker that made it.
pub(super) struct RequestIds(RefCell<RandomBlock>);

/// Random bytes from the system, drawn many at a time because each draw is a system call.
struct RandomBlock {
    bytes: [u8; BLOCK],
    /// The number of bytes that were used.
    used: usize,
}

/// The size of a block, in bytes.
const BLOCK: usize = 2048;

impl RequestIds {
    pub(super) fn new() -> Self {
        Self(RefCell::new(RandomBlock { bytes: [0; BLOCK], used: BLOCK }))
    }

    pub(super) fn next(&self) -> RequestId {
        let (high, low) = (self.bits(), self.bits());
        let mut text = [0; 32];
        text[..16].copy_from_slice(&hexadecimal(high));
        text[16..].copy_from_slice(&hexadecimal(low));
        RequestId(SmallVec::from_buf(text))
    }

    fn bits(&self) -> u64 {
        let mut block = self.0.borrow_mut();
        if block.used == BLOCK {
            block.draw();
        }
        let bits = block.bytes[block.used..].first_chunk().copied().unwrap_or_default();
        block.used += size_of::<u64>();
        u64::from_ne_bytes(bits)
    }
}

impl RandomBlock {
    #[cold]
    fn draw(&mut self) {
        // If this ever fails, ids repeat. No code depends on their uniqueness.
        let _ = getrandom::fill(&mut self.bytes);
        self.used = 0;
    }
}

/// The hexadecimal digits of `number`, the highest first. Converts eight digits at a time, as the
/// bytes of one word (SWAR): each byte is a digit's value, to which `b'0'` or `b'a' - 10` is added.
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
    fn ids_are_unique() {
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

    /// Neither half of an id is a counter, and the ids of one worker have no part in common.
    #[test]
    fn ids_are_unpredictable_and_unlinkable() {
        let workers = [RequestIds::new(), RequestIds::new()];
        let mut halves = Vec::new();
        let mut ones = [0_u32; 128];
        for _ in 0..1_000 {
            for worker in &workers {
                let id = u128::from_str_radix(worker.next().as_str(), 16).unwrap();
                halves.extend([(id >> 64) as u64, id as u64]);
                (0..128).for_each(|bit| ones[bit] += u32::from(id >> bit & 1 == 1));
            }
        }
        // A counter or a constant part has bits that are nearly always the same. Of 2,000 fair
        // coins, 800 to 1,200 are heads in all but one of 10^18 cases.
        assert!(ones.iter().all(|heads| (800..1_200).contains(heads)), "{ones:?}");
        let mut differences: Vec<u64> =
            halves.windows(5).map(|five| five[4].wrapping_sub(five[0])).collect();
        halves.sort_unstable();
        halves.dedup();
        assert_eq!(halves.len(), 4_000);
        differences.sort_unstable();
        differences.dedup();
        assert_eq!(differences.len(), 3_996, "no two steps of a worker are the same");
    }

    proptest! {
        #[test]
        fn hexadecimal_formats_as_the_standard_library(number: u64) {
            let digits = hexadecimal(number).map(char::from).into_iter().collect::<String>();
            prop_assert_eq!(digits, format!("{number:016x}"));
        }
    }
}
