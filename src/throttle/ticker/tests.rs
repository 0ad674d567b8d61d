use super::{
    super::{
        mode::Mode,
        sync::{Commit, Read, Time, Version},
        tests::throttle,
    },
    *,
};

const NOW: u64 = 1_699_999_980_000;
const MINUTE: u64 = 60_000;
/// 120 minutes.
const STEP: i64 = 7_200_000;

/// A Redis that keeps nothing but the time.
struct Stub {
    clock: Clock,
    /// By how much its clock is ahead.
    ahead: i64,
    hangs: bool,
}

impl Exchange for Stub {
    async fn time(&mut self) -> Result<Time, Failure> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(Time { now: self.clock.now().saturating_add_signed(self.ahead), ahead: self.ahead })
    }

    async fn read(&mut self, _: u64, _: Option<Version>, _: usize) -> Result<Read, Failure> {
        Ok(Read::Absent)
    }

    async fn commit(
        &mut self,
        _: u64,
        _: Option<u64>,
        _: &[u8],
        _: Duration,
    ) -> Result<Commit, Failure> {
        Ok(Commit::Done(1))
    }
}

/// A throttle that refuses, and knows token 1.
async fn refusing(clock: &Clock) -> (Arc<Throttle>, Stub) {
    let throttle = throttle(true, NOW);
    let mut stub = Stub { clock: clock.clone(), ahead: 0, hangs: false };
    let mut ticker = Ticker::new(&throttle, clock);
    ticker.tick(Some(&mut stub)).await;
    drop(ticker);
    throttle.set_mode(Mode::On);
    throttle.filter.load().record(1);
    assert!(throttle.status().refuses());
    (throttle, stub)
}

/// A ticker in the place of the first, loaded.
async fn ticking<'a>(throttle: &'a Throttle, clock: &'a Clock, stub: &mut Stub) -> Ticker<'a> {
    let mut ticker = Ticker::new(throttle, clock);
    ticker.load(stub).await.unwrap();
    ticker
}

#[tokio::test]
async fn a_clock_that_was_set_far_forward_puts_nobody_out() {
    let clock = Clock::manual(NOW);
    let (throttle, mut stub) = refusing(&clock).await;
    let mut ticker = ticking(&throttle, &clock, &mut stub).await;
    // This machine's alone: the filters have turned by it before Redis tells better.
    clock.set(NOW + 120 * MINUTE);
    stub.ahead = -STEP;
    ticker.tick(Some(&mut stub)).await;
    assert!(!throttle.filter.load().knows(1), "it is forgotten");
    assert!(!throttle.status().refuses(), "so nobody is refused for being unknown");
    clock.set(NOW + 180 * MINUTE);
    ticker.tick(Some(&mut stub)).await;
    assert!(!throttle.status().refuses(), "the filters are an hour ahead still");
    clock.set(NOW + 272 * MINUTE);
    ticker.tick(Some(&mut stub)).await;
    assert!(throttle.status().refuses());
}

#[tokio::test]
async fn a_step_of_this_machines_clock_is_none_of_redis() {
    let clock = Clock::manual(NOW);
    let (throttle, mut stub) = refusing(&clock).await;
    let mut ticker = ticking(&throttle, &clock, &mut stub).await;
    clock.set(NOW + 120 * MINUTE);
    ticker.stepped(STEP, true);
    stub.ahead = -STEP;
    ticker.tick(Some(&mut stub)).await;
    assert!(throttle.filter.load().knows(1) && throttle.status().refuses());
}

#[tokio::test]
async fn alone_a_step_of_the_clock_puts_nobody_out() {
    let clock = Clock::manual(NOW);
    let throttle = throttle(false, NOW);
    throttle.set_mode(Mode::On);
    let mut ticker = Ticker::new(&throttle, &clock);
    ticker.tick(None::<&mut Stub>).await;
    assert!(throttle.status().refuses());
    clock.set(NOW + 120 * MINUTE);
    ticker.stepped(900, false);
    assert!(throttle.status().refuses(), "less than a generation is nothing");
    ticker.stepped(STEP, false);
    assert!(!throttle.status().refuses(), "at once");
    ticker.tick(None::<&mut Stub>).await;
    assert!(!throttle.status().refuses());
    clock.set(NOW + 152 * MINUTE);
    ticker.tick(None::<&mut Stub>).await;
    assert!(throttle.status().refuses());
}

#[tokio::test]
async fn the_filters_turn_while_redis_keeps_silent() {
    let clock = Clock::manual(NOW);
    let (throttle, mut stub) = refusing(&clock).await;
    let mut ticker = ticking(&throttle, &clock, &mut stub).await;
    stub.hangs = true;
    let before = *throttle.filter.load().live().end();
    let later = async {
        tokio::time::sleep(TURN / 4).await;
        clock.set(NOW + MINUTE);
        tokio::time::sleep(TURN * 2).await;
    };
    tokio::select! {
        () = ticker.tick(Some(&mut stub)) => panic!("it hangs"),
        () = later => {}
    }
    assert_eq!(*throttle.filter.load().live().end(), before + 1);
}
