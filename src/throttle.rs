//! Admission by who is active: above a set number of active users, only those seen lately are let in.
//!
//! Who was seen is known from Bloom filters in local memory, one a generation; gateways tell each other
//! through Redis once a second. No request waits for any of that.

pub mod estimate;
pub mod filter;
mod gate;
pub mod geometry;
pub mod memory;
pub mod mode;
pub mod payload;
mod recent;
pub mod redis;
mod rejected;
mod seed;
pub mod sync;
mod ticker;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use self::{
    estimate::Estimate,
    geometry::{Millis, Sizing},
    mode::{Marks, Mode},
    rejected::Rejected,
};
pub use self::{
    filter::Filter,
    gate::{Admitted, Gate, Newcomer, Turned},
    geometry::Geometry,
    seed::Seed,
};

use crate::secret::SharedSecret;

/// The name that clients read of the throttle, where a limit's would stand.
pub const POLICY: &str = "active-users";

/// What the configuration says.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// When to throttle, by the number of active users.
    pub marks: Marks,
    /// Whether to.
    pub mode: Mode,
    /// Answers with these statuses make no token known.
    pub forget_status: SmallVec<[u16; 4]>,
    /// What the filters must hold.
    pub sizing: Sizing,
    /// What that makes of them. Only a restart changes it.
    pub geometry: Geometry,
}

/// How things stand, as of the last tick.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// Whether to throttle, as the configuration or the operator says.
    pub mode: Mode,
    /// Whether the number of active users asks for it.
    pub crowded: bool,
    /// How many users are active.
    pub estimate: Estimate,
    /// Whether the shared filters were loaded; true where nothing is shared.
    pub loaded: bool,
    /// Whether nothing of the memory is missing: else nobody is refused.
    pub complete: bool,
    /// When a newcomer may find room at the earliest, in ms since the epoch by the filters' clock.
    pub room_at: Millis,
    /// How far the filters' clock, which is Redis' where there is one, is ahead of this machine's,
    /// in ms.
    pub offset: i64,
    /// Ticks so far.
    pub ticks: u64,
}

impl Status {
    /// Whether newcomers are refused.
    pub fn refuses(&self) -> bool {
        let wanted = match self.mode {
            Mode::Auto => self.crowded,
            Mode::On => true,
            Mode::Off => false,
        };
        wanted && self.loaded && self.complete
    }
}

/// The throttle of a process.
pub struct Throttle {
    filter: Arc<ArcSwap<Filter>>,
    rejected: Rejected,
    settings: ArcSwap<Settings>,
    status: ArcSwap<Status>,
    /// What the exchange with the other gateways counts of itself.
    pub stats: Arc<sync::Stats>,
    /// [`Status::refuses`], where a request finds it with one load.
    refusing: AtomicBool,
    /// Held by who changes how things stand, so that the word of the last one stands in both.
    publishing: Mutex<()>,
}

impl Throttle {
    /// Nobody known yet, at `now`. `shared`: others know, and have to be asked first; they hash under the
    /// same `secret`.
    pub fn new(settings: Settings, secret: &SharedSecret, shared: bool, now: Millis) -> Arc<Self> {
        let filter = Filter::new(settings.geometry, Seed::of(secret), now);
        let status = Status {
            mode: settings.mode,
            crowded: false,
            estimate: Estimate { tokens: 0, error: 0, saturated: false },
            loaded: !shared,
            complete: !shared,
            room_at: now,
            offset: 0,
            ticks: 0,
        };
        Arc::new(Self {
            filter: Arc::new(ArcSwap::from_pointee(filter)),
            rejected: Rejected::new(),
            refusing: AtomicBool::new(status.refuses()),
            publishing: Mutex::new(()),
            stats: Arc::default(),
            settings: ArcSwap::from_pointee(settings),
            status: ArcSwap::from_pointee(status),
        })
    }

    /// A worker's gate.
    pub fn gate(self: &Arc<Self>) -> Gate {
        Gate::new(Arc::clone(self))
    }

    /// How things stand.
    pub fn status(&self) -> Status {
        **self.status.load()
    }

    /// What the configuration says now.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Takes over what a new configuration says. A mode that the operator set stays, unless the
    /// configuration's has changed.
    pub fn configure(&self, settings: &Settings) {
        let before = self.settings.swap(Arc::new(settings.clone()));
        if before.mode != settings.mode {
            self.set_mode(settings.mode);
        }
    }

    /// Sets the mode, at once.
    pub fn set_mode(&self, mode: Mode) {
        self.publish(|status| status.mode = mode);
    }

    /// Changes how things stand, for requests and for whoever asks. A change of mode is logged.
    fn publish(&self, change: impl FnOnce(&mut Status)) {
        let _publishing = self.publishing.lock();
        let mut status = self.status();
        change(&mut status);
        self.status.store(Arc::new(status));
        let refuses = status.refuses();
        if self.refusing.swap(refuses, Ordering::Relaxed) == refuses {
            return;
        }
        let (active, max_active) = (status.estimate.tokens, self.settings.load().marks.max_active);
        let mode = status.mode.label();
        if refuses {
            tracing::warn!(active, max_active, mode, "throttling: only active users are let in");
        } else {
            tracing::info!(active, max_active, mode, "throttling is over: everybody is let in");
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    /// A throttle of few users, for those who test its parts.
    pub(super) fn throttle(shared: bool, now: Millis) -> Arc<Throttle> {
        let sizing = Sizing { capacity: 1_000, false_positive: 0.001, memory: 30 * 60_000 };
        let settings = Settings {
            marks: Marks { max_active: 10, resume_below: 9 },
            mode: Mode::Auto,
            forget_status: smallvec![401, 403],
            sizing,
            geometry: Geometry::new(&sizing).unwrap(),
        };
        Throttle::new(settings, &SharedSecret::of_namespace("test"), shared, now)
    }

    /// A client that knows what tokens are hashed under chooses tokens that agree in some bits.
    #[test]
    fn chosen_tokens_push_no_rejected_one_out() {
        let throttle = throttle(false, 1_700_000_000_000);
        let (gate, settings) = (throttle.gate(), throttle.settings());
        throttle.set_mode(Mode::On);
        for n in 0..100_u64 {
            gate.remember(n << 14, 401, &settings);
        }
        let rejected = (0..100_u64).filter(|n| {
            let turned = gate.admit(n << 14, true, || 1_700_000_000_000);
            turned.is_err_and(|turned| turned.newcomer == Newcomer::Rejected)
        });
        let rejected = rejected.count();
        assert!(rejected > 95, "{rejected} of 100 in a table for 16,384");
    }

    #[test]
    fn what_requests_find_is_what_was_said_last() {
        let throttle = throttle(false, 1_700_000_000_000);
        let barrier = std::sync::Barrier::new(2);
        let rounds = |mode: Mode| {
            let mut stale = 0;
            for _ in 0..20_000 {
                barrier.wait();
                throttle.set_mode(mode);
                barrier.wait();
                let refusing = throttle.refusing.load(Ordering::Relaxed);
                stale += usize::from(refusing != throttle.status().refuses());
            }
            stale
        };
        let stale = std::thread::scope(|scope| {
            let other = scope.spawn(|| rounds(Mode::On));
            rounds(Mode::Off) + other.join().unwrap()
        });
        assert_eq!(stale, 0);
    }
}
