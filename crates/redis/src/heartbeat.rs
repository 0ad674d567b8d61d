//! The connection over which a gateway reports to one server that it is alive.

use std::sync::Arc;

use ::redis::Cmd;
use tidegate_base::time::{StoreTime, Uptime};

use super::{
    RedisBackend, RedisFailure,
    context::RedisContext,
    node::{NodeConnection, RedisNode},
    presence_keys::{DELETION_LIFETIME, PresenceKeys, REPORT_LIFETIME},
};

/// The connection and state of this gateway's reports to one server.
pub(super) struct HeartbeatConnection {
    /// `None` with a Cluster, where the node is looked up for each connection.
    node: Option<Arc<RedisNode>>,
    pub(super) connection: Option<NodeConnection>,
    /// Time of the last report, by the server's clock.
    reported_at: StoreTime,
    streak: ReportStreak,
}

/// The start of the current series of reports without a failure, by
/// [`Clock::uptime`](tidegate_system::clock::Clock::uptime).
#[derive(Default)]
struct ReportStreak(Option<Uptime>);

impl ReportStreak {
    /// Extends the streak by a report. Returns true if the streak has lasted [`REPORT_LIFETIME`]:
    /// every gateway that is alive has then also reported during it.
    fn extend(&mut self, now: Uptime) -> bool {
        let start = *self.0.get_or_insert(now);
        now.saturating_sub(start) >= REPORT_LIFETIME.as_duration()
    }

    /// Ends the streak, because a report failed.
    fn end(&mut self) {
        self.0 = None;
    }
}

/// The records that the operator has deleted since the last report.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct Deletions {
    /// The records' shared ids, which are the same at all gateways.
    pub records: Vec<u128>,
    /// True if records may be missing: the last report is older than the time for which deletions
    /// are kept, or the server's clock was set back to before that report.
    pub is_partial: bool,
}

/// One server's reply to a report.
pub(super) struct HeartbeatReply {
    /// The names of the gateways that are alive.
    pub(super) members: Vec<String>,
    /// True if every gateway that is alive has had time to report to this server.
    pub(super) is_complete: bool,
    pub(super) deletions: Deletions,
}

/// The script's reply: the members, the server's time (ms), the names of deleted records in
/// hexadecimal.
type RawReply = (Vec<String>, u64, Vec<String>);

impl HeartbeatConnection {
    /// The first report opens the connection.
    pub(super) fn new(node: Option<Arc<RedisNode>>) -> Self {
        Self {
            node,
            connection: None,
            reported_at: StoreTime::ZERO,
            streak: ReportStreak::default(),
        }
    }

    /// Reports at the time `now`, by [`Clock::uptime`](tidegate_system::clock::Clock::uptime).
    ///
    /// # Errors
    ///
    /// No connection, or no reply within the response timeout.
    pub(super) async fn report(
        &mut self,
        backend: &RedisBackend,
        member: &str,
        keys: &PresenceKeys,
        now: Uptime,
    ) -> Result<HeartbeatReply, RedisFailure> {
        let reply = self.try_report(backend, member, keys).await;
        let (members, deletions) = reply.inspect_err(|_| self.streak.end())?;
        let is_complete = self.streak.extend(now);
        Ok(HeartbeatReply { members, is_complete, deletions })
    }

    async fn try_report(
        &mut self,
        backend: &RedisBackend,
        member: &str,
        keys: &PresenceKeys,
    ) -> Result<(Vec<String>, Deletions), RedisFailure> {
        let command = keys.report(member, self.reported_at);
        let (members, now, deleted) = self.send(backend, keys, &command).await?;
        let now = StoreTime::from_unix_ms(now);
        let interval = now.checked_since(self.reported_at);
        let is_partial = interval.is_none_or(|interval| interval >= DELETION_LIFETIME);
        self.reported_at = now;
        let records = deleted.iter().filter_map(|name| u128::from_str_radix(name, 16).ok());
        Ok((members, Deletions { records: records.collect(), is_partial }))
    }

    /// Sends a report. A key that holds a value of another type is not a failure of the server, so
    /// the connection is kept.
    async fn send(
        &mut self,
        backend: &RedisBackend,
        keys: &PresenceKeys,
        report: &Cmd,
    ) -> Result<RawReply, RedisFailure> {
        let usable = match self.connection.take().filter(|connection| !connection.is_stale()) {
            Some(connection) => connection,
            None => self.connect(backend, keys).await?,
        };
        let connection = &mut self.connection.insert(usable).connection;
        let reply = report.query_async(connection);
        let RedisContext { options, clock, .. } = &*backend.context;
        let failure = match clock.timeout(options.response_timeout, reply).await {
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(error)) if error.code() == Some("WRONGTYPE") => return Err(RedisFailure::Reply),
            Ok(Err(error)) => RedisFailure::classify(&error),
            Err(_) => RedisFailure::Timeout,
        };
        backend.refresh_cluster();
        self.connection = None;
        Err(failure)
    }

    async fn connect(
        &self,
        backend: &RedisBackend,
        keys: &PresenceKeys,
    ) -> Result<NodeConnection, RedisFailure> {
        let node = match &self.node {
            Some(node) => Arc::clone(node),
            None => backend.node_of_tag(&keys.hash_tag).await?,
        };
        node.connect_if_up().await.inspect_err(|_| backend.refresh_cluster())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_streak_is_complete_after_the_lifetime_of_a_report() {
        let mut streak = ReportStreak::default();
        let at = |seconds| Uptime::from_duration(Duration::from_secs(seconds));
        for second in 0..5 {
            assert!(!streak.extend(at(second)), "after {second} s");
        }
        assert!(streak.extend(at(5)) && streak.extend(at(6)));
        streak.end();
        assert!(!streak.extend(at(8)), "a new streak");
        assert!(!streak.extend(at(12)) && streak.extend(at(13)));
    }
}
