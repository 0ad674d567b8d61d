//! Counters in Redis: one script call a request, and what happens when there is no answer.
//!
//! A [`Place`] is what one call can reach: a shard, a Cluster's slot, or the only server. [`Shared`] has
//! the servers, a [`node::Node`] each, and the [`keeper`] of each decides whether it can be used; a
//! [`Worker`] has a connection and a [`breaker`] for each of them.

mod background;
mod breaker;
mod call;
mod client;
mod cluster;
mod heartbeat;
mod keeper;
mod keys;
mod late;
mod node;
mod options;
mod place;
mod presence;
mod probe;
mod script;
mod sentinel;
mod sentinel_watch;
mod shared;
mod worker;

pub(crate) use self::node::NodeConnection;
pub(super) use self::{
    late::{LATE, LateReply, Unanswered},
    place::Place,
    presence::{Presence, Reporter},
    shared::Shared,
    worker::Worker,
};
pub use self::{
    options::{Credentials, RedisOptions, Shard, Topology},
    shared::{Connector, ShardStatus},
};

/// Why Redis gave no decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// The breaker was open: Redis was not asked.
    Open,
    /// No answer in time. The charge may have been made, or still be: it is not repeated.
    Timeout,
    /// The connection could not be made, or broke.
    Io,
    /// Redis answered with an error: read-only, loading, out of memory, not authorized, ...
    Server,
    /// The answer was not one of the script's.
    Reply,
}

impl Failure {
    /// All of them, in the order of [`Failure::index`].
    pub const ALL: [Self; 5] = [Self::Open, Self::Timeout, Self::Io, Self::Server, Self::Reply];

    /// The name that metrics and logs call it by.
    pub fn label(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Timeout => "timeout",
            Self::Io => "io",
            Self::Server => "server",
            Self::Reply => "reply",
        }
    }

    /// Its place in [`Failure::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// What kind of failure an error of the `redis` crate is.
    pub(crate) fn of(error: &redis::RedisError) -> Self {
        // Its text is not told: it may repeat what was sent.
        tracing::debug!(kind = ?error.kind(), code = code(error), "Redis answered with an error");
        if error.is_timeout() {
            Self::Timeout
        } else if error.is_io_error() || error.is_connection_dropped() {
            Self::Io
        } else if matches!(
            error.kind(),
            redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType
        ) {
            Self::Reply
        } else {
            Self::Server
        }
    }
}

/// The first word of an error, which is the server's own; of several commands', the first error's.
fn code(error: &redis::RedisError) -> Option<String> {
    let errors = error.clone().into_server_errors()?;
    errors.first().map(|(_, error)| error.code().to_owned())
}
