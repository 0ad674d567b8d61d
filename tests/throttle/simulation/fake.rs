//! A store in virtual time that does what Redis and the scripts do, and fails as it is told.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    time::Duration,
};

use tidegate::{
    store::Failure,
    throttle::sync::{Commit, Exchange, Read, Time, Version},
};

use super::world::World;
use crate::support::Dice;

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// One call in so many fails before it is made; 0: none.
    pub(crate) lost_calls: u64,
    /// One call in so many is made, and its answer is lost; 0: none.
    pub(crate) lost_answers: u64,
    /// One pair of a gateway and a minute in so many is jammed: while the minute is not over, each of
    /// its commits comes too late; 0: none.
    pub(crate) jammed: u64,
    /// Redis is out from the first to the second of these times, in ms.
    pub(crate) outage: (u64, u64),
}

pub(crate) struct Fake<'a> {
    pub(crate) world: &'a World,
    pub(crate) faults: Cell<Faults>,
    pub(crate) commits: RefCell<Vec<u64>>,
    pub(crate) conflicts: Cell<u64>,
    minutes: RefCell<BTreeMap<u64, (u64, Vec<u8>)>>,
}

impl<'a> Fake<'a> {
    pub(crate) fn new(world: &'a World, faults: Faults) -> Self {
        Self {
            world,
            faults: Cell::new(faults),
            commits: RefCell::default(),
            conflicts: Cell::new(0),
            minutes: RefCell::default(),
        }
    }

    /// As after a restart.
    pub(crate) fn empty(&self) {
        self.minutes.borrow_mut().clear();
    }

    /// One minute is thrown out of a full Redis.
    pub(crate) fn evict(&self, dice: &mut Dice) {
        let mut minutes = self.minutes.borrow_mut();
        let at = dice.below(minutes.len().max(1) as u64) as usize;
        if let Some(&minute) = minutes.keys().nth(at) {
            minutes.remove(&minute);
        }
    }
}

/// One gateway's way to it.
pub(crate) struct FakeLink<'a> {
    pub(crate) store: &'a Fake<'a>,
    pub(crate) gateway: u64,
    pub(crate) dice: Dice,
    /// The calls of the tick, and the most of any.
    pub(crate) calls: usize,
    pub(crate) most_calls: usize,
}

impl FakeLink<'_> {
    /// One way through the network, 0.5 to 4 ms.
    async fn travel(&mut self) {
        let time = 500 + self.dice.below(3_500);
        self.store.world.sleep(time).await;
    }

    async fn call<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, Failure> {
        self.calls += 1;
        self.most_calls = self.most_calls.max(self.calls);
        self.travel().await;
        let faults = self.store.faults.get();
        let out = (faults.outage.0..faults.outage.1).contains(&self.store.world.now());
        if out || self.dice.one_in(faults.lost_calls) {
            return Err(Failure::Io);
        }
        let answer = work(self);
        self.travel().await;
        if self.dice.one_in(faults.lost_answers) {
            return Err(Failure::Timeout);
        }
        Ok(answer)
    }

    fn is_jammed(&self, minute: u64) -> bool {
        let jammed = self.store.faults.get().jammed;
        let over = (minute + 1) * 60_000;
        self.store.world.now() < over && Dice(self.gateway ^ minute << 8).one_in(jammed)
    }
}

impl Exchange for FakeLink<'_> {
    async fn time(&mut self) -> Result<Time, Failure> {
        self.calls = 0;
        self.call(|link| Time { now: link.store.world.now(), ahead: 0 }).await
    }

    async fn read(
        &mut self,
        minute: u64,
        known: Option<Version>,
        _max_len: usize,
    ) -> Result<Read, Failure> {
        self.call(|link| match link.store.minutes.borrow().get(&minute) {
            None => Read::Absent,
            Some((ts, payload)) => {
                let version = Version { ts: *ts, len: payload.len() as u64 };
                let is_known = known == Some(version);
                if is_known { Read::Unchanged } else { Read::Value(version, payload.clone()) }
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
    ) -> Result<Commit, Failure> {
        self.call(|link| {
            let store = link.store;
            let mut minutes = store.minutes.borrow_mut();
            let current = minutes.get(&minute).map(|(ts, _)| *ts);
            if current != expected || link.is_jammed(minute) {
                store.conflicts.set(store.conflicts.get() + 1);
                return Commit::Conflict;
            }
            let ts = store.world.now().max(current.unwrap_or(0) + 1);
            minutes.insert(minute, (ts, payload.to_vec()));
            store.commits.borrow_mut().push(store.world.now());
            Commit::Done(ts)
        })
        .await
    }
}
