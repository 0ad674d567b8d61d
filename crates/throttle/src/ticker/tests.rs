use super::{
    super::{
        geometry::UnixMinute,
        mode::ThrottleMode,
        sync::{
            AppendOutcome, CommitOutcome, LogId, LogOffset, LogPart, PayloadVersion, ReadOutcome,
            ServerTime,
        },
        tests::throttle,
    },
    *,
};

mod capacity;
mod partition;
mod resize;

const NOW: StoreTime = StoreTime::from_unix_ms(1_699_999_980_000);
const MINUTE: Millis = Millis::from_mins(1);
/// A step of a clock.
const TWO_HOURS: ClockOffset = ClockOffset::from_ms(7_200_000);

/// A store that has a clock and no filters.
struct ClockStore {
    clock: Clock,
    /// Its clock minus the gateway's.
    clock_offset: ClockOffset,
    hangs: bool,
}

impl FilterStore for ClockStore {
    async fn time(&mut self) -> Result<ServerTime, RedisFailure> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(ServerTime {
            now: self.clock_offset.apply(self.clock.store_time()),
            clock_offset: self.clock_offset,
        })
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
        Ok(CommitOutcome::Committed(StoreTime::from_unix_ms(1)))
    }

    async fn read_logs(
        &mut self,
        logs: &[LogOffset],
        _: usize,
    ) -> Result<Vec<LogPart>, RedisFailure> {
        Ok(vec![LogPart::default(); logs.len()])
    }

    async fn append_log(
        &mut self,
        _: LogId,
        _: &[u8],
        _: usize,
    ) -> Result<AppendOutcome, RedisFailure> {
        Ok(AppendOutcome::Appended)
    }
}

/// A throttle that is throttling, with token 1 active.
async fn start_throttling(clock: &Clock) -> (Arc<Throttle>, ClockStore) {
    let throttle = throttle(FilterSharing::Shared, NOW);
    let clock_offset = ClockOffset::ZERO;
    let mut store = ClockStore { clock: clock.clone(), clock_offset, hangs: false };
    let mut ticker = Ticker::new(&throttle, clock, FilterSharing::Shared);
    ticker.tick(Some(&mut store)).await;
    drop(ticker);
    throttle.set_mode(ThrottleMode::On);
    throttle.filter.load().record(1);
    assert!(throttle.status().is_throttling());
    (throttle, store)
}

/// A new ticker, loaded.
async fn new_loaded_ticker(
    throttle: &Arc<Throttle>,
    clock: &Clock,
    store: &mut ClockStore,
) -> Ticker {
    let mut ticker = Ticker::new(throttle, clock, FilterSharing::Shared);
    ticker.load(store).await.unwrap();
    ticker
}

#[tokio::test]
async fn a_large_forward_step_of_the_clock_suspends_denials() {
    let clock = Clock::manual(NOW);
    let (throttle, mut store) = start_throttling(&clock).await;
    let mut ticker = new_loaded_ticker(&throttle, &clock, &mut store).await;
    // Only this machine's clock steps: the filters are rotated by it before Redis' time is read.
    clock.set(NOW + MINUTE * 120);
    store.clock_offset = ClockOffset::ZERO.minus(TWO_HOURS);
    ticker.tick(Some(&mut store)).await;
    assert!(!throttle.filter.load().contains(1), "rotated out");
    assert!(!throttle.status().is_throttling(), "denials are suspended");
    clock.set(NOW + MINUTE * 180);
    ticker.tick(Some(&mut store)).await;
    assert!(!throttle.status().is_throttling(), "the filters are still an hour ahead");
    clock.set(NOW + MINUTE * 272);
    ticker.tick(Some(&mut store)).await;
    assert!(throttle.status().is_throttling());
}

#[tokio::test]
async fn a_step_of_this_machines_clock_does_not_affect_shared_filters() {
    let clock = Clock::manual(NOW);
    let (throttle, mut store) = start_throttling(&clock).await;
    let mut ticker = new_loaded_ticker(&throttle, &clock, &mut store).await;
    clock.set(NOW + MINUTE * 120);
    ticker.apply_clock_step(TWO_HOURS);
    store.clock_offset = ClockOffset::ZERO.minus(TWO_HOURS);
    ticker.tick(Some(&mut store)).await;
    assert!(throttle.filter.load().contains(1) && throttle.status().is_throttling());
}

#[tokio::test]
async fn a_clock_step_without_redis_suspends_denials() {
    let clock = Clock::manual(NOW);
    let throttle = throttle(FilterSharing::Local, NOW);
    throttle.set_mode(ThrottleMode::On);
    let mut ticker = Ticker::new(&throttle, &clock, FilterSharing::Local);
    ticker.tick(None::<&mut ClockStore>).await;
    assert!(throttle.status().is_throttling());
    clock.set(NOW + MINUTE * 120);
    ticker.apply_clock_step(ClockOffset::from_ms(900));
    assert!(throttle.status().is_throttling(), "a step of less than a generation is ignored");
    ticker.apply_clock_step(TWO_HOURS);
    assert!(!throttle.status().is_throttling(), "before the next tick");
    ticker.tick(None::<&mut ClockStore>).await;
    assert!(!throttle.status().is_throttling());
    clock.set(NOW + MINUTE * 152);
    ticker.tick(None::<&mut ClockStore>).await;
    assert!(throttle.status().is_throttling());
}

#[tokio::test]
async fn the_filters_rotate_while_redis_hangs() {
    // Half a rotation before the next minute.
    let clock = Clock::simulated(NOW + MINUTE - Millis::from_ms(500));
    let (throttle, mut store) = start_throttling(&clock).await;
    let mut ticker = new_loaded_ticker(&throttle, &clock, &mut store).await;
    store.hangs = true;
    let before = *throttle.filter.load().current.live_generations().end();
    let later = async {
        // The tick waits for Redis by now.
        tokio::task::yield_now().await;
        clock.advance(ROTATE_INTERVAL);
        tokio::task::yield_now().await;
    };
    tokio::select! {
        biased;
        () = ticker.tick(Some(&mut store)) => panic!("the tick ended"),
        () = later => {}
    }
    assert_eq!(*throttle.filter.load().current.live_generations().end(), before + 1);
}
