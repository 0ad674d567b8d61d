//! A store in virtual time that behaves like Redis and the scripts, with configured faults.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::Duration,
};

use testkit::random::SplitMix64;
use tidegate::{
    clock::StoreTime,
    redis::RedisFailure,
    throttle::sync::{CommitOutcome, FilterStore, PayloadVersion, ReadOutcome, ServerTime},
};

use super::virtual_time::VirtualTime;

/// The configured faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// One call in `lost_calls` fails before it reaches the store; 0: none.
    pub(crate) lost_calls: u64,
    /// One call in `lost_replies` is executed and its reply is lost; 0: none.
    pub(crate) lost_replies: u64,
    /// One in `conflicting` pairs of gateway and minute is affected: until the minute ends, each of its
    /// commits conflicts; 0: none.
    pub(crate) conflicting: u64,
    /// Redis is unreachable between these two times.
    pub(crate) outage: (StoreTime, StoreTime),
}

pub(crate) struct FakeStore<'a> {
    pub(crate) time: &'a VirtualTime,
    pub(crate) faults: Cell<Faults>,
    pub(crate) commits: RefCell<Vec<StoreTime>>,
    pub(crate) conflicts: Cell<u64>,
    minutes: RefCell<BTreeMap<u64, (u64, Vec<u8>)>>,
}

impl<'a> FakeStore<'a> {
    pub(crate) fn new(time: &'a VirtualTime, faults: Faults) -> Self {
        Self {
            time,
            faults: Cell::new(faults),
            commits: RefCell::default(),
            conflicts: Cell::new(0),
            minutes: RefCell::default(),
        }
    }

    /// Removes everything, as a restart without data does.
    pub(crate) fn flush(&self) {
        self.minutes.borrow_mut().clear();
    }

    /// Evicts one minute, as a full Redis does.
    pub(crate) fn evict(&self, rng: &mut SplitMix64) {
        let mut minutes = self.minutes.borrow_mut();
        let at = rng.below(minutes.len().max(1) as u64) as usize;
        if let Some(&minute) = minutes.keys().nth(at) {
            minutes.remove(&minute);
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

impl FakeLink<'_> {
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
        let reply = work(self);
        self.sleep_latency().await;
        if self.rng.one_in(faults.lost_replies) {
            return Err(RedisFailure::Timeout);
        }
        Ok(reply)
    }

    fn is_conflicting(&self, minute: u64) -> bool {
        let conflicting = self.store.faults.get().conflicting;
        let over = StoreTime::from_unix_ms((minute + 1) * 60_000);
        self.store.time.now() < over && SplitMix64(self.gateway ^ minute << 8).one_in(conflicting)
    }
}

impl FilterStore for FakeLink<'_> {
    async fn time(&mut self) -> Result<ServerTime, RedisFailure> {
        self.calls = 0;
        self.call(|link| ServerTime { now: link.store.time.now(), clock_offset: 0 }).await
    }

    async fn read(
        &mut self,
        minute: u64,
        known: Option<PayloadVersion>,
        _max_len: usize,
    ) -> Result<ReadOutcome, RedisFailure> {
        self.call(|link| match link.store.minutes.borrow().get(&minute) {
            None => ReadOutcome::Absent,
            Some((ts, payload)) => {
                let version = PayloadVersion { timestamp: *ts, len: payload.len() as u64 };
                let is_known = known == Some(version);
                if is_known {
                    ReadOutcome::Unchanged
                } else {
                    ReadOutcome::Value(version, payload.clone())
                }
            }
        })
        .await
    }

    async fn commit(
        &mut self,
        minute: u64,
        expected: Option<u64>,
        payload: &[u8],
        _ttl: Duration,
    ) -> Result<CommitOutcome, RedisFailure> {
        self.call(|link| {
            let store = link.store;
            let mut minutes = store.minutes.borrow_mut();
            let current = minutes.get(&minute).map(|(ts, _)| *ts);
            if current != expected || link.is_conflicting(minute) {
                store.conflicts.set(store.conflicts.get() + 1);
                return CommitOutcome::Conflict;
            }
            let ts = store.time.now().as_unix_ms().max(current.unwrap_or(0) + 1);
            minutes.insert(minute, (ts, payload.to_vec()));
            store.commits.borrow_mut().push(store.time.now());
            CommitOutcome::Committed(ts)
        })
        .await
    }
}
