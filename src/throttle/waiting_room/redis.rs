//! The shared state in Redis: one script call for each exchange, over a connection of its own.

use std::time::Duration;

use ::redis::{Cmd, RedisError, aio::MultiplexedConnection};

use super::{
    place::QueueTime,
    state::{ProfilePoint, RoomCall, RoomReply, Standing},
    ticker::RoomStore,
};
use crate::{
    clock::{Clock, StoreTime},
    redis::{Connector, NodeConnection, RedisFailure, Script, ScriptRef},
};

/// Timeout of one exchange. A gateway continues alone after it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which Redis keeps the state without an exchange: tickets have expired long before.
const EXPIRY: Duration = Duration::from_hours(1);

/// The reply of the script: frontier, base, time of the last demand, now, gateways, granted, pending, profile.
type ScriptReply = (u64, u64, u64, u64, u64, u64, u64, u64, String);

/// The state of one room in Redis, under the keys `NAMESPACE:{NAME}:room:LENGTH`, with the length of an epoch in
/// seconds, and `NAMESPACE:{NAME}:room:LENGTH:EPOCH`. The braces are a hash tag: all of them are in one slot of a
/// Cluster, beside the filters.
pub struct RedisRoomStore {
    connector: Connector,
    /// The hash tag of the keys.
    name: String,
    /// The prefix of the keys.
    prefix: String,
    clock: Clock,
    script: Script,
    connection: Option<NodeConnection>,
}

impl RedisRoomStore {
    /// Opens no connection yet. A manual `clock` also replaces Redis' clock.
    pub fn new(connector: Connector, name: &str, clock: Clock) -> Self {
        Self {
            name: name.to_owned(),
            prefix: format!("{}:{{{name}}}:room:", connector.namespace()),
            connector,
            clock,
            script: Script::new(include_str!("../../../lua/waiting_room.lua")),
            connection: None,
        }
    }

    /// The command of an exchange.
    fn command(&self, call: &RoomCall, by: ScriptRef) -> Cmd {
        let RoomCall { epoch, counted: [previous, current], standing, active, .. } = call;
        let (prefix, length) = (&self.prefix, epoch.length);
        let mut command = self.script.command(by);
        command.arg(3).arg(format!("{prefix}{length}"));
        for index in [epoch.previous().index, epoch.index] {
            command.arg(format!("{prefix}{length}:{index}"));
        }
        let now = self.clock.manual_now().map_or(0, StoreTime::as_unix_ms);
        let standing = match standing {
            Standing::Silent => 0,
            Standing::Calm => 1,
            Standing::Forced => 2,
            Standing::Demanded => 3,
        };
        command.arg(now).arg(epoch.index).arg(length).arg(standing);
        match active {
            Some(active) => command.arg(active),
            None => command.arg(-1),
        };
        command.arg(call.max_active).arg(call.frontier.as_micros()).arg(call.grant);
        command.arg(EXPIRY.as_secs()).arg(call.head_start).arg(previous.len());
        for count in previous.iter().chain(current) {
            command.arg(count.second).arg(count.tickets);
        }
        command
    }

    /// The connection, opened if there is none or the server has come up again since.
    async fn connected(&mut self) -> Result<MultiplexedConnection, RedisFailure> {
        let usable = self.connection.take().filter(|connection| !connection.is_stale());
        let connection = match usable {
            Some(connection) => connection,
            None => self.connector.connect(&self.name).await?,
        };
        Ok(self.connection.insert(connection).connection.clone())
    }
}

impl RoomStore for RedisRoomStore {
    async fn exchange(&mut self, call: &RoomCall) -> Result<RoomReply, RedisFailure> {
        let clock = self.clock.clone();
        let exchanging = async {
            let connection = self.connected().await?;
            let command = |by| self.command(call, by);
            let reply: Result<ScriptReply, RedisError> = Script::invoke(command, |command| {
                let mut connection = connection.clone();
                async move { command.query_async(&mut connection).await }
            })
            .await;
            reply.map_err(|error| self.connector.classify_error(&error))
        };
        let outcome = clock.timeout(TIMEOUT, exchanging).await;
        let outcome = outcome.unwrap_or(Err(RedisFailure::Timeout)).and_then(parse);
        if outcome.as_ref().is_err_and(|failure| *failure != RedisFailure::Server) {
            self.connection = None;
        }
        outcome
    }
}

/// The reply of the script.
fn parse(reply: ScriptReply) -> Result<RoomReply, RedisFailure> {
    let (frontier, base, demanded_at, calm_at, now, gateways, granted, pending, profile) = reply;
    let numbers = [frontier, base, demanded_at, calm_at, now, gateways, granted, pending];
    let profile = parse_profile(&profile).filter(|_| numbers.into_iter().all(is_number));
    let profile = profile.ok_or(RedisFailure::Reply)?;
    Ok(RoomReply {
        frontier: QueueTime::from_micros(frontier),
        base,
        demanded_at: StoreTime::from_unix_ms(demanded_at),
        calm_at: StoreTime::from_unix_ms(calm_at),
        now: StoreTime::from_unix_ms(now),
        gateways,
        granted,
        pending,
        profile,
    })
}

/// True if the script can have written a number: all of its own are below 2^53.
fn is_number(number: u64) -> bool {
    number < 1 << 53
}

/// Reads `SECOND:TICKETS,...`, which must not decrease; `None` if it is malformed.
fn parse_profile(text: &str) -> Option<Vec<ProfilePoint>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let point = |text: &str| {
        let (second, tickets) = text.split_once(':')?;
        let number = |text: &str| text.parse().ok().filter(|number| is_number(*number));
        Some(ProfilePoint { second: number(second)?, tickets: number(tickets)? })
    };
    let points: Option<Vec<ProfilePoint>> = text.split(',').map(point).collect();
    points.filter(|points| points.is_sorted_by_key(|point| (point.second, point.tickets)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_malformed_profile_is_refused() {
        let point = |second, tickets| ProfilePoint { second, tickets };
        assert_eq!(parse_profile(""), Some(vec![]));
        assert_eq!(parse_profile("5:1,6:9"), Some(vec![point(5, 1), point(6, 9)]));
        for text in
            ["5", "5:", ":5", "5:1,", "5:1,4:9", "5:-1", "a:b", "5:1;6:2", "5:9007199254740992"]
        {
            assert_eq!(parse_profile(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_reply_has_numbers_of_the_script(
            numbers in prop::array::uniform8(prop_oneof![0..9_u64, any::<u64>()]),
            profile in prop_oneof!["[0-9:,a-]{0,40}", "([0-9]{1,20}:[0-9]{1,20},?){0,4}"],
        ) {
            let [frontier, base, demanded_at, calm_at, now, gateways, granted, pending] = numbers;
            let reply =
                (frontier, base, demanded_at, calm_at, now, gateways, granted, pending, profile);
            let Ok(reply) = parse(reply) else { return Ok(()) };
            prop_assert!(numbers.into_iter().all(is_number));
            for point in reply.profile {
                prop_assert!(is_number(point.second) && is_number(point.tickets));
            }
        }
    }
}
