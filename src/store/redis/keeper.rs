//! Whether a server can be used: one keeper for each server and process probes it while it is down, and
//! everything that connects follows what it finds.

use std::{sync::Weak, time::Duration};

use tokio::{sync::watch, time};

use super::Failure;

/// The least time between two probes.
pub(super) const BETWEEN_PROBES: Duration = Duration::from_secs(1);

/// By how much of that a probe is delayed at random, so that gateways do not connect at once.
const JITTER: f64 = 0.25;

/// What a keeper found last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reachability {
    /// The first probe is not over.
    Untried,
    /// The probe succeeded. A connection of an earlier epoch may lead to the server as it was before.
    Up(Epoch),
    /// The probe failed, or a connection did since.
    Down(Failure),
}

/// How often the server came up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Epoch(u64);

impl Reachability {
    /// Whether the server answers, be it with errors.
    pub(super) fn answers(self) -> bool {
        matches!(self, Self::Up(_) | Self::Down(Failure::Server | Failure::Reply))
    }
}

/// One server's state, for all threads.
pub(super) struct NodeKeeper(watch::Sender<Reachability>);

impl NodeKeeper {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(Reachability::Untried))
    }

    pub(super) fn reachability(&self) -> Reachability {
        *self.0.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Reachability> {
        self.0.subscribe()
    }

    /// A connection of this epoch failed: the server counts as down until a probe succeeds. Failures of
    /// earlier epochs change nothing.
    pub(super) fn suspect(&self, epoch: Epoch, failure: Failure) {
        self.lower(|state| state == Reachability::Up(epoch), failure);
    }

    /// Every connection leads to the wrong server.
    pub(super) fn revoke(&self) {
        self.lower(|state| matches!(state, Reachability::Up(_)), Failure::Server);
    }

    fn lower(&self, is_concerned: impl Fn(Reachability) -> bool, failure: Failure) {
        self.0.send_if_modified(|state| {
            let is_concerned = is_concerned(*state);
            if is_concerned {
                *state = Reachability::Down(failure);
            }
            is_concerned
        });
    }
}

/// What a keeper keeps.
pub(super) trait Probe: Send + Sync + 'static {
    fn keeper(&self) -> &NodeKeeper;

    /// Connects and makes sure that the server can be used.
    fn probe(&self) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Probes the node while it is not up: at once where the last probe is long ago, else when this much time is
/// `between`. Ends when the node is dropped.
pub(super) async fn keep(node: Weak<impl Probe>, between: Duration) {
    let Some(mut state) = node.upgrade().map(|node| node.keeper().subscribe()) else { return };
    let mut epoch = 0;
    while state.wait_for(|state| !matches!(state, Reachability::Up(_))).await.is_ok() {
        let Some(node) = node.upgrade() else { return };
        let pause = time::sleep(between + jitter(between));
        let found = match node.probe().await {
            Ok(()) => {
                epoch += 1;
                Reachability::Up(Epoch(epoch))
            }
            Err(failure) => Reachability::Down(failure),
        };
        // Tells of a failure that repeats, too: some wait for the next result, whatever it is.
        node.keeper().0.send_replace(found);
        drop(node);
        pause.await;
    }
}

/// A random part of what a probe may be delayed by.
fn jitter(between: Duration) -> Duration {
    let dice = getrandom::u32().unwrap_or(u32::MAX / 2);
    between.mul_f64(JITTER * f64::from(dice) / f64::from(u32::MAX))
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

    struct Fake {
        keeper: NodeKeeper,
        is_up: AtomicBool,
        probes: AtomicU64,
    }

    impl Probe for Fake {
        fn keeper(&self) -> &NodeKeeper {
            &self.keeper
        }

        async fn probe(&self) -> Result<(), Failure> {
            self.probes.fetch_add(1, Relaxed);
            if self.is_up.load(Relaxed) { Ok(()) } else { Err(Failure::Io) }
        }
    }

    fn kept(is_up: bool, between: Duration) -> (Arc<Fake>, JoinHandle<()>) {
        let (is_up, probes) = (AtomicBool::new(is_up), AtomicU64::new(0));
        let node = Arc::new(Fake { keeper: NodeKeeper::new(), is_up, probes });
        let task = tokio::spawn(keep(Arc::downgrade(&node), between));
        (node, task)
    }

    async fn becomes(node: &Fake, state: Reachability) {
        let mut changes = node.keeper.subscribe();
        let becoming = changes.wait_for(|now| *now == state);
        let in_time = time::timeout(Duration::from_secs(10), becoming).await;
        assert!(in_time.is_ok(), "{state:?}, not {:?}", node.keeper.reachability());
    }

    #[tokio::test]
    async fn a_server_is_probed_while_it_is_down_and_never_faster_than_the_pace() {
        let (start, (node, _task)) = (instant(), kept(false, SHORT));
        time::sleep(20 * SHORT).await;
        let probes = || node.probes.load(Relaxed);
        let seen = probes();
        let most = instant().duration_since(start).div_duration_f64(SHORT) as u64 + 1;
        assert!((2..=most).contains(&seen), "{seen} of {most}");
        node.is_up.store(true, Relaxed);
        becomes(&node, Reachability::Up(Epoch(1))).await;
        let before = probes();
        time::sleep(5 * SHORT).await;
        assert_eq!(probes(), before, "none while it is up");
    }

    #[tokio::test]
    async fn a_suspected_server_is_probed_at_once_unless_it_has_just_been() {
        let (node, _task) = kept(true, SHORT);
        becomes(&node, Reachability::Up(Epoch(1))).await;
        time::sleep(2 * SHORT).await;
        node.keeper.suspect(Epoch(1), Failure::Timeout);
        assert_eq!(node.keeper.reachability(), Reachability::Down(Failure::Timeout));
        becomes(&node, Reachability::Up(Epoch(2))).await;
        node.keeper.suspect(Epoch(1), Failure::Io);
        assert_eq!(node.keeper.reachability(), Reachability::Up(Epoch(2)), "news of before");
        node.keeper.revoke();
        becomes(&node, Reachability::Up(Epoch(3))).await;

        let (node, _task) = kept(true, Duration::from_hours(1));
        becomes(&node, Reachability::Up(Epoch(1))).await;
        node.keeper.suspect(Epoch(1), Failure::Server);
        time::sleep(5 * SHORT).await;
        assert_eq!(node.keeper.reachability(), Reachability::Down(Failure::Server));
        assert_eq!(node.probes.load(Relaxed), 1);
    }

    #[tokio::test]
    async fn a_keeper_ends_with_its_node() {
        for is_up in [true, false] {
            let (node, task) = kept(is_up, SHORT);
            time::sleep(2 * SHORT).await;
            drop(node);
            assert!(time::timeout(Duration::from_secs(10), task).await.is_ok(), "{is_up}");
        }
    }
}
