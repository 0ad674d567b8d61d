//! What gateways on one Redis tell each other: that they are alive, the secret of the keyed hash, and which
//! records the operator has deleted.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use futures_util::future::join_all;
use tokio::{sync::watch, time};

use super::{
    Failure, Shared,
    heartbeat::{Answer, Count, Deleted, HeartbeatConnection, secret},
    keys::Keys,
};
use crate::clock;

/// What this process knows of the other gateways.
pub(in crate::store) struct Presence {
    id: String,
    gateways: AtomicU32,
    /// Whether the last report arrived; with none to make, true.
    arrived: AtomicBool,
    seed: [AtomicU64; 2],
    reported: watch::Sender<bool>,
}

impl Presence {
    /// Alone, with a secret of its own.
    pub(in crate::store) fn new(seed: (u64, u64), id: u64) -> Self {
        Self {
            id: format!("{id:016x}"),
            gateways: AtomicU32::new(1),
            arrived: AtomicBool::new(true),
            seed: [AtomicU64::new(seed.0), AtomicU64::new(seed.1)],
            reported: watch::Sender::new(false),
        }
    }

    /// The gateways alive as last known, this one included; at least 1.
    pub(in crate::store) fn gateways(&self) -> u32 {
        self.gateways.load(Ordering::Relaxed)
    }

    /// Whether the last report arrived: tells of a lost Redis where no request meets it.
    pub(in crate::store) fn arrived(&self) -> bool {
        self.arrived.load(Ordering::Relaxed)
    }

    /// The secret of the keyed hash. Its halves are read one after the other: in the moment in which
    /// another gateway's secret is adopted, one request may count under a key that nobody else uses.
    pub(in crate::store) fn seed(&self) -> (u64, u64) {
        let [first, second] = &self.seed;
        (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed))
    }

    /// Returns when the first report is over, well or badly.
    pub(in crate::store) async fn reported(&self) {
        let mut reported = self.reported.subscribe();
        // The sender is a part of `self`: an error cannot be.
        let _ = reported.wait_for(|&over| over).await;
    }

    /// Takes over the secret that the gateways of this Redis agreed on.
    fn adopt(&self, seed: &str) -> Result<(), Failure> {
        let value = secret(seed).ok_or(Failure::Reply)?;
        let halves = [(value >> 64) as u64, value as u64];
        for (ours, theirs) in self.seed.iter().zip(halves) {
            ours.store(theirs, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Reports once a second, over connections of its own: to every shard, and of a Cluster to the node that
/// has the keys.
pub(in crate::store) struct Reporter<'a> {
    presence: &'a Presence,
    shared: &'a Shared,
    keys: Keys,
    /// One for each shard, in the order of their ranks.
    connections: Vec<HeartbeatConnection>,
}

/// How many gateways to believe in, of what the servers count. Where reports could not be made, the first
/// to make one again counts only itself: so fewer than before are believed only of a whole count.
fn believed(before: u32, counts: impl Iterator<Item = Count>) -> u32 {
    let (mut most, mut is_whole) = (1, false);
    for count in counts {
        most = most.max(count.gateways);
        is_whole |= count.is_whole;
    }
    if is_whole { most } else { most.max(before) }
}

impl<'a> Reporter<'a> {
    pub(in crate::store) fn new(presence: &'a Presence, shared: &'a Shared) -> Self {
        let connections = if shared.is_cluster() {
            vec![HeartbeatConnection::to(None)]
        } else {
            shared.nodes().into_iter().map(|node| HeartbeatConnection::to(Some(node))).collect()
        };
        let keys = Keys::new(&shared.options.namespace, shared.is_cluster());
        Self { presence, shared, keys, connections }
    }

    /// Reports, counts the gateways and agrees on the secret. A failure is no more than a missed
    /// report: whether requests are held up is the workers' breakers' business. Returns what was deleted
    /// since the last report.
    pub(in crate::store) async fn report(&mut self) -> Deleted {
        let Self { presence, shared, keys, connections } = self;
        let now = clock::instant();
        let answers = connections
            .iter_mut()
            .map(|heartbeat| heartbeat.report(shared, &presence.id, keys, now));
        let mut answers: Vec<Result<Answer, Failure>> = join_all(answers).await;
        let agreed = self.agree(&mut answers).await;
        let failed = answers.iter().filter_map(|answer| answer.as_ref().err());
        let failure = failed.copied().next().or(agreed.err());
        let presence = self.presence;
        presence.arrived.store(failure.is_none(), Ordering::Relaxed);
        if let Some(failure) = failure {
            tracing::debug!(failure = failure.label(), "no report of presence to Redis");
        }
        let counts = answers.iter().flatten().map(|answer| answer.gateways);
        let gateways = believed(presence.gateways(), counts);
        if presence.gateways.swap(gateways, Ordering::Relaxed) != gateways {
            tracing::info!(gateways, "gateways alive on this Redis");
        }
        presence.reported.send_if_modified(|over| !std::mem::replace(over, true));
        let mut deleted = Deleted::default();
        for answer in answers.into_iter().flatten() {
            deleted.records.extend(answer.deleted.records);
            deleted.more |= answer.deleted.more;
        }
        deleted
    }

    /// Takes over the secret of the first shard that has one, and tells the others. So a shard that comes
    /// back empty changes nothing, one with a secret of its own only where it is the first, and whoever
    /// starts while one is down finds the secret at another. Where nobody has one, the first that answers
    /// takes ours, unless another gateway was faster; what is no secret is replaced.
    async fn agree(&mut self, answers: &mut [Result<Answer, Failure>]) -> Result<(), Failure> {
        let Self { presence, shared, keys, connections } = self;
        let held = answers.iter().flatten().find_map(|answer| answer.seed.clone());
        let agreed = if let Some(seed) = held {
            seed
        } else {
            let answering = answers.iter().position(Result::is_ok).ok_or(Failure::Open)?;
            let (first, second) = presence.seed();
            let ours = format!("{first:016x}{second:016x}");
            let set = connections[answering].offer(shared, keys, &ours).await;
            let set = set.inspect_err(|&failure| answers[answering] = Err(failure))?;
            let seed = if let Some(seed) = set {
                seed
            } else {
                // Nobody could ever agree on what is there.
                connections[answering].overwrite(shared, keys, &ours).await?;
                ours
            };
            if let Ok(answer) = &mut answers[answering] {
                answer.seed = Some(seed.clone());
            }
            seed
        };
        presence.adopt(&agreed)?;
        let others = connections.iter_mut().zip(&mut *answers).map(async |(heartbeat, answer)| {
            if answer.as_ref().is_ok_and(|a| a.seed.as_ref() != Some(&agreed))
                && let Err(failure) = heartbeat.overwrite(shared, keys, &agreed).await
            {
                *answer = Err(failure);
            }
        });
        join_all(others).await;
        Ok(())
    }

    /// Says goodbye, so that the others need not wait to notice.
    pub(in crate::store) async fn leave(self) {
        let Self { presence, shared, keys, connections } = self;
        let goodbyes = connections.into_iter().filter_map(|heartbeat| heartbeat.connection).map(
            async |held| {
                let (mut connection, command) = (held.connection, keys.report(&presence.id, 0, 0));
                let leaving = command.exec_async(&mut connection);
                // A farewell that does not arrive is noticed by the absence of reports.
                let _ = time::timeout(shared.options.response_timeout, leaving).await;
            },
        );
        join_all(goodbyes).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_gateways_are_believed_only_of_a_whole_count() {
        let count = |gateways, is_whole| Count { gateways, is_whole };
        let believed = |before, counts: &[Count]| believed(before, counts.iter().copied());
        assert_eq!(believed(1, &[count(4, false)]), 4, "more, at once");
        assert_eq!(believed(4, &[count(1, false)]), 4, "the first to report again");
        assert_eq!(believed(4, &[count(3, true)]), 3);
        assert_eq!(believed(4, &[count(1, false), count(3, true)]), 3, "of several, the most");
        assert_eq!(believed(4, &[]), 4, "nobody answers");
        assert_eq!(believed(1, &[count(0, true)]), 1, "this one is there");
    }
}
