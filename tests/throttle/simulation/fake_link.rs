//! A store in virtual time that behaves like Redis and the scripts, with configured faults.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use testkit::random::SplitMix64;
use tidegate::clock::ms;
use tidegate::{
    clock::StoreTime,
    redis::RedisFailure,
    throttle::{
        ClockOffset,
        geometry::UnixMinute,
        payload::PayloadError,
        sync::{
            AppendOutcome, CommitOutcome, FilterStore, LogId, LogOffset, LogPart, PayloadVersion,
            ReadOutcome, ServerTime,
        },
    },
    time::Millis,
};

use super::virtual_time::VirtualTime;

/// The configured faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// One call in `lost_calls` fails before it reaches the store; 0: none.
    pub(crate) lost_calls: u64,
    /// One call in `lost_replies` is executed and its reply is lost; 0: none.
    pub(crate) lost_replies: u64,
    /// One in `conflicting` pairs of gateway and minute is affected: until the minute ends, each of
    /// its commits conflicts; 0: none.
    pub(crate) conflicting: u64,
    /// Redis is unreachable between these two times.
    pub(crate) outage: (StoreTime, StoreTime),
}

/// The time that a gateway's own work on values takes, in µs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// To unpack and merge a value that was read.
    pub(crate) merge: u64,
    /// To cut a generation out and pack it, before a commit.
    pub(crate) pack: u64,
}

/// What the store did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) calls: u64,
    pub(crate) values_read: u64,
    pub(crate) values_written: u64,
    pub(crate) log_read: u64,
    pub(crate) log_written: u64,
    pub(crate) commits: u64,
    pub(crate) conflicts: u64,
}

impl Usage {
    /// The usage since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls - before.calls,
            values_read: self.values_read - before.values_read,
            values_written: self.values_written - before.values_written,
            log_read: self.log_read - before.log_read,
            log_written: self.log_written - before.log_written,
            commits: self.commits - before.commits,
            conflicts: self.conflicts - before.conflicts,
        }
    }
}

pub(crate) struct FakeStore<'a> {
    pub(crate) time: &'a VirtualTime,
    pub(crate) faults: Cell<Faults>,
    pub(crate) work: Cell<Work>,
    pub(crate) usage: Cell<Usage>,
    pub(crate) commits: RefCell<Vec<StoreTime>>,
    minutes: RefCell<BTreeMap<UnixMinute, (StoreTime, Vec<u8>)>>,
    logs: RefCell<BTreeMap<(UnixMinute, UnixMinute, u64), FakeLog>>,
}

/// A log, and the time of the last append.
#[derive(Default)]
pub(crate) struct FakeLog {
    pub(crate) bytes: Vec<u8>,
    at: StoreTime,
}

impl FakeLog {
    /// As the script `read_logs` does for one log.
    pub(crate) fn read(&self, offset: u64, max_len: usize) -> LogPart {
        let length = self.bytes.len() as u64 / 8 * 8;
        let start = if offset > length { 0 } else { offset };
        let start = start.max(length.saturating_sub(max_len as u64));
        LogPart { start, bytes: self.bytes[start as usize..length as usize].to_vec() }
    }

    /// As the script `append_log` does.
    pub(crate) fn append(&mut self, tokens: &[u8], max_len: usize) -> AppendOutcome {
        if !self.bytes.len().is_multiple_of(8) {
            self.bytes.clear();
        }
        if self.bytes.len() + tokens.len() > max_len {
            return AppendOutcome::Full;
        }
        self.bytes.extend_from_slice(tokens);
        AppendOutcome::Appended
    }
}

/// Time for which a log is kept after the last append, in ms.
const LOG_TTL: u64 = 130_000;

impl<'a> FakeStore<'a> {
    pub(crate) fn new(time: &'a VirtualTime, faults: Faults) -> Self {
        Self {
            time,
            faults: Cell::new(faults),
            work: Cell::default(),
            usage: Cell::default(),
            commits: RefCell::default(),
            minutes: RefCell::default(),
            logs: RefCell::default(),
        }
    }

    fn count(&self, add: impl FnOnce(&mut Usage)) {
        let mut usage = self.usage.get();
        add(&mut usage);
        self.usage.set(usage);
    }

    /// Removes everything, as a restart without data does.
    pub(crate) fn flush(&self) {
        self.minutes.borrow_mut().clear();
        self.logs.borrow_mut().clear();
    }

    /// Evicts one minute, as a full Redis does.
    pub(crate) fn evict(&self, rng: &mut SplitMix64) {
        let mut minutes = self.minutes.borrow_mut();
        let at = rng.below(minutes.len().max(1) as u64) as usize;
        if let Some(&minute) = minutes.keys().nth(at) {
            minutes.remove(&minute);
        }
        // A log is as likely to be evicted as a minute.
        if rng.one_in(2) {
            self.logs.borrow_mut().pop_last();
        }
    }
}

/// One gateway's link to the store.
pub(crate) struct FakeLink<'a> {
    pub(crate) store: &'a FakeStore<'a>,
    pub(crate) gateway: u64,
    pub(crate) rng: SplitMix64,
    /// The calls of the current tick, and the most of any tick.
    pub(crate) calls: usize,
    pub(crate) most_calls: usize,
}

impl<'a> FakeLink<'a> {
    pub(crate) fn new(store: &'a FakeStore<'a>, gateway: u64, rng: SplitMix64) -> Self {
        Self { store, gateway, rng, calls: 0, most_calls: 0 }
    }

    /// One network latency, 0.5 to 4 ms.
    async fn sleep_latency(&mut self) {
        let latency = 500 + self.rng.below(3_500);
        self.store.time.sleep(latency).await;
    }

    async fn call<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, RedisFailure> {
        self.calls += 1;
        self.most_calls = self.most_calls.max(self.calls);
        self.sleep_latency().await;
        let faults = self.store.faults.get();
        let out = (faults.outage.0..faults.outage.1).contains(&self.store.time.now());
        if out || self.rng.one_in(faults.lost_calls) {
            return Err(RedisFailure::Io);
        }
        self.store.count(|usage| usage.calls += 1);
        let reply = work(self);
        self.sleep_latency().await;
        if self.rng.one_in(faults.lost_replies) {
            return Err(RedisFailure::Timeout);
        }
        Ok(reply)
    }

    fn is_conflicting(&self, minute: UnixMinute) -> bool {
        let conflicting = self.store.faults.get().conflicting;
        let over = minute.time() + Millis::from_mins(1);
        let seed = self.gateway ^ minute.as_minutes() << 8;
        self.store.time.now() < over && SplitMix64(seed).one_in(conflicting)
    }
}

impl FilterStore for FakeLink<'_> {
    async fn time(&mut self) -> Result<ServerTime, RedisFailure> {
        self.calls = 0;
        let clock_offset = ClockOffset::ZERO;
        self.call(|link| ServerTime { now: link.store.time.now(), clock_offset }).await
    }

    async fn read(
        &mut self,
        minute: UnixMinute,
        known: Option<PayloadVersion>,
        max_len: usize,
    ) -> Result<ReadOutcome, RedisFailure> {
        let reply = self.call(|link| match link.store.minutes.borrow().get(&minute) {
            None => ReadOutcome::Absent,
            Some((ts, payload)) => {
                let version = PayloadVersion { timestamp: *ts, len: payload.len() as u64 };
                if known == Some(version) {
                    return ReadOutcome::Unchanged;
                }
                if payload.len() > max_len {
                    return ReadOutcome::Unusable(PayloadError::TooLong, Some(version));
                }
                link.store.count(|usage| usage.values_read += 1);
                ReadOutcome::Value(version, payload.clone())
            }
        });
        let reply = reply.await?;
        if matches!(reply, ReadOutcome::Value(..)) {
            self.store.time.sleep(self.store.work.get().merge).await;
        }
        Ok(reply)
    }

    async fn commit(
        &mut self,
        minute: UnixMinute,
        expected: Option<StoreTime>,
        payload: &[u8],
        _ttl: Millis,
    ) -> Result<CommitOutcome, RedisFailure> {
        self.store.time.sleep(self.store.work.get().pack).await;
        self.call(|link| {
            let store = link.store;
            store.count(|usage| usage.values_written += 1);
            let mut minutes = store.minutes.borrow_mut();
            let current = minutes.get(&minute).map(|(ts, _)| *ts);
            if current != expected || link.is_conflicting(minute) {
                store.count(|usage| usage.conflicts += 1);
                return CommitOutcome::Conflict;
            }
            let next = current.unwrap_or_default() + Millis::MILLISECOND;
            let ts = store.time.now().max(next);
            minutes.insert(minute, (ts, payload.to_vec()));
            store.count(|usage| usage.commits += 1);
            store.commits.borrow_mut().push(store.time.now());
            CommitOutcome::Committed(ts)
        })
        .await
    }
    async fn read_logs(
        &mut self,
        logs: &[LogOffset],
        max_len: usize,
    ) -> Result<Vec<LogPart>, RedisFailure> {
        self.call(|link| {
            let kept = link.store.logs.borrow();
            let read = |known: &LogOffset| {
                let empty = FakeLog::default();
                let log = kept.get(&log_key(known.log)).unwrap_or(&empty);
                let part = log.read(known.offset, max_len);
                link.store.count(|usage| usage.log_read += part.bytes.len() as u64);
                part
            };
            logs.iter().map(read).collect()
        })
        .await
    }

    async fn append_log(
        &mut self,
        log: LogId,
        tokens: &[u8],
        max_len: usize,
    ) -> Result<AppendOutcome, RedisFailure> {
        self.call(|link| {
            let (mut logs, now) = (link.store.logs.borrow_mut(), link.store.time.now());
            logs.retain(|_, log| log.at + ms(LOG_TTL) > now);
            let log = logs.entry(log_key(log)).or_default();
            link.store.count(|usage| usage.log_written += tokens.len() as u64);
            log.at = now;
            log.append(tokens, max_len)
        })
        .await
    }
}

/// The key of a log. The one that was sent last comes last.
fn log_key(log: LogId) -> (UnixMinute, UnixMinute, u64) {
    (log.sent, log.minute, log.group)
}
