//! The filters change their size while tokens are recorded and looked up, and payloads of other
//! sizes arrive.

use std::{cell::RefCell, collections::BTreeMap};

use super::*;
use crate::{Geometry, ThrottleSettings, geometry::Sizing};

const CAPACITY: u64 = 1_000;

fn throttle_with_growth(growth: u32, sharing: FilterSharing) -> Arc<Throttle> {
    let sizing = Sizing { capacity: CAPACITY, false_positive: 0.001, memory: MINUTE * 30 };
    let geometry = Geometry::new(&sizing).unwrap();
    let settings = ThrottleSettings {
        sizing,
        geometry,
        max_memory: geometry.grown(growth).bytes(),
        ..(*throttle(sharing, NOW).settings()).clone()
    };
    Throttle::new(
        settings,
        &tidegate_system::secret::SharedSecret::from_namespace("test"),
        sharing,
        NOW,
    )
}

fn growth_of(throttle: &Throttle) -> u32 {
    throttle.filter.load().current.geometry().growth
}

/// The payloads that two gateways share, with their time stamps.
#[derive(Default)]
struct Payloads(RefCell<BTreeMap<UnixMinute, (StoreTime, Vec<u8>)>>);

/// One gateway's access to the payloads.
struct PayloadStore<'a> {
    payloads: &'a Payloads,
    clock: Clock,
}

impl FilterStore for PayloadStore<'_> {
    async fn time(&mut self) -> Result<ServerTime, RedisFailure> {
        Ok(ServerTime { now: self.clock.store_time(), clock_offset: ClockOffset::ZERO })
    }

    async fn read(
        &mut self,
        minute: UnixMinute,
        known: Option<PayloadVersion>,
        max_len: usize,
    ) -> Result<ReadOutcome, RedisFailure> {
        let payloads = self.payloads.0.borrow();
        let Some((timestamp, payload)) = payloads.get(&minute) else {
            return Ok(ReadOutcome::Absent);
        };
        assert!(payload.len() <= max_len);
        let version = PayloadVersion { timestamp: *timestamp, len: payload.len() as u64 };
        let is_known = known == Some(version);
        Ok(if is_known {
            ReadOutcome::Unchanged
        } else {
            ReadOutcome::Value(version, payload.clone())
        })
    }

    async fn commit(
        &mut self,
        minute: UnixMinute,
        expected: Option<StoreTime>,
        payload: &[u8],
        _: Millis,
    ) -> Result<CommitOutcome, RedisFailure> {
        let mut payloads = self.payloads.0.borrow_mut();
        let current = payloads.get(&minute).map(|(timestamp, _)| *timestamp);
        if current != expected {
            return Ok(CommitOutcome::Conflict);
        }
        let timestamp = current.unwrap_or_default() + Millis::MILLISECOND;
        payloads.insert(minute, (timestamp, payload.to_vec()));
        Ok(CommitOutcome::Committed(timestamp))
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
        Ok(AppendOutcome::Full)
    }
}

#[tokio::test]
async fn tokens_recorded_while_the_filters_grow_are_kept() {
    let clock = Clock::manual(NOW);
    let throttle = throttle_with_growth(16, FilterSharing::Local);
    let mut ticker = Ticker::new(&throttle, &clock, FilterSharing::Local);
    ticker.tick(None::<&mut ClockStore>).await;
    let late = throttle.filter.load_full();
    (0..CAPACITY * 11 / 10).for_each(|token| _ = late.record(token));
    ticker.tick(None::<&mut ClockStore>).await;
    assert_eq!(growth_of(&throttle), 16, "they came in the first second");
    // A worker that took the filters before they grew.
    assert!(late.record(1 << 40));
    let live = throttle.filter.load_full();
    assert!(live.before.is_some() && live.contains(1 << 40) && live.record(1 << 41));
    let both = throttle.status().memory_bytes;
    for second in 1..=3 {
        clock.set(NOW + Millis::from_secs(second));
        ticker.tick(None::<&mut ClockStore>).await;
    }
    let live = throttle.filter.load_full();
    assert!(live.before.is_none(), "the old filter is dropped");
    assert!(throttle.status().memory_bytes == live.current.geometry().bytes() && both > 0);
    assert!((0..CAPACITY * 11 / 10).chain([1 << 40, 1 << 41]).all(|token| live.contains(token)));
    // The late worker's token will be exchanged.
    assert!(live.current.take_changed(live.generation()));
    clock.set(NOW + MINUTE * 30);
    ticker.tick(None::<&mut ClockStore>).await;
    assert!(throttle.filter.load().contains(1 << 40), "for its memory");
    clock.set(NOW + MINUTE * 32);
    ticker.tick(None::<&mut ClockStore>).await;
    assert!(!throttle.filter.load().contains(1 << 40));
    // They shrink in steps once the tokens have expired.
    for minute in 33..36 {
        clock.set(NOW + MINUTE * minute);
        for _ in 0..4 {
            ticker.tick(None::<&mut ClockStore>).await;
        }
    }
    assert_eq!(growth_of(&throttle), 1);
}

#[tokio::test]
async fn the_estimate_does_not_change_when_the_filters_grow() {
    let clock = Clock::manual(NOW);
    let throttle = throttle_with_growth(16, FilterSharing::Local);
    let mut ticker = Ticker::new(&throttle, &clock, FilterSharing::Local);
    let mut last = 0;
    for second in 0..60 {
        clock.set(NOW + Millis::from_secs(second));
        (0..100).for_each(|token| _ = throttle.filter.load().record(second << 32 | token));
        ticker.tick(None::<&mut ClockStore>).await;
        let (estimate, tokens) = (throttle.status().estimate, (second + 1) * 100);
        assert!(
            estimate.tokens.abs_diff(tokens) <= 2 * estimate.error + 10,
            "{tokens}: {estimate:?}"
        );
        assert!(estimate.tokens >= last);
        last = estimate.tokens;
    }
    assert!(growth_of(&throttle) >= 8);
}

/// Both gateways' filters may grow, or only the first gateway's, or only the second's.
#[tokio::test]
async fn gateways_of_different_sizes_exchange_their_tokens() {
    for (first, second) in [(16, 16), (16, 1), (1, 16)] {
        let (clock, payloads) = (Clock::manual(NOW), Payloads::default());
        let gateways = [
            throttle_with_growth(first, FilterSharing::Shared),
            throttle_with_growth(second, FilterSharing::Shared),
        ];
        let mut tickers =
            gateways.each_ref().map(|own| Ticker::new(own, &clock, FilterSharing::Shared));
        for minute in 0..3 {
            for tick in 0..12 {
                clock.set(NOW + MINUTE * minute + Millis::from_secs(tick * 5));
                for (at, ticker) in tickers.iter_mut().enumerate() {
                    let mut store = PayloadStore { payloads: &payloads, clock: clock.clone() };
                    ticker.tick(Some(&mut store)).await;
                    let base = (minute * 12 + tick) << 20 | (at as u64) << 16;
                    (0..100).for_each(|token| _ = gateways[at].filter.load().record(base | token));
                }
            }
        }
        // Without logs, tokens are known with the next write of their generation, which conflicts
        // delay.
        for _ in 0..70 {
            clock.set(clock.store_time() + Millis::from_secs(1));
            for ticker in &mut tickers {
                let mut store = PayloadStore { payloads: &payloads, clock: clock.clone() };
                ticker.tick(Some(&mut store)).await;
            }
        }
        for (gateway, max_growth) in gateways.iter().zip([first, second]) {
            // It grows further if the payloads of the other gateway are folded to a smaller size.
            assert!(growth_of(gateway) >= 4.min(max_growth) && growth_of(gateway) <= max_growth);
        }
        for gateway in &gateways {
            assert!(gateway.status().loaded && gateway.status().complete);
            let all = (0..36_u64).flat_map(|tick| (0..2).map(move |at| tick << 20 | at << 16));
            let filters = gateway.filter.load();
            let missing = all
                .flat_map(|base| (0..100).map(move |token| base | token))
                .filter(|token| !filters.contains(*token));
            assert_eq!(missing.count(), 0, "{first} and {second}");
        }
        // A gateway that starts later grows while it loads.
        let late = throttle_with_growth(16, FilterSharing::Shared);
        let mut ticker = Ticker::new(&late, &clock, FilterSharing::Shared);
        for _ in 0..4 {
            let mut store = PayloadStore { payloads: &payloads, clock: clock.clone() };
            ticker.tick(Some(&mut store)).await;
        }
        assert!(late.status().loaded && late.status().complete);
        assert!(late.filter.load().contains(7) && late.filter.load().contains(35 << 20 | 1 << 16));
    }
}

/// A payload of the largest size makes the filters grow only if it has many bits, and at most to
/// the maximum.
#[tokio::test]
async fn forged_sizes_do_not_exceed_the_maximum() {
    let clock = Clock::manual(NOW);
    for (bits_per_byte, growth) in [(0x00, 1), (0xff_u8, 4)] {
        let payloads = Payloads::default();
        let throttle = throttle_with_growth(4, FilterSharing::Shared);
        let geometry = throttle.settings().geometry.grown(crate::geometry::MAX_GROWTH);
        let mut bits = vec![bits_per_byte; geometry.bits / 8];
        bits.iter_mut().step_by(2).for_each(|byte| *byte = 0x10);
        if bits_per_byte == 0 {
            bits.iter_mut().skip(64).for_each(|byte| *byte = 0);
        }
        let hash_keys = *throttle.filter.load().current.hash_keys();
        let payload = crate::payload::encode(&geometry, &hash_keys, &bits);
        let version = (StoreTime::from_unix_ms(1), payload);
        payloads.0.borrow_mut().insert(geometry.minute(geometry.index(NOW)), version);
        let mut ticker = Ticker::new(&throttle, &clock, FilterSharing::Shared);
        for _ in 0..6 {
            let mut store = PayloadStore { payloads: &payloads, clock: clock.clone() };
            ticker.tick(Some(&mut store)).await;
        }
        assert!(throttle.status().loaded);
        assert_eq!(growth_of(&throttle), growth);
    }
}
