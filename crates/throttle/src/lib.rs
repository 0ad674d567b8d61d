//! Active-user admission control: above a configured number of active users, only users that were
//! active recently are admitted.
//!
//! # What it promises
//!
//! - A token (a keyed 64-bit hash) stays active for the configured time `memory` after its last
//!   good response.
//! - A request neither waits nor locks for the decision.
//! - Memory is bounded: the size of the Bloom filters is computed from the configuration, and they
//!   grow up to a configured maximum if there are more tokens.
//! - At capacity, the configured share of unknown tokens is mistaken for active ones (false
//!   positives). The share is measured.
//! - While a gateway may have lost activity (filters not loaded, unreadable values, a stepped
//!   clock), it denies no request.
//! - Traffic to Redis does not grow with the number of requests.
//!
//! It identifies no caller and answers none: callers are hashes, and the gateway refuses.
//!
//! # Which file does what
//!
//! | file | content |
//! |---|---|
//! | `gate` | the decision of a worker, and the recording of responses |
//! | [`filter`] | rotating Bloom filters, lock-free for readers and recorders |
//! | [`geometry`] | sizes of the filters for a capacity and a false-positive rate |
//! | [`growth`], `live_filters` | the decision to resize the filters; the filters during a change |
//! | [`estimate`] | the number of active users and the false-positive rate, from the fill of the filters |
//! | [`mode`] | the decision to throttle: thresholds with hysteresis |
//! | `ticker` | the control loop: rotate, synchronize, estimate, decide, once a second |
//! | [`sync`], [`payload`] | sharing filters and new tokens between gateways: protocol, wire format |
//! | [`redis`] | the shared filters in Redis |
//! | `recent`, `rejected` | small tables of tokens: recorded recently, answered with 401 recently |
//! | [`waiting_room`] | admission of waiting users in the order of their arrival |
//! | `simulated` | a throttle in virtual time, for the replay of a log |
//! | `clock_offset` | how far Redis' clock and this machine's differ |
//! | `hash_keys`, [`machine_memory`] | keys of the hashes; usable memory of the machine |
//!
//! # Example
//!
//! A filter holds the tokens that were recorded in its live generations:
//!
//! ```
//! use tidegate_base::time::{Millis, StoreTime};
//! use tidegate_system::secret::SharedSecret;
//! use tidegate_throttle::{Filter, Geometry, HashKeys, geometry::Sizing};
//!
//! let now = StoreTime::from_unix_ms(1_700_000_000_000);
//! let minutes = Millis::from_mins;
//! let sizing = Sizing { capacity: 1_000, false_positive: 0.001, memory: minutes(30) };
//! let hash_keys = HashKeys::of(&SharedSecret::from_namespace("example"));
//! let filter = Filter::new(Geometry::new(&sizing)?, hash_keys, now);
//! filter.record(0x5eed);
//! filter.rotate(now + minutes(29));
//! assert!(filter.contains(0x5eed) && !filter.contains(0xbad));
//! filter.rotate(now + minutes(32));
//! assert!(!filter.contains(0x5eed));
//! # Ok::<(), tidegate_throttle::geometry::SizingError>(())
//! ```

mod clock_offset;
pub mod estimate;
pub mod filter;
mod gate;
pub mod geometry;
pub mod growth;
mod hash_keys;
mod live_filters;
pub mod machine_memory;
pub mod mode;
pub mod payload;
mod recent;
pub mod redis;
mod rejected;
mod simulated;
pub mod sync;
mod ticker;
pub mod waiting_room;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub use self::{
    clock_offset::ClockOffset,
    filter::Filter,
    gate::{AdmissionDenied, AdmissionGate, AdmitReason, DenyReason, GateCaller},
    geometry::Geometry,
    hash_keys::HashKeys,
    simulated::SimulatedThrottle,
};
use self::{
    estimate::Estimate,
    geometry::Sizing,
    live_filters::LiveFilters,
    mode::{ThrottleMode, Watermarks},
    rejected::RejectedTokens,
    waiting_room::{RoomSettings, WaitingRoom},
};

use tidegate_base::status::StatusSet;
use tidegate_base::time::{Millis, StoreTime};
use tidegate_system::secret::SharedSecret;

/// The throttle's policy name in rate-limit headers. The policy name of a limit is the limit's own
/// name.
pub const POLICY: &str = "active-users";

/// Multiple of the configured false-positive rate from which the capacity counts as exceeded.
const EXCEEDED_FROM: f64 = 2.0;

/// Multiple of the configured false-positive rate below which the capacity no longer counts as
/// exceeded.
const WITHIN_BELOW: f64 = 1.5;

/// The compiled `throttle` section of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleSettings {
    /// The numbers of active users at which throttling starts and stops.
    pub watermarks: Watermarks,
    /// The configured mode.
    pub mode: ThrottleMode,
    /// Response statuses that do not make a token active.
    pub forget_status: StatusSet,
    /// The capacity, accuracy and memory that the filters are sized for.
    pub sizing: Sizing,
    /// The resulting sizes at startup. Only a restart changes them.
    pub geometry: Geometry,
    /// Maximum memory of grown filters, in bytes.
    pub max_memory: u64,
    /// The waiting room; `None` without one. Only a restart changes it.
    pub waiting_room: Option<RoomSettings>,
    /// The longest head start of a plan in the waiting room.
    pub head_start: Millis,
}

impl ThrottleSettings {
    /// The maximum growth that `max_memory` allows.
    pub fn max_growth(&self) -> u32 {
        self.geometry.max_growth(self.max_memory)
    }

    /// The largest number of active users that the filters can estimate at every size.
    pub fn max_countable(&self) -> u64 {
        let sizes = [self.geometry, self.geometry.grown(self.max_growth())];
        let [least, most] = sizes.map(|geometry| estimate::max_countable(&geometry));
        least.min(most)
    }
}

/// The state of the filters' capacity, with hysteresis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CapacityState {
    /// The measured false-positive rate is about the configured one.
    Within,
    /// The measured rate was at least twice the configured one.
    Exceeded,
}

impl CapacityState {
    /// The state after a tick that measured `times` the configured false-positive rate.
    fn next(self, times: f64) -> Self {
        let bound = match self {
            Self::Within => EXCEEDED_FROM,
            Self::Exceeded => WITHIN_BELOW,
        };
        if times >= bound { Self::Exceeded } else { Self::Within }
    }
}

/// The state of the throttle as of the last tick.
#[derive(Clone, Copy, Debug)]
pub struct ThrottleStatus {
    /// The mode in force, set by the configuration or the operator.
    pub mode: ThrottleMode,
    /// True if the number of active users requires throttling in mode `auto`, with hysteresis.
    pub over_threshold: bool,
    /// The estimated number of active users.
    pub estimate: Estimate,
    /// True once the shared filters were loaded, and always without a shared store.
    pub loaded: bool,
    /// True if the filters hold all activity of the configured time `memory`. Otherwise no request
    /// is denied.
    pub complete: bool,
    /// The earliest time at which an unknown token may be admitted, by the filters' clock.
    pub retry_at: StoreTime,
    /// The filters' clock minus this machine's. Shared filters use Redis' clock.
    pub clock_offset: ClockOffset,
    /// Number of ticks since the start.
    pub ticks: u64,
    /// The start of the last tick, by this machine's clock.
    pub updated_at: StoreTime,
    /// The share of unknown tokens that pass as active, measured from the fill of the filters.
    pub false_positive: f64,
    /// The comparison of that share with the configured rate.
    pub capacity: CapacityState,
    /// Memory of the filters, in bytes.
    pub memory_bytes: u64,
}

impl ThrottleStatus {
    /// True if unknown tokens are denied.
    pub fn is_throttling(&self) -> bool {
        let is_wanted = match self.mode {
            ThrottleMode::Auto => self.over_threshold,
            ThrottleMode::On => true,
            ThrottleMode::Off => false,
        };
        is_wanted && self.loaded && self.complete
    }
}

/// The gateways that use the filters of a throttle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FilterSharing {
    /// This gateway alone.
    Local,
    /// All gateways of one store, which exchange them.
    Shared,
}

/// The throttle of a process.
pub struct Throttle {
    filter: Arc<ArcSwap<LiveFilters>>,
    rejected: RejectedTokens,
    settings: ArcSwap<ThrottleSettings>,
    status: ArcSwap<ThrottleStatus>,
    /// Counters of the synchronization with other gateways.
    pub stats: Arc<sync::SyncStats>,
    /// The waiting room, if there is one.
    pub room: Option<Arc<WaitingRoom>>,
    /// A copy of [`ThrottleStatus::is_throttling`] that a request reads with one load.
    throttling: AtomicBool,
    /// Serializes changes of the status, so that `status` and `throttling` agree after each.
    publish_lock: Mutex<()>,
}

impl Throttle {
    /// A throttle without active users at `now`. With shared filters it denies no request until the
    /// other gateways' filters are loaded. Gateways share filters only if they have the same
    /// `secret`.
    pub fn new(
        settings: ThrottleSettings,
        secret: &SharedSecret,
        sharing: FilterSharing,
        now: StoreTime,
    ) -> Arc<Self> {
        // A gateway alone forgets its queue when it ends, so tickets end with it.
        let own = match sharing {
            FilterSharing::Local => SharedSecret::random().ok(),
            FilterSharing::Shared => None,
        };
        Self::with_ticket_secret(settings, [secret, &own.unwrap_or(*secret)], sharing, now)
    }

    /// As [`Self::new`]; the second secret signs the tickets.
    fn with_ticket_secret(
        settings: ThrottleSettings,
        [secret, tickets]: [&SharedSecret; 2],
        sharing: FilterSharing,
        now: StoreTime,
    ) -> Arc<Self> {
        let is_local = sharing == FilterSharing::Local;
        let filter = Filter::new(settings.geometry, HashKeys::of(secret), now);
        let room = settings.waiting_room.map(|settings| WaitingRoom::new(settings, tickets, now));
        let status = ThrottleStatus {
            mode: settings.mode,
            over_threshold: false,
            estimate: Estimate { tokens: 0, error: 0, saturated: false },
            loaded: is_local,
            complete: is_local,
            retry_at: now,
            clock_offset: ClockOffset::ZERO,
            ticks: 0,
            updated_at: now,
            false_positive: 0.0,
            capacity: CapacityState::Within,
            memory_bytes: settings.geometry.bytes(),
        };
        Arc::new(Self {
            filter: Arc::new(ArcSwap::from_pointee(LiveFilters::new(filter))),
            rejected: RejectedTokens::new(),
            throttling: AtomicBool::new(status.is_throttling()),
            publish_lock: Mutex::new(()),
            stats: Arc::default(),
            room,
            settings: ArcSwap::from_pointee(settings),
            status: ArcSwap::from_pointee(status),
        })
    }

    /// A new admission gate, for one worker.
    pub fn gate(self: &Arc<Self>) -> AdmissionGate {
        AdmissionGate::new(Arc::clone(self))
    }

    /// The state as of the last tick or change of mode.
    pub fn status(&self) -> ThrottleStatus {
        **self.status.load()
    }

    /// True if workers deny inactive users. [`Self::status`] changes first, because a denial needs
    /// its figures.
    pub fn is_throttling(&self) -> bool {
        self.throttling.load(Ordering::Relaxed)
    }

    /// The current settings.
    pub fn settings(&self) -> Arc<ThrottleSettings> {
        self.settings.load_full()
    }

    /// Applies the settings of a reloaded configuration. A mode set by the operator stays in force
    /// unless the configured mode has changed.
    pub fn configure(&self, settings: &ThrottleSettings) {
        let before = self.settings();
        // The filters keep their size, although a default `capacity` follows `max_active`.
        let (sizing, geometry, waiting_room) =
            (before.sizing, before.geometry, before.waiting_room);
        let settings_in_force =
            ThrottleSettings { sizing, geometry, waiting_room, ..settings.clone() };
        self.settings.store(Arc::new(settings_in_force));
        if before.mode != settings.mode {
            self.set_mode(settings.mode);
        }
    }

    /// Sets the mode, effective immediately.
    pub fn set_mode(&self, mode: ThrottleMode) {
        self.publish(|status| status.mode = mode);
    }

    /// Logs that the filters exceed their capacity, or no longer do.
    fn log_capacity(&self, status: &ThrottleStatus) {
        let settings = self.settings.load();
        let (measured, configured) = (status.false_positive, settings.sizing.false_positive);
        let memory_bytes = status.memory_bytes;
        if status.capacity == CapacityState::Exceeded {
            tracing::warn!(
                measured,
                configured,
                memory_bytes,
                max_memory_bytes = settings.max_memory,
                "throttle filters exceed their capacity: more unknown tokens than configured pass as active; raise \
                 throttle.capacity or throttle.max_memory"
            );
        } else {
            tracing::info!(measured, configured, memory_bytes, "throttle filters within capacity");
        }
    }

    /// Changes the status. Logs when throttling or an excess of the capacity starts or stops.
    fn publish(&self, change: impl FnOnce(&mut ThrottleStatus)) {
        let _lock = self.publish_lock.lock();
        let mut status = self.status();
        let before = status.capacity;
        change(&mut status);
        self.status.store(Arc::new(status));
        if status.capacity != before {
            self.log_capacity(&status);
        }
        let is_throttling = status.is_throttling();
        if self.throttling.swap(is_throttling, Ordering::Relaxed) == is_throttling {
            return;
        }
        let (active, max_active) =
            (status.estimate.tokens, self.settings.load().watermarks.max_active);
        let mode = status.mode.label();
        if is_throttling {
            tracing::warn!(
                active,
                max_active,
                mode,
                "throttling started: only active users are admitted"
            );
        } else {
            tracing::info!(active, max_active, mode, "throttling stopped: all users are admitted");
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

    /// A throttle that starts above 10 active users, for the tests of this module.
    pub(crate) fn throttle(sharing: FilterSharing, now: StoreTime) -> Arc<Throttle> {
        let sizing =
            Sizing { capacity: 1_000, false_positive: 0.001, memory: Millis::from_mins(30) };
        let settings = ThrottleSettings {
            watermarks: Watermarks { max_active: 10, resume_below: 9 },
            mode: ThrottleMode::Auto,
            forget_status: StatusSet::of([401..=401, 403..=403]),
            sizing,
            geometry: Geometry::new(&sizing).unwrap(),
            max_memory: 0,
            waiting_room: None,
            head_start: Millis::ZERO,
        };
        Throttle::new(settings, &SharedSecret::from_namespace("test"), sharing, now)
    }

    /// A client that knows the key of the token hash can choose tokens whose hashes agree in some
    /// bits.
    #[test]
    fn chosen_tokens_evict_no_rejected_token() {
        let throttle = throttle(FilterSharing::Local, NOW);
        let (gate, settings) = (throttle.gate(), throttle.settings());
        throttle.set_mode(ThrottleMode::On);
        for n in 0..100_u64 {
            gate.record_response(n << 14, 401, &settings);
        }
        let rejected = (0..100_u64).filter(|n| {
            let admission = gate.admit(GateCaller::Token(n << 14), || NOW);
            admission.is_err_and(|denied| denied.reason == DenyReason::Rejected)
        });
        let rejected = rejected.count();
        assert!(rejected > 95, "{rejected} of 100 are in a table of 16,384 slots");
    }

    #[test]
    fn concurrent_changes_leave_status_and_flag_equal() {
        let throttle = throttle(FilterSharing::Local, NOW);
        let barrier = std::sync::Barrier::new(2);
        let rounds = |mode: ThrottleMode| {
            let mut stale = 0;
            for _ in 0..20_000 {
                barrier.wait();
                throttle.set_mode(mode);
                barrier.wait();
                let throttling = throttle.throttling.load(Ordering::Relaxed);
                stale += usize::from(throttling != throttle.status().is_throttling());
            }
            stale
        };
        let stale = std::thread::scope(|scope| {
            let other = scope.spawn(|| rounds(ThrottleMode::On));
            rounds(ThrottleMode::Off) + other.join().unwrap()
        });
        assert_eq!(stale, 0);
    }
}
