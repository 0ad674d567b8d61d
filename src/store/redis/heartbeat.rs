//! The connection over which a gateway reports to one server that it is alive.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::{Pipeline, RedisResult, Value};
use tokio::time;

use super::{
    Failure, Shared,
    keys::{Keys, LIFETIME, NOTE_LIFETIME, SEED_LIFETIME},
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
    /// None, too, where what is there is no secret.
    pub(super) seed: Option<String>,
    pub(super) gateways: Count,
    pub(super) deleted: Deleted,
}

/// How many gateways a server counts.
#[derive(Clone, Copy)]
pub(super) struct Count {
    pub(super) gateways: u32,
    /// Whether all that are alive have had the time to report there.
    pub(super) is_whole: bool,
}

/// What a secret in Redis says, if it is one.
pub(super) fn secret(seed: &str) -> Option<u128> {
    u128::from_str_radix(seed, 16).ok()
}

/// The secret, if what stands in its place is one.
fn held(value: Value) -> Option<String> {
    redis::from_redis_value::<String>(value).ok().filter(|text| secret(text).is_some())
}

/// The same answer; `Nil` instead of the word that a key is of another type.
fn untyped(answer: RedisResult<Value>) -> RedisResult<Value> {
    match answer {
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(Value::Nil),
        answer => answer,
    }
}

impl HeartbeatConnection {
    pub(super) fn to(node: Option<Arc<Node>>) -> Self {
        Self { node, connection: None, told_at: 0, run: Run::default() }
    }

    /// Reports at the time `now`, and reads what is there.
    pub(super) async fn report(
        &mut self,
        shared: &Shared,
        gateway: &str,
        keys: &Keys,
        now: Instant,
    ) -> Result<Answer, Failure> {
        let answer = self.try_report(shared, gateway, keys).await;
        let is_whole = self.run.extend(answer.is_ok(), now);
        let (seed, gateways, deleted) = answer?;
        Ok(Answer { seed, gateways: Count { gateways, is_whole }, deleted })
    }

    async fn try_report(
        &mut self,
        shared: &Shared,
        gateway: &str,
        keys: &Keys,
    ) -> Result<(Option<String>, u32, Deleted), Failure> {
        let mut pipe = redis::pipe();
        pipe.cmd("GET").arg(&keys.seed);
        pipe.cmd("EXPIRE").arg(&keys.seed).arg(SEED_LIFETIME);
        pipe.add_command(keys.report(gateway, LIFETIME, self.told_at));
        let [seed, _, report] = self.ask(shared, keys, pipe).await?;
        let report = redis::from_redis_value(report).map_err(|_| Failure::Reply)?;
        let (gateways, now, deleted): (u32, u64, Vec<String>) = report;
        let more = now.checked_sub(self.told_at).is_none_or(|silence| silence >= NOTE_LIFETIME);
        self.told_at = now;
        let records = deleted.iter().filter_map(|name| u128::from_str_radix(name, 16).ok());
        Ok((held(seed), gateways, Deleted { records: records.collect(), more }))
    }

    /// Sets our secret where there is nothing; gives the one that holds, if what is there is one.
    pub(super) async fn offer(
        &mut self,
        shared: &Shared,
        keys: &Keys,
        ours: &str,
    ) -> Result<Option<String>, Failure> {
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&keys.seed).arg(ours).arg("NX").arg("EX").arg(SEED_LIFETIME);
        pipe.cmd("GET").arg(&keys.seed);
        let [_, seed] = self.ask(shared, keys, pipe).await?;
        Ok(held(seed))
    }

    pub(super) async fn overwrite(
        &mut self,
        shared: &Shared,
        keys: &Keys,
        seed: &str,
    ) -> Result<(), Failure> {
        let mut pipe = redis::pipe();
        pipe.cmd("SET").arg(&keys.seed).arg(seed).arg("EX").arg(SEED_LIFETIME);
        let [_] = self.ask(shared, keys, pipe).await?;
        Ok(())
    }

    /// What each command is answered: `Nil` where something of another type is in the way.
    async fn ask<const N: usize>(
        &mut self,
        shared: &Shared,
        keys: &Keys,
        mut pipe: Pipeline,
    ) -> Result<[Value; N], Failure> {
        let held = match self.connection.take().filter(|held| !held.is_stale()) {
            Some(held) => held,
            None => self.connect(shared, keys).await?,
        };
        let connection = &mut self.connection.insert(held).connection;
        let asking = async {
            let answers: Vec<_> = pipe.ignore_errors().query_async(connection).await?;
            answers.into_iter().map(untyped).collect::<RedisResult<Vec<Value>>>()
        };
        let asked = time::timeout(shared.options.response_timeout, asking);
        let failure = match asked.await {
            Ok(Ok(answers)) => return answers.try_into().map_err(|_| Failure::Reply),
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
