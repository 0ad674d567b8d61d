//! Whatever Redis returns for the logs of new tokens, a gateway learns at most the tokens in it,
//! sends each of its own tokens as long as it is not sent, and follows the logs by whole tokens.
#![no_main]

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use libfuzzer_sys::fuzz_target;
use tidegate::{
    clock::StoreTime,
    redis::RedisFailure,
    secret::KeySecret,
    throttle::{
        ClockOffset, Filter, Geometry, HashKeys,
        geometry::{Sizing, UnixMinute},
        sync::{
            AppendOutcome, CommitOutcome, FilterStore, FilterSync, LogId, LogOffset, LogPart,
            PayloadVersion, ReadOutcome, ServerTime, SyncStats,
        },
    },
    time::Millis,
};

const NOW: StoreTime = StoreTime::from_unix_ms(1_699_999_980_000);

/// The tokens that are recorded here.
const OWN: std::ops::Range<u64> = 1 << 32..(1 << 32) + 9;

/// A store without filters, whose logs are arbitrary.
struct FuzzedStore {
    now: StoreTime,
    /// The parts of the next reply.
    parts: Vec<LogPart>,
    /// The outcome of the next appends.
    append: Result<AppendOutcome, RedisFailure>,
    /// The tokens that were appended in this tick.
    appended: Vec<u64>,
}

impl FilterStore for FuzzedStore {
    async fn time(&mut self) -> Result<ServerTime, RedisFailure> {
        Ok(ServerTime { now: self.now, clock_offset: ClockOffset::ZERO })
    }

    async fn read(
        &mut self,
        _: UnixMinute,
        _: Option<PayloadVersion>,
        _: usize,
    ) -> Result<ReadOutcome, RedisFailure> {
        Ok(ReadOutcome::Absent)
    }

    async fn commit(
        &mut self,
        _: UnixMinute,
        _: Option<StoreTime>,
        _: &[u8],
        _: Millis,
    ) -> Result<CommitOutcome, RedisFailure> {
        Ok(CommitOutcome::Conflict)
    }

    async fn read_logs(
        &mut self,
        logs: &[LogOffset],
        max_len: usize,
    ) -> Result<Vec<LogPart>, RedisFailure> {
        assert!(max_len.is_multiple_of(8));
        assert!(logs.iter().all(|log| log.offset.is_multiple_of(8)), "{logs:?}");
        Ok(std::mem::take(&mut self.parts))
    }

    async fn append_log(
        &mut self,
        _: LogId,
        tokens: &[u8],
        max_len: usize,
    ) -> Result<AppendOutcome, RedisFailure> {
        assert!(tokens.len().is_multiple_of(8) && tokens.len() <= max_len);
        let own = tokens.chunks_exact(8).map(|token| token.try_into().map(u64::from_le_bytes));
        let own: Vec<u64> = own.map(|token| token.expect("eight bytes")).collect();
        assert!(own.iter().all(|token| OWN.contains(token)), "another gateway's token was sent");
        self.appended.extend(own);
        self.append
    }
}

/// The value of a future that never waits for long.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

fuzz_target!(|input: Vec<(u8, Vec<(u64, Vec<u8>)>)>| {
    let sizing = Sizing { capacity: 50, false_positive: 0.001, memory: Millis::from_mins(10) };
    let geometry = Geometry::new(&sizing).expect("a sizing");
    let hash_keys = HashKeys { token_secret: KeySecret(1, 2), positions: [7; 32] };
    let filter = Filter::new(geometry, hash_keys, NOW);
    let mut sync = FilterSync::new(Arc::new(SyncStats::default())).with_seed(1);
    let mut store = FuzzedStore {
        now: NOW,
        parts: Vec::new(),
        append: Ok(AppendOutcome::Full),
        appended: Vec::new(),
    };
    OWN.for_each(|token| _ = filter.record(token));
    for (outcome, parts) in input.into_iter().take(16) {
        store.now += Millis::from_ms(1_000);
        store.append = match outcome % 3 {
            0 => Ok(AppendOutcome::Appended),
            1 => Ok(AppendOutcome::Full),
            _ => Err(RedisFailure::Io),
        };
        let parts = parts.into_iter().take(6).map(|(start, bytes)| LogPart { start, bytes });
        store.parts = parts.collect();
        store.appended.clear();
        let received: Vec<u8> = store.parts.iter().flat_map(|part| part.bytes.clone()).collect();
        let before = filter.occupied();
        let _ = run(sync.tick(&filter, &mut store));
        let most = received.len() / 8 * geometry.hashes as usize;
        assert!(filter.occupied() - before <= most, "more was learned than received");
        assert!(OWN.into_iter().all(|token| filter.contains(token)), "an own token was lost");
    }
});
