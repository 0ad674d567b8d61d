//! The throttle of one gateway in virtual time: the replay of a log asks it what the live one would
//! decide.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tidegate_system::clock::{Clock, StoreTime};
use tidegate_system::secret::SharedSecret;

use super::{
    AdmissionGate, FilterSharing, Throttle, ThrottleSettings, redis::RedisFilterStore,
    ticker::Ticker,
};

/// The throttle of a gateway without others. Its time moves only with [`Self::tick`].
///
/// Its filters do not grow, because that takes another thread: if there are more tokens than
/// `capacity`, more unknown tokens pass as active than at a live gateway.
pub struct SimulatedThrottle {
    throttle: Arc<Throttle>,
    gate: AdmissionGate,
    clock: Clock,
    ticker: Ticker,
}

impl SimulatedThrottle {
    /// A throttle without active users at `now`. The same `secret` and the same calls have the same
    /// results.
    pub fn new(settings: &ThrottleSettings, secret: &SharedSecret, now: StoreTime) -> Self {
        let max_memory = settings.geometry.bytes();
        let settings = ThrottleSettings { max_memory, ..settings.clone() };
        let throttle =
            Throttle::with_ticket_secret(settings, [secret; 2], FilterSharing::Local, now);
        let clock = Clock::manual(now);
        let ticker = Ticker::new(&throttle, &clock, FilterSharing::Local);
        Self { gate: throttle.gate(), throttle, clock, ticker }
    }

    /// Ticks at `now`, as a live throttle does once a second.
    pub fn tick(&mut self, now: StoreTime) {
        self.clock.set(now);
        let ticked = self.ticker.tick(None::<&mut RedisFilterStore>).now_or_never();
        debug_assert!(ticked.is_some(), "a tick without a store and without growth does not wait");
    }

    /// The throttle.
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Its gate.
    pub fn gate(&self) -> &AdmissionGate {
        &self.gate
    }
}

#[cfg(test)]
mod tests {
    use tidegate_base::time::Millis;

    use super::*;
    use crate::{
        DenyReason, GateCaller, Geometry,
        geometry::Sizing,
        mode::{ThrottleMode, Watermarks},
        waiting_room::{HeadStart, RoomSettings},
    };

    const START: StoreTime = StoreTime::from_unix_ms(1_699_999_980_000);

    /// A throttle that admits ten active users.
    fn simulated() -> SimulatedThrottle {
        let sizing =
            Sizing { capacity: 5_000, false_positive: 0.001, memory: Millis::from_mins(1) };
        let settings = ThrottleSettings {
            watermarks: Watermarks { max_active: 10, resume_below: 9 },
            mode: ThrottleMode::Auto,
            forget_status: tidegate_base::status::StatusSet::of([401..=401]),
            sizing,
            geometry: Geometry::new(&sizing).unwrap(),
            max_memory: u64::MAX,
            waiting_room: Some(RoomSettings { ticket_ttl: Millis::from_secs(20) }),
            head_start: Millis::ZERO,
        };
        SimulatedThrottle::new(&settings, &SharedSecret::from_namespace("test"), START)
    }

    /// The tokens of some users, as if hashed.
    fn hashes(users: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
        users.map(|user| user.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    #[test]
    fn throttling_does_not_end_while_users_wait() {
        let mut simulated = simulated();
        let settings = simulated.throttle().settings();
        hashes(0..12).for_each(|token| _ = simulated.gate().record_response(token, 200, &settings));
        let room = Arc::clone(simulated.throttle().room.as_ref().unwrap());
        for second in 1..=400 {
            let now = START + Millis::from_secs(second);
            simulated.tick(now);
            if second == 5 {
                assert!(simulated.throttle().is_throttling());
                room.close();
            }
            if second >= 5 && second % 5 == 0 {
                for token in hashes(100..130) {
                    let denied = simulated.gate().admit(GateCaller::Token(token), || now);
                    let denied = denied.expect_err("users wait, although no user is active");
                    assert_eq!(denied.reason, DenyReason::Unknown);
                    let head_start = HeadStart::default();
                    let denied = simulated.gate().ask_room(token, None, head_start, denied);
                    assert!(!denied.is_turn());
                }
            }
        }
        assert_eq!(simulated.throttle().status().estimate.tokens, 0);
        // They have given up.
        (401..=500).for_each(|second| simulated.tick(START + Millis::from_secs(second)));
        assert!(!simulated.throttle().is_throttling());
    }
}
