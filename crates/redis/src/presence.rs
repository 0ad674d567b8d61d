//! Reports by which the gateways of one Redis find each other. A report shows that a gateway is
//! alive, and contains a tag of the secret with which it hashes keys. The reply lists records that
//! the operator has deleted.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use tidegate_system::secret::SharedSecret;

use super::{
    RedisBackend, RedisFailure,
    context::RedisContext,
    heartbeat::{Deletions, HeartbeatConnection, HeartbeatReply},
    presence_keys::PresenceKeys,
};

/// Maximum timeout of the command that removes this gateway when it stops.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The gateways of one Redis, as of the last reports.
pub struct Presence {
    /// This gateway's name: a random id of the process, and the tag of its secret.
    member: String,
    /// The suffix of the names of gateways with the same secret.
    secret_suffix: String,
    gateways: AtomicU32,
    /// Number of `gateways` that use another secret.
    other_secrets: AtomicU32,
    /// True if the last report succeeded at every server; also true before the first report.
    is_reporting: AtomicBool,
}

impl Presence {
    /// Counts only this gateway, until the first report. `id` is random.
    pub fn new(secret: &SharedSecret, id: u64) -> Self {
        let secret_suffix = format!(":{:016x}", secret.tag());
        Self {
            member: format!("{id:016x}{secret_suffix}"),
            secret_suffix,
            gateways: AtomicU32::new(1),
            other_secrets: AtomicU32::new(0),
            is_reporting: AtomicBool::new(true),
        }
    }

    /// The number of gateways alive as of the last reports, including this one; at least 1.
    pub fn gateways(&self) -> u32 {
        self.gateways.load(Ordering::Relaxed)
    }

    /// True if the last report succeeded at every server. Reveals a lost Redis even without
    /// requests.
    pub fn is_reporting(&self) -> bool {
        self.is_reporting.load(Ordering::Relaxed)
    }

    /// Number of gateways that use another secret, and therefore count under other keys.
    pub fn other_secrets(&self) -> u32 {
        self.other_secrets.load(Ordering::Relaxed)
    }

    /// Sets the number of gateways that use another secret. Logs when it becomes positive, and when
    /// it returns to 0.
    fn set_other_secrets(&self, others: u32) {
        let before = self.other_secrets.swap(others, Ordering::Relaxed);
        if before == 0 && others > 0 {
            tracing::warn!(
                gateways = others,
                "other gateways in this namespace use a different `store.redis.secret`, so their limits and throttle \
                 are counted separately: set the same `store.redis.secret` at all of them, or \
                 another namespace"
            );
        } else if before > 0 && others == 0 {
            tracing::info!("all gateways in this namespace use the same `store.redis.secret`");
        }
    }

    /// Number of these members that use another secret.
    fn count_other_secrets(&self, members: &[String]) -> u32 {
        members.iter().filter(|member| !member.ends_with(&self.secret_suffix)).count() as u32
    }
}

/// Reports once a second over its own connections: to every shard, or with a Cluster to the server
/// of the presence keys.
pub struct Reporter<'a> {
    presence: &'a Presence,
    backend: &'a RedisBackend,
    keys: PresenceKeys,
    /// One for each configured shard, in the order of the shards' ids; with a Cluster, one.
    connections: Vec<HeartbeatConnection>,
}

/// Number of gateways that have reported to one server.
#[derive(Clone, Copy)]
struct GatewayCount {
    gateways: u32,
    /// True if every gateway that is alive has had time to report to this server.
    is_complete: bool,
}

/// The number of gateways, from the servers' counts. After an outage the first gateway to report
/// counts only itself, so only a complete count decreases the number.
fn estimate_gateways(before: u32, counts: impl Iterator<Item = GatewayCount>) -> u32 {
    let (mut most, mut is_complete) = (1, false);
    for count in counts {
        most = most.max(count.gateways);
        is_complete |= count.is_complete;
    }
    if is_complete { most } else { most.max(before) }
}

impl<'a> Reporter<'a> {
    /// Reports this gateway to the servers of `backend`, and keeps in `presence` how many there
    /// are.
    pub fn new(presence: &'a Presence, backend: &'a RedisBackend) -> Self {
        let connections = if backend.is_cluster() {
            vec![HeartbeatConnection::new(None)]
        } else {
            backend.nodes().into_iter().map(|node| HeartbeatConnection::new(Some(node))).collect()
        };
        let keys = backend.presence_keys();
        Self { presence, backend, keys, connections }
    }

    /// Reports, and counts the gateways. A failure is only a missed report: requests follow the
    /// workers' breakers. Returns what the operator has deleted since the last report.
    pub async fn report(&mut self) -> Deletions {
        let Self { presence, backend, keys, connections } = self;
        let now = backend.context.clock.uptime();
        let replies = connections
            .iter_mut()
            .map(|heartbeat| heartbeat.report(backend, &presence.member, keys, now));
        let replies: Vec<Result<HeartbeatReply, RedisFailure>> = join_all(replies).await;
        let failure = replies.iter().find_map(|reply| reply.as_ref().err());
        let was_reporting = presence.is_reporting.swap(failure.is_none(), Ordering::Relaxed);
        if let Some(failure) = failure.filter(|_| was_reporting) {
            tracing::warn!(
                failure = failure.label(),
                "cannot report to Redis that this gateway is alive"
            );
        }
        let counts = replies.iter().flatten().map(|reply| GatewayCount {
            gateways: reply.members.len() as u32,
            is_complete: reply.is_complete,
        });
        let gateways = estimate_gateways(presence.gateways(), counts);
        if presence.gateways.swap(gateways, Ordering::Relaxed) != gateways {
            tracing::info!(gateways, "the number of gateways on this Redis has changed");
        }
        let others =
            replies.iter().flatten().map(|reply| presence.count_other_secrets(&reply.members));
        if let Some(others) = others.max() {
            presence.set_other_secrets(others);
        }
        let mut deletions = Deletions::default();
        for reply in replies.into_iter().flatten() {
            deletions.records.extend(reply.deletions.records);
            deletions.is_partial |= reply.deletions.is_partial;
        }
        deletions
    }

    /// Removes this gateway from every server, so that the others need not wait for its report to
    /// expire. A failure is ignored: the report expires.
    pub async fn leave(self) {
        let Self { presence, backend, keys, connections } = self;
        let commands = connections.into_iter().filter_map(|heartbeat| heartbeat.connection).map(
            async |node_connection| {
                let mut connection = node_connection.connection;
                let command = keys.leave(&presence.member);
                let reply = command.exec_async(&mut connection);
                let RedisContext { options, clock, .. } = &*backend.context;
                let timeout = options.response_timeout.min(LEAVE_TIMEOUT);
                let _ = clock.timeout(timeout, reply).await;
            },
        );
        join_all(commands).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_with_another_secret_are_counted() {
        let [one, same, other] = [("a", 1), ("a", 2), ("b", 3)]
            .map(|(name, id)| Presence::new(&SharedSecret::from_namespace(name), id));
        let members = [&one, &same, &other].map(|presence| presence.member.clone());
        assert_eq!([&one, &same, &other].map(|of| of.count_other_secrets(&members)), [1, 1, 2]);
        let older = ["0123456789abcdef".to_owned()];
        assert_eq!(one.count_other_secrets(&older), 1, "an older version's name has no tag");
    }

    #[test]
    fn only_a_complete_count_decreases_the_number_of_gateways() {
        let count = |gateways, is_complete| GatewayCount { gateways, is_complete };
        let estimate =
            |before, counts: &[GatewayCount]| estimate_gateways(before, counts.iter().copied());
        assert_eq!(estimate(1, &[count(4, false)]), 4, "increases at once");
        assert_eq!(estimate(4, &[count(1, false)]), 4, "the first report after an outage");
        assert_eq!(estimate(4, &[count(3, true)]), 3);
        assert_eq!(estimate(4, &[count(1, false), count(3, true)]), 3, "the largest count");
        assert_eq!(estimate(4, &[]), 4, "no reply");
        assert_eq!(estimate(1, &[count(0, true)]), 1, "this gateway is alive");
    }
}
