//! The load of Redis by the calls of many gateways whose filters are full: a million new tokens a
//! minute, each minute written once by each gateway and read twice. The gateways do no work of
//! their own, so that hundreds run in one thread.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use testkit::{random::SplitMix64, redis_server::RedisServer};
use tidegate::{
    clock::{self, Clock},
    throttle::{
        Geometry,
        geometry::{Sizing, UnixMinute},
        payload,
        redis::RedisFilterStore,
        sync::{
            CommitOutcome, FilterStore, LogId, LogOffset, ReadOutcome, SyncStats, max_log_len,
            max_log_part, next_tick,
        },
    },
    time::Millis,
};
use tokio::task::LocalSet;

use crate::gateways::connector;

/// New tokens per second, over all gateways.
const NEW_TOKENS: u64 = 1_000_000 / 60;

/// Length of a full minute, in bytes.
const VALUE_LEN: usize = 2_695_675;

/// Time for which Redis keeps a value.
const TTL: Millis = Millis::from_mins(5);

/// The counts of one measurement.
#[derive(Default)]
struct Counts {
    conflicts: u64,
    commits: u64,
    /// Tokens read from the logs.
    tokens: u64,
}

/// The state of a gateway's calls.
struct Caller {
    store: RedisFilterStore,
    rng: SplitMix64,
    offsets: Vec<LogOffset>,
    counts: Rc<RefCell<Counts>>,
}

/// Measures one row of the table.
pub(crate) fn measure(count: u64, time: Duration) -> String {
    let redis = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (stats, counts) = (Arc::new(SyncStats::default()), Rc::new(RefCell::default()));
    let callers = LocalSet::new();
    // The first seconds connect.
    let began = clock::instant() + Duration::from_secs(5);
    for number in 0..count {
        let (connector, clock) = connector(&redis);
        let caller = Caller {
            store: RedisFilterStore::new(connector, "throttle", clock.clone(), Arc::clone(&stats)),
            rng: SplitMix64(number),
            offsets: Vec::new(),
            counts: Rc::clone(&counts),
        };
        callers.spawn_local(caller.run(clock, count, began + time));
    }
    let before = runtime.block_on(callers.run_until(async {
        tokio::time::sleep_until(began.into()).await;
        RedisUsage::read(&redis)
    }));
    let before_calls = stats.calls.get();
    *counts.borrow_mut() = Counts::default();
    runtime.block_on(callers);
    let seconds = began.elapsed().as_secs_f64();
    let usage = RedisUsage::read(&redis);
    let counts = counts.borrow();
    let a_second = |count: u64| count as f64 / seconds;
    format!(
        "| {count} | {:.0} | {:.1} | {:.1} | {:.1} % | {:.1} | {:.1} | {:.0} | {:.0} MB |",
        a_second(stats.calls.get() - before_calls),
        a_second(usage.sent - before.sent) / 1e6,
        a_second(usage.received - before.received) / 1e6,
        (usage.cpu - before.cpu) / seconds * 100.0,
        a_second(counts.commits),
        a_second(counts.conflicts),
        a_second(counts.tokens) / count as f64,
        usage.memory as f64 / 1e6,
    )
}

impl Caller {
    /// A tick each second until `end`.
    async fn run(mut self, clock: Clock, count: u64, end: Instant) {
        let mut started = clock.store_time();
        while clock::instant() < end {
            let random = self.rng.next_u64() as u32;
            clock.sleep_until_wall_clock(next_tick(started, random)).await;
            started = clock.store_time();
            self.tick(count).await.expect("a Redis that answers");
        }
    }

    async fn tick(&mut self, count: u64) -> Result<(), tidegate::redis::RedisFailure> {
        let sizing =
            Sizing { capacity: 1_000_000, false_positive: 0.001, memory: Millis::from_mins(30) };
        let geometry = Geometry::new(&sizing).expect("a valid geometry");
        let minute = UnixMinute::of(self.store.time().await?.now);
        let ago = |minutes| minute.before(Millis::from_mins(minutes));
        let logs = [(ago(1), ago(1)), (ago(1), minute), (minute, ago(1)), (minute, minute)];
        let logs = logs.map(|(minute, sent)| LogId { minute, sent, group: 1 });
        let known = |log| {
            self.offsets.iter().find(|known| known.log == log).map_or(0, |known| known.offset)
        };
        self.offsets = logs.map(|log| LogOffset { log, offset: known(log) }).to_vec();
        let parts = self.store.read_logs(&self.offsets, max_log_part(&geometry)).await?;
        for (known, part) in self.offsets.iter_mut().zip(parts) {
            known.offset = part.start + part.bytes.len() as u64;
            self.counts.borrow_mut().tokens += part.bytes.len() as u64 / 8;
        }
        let tokens = NEW_TOKENS / count + u64::from(self.rng.below(count) < NEW_TOKENS % count);
        let bytes: Vec<u8> = (0..tokens).flat_map(|_| self.rng.next_u64().to_le_bytes()).collect();
        self.store.append_log(logs[3], &bytes, max_log_len(&geometry)).await?;
        // A check of an old minute.
        self.store.read(ago(20), None, 0).await?;
        if self.rng.one_in(60) {
            self.store.read(ago(7), None, payload::max_len(&geometry)).await?;
        }
        if self.rng.one_in(60) {
            self.write(ago(1), &geometry).await?;
        }
        Ok(())
    }

    async fn write(
        &mut self,
        minute: UnixMinute,
        geometry: &Geometry,
    ) -> Result<(), tidegate::redis::RedisFailure> {
        let found = self.store.read(minute, None, payload::max_len(geometry)).await?;
        let expected = match found {
            ReadOutcome::Value(version, _) => Some(version.timestamp),
            _ => None,
        };
        // Unpack, merge, cut out and pack: 57 ms.
        tokio::time::sleep(Duration::from_millis(57)).await;
        let value = vec![self.rng.next_u64() as u8; VALUE_LEN];
        let outcome = self.store.commit(minute, expected, &value, TTL).await?;
        // The minute that all read when it is settled.
        let earlier = minute.before(Millis::from_mins(6));
        let settled = self.store.read(earlier, None, 0).await?;
        if settled == ReadOutcome::Absent {
            self.store.commit(earlier, None, &value, TTL).await?;
        }
        let mut counts = self.counts.borrow_mut();
        match outcome {
            CommitOutcome::Committed(_) => counts.commits += 1,
            CommitOutcome::Conflict => counts.conflicts += 1,
        }
        Ok(())
    }
}

/// What `INFO` reports.
pub(crate) struct RedisUsage {
    /// CPU time, in seconds.
    pub(crate) cpu: f64,
    /// Bytes sent to clients.
    pub(crate) sent: u64,
    /// Bytes received from clients.
    pub(crate) received: u64,
    /// Memory in use, in bytes.
    pub(crate) memory: u64,
}

impl RedisUsage {
    pub(crate) fn read(redis: &RedisServer) -> Self {
        let info: String = redis.command(&["INFO", "ALL"]);
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.expect("a field of INFO")
        };
        let seconds = |name: &str| field(name).parse::<f64>().expect("seconds");
        let number = |name: &str| field(name).parse::<u64>().expect("a number");
        Self {
            cpu: seconds("used_cpu_sys") + seconds("used_cpu_user"),
            sent: number("total_net_output_bytes"),
            received: number("total_net_input_bytes"),
            memory: number("used_memory"),
        }
    }
}
