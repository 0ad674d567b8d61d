//! Counters in Redis: one script call a request, and what happens when there is no answer.

mod link;
mod presence;
mod script;

use std::{sync::Arc, time::Duration};

use redis::aio::MultiplexedConnection;

pub use self::link::Connector;
pub(super) use self::presence::{Presence, Reporter};
use self::{
    link::{Fleet, Link, Live},
    script::{By, Scripts},
};
use crate::{
    clock::Clock,
    limit::{Charge, Key, Limit, Millis, Settlement, Verdict},
};

/// Which Redis, and how long it may take.
#[derive(Clone)]
pub struct RedisOptions {
    /// `redis://[user:password@]host[:port][/db]` or `unix:///path`. Holds a secret: never logged.
    pub url: Box<str>,
    /// What every key in Redis begins with.
    pub namespace: Box<str>,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long a request may wait for its decision.
    pub response_timeout: Duration,
}

impl std::fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { url: _, namespace, connect_timeout, response_timeout } = self;
        f.debug_struct("RedisOptions")
            .field("namespace", namespace)
            .field("connect_timeout", connect_timeout)
            .field("response_timeout", response_timeout)
            .finish_non_exhaustive()
    }
}

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
        tracing::debug!(kind = ?error.kind(), code = error.code(), "Redis answered with an error");
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

/// What all workers have in common.
pub(super) struct Shared {
    options: Arc<RedisOptions>,
    connector: Connector,
    scripts: Scripts,
    fleet: Arc<Fleet>,
}

impl Shared {
    /// Reads the options; connects nothing yet.
    pub(super) fn new(options: RedisOptions) -> Result<Self, redis::RedisError> {
        let options = Arc::new(options);
        Ok(Self {
            connector: Connector::new(Arc::clone(&options))?,
            scripts: Scripts::new(&options.namespace),
            fleet: Arc::default(),
            options,
        })
    }

    /// Opens connections beside those of workers.
    pub(super) fn connector(&self) -> Connector {
        self.connector.clone()
    }

    /// Workers that use this Redis, and those among them that have lost it.
    pub(super) fn workers(&self) -> (usize, usize) {
        (self.fleet.workers(), self.fleet.lost())
    }

    /// What these limits say, over a connection of its own: for whoever asks seldom, and on no request's
    /// way. `now` is 0 for the server's clock.
    pub(super) async fn look(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
    ) -> Result<Verdict, Failure> {
        let mut connection = self.connector.connect().await?;
        let command = |by| self.scripts.look(by, charges, now);
        let looking = run(&mut connection, command, charges.iter().map(|charge| charge.limit));
        let limit = self.options.response_timeout;
        tokio::time::timeout(limit, looking).await.unwrap_or(Err(Failure::Timeout))
    }

    /// Forgets what these limits remember of a caller, over a connection of its own.
    pub(super) async fn reset(&self, limits: &[&Limit], key: Key) -> Result<(), Failure> {
        let mut connection = self.connector.connect().await?;
        let command = self.scripts.reset(limits, key);
        let resetting = command.exec_async(&mut connection);
        match tokio::time::timeout(self.options.response_timeout, resetting).await {
            Ok(reset) => reset.map_err(|error| Failure::of(&error)),
            Err(_) => Err(Failure::Timeout),
        }
    }

    /// The longest that the first report of presence can take.
    pub(super) fn patience(&self) -> Duration {
        self.options.connect_timeout + self.options.response_timeout
    }
}

/// One worker's way to Redis.
pub(super) struct Worker {
    shared: Arc<Shared>,
    link: Link,
    clock: Clock,
}

impl Worker {
    /// Starts connecting in the background of the current runtime.
    pub(super) fn new(shared: Arc<Shared>, clock: Clock) -> Self {
        let link = Link::new(shared.connector.clone(), Arc::clone(&shared.fleet));
        Self { shared, link, clock }
    }

    /// Whether a call would be made: not with an open breaker.
    pub(super) fn is_live(&self) -> bool {
        !self.link.is_open()
    }

    /// One script call for all charges. Waits no longer than the response timeout, whatever happens;
    /// with an open breaker, not at all.
    pub(super) async fn charge(&self, charges: &[Charge<'_>]) -> Result<Verdict, Failure> {
        let command = |by, now| self.shared.scripts.charge(by, charges, now);
        self.call(command, charges.iter().map(|charge| charge.limit)).await
    }

    /// One script call that charges nothing, under the same rules.
    pub(super) async fn look(&self, charges: &[Charge<'_>]) -> Result<Verdict, Failure> {
        let command = |by, now| self.shared.scripts.look(by, charges, now);
        self.call(command, charges.iter().map(|charge| charge.limit)).await
    }

    /// One script call for all corrections, under the same rules. One that gave no answer may have been
    /// made, and is not repeated.
    pub(super) async fn settle(&self, settlements: &[Settlement<'_>]) -> Result<Verdict, Failure> {
        let command = |by, now| self.shared.scripts.settle(by, settlements, now);
        self.call(command, settlements.iter().map(|settlement| settlement.limit)).await
    }

    /// One call of a script on records of these `limits`; `command` makes it for a time to decide at.
    async fn call<'l>(
        &self,
        command: impl Fn(By, Millis) -> redis::Cmd,
        limits: impl ExactSizeIterator<Item = &'l Limit>,
    ) -> Result<Verdict, Failure> {
        if self.link.is_open() {
            return Err(Failure::Open);
        }
        let mut asked = None;
        let asking = self.ask(command, limits, &mut asked);
        let limit = self.shared.options.response_timeout;
        let outcome = tokio::time::timeout(limit, asking).await.unwrap_or(Err(Failure::Timeout));
        if let (Err(failure), Some(live)) = (&outcome, &asked) {
            self.link.trip(live, *failure);
        }
        outcome
    }

    async fn ask<'l>(
        &self,
        command: impl Fn(By, Millis) -> redis::Cmd,
        limits: impl ExactSizeIterator<Item = &'l Limit>,
        asked: &mut Option<Live>,
    ) -> Result<Verdict, Failure> {
        let live = asked.insert(self.link.live().await?);
        let now = self.clock.manual_now().unwrap_or(0);
        run(&mut live.connection, |by| command(by, now), limits).await
    }
}

/// Runs a script on records of these `limits`.
async fn run<'l>(
    connection: &mut MultiplexedConnection,
    command: impl Fn(By) -> redis::Cmd,
    limits: impl ExactSizeIterator<Item = &'l Limit>,
) -> Result<Verdict, Failure> {
    let mut answer: Result<Vec<i64>, _> = command(By::Name).query_async(connection).await;
    if answer.as_ref().is_err_and(is_unknown_script) {
        // Redis forgot the script, so it ran nothing: asking again cannot charge twice.
        answer = command(By::Text).query_async(connection).await;
    }
    let reply = answer.map_err(|error| Failure::of(&error))?;
    script::verdict(limits, &reply).ok_or(Failure::Reply)
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}
