//! The logs of new tokens: the state of a gateway that reads and appends them.
//!
//! A log is a string of tokens of 8 bytes, in the order in which gateways appended them. Any 8
//! bytes are a token, so a log cannot be malformed; what is in it may be wrong, and then costs what
//! a wrong filter costs. A gateway reads a bounded part in each tick ([`max_len`]), and a log has a
//! maximum length ([`max_log_len`]): what exceeds them comes later, with the whole generation.

use ahash::RandomState;
use hashbrown::HashMap;
use siphasher::sip::SipHasher13;

use crate::{Geometry, HashKeys, geometry::UnixMinute, payload};

/// Length of a token in a log, in bytes.
const TOKEN_LEN: usize = 8;

/// Maximum length of a log in units of [`max_len`].
const MAX_LOG_PARTS: usize = 64;

/// A log: the tokens that were recorded in one generation and sent in one minute of Redis' clock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogId {
    /// The first minute of the generation.
    pub minute: UnixMinute,
    /// The minute in which the tokens were sent.
    pub sent: UnixMinute,
    /// Equal for gateways that share filters: of the same sizes and hash keys.
    pub group: u64,
}

/// The part of a log that a gateway has read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogOffset {
    /// The log.
    pub log: LogId,
    /// Number of bytes that are read; a multiple of 8.
    pub offset: u64,
}

/// A part of a log, as Redis returned it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LogPart {
    /// The offset of the first byte.
    pub start: u64,
    /// The tokens.
    pub bytes: Vec<u8>,
}

/// Maximum number of bytes to read of a log in a tick: the log of a minute without bound would be
/// as long as three of its values.
pub fn max_len(geometry: &Geometry) -> usize {
    geometry.max_newcomers() * TOKEN_LEN
}

/// Maximum length of a log, in bytes.
pub fn max_log_len(geometry: &Geometry) -> usize {
    max_len(geometry) * MAX_LOG_PARTS
}

/// The group of the gateways that share filters of these sizes, at any growth, and hash keys.
pub(super) fn group(geometry: &Geometry, hash_keys: &HashKeys) -> u64 {
    let (halves, _) = hash_keys.positions.as_chunks::<16>();
    SipHasher13::new_with_key(&halves[0]).hash(&payload::header(&geometry.grown(1), hash_keys))
}

/// A token to be sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Unsent {
    /// The generation in which it was recorded.
    pub(super) generation: u64,
    pub(super) token: u64,
}

/// What a gateway knows of the logs.
#[derive(Debug, Default)]
pub(super) struct TokenLog {
    offsets: Vec<LogOffset>,
    /// The generation of each token that is not sent yet.
    unsent: HashMap<u64, u64, RandomState>,
    /// The log that was full.
    full: Option<LogId>,
}

impl TokenLog {
    /// Adds tokens to be sent, at most `most` in all.
    pub(super) fn push(&mut self, tokens: impl Iterator<Item = Unsent>, most: usize) {
        let room = most.saturating_sub(self.unsent.len());
        self.unsent.extend(tokens.take(room).map(|unsent| (unsent.token, unsent.generation)));
    }

    /// Follows `logs`, each from where it was read last, and no others.
    pub(super) fn follow(&mut self, logs: impl Iterator<Item = LogId>) -> Vec<LogOffset> {
        let read = |log| self.offsets.iter().find(|known| known.log == log).copied();
        self.offsets = logs.map(|log| read(log).unwrap_or(LogOffset { log, offset: 0 })).collect();
        self.offsets.clone()
    }

    /// Takes the tokens of a part of the log of `generation`, which are not to be sent again.
    /// Returns no tokens for a part that no log has: longer than `most` bytes, or not of whole
    /// tokens.
    pub(super) fn receive(
        &mut self,
        at: usize,
        generation: u64,
        part: &LogPart,
        most: usize,
    ) -> Vec<u64> {
        let (tokens, rest) = part.bytes.as_chunks::<TOKEN_LEN>();
        let end = part.start.checked_add(part.bytes.len() as u64);
        let Some((known, end)) = self.offsets.get_mut(at).zip(end) else { return Vec::new() };
        if part.bytes.len() > most || !rest.is_empty() || end % TOKEN_LEN as u64 != 0 {
            return Vec::new();
        }
        known.offset = end;
        let tokens: Vec<u64> = tokens.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        for token in &tokens {
            if self.unsent.get(token) == Some(&generation) {
                self.unsent.remove(token);
            }
        }
        tokens
    }

    /// The tokens of `generation` to be sent, at most `most` bytes.
    pub(super) fn unsent(&self, generation: u64, most: usize) -> Vec<u8> {
        let tokens = self.unsent.iter().filter(|(_, recorded)| **recorded == generation);
        tokens.take(most / TOKEN_LEN).flat_map(|(token, _)| token.to_le_bytes()).collect()
    }

    /// True if `log` was full.
    pub(super) fn is_full(&self, log: LogId) -> bool {
        self.full == Some(log)
    }

    /// Forgets the tokens in `bytes`, which were sent.
    pub(super) fn set_sent(&mut self, bytes: &[u8]) {
        for token in bytes.as_chunks::<TOKEN_LEN>().0 {
            self.unsent.remove(&u64::from_le_bytes(*token));
        }
    }

    /// Notes that `log` is full. Its tokens are in the whole generation.
    pub(super) fn set_full(&mut self, log: LogId) {
        self.full = Some(log);
    }

    /// Forgets the tokens of generations before `oldest`, whose logs are not read any more.
    pub(super) fn drop_before(&mut self, oldest: u64) {
        self.unsent.retain(|_, generation| *generation >= oldest);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: LogId =
        LogId { minute: UnixMinute::from_minutes(1), sent: UnixMinute::from_minutes(2), group: 3 };

    /// A log that was sent in the next minute.
    const NEXT: LogId = LogId { sent: UnixMinute::from_minutes(3), ..LOG };

    fn bytes(tokens: &[u64]) -> Vec<u8> {
        tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
    }

    fn sorted(bytes: &[u8]) -> Vec<u64> {
        let tokens = bytes.as_chunks::<TOKEN_LEN>().0.iter();
        let mut tokens: Vec<u64> = tokens.map(|bytes| u64::from_le_bytes(*bytes)).collect();
        tokens.sort_unstable();
        tokens
    }

    fn push(log: &mut TokenLog, generation: u64, tokens: &[u64], most: usize) {
        log.push(tokens.iter().map(|&token| Unsent { generation, token }), most);
    }

    #[test]
    fn a_log_is_followed_from_where_it_was_read() {
        let mut log = TokenLog::default();
        assert_eq!(log.follow([LOG].into_iter()), [LogOffset { log: LOG, offset: 0 }]);
        let part = LogPart { start: 16, bytes: bytes(&[5, 6]) };
        assert_eq!(log.receive(0, 1, &part, 16), [5, 6]);
        let followed = log.follow([NEXT, LOG].into_iter());
        assert_eq!([followed[0].offset, followed[1].offset], [0, 32]);
    }

    #[test]
    fn a_token_is_sent_until_it_was_sent_or_received() {
        let mut log = TokenLog::default();
        push(&mut log, 7, &[1, 2, 3], 9);
        push(&mut log, 8, &[4, 5], 9);
        assert_eq!(sorted(&log.unsent(7, 80)), [1, 2, 3]);
        assert_eq!(log.unsent(7, 16).len(), 16);
        log.follow([LOG].into_iter());
        log.receive(0, 7, &LogPart { start: 0, bytes: bytes(&[2, 4]) }, 80);
        assert_eq!(sorted(&log.unsent(7, 80)), [1, 3], "4 was recorded in another generation");
        log.set_sent(&bytes(&[1]));
        assert_eq!((sorted(&log.unsent(7, 80)), sorted(&log.unsent(8, 80))), (vec![3], vec![4, 5]));
        log.drop_before(8);
        assert_eq!((log.unsent(7, 80).len(), sorted(&log.unsent(8, 80))), (0, vec![4, 5]));
        push(&mut log, 8, &[6, 7, 8], 4);
        assert_eq!(sorted(&log.unsent(8, 80)), [4, 5, 6, 7], "no more than four");
    }

    proptest! {
        /// Whatever Redis returns, the offset stays that of a token, and nothing panics.
        #[test]
        fn arbitrary_parts_are_tokens_or_ignored(
            parts in prop::collection::vec((
                0..3_usize,
                prop_oneof![0..9_u64, Just(u64::MAX), Just(u64::MAX - 7), any::<u64>()],
                prop::collection::vec(any::<u8>(), 0..64),
            ), 0..20),
            most in (0..6_usize).prop_map(|tokens| tokens * TOKEN_LEN),
        ) {
            let mut log = TokenLog::default();
            push(&mut log, 1, &[1, 2, 3], 9);
            log.follow([LOG, NEXT].into_iter());
            for (at, start, bytes) in parts {
                let before = log.offsets.get(at).map(|known| known.offset);
                let tokens = log.receive(at, 1, &LogPart { start, bytes: bytes.clone() }, most);
                let after = log.offsets.get(at).map(|known| known.offset);
                prop_assert!(tokens.len() * TOKEN_LEN <= most);
                prop_assert!(tokens.is_empty() || tokens.len() * TOKEN_LEN == bytes.len());
                prop_assert!(after == before || after == Some(start + bytes.len() as u64));
                prop_assert!(after.is_none_or(|offset| offset % TOKEN_LEN as u64 == 0));
            }
        }
    }
}
