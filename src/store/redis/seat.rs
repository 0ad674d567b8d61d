//! Where a gateway reports that it is alive: one server, and what that answers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::Cmd;
use tokio::{sync::watch, time};

use super::{
    Failure, Shared,
    node::{Connected, Node, is_elsewhere},
    presence::{Deleted, Keys, LIFETIME, NOTE_LIFETIME, Presence},
};

/// One server's.
pub(super) struct Seat {
    /// None of a Cluster: it is looked for each time.
    node: Option<Arc<Node>>,
    pub(super) connection: Option<Held>,
    /// When the last report was made, by the server's clock (ms).
    told_at: u64,
    /// Without a failure.
    run: Run,
}

/// A seat's connection.
pub(super) struct Held {
    node: Arc<Node>,
    pub(super) connected: Connected,
    revocations: watch::Receiver<u64>,
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

/// What one seat answers.
pub(super) struct Answer {
    pub(super) gateways: Count,
    /// Of them, those that hash under another secret.
    pub(super) others: u32,
    pub(super) deleted: Deleted,
}

/// How many gateways a server counts.
#[derive(Clone, Copy)]
pub(super) struct Count {
    pub(super) gateways: u32,
    /// Whether all that are alive have had the time to report there.
    pub(super) is_whole: bool,
}

/// What the report answers: the members, the server's time (ms), the names of deleted records.
type Report = (Vec<String>, u64, Vec<String>);

impl Seat {
    pub(super) fn at(node: Option<Arc<Node>>) -> Self {
        Self { node, connection: None, told_at: 0, run: Run::default() }
    }

    /// Reports at the time `now`, and reads what is there.
    pub(super) async fn report(
        &mut self,
        shared: &Shared,
        presence: &Presence,
        keys: &Keys,
        now: Instant,
    ) -> Result<Answer, Failure> {
        let answer = self.try_report(shared, presence, keys).await;
        let is_whole = self.run.extend(answer.is_ok(), now);
        let (members, deleted) = answer?;
        let gateways = Count { gateways: members.len() as u32, is_whole };
        Ok(Answer { gateways, others: presence.count_others(&members), deleted })
    }

    async fn try_report(
        &mut self,
        shared: &Shared,
        presence: &Presence,
        keys: &Keys,
    ) -> Result<(Vec<String>, Deleted), Failure> {
        let command = presence.command(keys, LIFETIME, self.told_at);
        let (members, now, deleted) = self.ask(shared, keys, &command).await?;
        let more = now.checked_sub(self.told_at).is_none_or(|silence| silence >= NOTE_LIFETIME);
        self.told_at = now;
        let records = deleted.iter().filter_map(|name| u128::from_str_radix(name, 16).ok());
        Ok((members, Deleted { records: records.collect(), more }))
    }

    /// What a report is answered. Something of another type in the place of a key is no failure of the server.
    async fn ask(&mut self, shared: &Shared, keys: &Keys, report: &Cmd) -> Result<Report, Failure> {
        // Not to a server that is the primary no more.
        let is_led = |held: &Held| held.revocations.has_changed().is_ok_and(|is_old| !is_old);
        let held = match self.connection.take().filter(is_led) {
            Some(held) => held,
            None => self.connect(shared, keys).await?,
        };
        let connection = &mut self.connection.insert(held).connected.connection;
        let asked = report.query_async(connection);
        let asked = time::timeout(shared.options.response_timeout, asked);
        let (failure, is_misled) = match asked.await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) if error.code() == Some("WRONGTYPE") => return Err(Failure::Reply),
            Ok(Err(error)) => (Failure::of(&error), is_elsewhere(&error)),
            Err(_) => (Failure::Timeout, false),
        };
        shared.misled();
        if let Some(held) = self.connection.take().filter(|_| !is_misled) {
            held.node.gate.fall(held.connected.epoch, failure);
        }
        Err(failure)
    }

    async fn connect(&self, shared: &Shared, keys: &Keys) -> Result<Held, Failure> {
        let node = match &self.node {
            Some(node) => Arc::clone(node),
            None => shared.node_of_tag(&keys.tag).await?,
        };
        let revocations = node.revocations();
        let connected = match node.gate.follow(false).await {
            Ok(pass) => node.connect(pass).await,
            Err(failure) => Err(failure),
        };
        let connected = connected.inspect_err(|_| shared.misled())?;
        Ok(Held { node, connected, revocations })
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
