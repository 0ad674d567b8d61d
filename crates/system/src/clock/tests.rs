use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use super::*;

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// Runs `task` on a thread of its own, as a worker's tasks run.
fn spawn<F: Future<Output = ()>>(
    task: impl FnOnce() -> F + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    std::thread::spawn(move || runtime.unwrap().block_on(task()))
}

#[test]
fn setting_a_manual_clock_does_not_shorten_waits() {
    let clock = Clock::manual(START);
    clock.set(START + ms(90_000));
    assert_eq!(clock.store_time(), START + ms(90_000));
    assert_eq!(clock.monotonic().as_ms(), 90_000);
    assert!(clock.uptime() < Uptime::ZERO + Duration::from_mins(1));
    clock.set(START - ms(1));
    assert_eq!(clock.store_time(), START - ms(1));
    assert_eq!(clock.monotonic(), MonotonicTime::ZERO);
}

#[test]
fn a_simulated_sleep_ends_when_the_clock_reaches_it() {
    let clock = Clock::simulated(START);
    let sleeping = spawn({
        let clock = clock.clone();
        move || async move { clock.sleep_until(Uptime::ZERO + Duration::from_hours(1)).await }
    });
    clock.advance(Duration::from_millis(3_599_999));
    assert!(!sleeping.is_finished());
    clock.advance(Duration::from_millis(1));
    sleeping.join().unwrap();
}

#[test]
fn advance_returns_after_the_work_of_every_tick() {
    let (clock, ticks) = (Clock::simulated(START), Arc::new(AtomicU32::new(0)));
    let mut interval = clock.interval(Duration::from_millis(100));
    let counter = Arc::clone(&ticks);
    let ticking = spawn(move || async move {
        while counter.fetch_add(1, Ordering::SeqCst) < 10 {
            interval.tick().await;
        }
    });
    // Long enough for a busy machine.
    let advance = |ms| clock.advance_within(Duration::from_mins(1), Duration::from_millis(ms));
    // The first tick is at once. It must not come after the first advance, which would skip the
    // second one.
    advance(0);
    assert_eq!(ticks.load(Ordering::SeqCst), 2);
    for expected in 3..=10 {
        advance(if expected == 5 { 350 } else { 100 });
        assert_eq!(ticks.load(Ordering::SeqCst), expected);
    }
    advance(100);
    ticking.join().unwrap();
}

#[tokio::test]
async fn a_timeout_passes_on_the_output_or_elapses() {
    for clock in [Clock::system(), Clock::simulated(START)] {
        assert_eq!(clock.timeout(Duration::from_secs(9), async { 7 }).await, Ok(7));
    }
    let (clock, never) = (Clock::system(), std::future::pending::<()>);
    assert_eq!(clock.timeout(Duration::from_millis(1), never()).await, Err(Elapsed));
    let soon = clock.uptime() + Duration::from_millis(1);
    assert_eq!(clock.timeout_at(soon, never()).await, Err(Elapsed));
}

#[tokio::test]
async fn a_simulated_timeout_elapses_when_the_clock_reaches_it() {
    let clock = Clock::simulated(START);
    let (never, second) = (std::future::pending::<()>, Duration::from_secs(1));
    clock.advance(second);
    let both = futures_util::future::join(
        clock.timeout(2 * second, never()),
        clock.timeout_at(Uptime::ZERO + 3 * second, never()),
    );
    let mut both = pin!(both);
    clock.advance(Duration::from_millis(1_999));
    assert!(futures_util::poll!(&mut both).is_pending());
    clock.advance(Duration::from_millis(1_999));
    assert!(futures_util::poll!(&mut both).is_pending(), "counted from the first poll");
    clock.advance(Duration::from_millis(1));
    assert_eq!(both.await, (Err(Elapsed), Err(Elapsed)));
}

#[tokio::test]
async fn a_late_background_tick_delays_the_next_ones() {
    use futures_util::FutureExt as _;

    let (clock, second) = (Clock::simulated(START), Duration::from_secs(1));
    let mut interval = clock.background_interval(second);
    let mut ticks_after = |millis: u64| {
        // Returns at once: `advance` does not wait for this interval.
        clock.advance(Duration::from_millis(millis));
        interval.tick().now_or_never().is_some()
    };
    assert!(ticks_after(0), "the first tick is at once");
    assert!(!ticks_after(999) && ticks_after(1));
    assert!(ticks_after(1_004), "late, but not missed");
    assert!(!ticks_after(995) && ticks_after(1));
    assert!(ticks_after(3_000) && !ticks_after(999) && ticks_after(1), "missed ticks");
}

#[test]
fn a_stopwatch_reads_the_clock_that_started_it() {
    let clock = Clock::simulated(START);
    let stopwatch = clock.stopwatch();
    clock.advance(Duration::from_millis(1_234));
    assert_eq!(stopwatch.read(), Duration::from_millis(1_234));
}
