//! Health monitoring: one task per server probes it while it is down, and all connections of the
//! process follow the result.

use std::{sync::Weak, time::Duration};

use tidegate_system::clock::Clock;
use tokio::sync::watch;

use super::RedisFailure;

/// Minimum interval between the starts of two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum interval between the starts of two probes, if connecting does not take longer. The
/// random part spreads the connects of many gateways.
pub const LONGEST_PROBE_INTERVAL: Duration = Duration::from_millis(625);

/// The result of the last probe, or the failure of a connection since.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reachability {
    /// The first probe is not over.
    Unknown,
    /// The probe succeeded. A connection from an earlier epoch may lead to a server that is no
    /// longer the primary.
    Up(ServerEpoch),
    /// The probe failed, or a connection failed since.
    Down(RedisFailure),
}

/// Number of times that the server came up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ServerEpoch(u64);

impl Reachability {
    /// True if the server replies, even if only with errors.
    pub(super) fn is_responding(self) -> bool {
        matches!(self, Self::Up(_) | Self::Down(RedisFailure::Server | RedisFailure::Reply))
    }
}

/// One server's reachability, shared by all threads.
pub(super) struct NodeHealth(watch::Sender<Reachability>);

impl NodeHealth {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Reachability::Unknown))
    }

    pub(super) fn reachability(&self) -> Reachability {
        *self.0.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Reachability> {
        self.0.subscribe()
    }

    /// Marks the server down after a connection of this epoch failed, until a probe succeeds.
    /// Failures of earlier epochs change nothing.
    pub(super) fn report_failure(&self, epoch: ServerEpoch, failure: RedisFailure) {
        self.mark_down(|state| state == Reachability::Up(epoch), failure);
    }

    /// Marks the server down because its connections lead to a former primary.
    pub(super) fn invalidate(&self) {
        self.mark_down(|state| matches!(state, Reachability::Up(_)), RedisFailure::Server);
    }

    fn mark_down(&self, applies: impl Fn(Reachability) -> bool, failure: RedisFailure) {
        self.0.send_if_modified(|state| {
            let changes = applies(*state);
            if changes {
                *state = Reachability::Down(failure);
            }
            changes
        });
    }
}

/// A server whose health is monitored.
pub(super) trait Probe: Send + Sync + 'static {
    fn health(&self) -> &NodeHealth;

    /// Connects and checks that the server can be used.
    fn probe(&self) -> impl Future<Output = Result<(), RedisFailure>> + Send;
}

/// Probes the node while it is not up, after each [`PROBE_INTERVAL`] to [`LONGEST_PROBE_INTERVAL`].
/// Ends when the node is dropped.
pub(super) async fn monitor(node: Weak<impl Probe>, clock: Clock) {
    let Some(mut state) = node.upgrade().map(|node| node.health().subscribe()) else { return };
    let mut epoch = 0;
    while state.wait_for(|state| !matches!(state, Reachability::Up(_))).await.is_ok() {
        let Some(node) = node.upgrade() else { return };
        let next = clock.uptime() + PROBE_INTERVAL + jitter();
        let found = match node.probe().await {
            Ok(()) => {
                epoch += 1;
                Reachability::Up(ServerEpoch(epoch))
            }
            Err(failure) => Reachability::Down(failure),
        };
        // Also notifies of an unchanged result, because some callers wait for the next one.
        node.health().0.send_replace(found);
        drop(node);
        clock.sleep_until(next).await;
    }
}

/// The random part of an interval.
fn jitter() -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    let most = LONGEST_PROBE_INTERVAL.saturating_sub(PROBE_INTERVAL);
    most.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    };

    use tidegate_base::time::StoreTime;
    use tokio::task::{JoinHandle, yield_now};

    use super::*;

    /// Just less than the interval, so no second probe may begin.
    const TOO_SOON: Duration = Duration::from_millis(499);

    /// From [`TOO_SOON`] to the end of the longest interval.
    const REST: Duration = Duration::from_millis(126);

    struct FakeNode {
        health: NodeHealth,
        is_up: AtomicBool,
        probes: AtomicU64,
    }

    impl Probe for FakeNode {
        fn health(&self) -> &NodeHealth {
            &self.health
        }

        async fn probe(&self) -> Result<(), RedisFailure> {
            self.probes.fetch_add(1, Relaxed);
            if self.is_up.load(Relaxed) { Ok(()) } else { Err(RedisFailure::Io) }
        }
    }

    /// A monitored node, on a simulated clock.
    struct Monitored {
        node: Arc<FakeNode>,
        clock: Clock,
        task: JoinHandle<()>,
    }

    impl Monitored {
        async fn start(is_up: bool) -> Self {
            let (is_up, probes) = (AtomicBool::new(is_up), AtomicU64::new(0));
            let node = Arc::new(FakeNode { health: NodeHealth::new(), is_up, probes });
            let clock = Clock::simulated(StoreTime::ZERO);
            let task = tokio::spawn(monitor(Arc::downgrade(&node), clock.clone()));
            let monitored = Self { node, clock, task };
            monitored.after(Duration::ZERO).await;
            monitored
        }

        /// Advances the clock and lets the monitor run. Returns the state, and the number of probes
        /// so far.
        async fn after(&self, time: Duration) -> (Reachability, u64) {
            self.clock.advance(time);
            for _ in 0..8 {
                yield_now().await;
            }
            (self.node.health.reachability(), self.node.probes.load(Relaxed))
        }
    }

    #[tokio::test]
    async fn a_down_server_is_probed_at_most_once_an_interval_and_an_up_server_never() {
        let monitored = Monitored::start(false).await;
        let down = Reachability::Down(RedisFailure::Io);
        for probes in 1..=5 {
            assert_eq!(monitored.after(TOO_SOON).await, (down, probes));
            assert_eq!(monitored.after(REST).await, (down, probes + 1));
        }
        monitored.node.is_up.store(true, Relaxed);
        let up = Reachability::Up(ServerEpoch(1));
        assert_eq!(monitored.after(TOO_SOON + REST).await, (up, 7));
        assert_eq!(
            monitored.after(Duration::from_hours(1)).await,
            (up, 7),
            "no probe while it is up"
        );
    }

    #[tokio::test]
    async fn a_failed_connection_causes_a_probe_at_once_unless_one_was_just_made() {
        let monitored = Monitored::start(true).await;
        let (health, now) = (&monitored.node.health, Duration::ZERO);
        assert_eq!(monitored.after(TOO_SOON + REST).await, (Reachability::Up(ServerEpoch(1)), 1));
        health.report_failure(ServerEpoch(1), RedisFailure::Timeout);
        assert_eq!(health.reachability(), Reachability::Down(RedisFailure::Timeout));
        let up = Reachability::Up(ServerEpoch(2));
        assert_eq!(monitored.after(now).await, (up, 2), "at once");
        health.report_failure(ServerEpoch(1), RedisFailure::Io);
        assert_eq!(monitored.after(now).await, (up, 2), "a failure of an earlier epoch");

        health.invalidate();
        let down = Reachability::Down(RedisFailure::Server);
        assert_eq!(monitored.after(TOO_SOON).await, (down, 2), "one was just made");
        assert_eq!(monitored.after(REST).await, (Reachability::Up(ServerEpoch(3)), 3));
    }

    #[tokio::test]
    async fn a_monitor_ends_with_its_node() {
        for is_up in [true, false] {
            let Monitored { node, clock, task } = Monitored::start(is_up).await;
            drop(node);
            clock.advance(TOO_SOON + REST);
            // Only a monitor that never ends takes that long.
            let ended = tokio::time::timeout(Duration::from_secs(10), task).await;
            assert!(ended.is_ok(), "{is_up}");
        }
    }
}
