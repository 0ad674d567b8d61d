//! The shared state in Redis: one script call for each exchange, over a connection of its own.

use std::time::Duration;

use ::redis::{Cmd, FromRedisValue, RedisError, aio::MultiplexedConnection};
use tidegate_base::time::Millis;
use tidegate_redis::{Connector, NodeConnection, RedisFailure, Script, ScriptRef};
use tidegate_system::clock::{Clock, StoreTime};

use super::{
    place::{EpochIndex, QueueTime, UnixSecond},
    state::{ProfilePoint, RoomCall, RoomReply, Seat, Standing},
    ticker::RoomStore,
};

/// Timeout of one exchange. A gateway continues alone after it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which Redis keeps the state without an exchange: tickets have expired long before.
const EXPIRY: Millis = Millis::from_mins(60);

/// The reply of the script: frontier, base, time of the last demand, now, gateways, turns, pending,
/// profile.
type ScriptReply = (u64, u64, u64, u64, u64, u64, u64, u64, String);

/// The state of one room in Redis, under the keys `NAMESPACE:{NAME}:room:LENGTH`, with the length
/// of an epoch in seconds, `NAMESPACE:{NAME}:room:LENGTH:EPOCH`, and
/// `NAMESPACE:{NAME}:room:LENGTH:users`. The braces are a hash tag: all of them are in one slot of
/// a Cluster, beside the filters.
pub struct RedisRoomStore {
    connector: Connector,
    /// The hash tag of the keys.
    name: String,
    /// The prefix of the keys.
    prefix: String,
    clock: Clock,
    script: Script,
    seat_script: Script,
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
            script: Script::new(include_str!("../../../../lua/waiting_room.lua")),
            seat_script: Script::new(include_str!("../../../../lua/waiting_seat.lua")),
            connection: None,
        }
    }

    /// The command of an exchange.
    fn command(&self, call: &RoomCall, by: ScriptRef) -> Cmd {
        let RoomCall { epoch, counted: [previous, current], standing, active, .. } = call;
        let (prefix, length) = (&self.prefix, epoch.length.as_whole_secs());
        let mut command = self.script.command(by);
        command.arg(3).arg(format!("{prefix}{length}"));
        for EpochIndex(index) in [epoch.previous().index, epoch.index] {
            command.arg(format!("{prefix}{length}:{index}"));
        }
        let now = self.manual_now();
        let standing = match standing {
            Standing::Silent => 0,
            Standing::Calm => 1,
            Standing::Forced => 2,
            Standing::Demanded => 3,
        };
        command.arg(now).arg(epoch.index.0).arg(length).arg(standing);
        match active {
            Some(active) => command.arg(active),
            None => command.arg(-1),
        };
        command.arg(call.max_active).arg(call.frontier.as_micros()).arg(call.hold.as_ms());
        command.arg(EXPIRY.as_whole_secs()).arg(call.head_start.as_ms()).arg(call.ask.as_ms());
        command.arg(call.entering);
        command.arg(call.turned_away).arg(previous.len());
        for count in previous.iter().chain(current) {
            command.arg(count.second.as_secs()).arg(count.tickets);
        }
        command
    }

    /// The command by which users ask for places, in the room with epochs of this `length`.
    fn seat_command(&self, length: Millis, holders: &[u64], by: ScriptRef) -> Cmd {
        let key = format!("{}{}", self.prefix, length.as_whole_secs());
        let mut command = self.seat_script.command(by);
        command.arg(2).arg(&key).arg(format!("{key}:users"));
        command.arg(self.manual_now()).arg(holders);
        command
    }

    /// The time for the scripts: 0 stands for Redis' clock.
    fn manual_now(&self) -> u64 {
        self.clock.manual_now().map_or(0, StoreTime::as_unix_ms)
    }

    /// Calls a script within [`TIMEOUT`].
    async fn call<T: FromRedisValue>(
        &mut self,
        command: impl Fn(&Self, ScriptRef) -> Cmd,
    ) -> Result<T, RedisFailure> {
        let clock = self.clock.clone();
        let calling = async {
            let connection = self.connected().await?;
            let reply = Script::invoke(
                |by| command(self, by),
                |command| {
                    let mut connection = connection.clone();
                    async move { command.query_async(&mut connection).await }
                },
            );
            reply.await.map_err(|error: RedisError| self.connector.classify_error(&error))
        };
        let outcome = clock.timeout(TIMEOUT, calling).await;
        let outcome = outcome.unwrap_or(Err(RedisFailure::Timeout));
        if outcome.as_ref().is_err_and(|failure| *failure != RedisFailure::Server) {
            self.connection = None;
        }
        outcome
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
        let outcome = self.call(|store, by| store.command(call, by)).await.and_then(parse);
        if outcome.as_ref().is_err_and(|failure| *failure == RedisFailure::Reply) {
            self.connection = None;
        }
        outcome
    }

    async fn claim(&mut self, length: Millis, holders: &[u64]) -> Result<Vec<Seat>, RedisFailure> {
        let seats: Vec<u8> = self.call(|store, by| store.seat_command(length, holders, by)).await?;
        let seats: Option<Vec<Seat>> = seats.into_iter().map(parse_seat).collect();
        seats.filter(|seats| seats.len() == holders.len()).ok_or(RedisFailure::Reply)
    }
}

/// The answer to one user.
fn parse_seat(number: u8) -> Option<Seat> {
    [Seat::None, Seat::Taken, Seat::Kept].get(usize::from(number)).copied()
}

/// The reply of the script.
fn parse(reply: ScriptReply) -> Result<RoomReply, RedisFailure> {
    let (frontier, base, demanded_at, calm_at, now, gateways, turns, pending, profile) = reply;
    let numbers = [frontier, base, demanded_at, calm_at, now, gateways, turns, pending];
    let profile = parse_profile(&profile).filter(|_| numbers.into_iter().all(is_number));
    let profile = profile.ok_or(RedisFailure::Reply)?;
    Ok(RoomReply {
        frontier: QueueTime::from_micros(frontier),
        base: UnixSecond::from_secs(base),
        demanded_at: StoreTime::from_unix_ms(demanded_at),
        calm_at: StoreTime::from_unix_ms(calm_at),
        now: StoreTime::from_unix_ms(now),
        gateways,
        turns,
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
        let second = UnixSecond::from_secs(number(second)?);
        Some(ProfilePoint { second, tickets: number(tickets)? })
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
        let point = |second, tickets| {
            let second = UnixSecond::from_secs(second);
            ProfilePoint { second, tickets }
        };
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
            let [frontier, base, demanded_at, calm_at, now, gateways, turns, pending] = numbers;
            let reply =
                (frontier, base, demanded_at, calm_at, now, gateways, turns, pending, profile);
            let Ok(reply) = parse(reply) else { return Ok(()) };
            prop_assert!(numbers.into_iter().all(is_number));
            for point in reply.profile {
                prop_assert!(is_number(point.second.as_secs()) && is_number(point.tickets));
            }
        }
    }
}
