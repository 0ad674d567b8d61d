//! The connection over which a gateway reports to one server that it is alive.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::Cmd;
use tokio::time;

use super::{
    Failure, Shared,
    keys::{Keys, LIFETIME, NOTE_LIFETIME},
    node::{Node, NodeConnection},
};

/// Reports to one server.
pub(super) struct HeartbeatConnection {
    /// `None` of a Cluster: the node is looked up for each connection.
    node: Option<Arc<Node>>,
    pub(super) connection: Option<NodeConnection>,
    /// When the last report was made, by the server's clock (ms).
    told_at: u64,
    /// Without a failure.
    run: Run,
}

/// Reports that follow each other, since the last that failed.
#[derive(Default)]
struct Run(Option<Instant>);

impl Run {
    /// Adds a report, or ends with one that failed. Whether the run is as long as a report counts: then all
    /// that are alive have reported in it, too.
    fn extend(&mut self, is_made: bool, now: Instant) -> bool {
        self.0 = is_made.then(|| self.0.unwrap_or(now));
        self.0.is_some_and(|first| now.duration_since(first) >= Duration::from_millis(LIFETIME))
    }
}

/// The records that the operator has deleted since the last report.
#[derive(Debug, Default, Eq, PartialEq)]
pub(in crate::store) struct Deleted {
    pub(in crate::store) records: Vec<u128>,
    /// Some may be missing: the last report is older than notes are kept, or the server's clock was set
    /// back behind it.
    pub(in crate::store) more: bool,
}

/// What one server answers.
pub(super) struct Answer {
    /// What the gateways alive report themselves by.
    pub(super) members: Vec<String>,
    /// Whether all that are alive have had the time to report there.
    pub(super) is_whole: bool,
    pub(super) deleted: Deleted,
}

/// What the report answers: the members, the server's time (ms), the names of deleted records.
type Report = (Vec<String>, u64, Vec<String>);

impl HeartbeatConnection {
    pub(super) fn to(node: Option<Arc<Node>>) -> Self {
        Self { node, connection: None, told_at: 0, run: Run::default() }
    }

    /// Reports at the time `now`, and reads what is there.
    pub(super) async fn report(
        &mut self,
        shared: &Shared,
        member: &str,
        keys: &Keys,
        now: Instant,
    ) -> Result<Answer, Failure> {
        let answer = self.try_report(shared, member, keys).await;
        let is_whole = self.run.extend(answer.is_ok(), now);
        let (members, deleted) = answer?;
        Ok(Answer { members, is_whole, deleted })
    }

    async fn try_report(
        &mut self,
        shared: &Shared,
        member: &str,
        keys: &Keys,
    ) -> Result<(Vec<String>, Deleted), Failure> {
        let command = keys.report(member, LIFETIME, self.told_at);
        let (members, now, deleted) = self.ask(shared, keys, &command).await?;
        let more = now.checked_sub(self.told_at).is_none_or(|silence| silence >= NOTE_LIFETIME);
        self.told_at = now;
        let records = deleted.iter().filter_map(|name| u128::from_str_radix(name, 16).ok());
        Ok((members, Deleted { records: records.collect(), more }))
    }

    /// What a report is answered. Something of another type in the place of a key is no failure of the
    /// server.
    async fn ask(&mut self, shared: &Shared, keys: &Keys, report: &Cmd) -> Result<Report, Failure> {
        let held = match self.connection.take().filter(|held| !held.is_stale()) {
            Some(held) => held,
            None => self.connect(shared, keys).await?,
        };
        let connection = &mut self.connection.insert(held).connection;
        let asked = report.query_async(connection);
        let asked = time::timeout(shared.options.response_timeout, asked);
        let failure = match asked.await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if error.code() == Some("WRONGTYPE") => return Err(Failure::Reply),
            Ok(Err(error)) => Failure::of(&error),
            Err(_) => Failure::Timeout,
        };
        shared.misled();
        self.connection = None;
        Err(failure)
    }

    async fn connect(&self, shared: &Shared, keys: &Keys) -> Result<NodeConnection, Failure> {
        let node = match &self.node {
            Some(node) => Arc::clone(node),
            None => shared.node_of_tag(&keys.tag).await?,
        };
        node.connect().await.inspect_err(|_| shared.misled())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_run_is_whole_when_all_that_are_alive_have_reported_in_it() {
        let (start, mut run) = (clock::instant(), Run::default());
        let at = |second| start + Duration::from_secs(second);
        for second in 0..5 {
            assert!(!run.extend(true, at(second)), "after {second} s");
        }
        assert!(run.extend(true, at(5)) && run.extend(true, at(6)));
        assert!(!run.extend(false, at(7)));
        assert!(!run.extend(true, at(8)), "it begins anew");
        assert!(!run.extend(true, at(12)) && run.extend(true, at(13)));
    }
}
