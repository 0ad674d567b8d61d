//! Tickets: a place in the queue, signed, and bound to one access token. A client carries its own
//! place, so that the gateway remembers none.
//!
//! A ticket is 38 characters of base64url: the place (µs, 8 bytes), the time at which it was last
//! counted (s, 4 bytes) and a tag of 128 bits (`SipHash-2-4-128`, Aumasson and Bernstein, 2012)
//! over both and the keyed hash of the token. The hash itself is not in the ticket, and the tag's
//! key is used for nothing else, so a ticket reveals nothing of the token.

use std::hash::Hasher;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use tidegate_system::secret::KeySecret;

use super::place::{QueueTime, UnixSecond};

/// Length of a ticket, in characters.
pub const TICKET_LEN: usize = 38;

/// Length of a ticket, in bytes.
const BYTES: usize = 28;

/// A place in the queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ticket {
    /// The place: the time of the first request, less a head start, with a keyed random fraction of
    /// a second.
    pub queued_at: QueueTime,
    /// The second in which the ticket was last counted. It is written as a `u32`, at most
    /// [`u32::MAX`].
    pub counted_at: UnixSecond,
}

/// Why a ticket is not accepted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TicketFault {
    /// It is no ticket.
    Malformed,
    /// Its tag is wrong: it was made up, or belongs to another token.
    Forged,
    /// Its holder has not asked for too long.
    Expired,
    /// Its times are in the future.
    Future,
}

impl TicketFault {
    /// All faults, by their indexes.
    pub const ALL: [Self; 4] = [Self::Malformed, Self::Forged, Self::Expired, Self::Future];

    /// The name in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Forged => "forged",
            Self::Expired => "expired",
            Self::Future => "future",
        }
    }
}

/// Signs tickets and verifies them.
#[derive(Clone, Copy, Debug)]
pub struct TicketKey(KeySecret);

impl TicketKey {
    /// The key of all gateways with this secret.
    pub fn new(secret: KeySecret) -> Self {
        Self(secret)
    }

    /// A ticket for the caller `holder`, whose place is in `second`. It was not counted yet. In one
    /// second a caller always gets the same place; callers get theirs in random order, which they
    /// cannot choose.
    pub fn issue(&self, holder: u64, second: UnixSecond) -> Ticket {
        let order = self.hash(b'o', holder, second.as_secs(), 0) as u64;
        let queued_at = QueueTime::random_in(second, order);
        Ticket { queued_at, counted_at: UnixSecond::default() }
    }

    /// The text of a ticket of `holder`, the keyed hash of its token.
    pub fn seal(&self, ticket: Ticket, holder: u64) -> [u8; TICKET_LEN] {
        let queued_at = ticket.queued_at.as_micros();
        let counted_at = u32::try_from(ticket.counted_at.as_secs()).unwrap_or(u32::MAX);
        let tag = self.hash(b't', holder, queued_at, counted_at);
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&queued_at.to_be_bytes());
        bytes[8..12].copy_from_slice(&counted_at.to_be_bytes());
        bytes[12..].copy_from_slice(&tag.to_be_bytes());
        let mut text = [0; TICKET_LEN];
        // The length is right by construction.
        let _ = URL_SAFE_NO_PAD.encode_slice(bytes, &mut text);
        text
    }

    /// Reads the ticket that `holder` sent.
    ///
    /// # Errors
    ///
    /// [`TicketFault::Malformed`] or [`TicketFault::Forged`].
    pub fn open(&self, text: &[u8], holder: u64) -> Result<Ticket, TicketFault> {
        if text.len() != TICKET_LEN {
            return Err(TicketFault::Malformed);
        }
        let mut bytes = [0; BYTES + 2];
        let decoded = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes);
        if decoded != Ok(BYTES) {
            return Err(TicketFault::Malformed);
        }
        let queued_at = u64::from_be_bytes(std::array::from_fn(|i| bytes[i]));
        let counted_at = u32::from_be_bytes(std::array::from_fn(|i| bytes[8 + i]));
        let tag = u128::from_be_bytes(std::array::from_fn(|i| bytes[12 + i]));
        // The difference of whole words takes the same time wherever the tags differ.
        if self.hash(b't', holder, queued_at, counted_at) ^ tag != 0 {
            return Err(TicketFault::Forged);
        }
        Ok(Ticket {
            queued_at: QueueTime::from_micros(queued_at),
            counted_at: UnixSecond::from_secs(counted_at.into()),
        })
    }

    fn hash(&self, purpose: u8, holder: u64, first: u64, second: u32) -> u128 {
        let KeySecret(high, low) = self.0;
        let mut hasher = SipHasher24::new_with_keys(high, low);
        hasher.write_u8(purpose);
        hasher.write_u64(holder);
        hasher.write_u64(first);
        hasher.write_u32(second);
        hasher.finish128().as_u128()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const KEY: TicketKey = TicketKey(KeySecret(1, 2));

    fn ticket() -> impl Strategy<Value = Ticket> {
        (any::<u64>(), any::<u32>()).prop_map(|(micros, counted_at)| Ticket {
            queued_at: QueueTime::from_micros(micros),
            counted_at: UnixSecond::from_secs(counted_at.into()),
        })
    }

    proptest! {
        #[test]
        fn a_ticket_is_read_as_it_was_written(ticket in ticket(), holder: u64) {
            prop_assert_eq!(KEY.open(&KEY.seal(ticket, holder), holder), Ok(ticket));
        }

        #[test]
        fn a_ticket_of_another_token_or_key_is_forged(ticket in ticket(), holder: u64, other: u64) {
            prop_assume!(holder != other);
            let text = KEY.seal(ticket, holder);
            prop_assert_eq!(KEY.open(&text, other), Err(TicketFault::Forged));
            let key = TicketKey::new(KeySecret(1, 3));
            prop_assert_eq!(key.open(&text, holder), Err(TicketFault::Forged));
        }

        #[test]
        fn a_changed_character_makes_a_ticket_worthless(
            ticket in ticket(), holder: u64, at in 0..TICKET_LEN, byte: u8,
        ) {
            let mut text = KEY.seal(ticket, holder);
            prop_assume!(text[at] != byte);
            text[at] = byte;
            prop_assert!(KEY.open(&text, holder).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..80)) {
            prop_assert!(KEY.open(&text, 7).is_err());
        }

        /// The right length and alphabet, so that the tag decides.
        #[test]
        fn a_made_up_ticket_is_forged(text in "[A-Za-z0-9_-]{37}[AQgw]") {
            prop_assert_eq!(KEY.open(text.as_bytes(), 7), Err(TicketFault::Forged));
        }
    }

    #[test]
    fn places_of_one_second_are_spread_over_it() {
        let second = UnixSecond::from_secs(1_700_000_000);
        let places: BTreeSet<_> =
            (0..1_000).map(|holder| KEY.issue(holder, second).queued_at).collect();
        assert!(places.len() > 990);
        let (first, last) = (places.first().unwrap(), places.last().unwrap());
        assert!(first.second() == second && last.second() == second);
        assert!(last.as_micros() - first.as_micros() > 990_000);
        assert_eq!(KEY.issue(5, second), KEY.issue(5, second));
    }
}
