//! New tokens reach the other gateways, and the payload of their generation, whatever fails in
//! between.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::FutureExt as _;
use tidegate_base::time::Millis;
use tidegate_system::secret::KeySecret;

use super::*;
use crate::{
    ClockOffset, Geometry, HashKeys,
    geometry::Sizing,
    payload,
    sync::{CommitOutcome, LogOffset, LogPart, PayloadVersion, ReadOutcome, ServerTime, SyncStats},
};

/// On a whole minute.
const NOW: StoreTime = StoreTime::from_unix_ms(1_699_999_980_000);

/// A store in memory, with one log: that of the current generation in the current minute.
struct OneLogStore {
    now: StoreTime,
    /// Payloads with their versions, by minute.
    payloads: BTreeMap<UnixMinute, (StoreTime, Vec<u8>)>,
    log: Vec<u8>,
    is_log_lost: bool,
    /// The bytes of logs that the last tick has read.
    read: usize,
}

impl FilterStore for OneLogStore {
    async fn time(&mut self) -> Result<ServerTime, RedisFailure> {
        Ok(ServerTime { now: self.now, clock_offset: ClockOffset::ZERO })
    }

    async fn read(
        &mut self,
        minute: UnixMinute,
        known: Option<PayloadVersion>,
        _: usize,
    ) -> Result<ReadOutcome, RedisFailure> {
        let Some((timestamp, payload)) = self.payloads.get(&minute) else {
            return Ok(ReadOutcome::Absent);
        };
        let version = PayloadVersion { timestamp: *timestamp, len: payload.len() as u64 };
        Ok(match known {
            Some(known) if known == version => ReadOutcome::Unchanged,
            _ => ReadOutcome::Value(version, payload.clone()),
        })
    }

    async fn commit(
        &mut self,
        minute: UnixMinute,
        expected: Option<StoreTime>,
        payload: &[u8],
        _: Millis,
    ) -> Result<CommitOutcome, RedisFailure> {
        let before = self.payloads.get(&minute).map(|(timestamp, _)| *timestamp);
        if before != expected {
            return Ok(CommitOutcome::Conflict);
        }
        let timestamp = before.unwrap_or_default() + Millis::MILLISECOND;
        self.payloads.insert(minute, (timestamp, payload.to_vec()));
        Ok(CommitOutcome::Committed(timestamp))
    }

    async fn read_logs(
        &mut self,
        logs: &[LogOffset],
        _: usize,
    ) -> Result<Vec<LogPart>, RedisFailure> {
        let part = |(at, log): (usize, &LogOffset)| {
            let all = if at == 3 { &self.log[..] } else { &[] };
            // As the script does: a log that is shorter than the offset is read from its start.
            let start = Some(log.offset as usize).filter(|start| *start <= all.len()).unwrap_or(0);
            LogPart { start: start as u64, bytes: all[start..].to_vec() }
        };
        let parts: Vec<LogPart> = logs.iter().enumerate().map(part).collect();
        self.read = parts.iter().map(|part| part.bytes.len()).sum();
        Ok(parts)
    }

    async fn append_log(
        &mut self,
        _: LogId,
        tokens: &[u8],
        _: usize,
    ) -> Result<AppendOutcome, RedisFailure> {
        if self.is_log_lost {
            return Err(RedisFailure::Io);
        }
        self.log.extend_from_slice(tokens);
        Ok(AppendOutcome::Appended)
    }
}

struct LoggedGateway {
    filter: Filter,
    sync: FilterSync,
    store: OneLogStore,
}

impl LoggedGateway {
    fn new() -> Self {
        let sizing = Sizing { capacity: 1_000, false_positive: 0.001, memory: MINUTE * 30 };
        let geometry = Geometry::new(&sizing).unwrap();
        let hash_keys = HashKeys { token_secret: KeySecret(1, 2), positions: [7; 32] };
        let payloads = BTreeMap::new();
        Self {
            filter: Filter::new(geometry, hash_keys, NOW),
            sync: FilterSync::new(Arc::new(SyncStats::default())).with_seed(1),
            store: OneLogStore { now: NOW, payloads, log: Vec::new(), is_log_lost: false, read: 0 },
        }
    }

    /// A second passes.
    fn tick(&mut self) -> bool {
        self.store.now += Millis::from_secs(1);
        self.filter.rotate(self.store.now);
        self.sync.tick(&self.filter, &mut self.store).now_or_never().unwrap().is_ok()
    }

    /// True if the stored payload of the first generation has the token.
    fn is_stored(&self, token: u64) -> bool {
        let (geometry, hash_keys) = (self.filter.geometry(), self.filter.hash_keys());
        let index = geometry.index(NOW);
        let Some((_, payload)) = self.store.payloads.get(&geometry.minute(index)) else {
            return false;
        };
        let bits = payload::decode(geometry, hash_keys, payload).unwrap();
        let other = Filter::new(*geometry, *hash_keys, NOW);
        other.merge(index, &bits);
        other.contains(token)
    }
}

#[test]
fn a_token_that_could_not_be_sent_is_sent_later() {
    let mut gateway = LoggedGateway::new();
    gateway.filter.record(5);
    gateway.store.is_log_lost = true;
    assert!(!gateway.tick() && !gateway.tick());
    gateway.store.is_log_lost = false;
    assert!(gateway.tick());
    assert_eq!(gateway.store.log, 5_u64.to_le_bytes());
    assert!(gateway.tick());
    assert_eq!(gateway.store.log.len(), 8, "once");
}

#[test]
fn a_logged_token_reaches_a_generation_that_was_known_before() {
    let mut gateway = LoggedGateway::new();
    gateway.filter.record(5);
    (0..3).for_each(|_| assert!(gateway.tick()));
    assert!(gateway.is_stored(5));
    // Its gateway fails before it writes the generation.
    gateway.store.log.extend(9_u64.to_le_bytes());
    assert!(gateway.tick() && gateway.filter.contains(9) && !gateway.is_stored(9));
    (0..100).for_each(|_| assert!(gateway.tick()));
    assert!(gateway.is_stored(9) && gateway.is_stored(5));
}

#[test]
fn a_logged_token_reaches_a_generation_that_redis_does_not_have() {
    let mut gateway = LoggedGateway::new();
    gateway.store.log.extend(9_u64.to_le_bytes());
    assert!(gateway.tick() && gateway.filter.contains(9));
    (0..100).for_each(|_| assert!(gateway.tick()));
    assert!(gateway.is_stored(9));
}

#[test]
fn a_log_that_redis_lost_is_followed_from_its_start() {
    let mut gateway = LoggedGateway::new();
    gateway.store.log = [1_u64, 2, 3].iter().flat_map(|token| token.to_le_bytes()).collect();
    assert!(gateway.tick() && gateway.store.read == 24);
    gateway.store.log = 4_u64.to_le_bytes().to_vec();
    assert!(gateway.tick() && gateway.filter.contains(4));
    assert_eq!(gateway.store.read, 8);
    gateway.store.log.extend(5_u64.to_le_bytes());
    assert!(gateway.tick() && gateway.filter.contains(5));
    assert_eq!(gateway.store.read, 8, "each token is read once");
}
