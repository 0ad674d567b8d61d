//! Gateways that were cut off from Redis, in simulated time: their filters agree soon after. Calls
//! take no time.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
};

use futures_util::future::join_all;
use tidegate_base::mix::SplitMix;
use tidegate_redis::LONGEST_PROBE_INTERVAL;
use tokio::task::yield_now;

use super::*;

/// The time by which the clock moves.
const STEP: Duration = Duration::from_millis(5);

/// The bound of [`sync`](crate::sync) without the calls.
const AGREED_WITHIN: Duration = Duration::from_millis(625 + 1_200);

/// Redis: the logs of new tokens, and no generation.
#[derive(Default)]
struct LogsOnly {
    logs: RefCell<BTreeMap<(UnixMinute, UnixMinute, u64), Vec<u8>>>,
    /// The number of ticks that asked for the time.
    ticks: Cell<u64>,
}

/// The time in which a gateway is cut off from Redis.
#[derive(Clone, Copy)]
struct Cut {
    start: StoreTime,
    end: StoreTime,
    /// The time from its start to the first probe; the others follow at the longest interval.
    first_probe: Millis,
}

impl Cut {
    /// The next probe after `now`; `None` if Redis is not lost.
    fn next_probe(&self, now: StoreTime) -> Option<StoreTime> {
        let interval = Millis::from_duration(LONGEST_PROBE_INTERVAL);
        let first = self.start + self.first_probe;
        let probes = (0..).map(|number| first + interval * number);
        let success = probes.clone().find(|probe| *probe >= self.end)?;
        let is_lost = (self.start..success).contains(&now);
        is_lost.then(|| probes.clone().find(|probe| *probe > now)).flatten()
    }
}

/// A gateway's link to Redis, which is probed while it is lost.
struct CutLink {
    redis: Rc<LogsOnly>,
    clock: Clock,
    cut: Option<Cut>,
}

impl FilterStore for CutLink {
    async fn time(&mut self) -> Result<ServerTime, RedisFailure> {
        self.redis.ticks.set(self.redis.ticks.get() + 1);
        let cut = self.cut.and_then(|cut| Some((cut, cut.next_probe(self.clock.store_time())?)));
        if let Some((cut, probe)) = cut {
            self.clock.sleep_until_wall_clock(probe).await;
            if probe < cut.end {
                return Err(RedisFailure::Timeout);
            }
        }
        Ok(ServerTime { now: self.clock.store_time(), clock_offset: ClockOffset::ZERO })
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
        _: usize,
    ) -> Result<Vec<LogPart>, RedisFailure> {
        let kept = self.redis.logs.borrow();
        let read = |known: &LogOffset| {
            let bytes =
                kept.get(&key(known.log)).map_or(&[][..], |log| &log[known.offset as usize..]);
            LogPart { start: known.offset, bytes: bytes.to_vec() }
        };
        Ok(logs.iter().map(read).collect())
    }

    async fn append_log(
        &mut self,
        log: LogId,
        tokens: &[u8],
        _: usize,
    ) -> Result<AppendOutcome, RedisFailure> {
        self.redis.logs.borrow_mut().entry(key(log)).or_default().extend(tokens);
        Ok(AppendOutcome::Appended)
    }
}

fn key(log: LogId) -> (UnixMinute, UnixMinute, u64) {
    (log.minute, log.sent, log.group)
}

/// Three gateways, each with its cut, that start within a second.
struct Gateways {
    clock: Clock,
    redis: Rc<LogsOnly>,
    throttles: [Arc<Throttle>; 3],
}

impl Gateways {
    fn new(start: StoreTime) -> Self {
        let throttles = [(); 3].map(|()| throttle(FilterSharing::Shared, start));
        Self { clock: Clock::simulated(start), redis: Rc::default(), throttles }
    }

    /// Runs them while `test` runs.
    async fn run(
        &self,
        cuts: [Option<Cut>; 3],
        random: &mut SplitMix,
        test: impl Future<Output = ()>,
    ) {
        let gateways = self.throttles.iter().zip(cuts).map(|(throttle, cut)| {
            let (clock, redis) = (self.clock.clone(), Rc::clone(&self.redis));
            let link = CutLink { redis, clock: clock.clone(), cut };
            let delay = Duration::from_millis(random.below(1_000));
            async move {
                clock.sleep(delay).await;
                let stop = CancellationToken::new();
                Box::pin(Arc::clone(throttle).run(Some(link), clock, stop)).await;
            }
        });
        tokio::select! {
            _ = join_all(gateways) => panic!("a gateway ended"),
            () = test => {}
        }
    }

    /// Moves the clock.
    async fn pass(&self, time: Duration) {
        for _ in 0..time.as_millis() / STEP.as_millis() {
            self.clock.advance(STEP);
            for _ in 0..4 {
                yield_now().await;
            }
        }
    }

    fn record(&self, gateway: usize, token: u64) {
        self.throttles[gateway].filter.load().record(token);
    }

    fn all_know(&self, token: u64) -> bool {
        self.throttles.iter().all(|throttle| throttle.filter.load().contains(token))
    }
}

/// The time from the end of a partition until all gateways know the tokens of all others. The
/// gateways' phases, the partition's length and the times of the probes are random. `lost` gateways
/// are cut off.
async fn time_to_agree(seed: u64, lost: usize) -> Duration {
    let mut random = SplitMix::new(seed);
    let start = NOW + Millis::from_ms(random.below(1_000));
    let gateways = Gateways::new(start);
    let cut = start + Millis::from_secs(3);
    let length = Millis::from_secs(1) + Millis::from_duration(STEP) * random.below(200);
    let end = cut + length;
    let cuts = std::array::from_fn(|gateway| {
        let first_probe = Millis::from_ms(random.below(LONGEST_PROBE_INTERVAL.as_millis() as u64));
        (gateway < lost).then_some(Cut { start: cut, end, first_probe })
    });
    let mut took = Duration::ZERO;
    gateways
        .run(cuts, &mut random, async {
            gateways.pass(Duration::from_millis(3_500)).await;
            (0..3).for_each(|gateway| gateways.record(gateway, 10 + gateway as u64));
            gateways.pass((length - Millis::from_ms(500)).as_duration()).await;
            assert!(!gateways.all_know(10), "the partition separates them");
            while !(10..13).all(|token| gateways.all_know(token)) {
                gateways.pass(STEP).await;
                took += STEP;
                assert!(took < Duration::from_secs(20), "they do not agree");
            }
        })
        .await;
    took
}

#[tokio::test]
async fn filters_agree_within_two_seconds_after_a_partition() {
    for lost in [1, 3] {
        let mut longest = Duration::ZERO;
        for seed in 0..20 {
            longest = longest.max(time_to_agree(seed, lost).await);
        }
        assert!(longest <= AGREED_WITHIN + STEP, "{longest:?} with {lost} lost");
        assert!(longest > AGREED_WITHIN / 2, "{longest:?}: the bound is too high");
    }
}

#[tokio::test]
async fn a_gateway_exchanges_once_a_second_while_redis_is_there_and_twice_while_it_is_lost() {
    const SECONDS: u64 = 200;
    let always = Cut { start: NOW, end: NOW + Millis::from_mins(60), first_probe: Millis::ZERO };
    let later = Cut { start: NOW + Millis::from_secs(2), ..always };
    for (cut, expected) in [(None, 590..=610), (Some(later), 930..=1_210)] {
        let gateways = Gateways::new(NOW);
        let test = gateways.pass(Duration::from_secs(SECONDS));
        gateways.run([cut; 3], &mut SplitMix::new(1), test).await;
        let ticks = gateways.redis.ticks.get();
        assert!(expected.contains(&ticks), "{ticks} ticks of three gateways in {SECONDS} s");
    }
}
