//! Health monitoring: in each process one task per server probes the server while it is down, and all
//! connections follow the result.

use std::{sync::Weak, time::Duration};

use tokio::{sync::watch, time};

use super::Failure;

/// Shortest interval between the starts of two probes.
pub(super) const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Largest random delay of a probe, as a fraction of the interval, so that gateways do not all connect at
/// the same time.
const JITTER: f64 = 0.25;

/// The result of the last probe, or the failure of a connection since.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reachability {
    /// The first probe is not over.
    Unknown,
    /// The probe succeeded. A connection of an earlier epoch may lead to a server that is no longer the
    /// primary.
    Up(Epoch),
    /// The probe failed, or a connection did since.
    Down(Failure),
}

/// How many times the server came up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Epoch(u64);

impl Reachability {
    /// Whether the server replies, even if only with errors.
    pub(super) fn is_responding(self) -> bool {
        matches!(self, Self::Up(_) | Self::Down(Failure::Server | Failure::Reply))
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

    /// Marks the server down after a connection of this epoch failed, until a probe succeeds. Failures of
    /// earlier epochs change nothing.
    pub(super) fn report_failure(&self, epoch: Epoch, failure: Failure) {
        self.mark_down(|state| state == Reachability::Up(epoch), failure);
    }

    /// Marks the server down because its connections lead to a former primary.
    pub(super) fn invalidate(&self) {
        self.mark_down(|state| matches!(state, Reachability::Up(_)), Failure::Server);
    }

    fn mark_down(&self, applies: impl Fn(Reachability) -> bool, failure: Failure) {
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
    fn probe(&self) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Probes the node while it is not up, at once if the last probe began at least `interval` (and a jitter)
/// ago. Ends when the node is dropped.
pub(super) async fn monitor(node: Weak<impl Probe>, interval: Duration) {
    let Some(mut state) = node.upgrade().map(|node| node.health().subscribe()) else { return };
    let mut epoch = 0;
    while state.wait_for(|state| !matches!(state, Reachability::Up(_))).await.is_ok() {
        let Some(node) = node.upgrade() else { return };
        let pause = time::sleep(interval + jitter(interval));
        let found = match node.probe().await {
            Ok(()) => {
                epoch += 1;
                Reachability::Up(Epoch(epoch))
            }
            Err(failure) => Reachability::Down(failure),
        };
        // Notifies of an unchanged result as well: some callers wait for the next result.
        node.health().0.send_replace(found);
        drop(node);
        pause.await;
    }
}

/// A random delay of at most [`JITTER`] of the interval.
fn jitter(interval: Duration) -> Duration {
    let random = getrandom::u32().unwrap_or(u32::MAX / 2);
    interval.mul_f64(JITTER * f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    };

    use tokio::task::JoinHandle;

    use super::*;
    use crate::clock::instant;

    const SHORT: Duration = Duration::from_millis(20);

    struct FakeNode {
        health: NodeHealth,
        is_up: AtomicBool,
        probes: AtomicU64,
    }

    impl Probe for FakeNode {
        fn health(&self) -> &NodeHealth {
            &self.health
        }

        async fn probe(&self) -> Result<(), Failure> {
            self.probes.fetch_add(1, Relaxed);
            if self.is_up.load(Relaxed) { Ok(()) } else { Err(Failure::Io) }
        }
    }

    fn start_monitor(is_up: bool, interval: Duration) -> (Arc<FakeNode>, JoinHandle<()>) {
        let (is_up, probes) = (AtomicBool::new(is_up), AtomicU64::new(0));
        let node = Arc::new(FakeNode { health: NodeHealth::new(), is_up, probes });
        let task = tokio::spawn(monitor(Arc::downgrade(&node), interval));
        (node, task)
    }

    async fn expect_state(node: &FakeNode, state: Reachability) {
        let mut changes = node.health.subscribe();
        let reached = changes.wait_for(|now| *now == state);
        let in_time = time::timeout(Duration::from_secs(10), reached).await;
        assert!(in_time.is_ok(), "{state:?}, not {:?}", node.health.reachability());
    }

    #[tokio::test]
    async fn a_down_server_is_probed_at_most_once_an_interval_and_an_up_server_never() {
        let (start, (node, _task)) = (instant(), start_monitor(false, SHORT));
        time::sleep(20 * SHORT).await;
        let probes = || node.probes.load(Relaxed);
        let count = probes();
        let most = instant().duration_since(start).div_duration_f64(SHORT) as u64 + 1;
        assert!((2..=most).contains(&count), "{count} probes, expected 2 to {most}");
        node.is_up.store(true, Relaxed);
        expect_state(&node, Reachability::Up(Epoch(1))).await;
        let before = probes();
        time::sleep(5 * SHORT).await;
        assert_eq!(probes(), before, "no probe while it is up");
    }

    #[tokio::test]
    async fn a_failed_connection_causes_a_probe_at_once_unless_one_was_just_made() {
        let (node, _task) = start_monitor(true, SHORT);
        expect_state(&node, Reachability::Up(Epoch(1))).await;
        time::sleep(2 * SHORT).await;
        node.health.report_failure(Epoch(1), Failure::Timeout);
        assert_eq!(node.health.reachability(), Reachability::Down(Failure::Timeout));
        expect_state(&node, Reachability::Up(Epoch(2))).await;
        node.health.report_failure(Epoch(1), Failure::Io);
        assert_eq!(
            node.health.reachability(),
            Reachability::Up(Epoch(2)),
            "a failure of an earlier epoch"
        );
        node.health.invalidate();
        expect_state(&node, Reachability::Up(Epoch(3))).await;

        let (node, _task) = start_monitor(true, Duration::from_hours(1));
        expect_state(&node, Reachability::Up(Epoch(1))).await;
        node.health.report_failure(Epoch(1), Failure::Server);
        time::sleep(5 * SHORT).await;
        assert_eq!(node.health.reachability(), Reachability::Down(Failure::Server));
        assert_eq!(node.probes.load(Relaxed), 1);
    }

    #[tokio::test]
    async fn a_monitor_ends_with_its_node() {
        for is_up in [true, false] {
            let (node, task) = start_monitor(is_up, SHORT);
            time::sleep(2 * SHORT).await;
            drop(node);
            assert!(time::timeout(Duration::from_secs(10), task).await.is_ok(), "{is_up}");
        }
    }
}
