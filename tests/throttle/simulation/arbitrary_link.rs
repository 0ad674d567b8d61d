//! A link with arbitrary replies.

use std::time::Duration;

use testkit::random::SplitMix64;
use tidegate::{
    clock::StoreTime,
    redis::RedisFailure,
    throttle::{
        payload::{self, PayloadError},
        sync::{CommitOutcome, FilterStore, PayloadVersion, ReadOutcome, ServerTime},
    },
};

use crate::support::{geometry, hash_keys};

pub(crate) struct ArbitraryLink {
    pub(crate) rng: SplitMix64,
    pub(crate) calls: usize,
}

impl ArbitraryLink {
    fn version(&mut self) -> PayloadVersion {
        let all = [0, 1, 45, 1_700_000_000_000, 9_007_199_254_740_990, u64::MAX];
        let mut one = || all[self.rng.below(all.len() as u64) as usize];
        PayloadVersion { timestamp: one(), len: one() }
    }

    fn failure(&mut self) -> RedisFailure {
        RedisFailure::ALL[self.rng.below(5) as usize]
    }

    /// A reply from empty to valid, with some bits flipped.
    fn payload(&mut self) -> Vec<u8> {
        let sizes = geometry(300, 5);
        let mut bits = vec![0; sizes.bits / 8];
        for _ in 0..self.rng.below(50) {
            let at = self.rng.below(bits.len() as u64) as usize;
            bits[at] |= 1 << self.rng.below(8);
        }
        let mut payload = payload::encode(&sizes, &hash_keys(), &bits);
        if self.rng.one_in(2) {
            let at = self.rng.below(payload.len() as u64) as usize;
            payload[at] ^= 1 << self.rng.below(8);
        }
        if self.rng.one_in(4) {
            payload.truncate(self.rng.below(payload.len() as u64) as usize);
        }
        payload
    }
}

impl FilterStore for ArbitraryLink {
    async fn time(&mut self) -> Result<ServerTime, RedisFailure> {
        self.calls += 1;
        if self.rng.one_in(10) {
            return Err(self.failure());
        }
        Ok(ServerTime {
            now: StoreTime::from_unix_ms(self.rng.next_u64()),
            clock_offset: self.rng.next_u64().cast_signed(),
        })
    }

    async fn read(
        &mut self,
        _minute: u64,
        _known: Option<PayloadVersion>,
        _max_len: usize,
    ) -> Result<ReadOutcome, RedisFailure> {
        self.calls += 1;
        let version = self.version();
        Ok(match self.rng.below(8) {
            0 => return Err(self.failure()),
            1 => ReadOutcome::Absent,
            2 => ReadOutcome::Unchanged,
            3 => ReadOutcome::Unusable(PayloadError::TooLong, Some(version)),
            4 => ReadOutcome::Unusable(PayloadError::Geometry, None),
            _ => ReadOutcome::Value(version, self.payload()),
        })
    }

    async fn commit(
        &mut self,
        _minute: u64,
        _expected: Option<u64>,
        _payload: &[u8],
        _ttl: Duration,
    ) -> Result<CommitOutcome, RedisFailure> {
        self.calls += 1;
        Ok(match self.rng.below(4) {
            0 => return Err(self.failure()),
            1 => CommitOutcome::Conflict,
            _ => CommitOutcome::Committed(self.version().timestamp),
        })
    }
}
