//! A link with arbitrary replies, which lose no token.

use std::sync::Arc;

use testkit::random::SplitMix64;
use tidegate::clock::ms;
use tidegate::{
    clock::StoreTime,
    redis::RedisFailure,
    throttle::{
        ClockOffset, Filter,
        geometry::UnixMinute,
        payload::{self, PayloadError},
        sync::{
            AppendOutcome, CommitOutcome, FilterStore, FilterSync, LogId, LogOffset, LogPart,
            MAX_CALLS_PER_TICK, PayloadVersion, ReadOutcome, ServerTime, SyncStats,
        },
    },
    time::Millis,
};

use super::{
    fake_link::{FakeLink, FakeStore, Faults},
    virtual_time::VirtualTime,
};
use crate::support::{NOW, geometry, hash_keys};

struct ArbitraryLink {
    rng: SplitMix64,
    calls: usize,
}

impl ArbitraryLink {
    fn version(&mut self) -> PayloadVersion {
        let all = [0, 1, 45, 1_700_000_000_000, 9_007_199_254_740_990, u64::MAX];
        let mut one = || all[self.rng.below(all.len() as u64) as usize];
        PayloadVersion { timestamp: StoreTime::from_unix_ms(one()), len: one() }
    }

    fn failure(&mut self) -> RedisFailure {
        RedisFailure::ALL[self.rng.below(5) as usize]
    }

    /// A reply from empty to valid, with some bits flipped.
    fn payload(&mut self) -> Vec<u8> {
        let sizes = geometry(300, 10);
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
            clock_offset: ClockOffset::from_ms(self.rng.next_u64().cast_signed()),
        })
    }

    async fn read(
        &mut self,
        _minute: UnixMinute,
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
        _minute: UnixMinute,
        _expected: Option<StoreTime>,
        _payload: &[u8],
        _ttl: Millis,
    ) -> Result<CommitOutcome, RedisFailure> {
        self.calls += 1;
        Ok(match self.rng.below(4) {
            0 => return Err(self.failure()),
            1 => CommitOutcome::Conflict,
            _ => CommitOutcome::Committed(self.version().timestamp),
        })
    }

    async fn read_logs(
        &mut self,
        logs: &[LogOffset],
        _max_len: usize,
    ) -> Result<Vec<LogPart>, RedisFailure> {
        self.calls += 1;
        if self.rng.one_in(10) {
            return Err(self.failure());
        }
        let parts = (0..logs.len() as u64 + self.rng.below(3) - 1).map(|_| {
            let start = self.version().len.wrapping_add(self.rng.below(3) * 8);
            if self.rng.one_in(9) {
                return LogPart { start, bytes: vec![7; 1 << 20] };
            }
            let bytes = 0..self.rng.below(40);
            LogPart { start, bytes: bytes.map(|_| self.rng.next_u64() as u8).collect() }
        });
        Ok(parts.collect())
    }

    async fn append_log(
        &mut self,
        _log: LogId,
        _tokens: &[u8],
        _max_len: usize,
    ) -> Result<AppendOutcome, RedisFailure> {
        self.calls += 1;
        Ok(match self.rng.below(4) {
            0 => return Err(self.failure()),
            1 => AppendOutcome::Full,
            _ => AppendOutcome::Appended,
        })
    }
}

/// Syncs a filter with arbitrary replies, then with a correct store. Asserts that it and the filter
/// of a new gateway have every token.
async fn assert_arbitrary_replies_lose_no_token(
    time: &VirtualTime,
    store: &FakeStore<'_>,
    filters: &[Filter; 2],
    seed: u64,
) {
    let stats = || Arc::new(SyncStats::default());
    let mut link = ArbitraryLink { rng: SplitMix64(seed), calls: 0 };
    let mut sync = FilterSync::new(stats()).with_seed(seed);
    let _ = sync.load(&filters[0], &mut link).await;
    for token in 0..200_u64 {
        time.sleep(1_000_000).await;
        filters[0].rotate(time.now());
        filters[0].record(token << 32);
        link.calls = 0;
        let _ = sync.tick(&filters[0], &mut link).await;
        assert!(link.calls <= MAX_CALLS_PER_TICK, "{} calls", link.calls);
    }
    let rng = SplitMix64(seed);
    let mut link = FakeLink::new(store, 0, rng);
    for _ in 0..150 {
        time.sleep(1_000_000).await;
        filters[0].rotate(time.now());
        let _ = sync.tick(&filters[0], &mut link).await;
    }
    filters[1].rotate(time.now());
    let mut other = FilterSync::new(stats());
    let report = other.load(&filters[1], &mut link).await;
    assert!(report.is_ok(), "{report:?}");
    let live = filters[0].live_generations();
    for token in 0..200_u64 {
        if live.contains(&((NOW + ms((token + 1) * 1_000)).whole_periods(ms(60_000)))) {
            assert!(filters[0].contains(token << 32), "{token} was forgotten, seed {seed}");
            assert!(filters[1].contains(token << 32), "{token} was not propagated, seed {seed}");
        }
    }
}

#[test]
fn arbitrary_replies_lose_no_token() {
    for seed in 0..12 {
        let time = VirtualTime::new(NOW);
        let store = FakeStore::new(&time, Faults::default());
        let filters = [(); 2].map(|()| Filter::new(geometry(300, 10), hash_keys(), NOW));
        time.run(
            vec![Box::pin(assert_arbitrary_replies_lose_no_token(&time, &store, &filters, seed))],
            NOW + ms(500_000),
        );
        assert!(time.now() >= NOW + ms(350_000), "the run is complete");
    }
}
