//! What gateways on one Redis tell each other: that they are alive, a tag of the secret that they hash
//! under, and which records the operator has deleted.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time;

use super::{
    Failure, Shared,
    heartbeat::{Answer, Deleted, HeartbeatConnection},
    keys::Keys,
};
use crate::{clock, secret::SharedSecret};

/// The longest that a goodbye may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// What this process knows of the other gateways.
pub(in crate::store) struct Presence {
    /// What it reports itself by: an id of the process, and the tag of its secret.
    member: String,
    /// What the members of gateways with the same secret end with.
    tag: String,
    gateways: AtomicU32,
    /// Of the gateways, those that hash under another secret.
    others: AtomicU32,
    /// Whether the last report arrived; with none to make, true.
    arrived: AtomicBool,
}

impl Presence {
    /// Alone.
    pub(in crate::store) fn new(secret: &SharedSecret, id: u64) -> Self {
        let tag = format!(":{:016x}", secret.tag());
        Self {
            member: format!("{id:016x}{tag}"),
            tag,
            gateways: AtomicU32::new(1),
            others: AtomicU32::new(0),
            arrived: AtomicBool::new(true),
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

    /// Of the gateways, those that hash under another secret, and so count under other keys.
    pub(in crate::store) fn others(&self) -> u32 {
        self.others.load(Ordering::Relaxed)
    }

    /// Notes how many hash under another secret. Logged when there are some, and when none is left.
    fn note_others(&self, others: u32) {
        let before = self.others.swap(others, Ordering::Relaxed);
        if before == 0 && others > 0 {
            tracing::warn!(
                gateways = others,
                "gateways in this namespace hash under another secret, so limits and throttle count \
                 apart: set the same `store.redis.secret` at all of them, or another namespace"
            );
        } else if before > 0 && others == 0 {
            tracing::info!("all gateways in this namespace hash under the same secret");
        }
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

/// How many gateways a server counts.
#[derive(Clone, Copy)]
struct Count {
    gateways: u32,
    /// Whether all that are alive have had the time to report there.
    is_whole: bool,
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

    /// Reports, and counts the gateways. A failure is no more than a missed
    /// report: whether requests are held up is the workers' breakers' business. Returns what was deleted
    /// since the last report.
    pub(in crate::store) async fn report(&mut self) -> Deleted {
        let Self { presence, shared, keys, connections } = self;
        let now = clock::instant();
        let answers = connections
            .iter_mut()
            .map(|heartbeat| heartbeat.report(shared, &presence.member, keys, now));
        let answers: Vec<Result<Answer, Failure>> = join_all(answers).await;
        let failure = answers.iter().find_map(|answer| answer.as_ref().err());
        let arrived = presence.arrived.swap(failure.is_none(), Ordering::Relaxed);
        if let Some(failure) = failure.filter(|_| arrived) {
            tracing::warn!(failure = failure.label(), "no report of presence to Redis");
        }
        let counts = answers.iter().flatten().map(|answer| Count {
            gateways: answer.members.len() as u32,
            is_whole: answer.is_whole,
        });
        let gateways = believed(presence.gateways(), counts);
        if presence.gateways.swap(gateways, Ordering::Relaxed) != gateways {
            tracing::info!(gateways, "gateways alive on this Redis");
        }
        let others = answers.iter().flatten().map(|answer| presence.count_others(&answer.members));
        if let Some(others) = others.max() {
            presence.note_others(others);
        }
        let mut deleted = Deleted::default();
        for answer in answers.into_iter().flatten() {
            deleted.records.extend(answer.deleted.records);
            deleted.more |= answer.deleted.more;
        }
        deleted
    }

    /// Says goodbye, so that the others need not wait to notice.
    pub(in crate::store) async fn leave(self) {
        let Self { presence, shared, keys, connections } = self;
        let goodbyes = connections.into_iter().filter_map(|heartbeat| heartbeat.connection).map(
            async |held| {
                let (mut connection, command) =
                    (held.connection, keys.report(&presence.member, 0, 0));
                let leaving = command.exec_async(&mut connection);
                // A farewell that does not arrive is noticed by the absence of reports.
                let patience = shared.options.response_timeout.min(FAREWELL);
                let _ = time::timeout(patience, leaving).await;
            },
        );
        join_all(goodbyes).await;
    }
}

impl Presence {
    /// How many of these members hash under another secret.
    fn count_others(&self, members: &[String]) -> u32 {
        members.iter().filter(|member| !member.ends_with(&self.tag)).count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_apart_by_their_secret() {
        let [one, same, other] = [("a", 1), ("a", 2), ("b", 3)]
            .map(|(name, id)| Presence::new(&SharedSecret::of_namespace(name), id));
        let members = [&one, &same, &other].map(|presence| presence.member.clone());
        assert_eq!([&one, &same, &other].map(|of| of.count_others(&members)), [1, 1, 2]);
        let older = ["0123456789abcdef".to_owned()];
        assert_eq!(one.count_others(&older), 1, "of a version that drew its secret");
    }

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
