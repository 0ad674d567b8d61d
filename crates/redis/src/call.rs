//! One call of a script over one connection.

use ::redis::{Cmd, FromRedisValue, RedisError, aio::MultiplexedConnection};

use super::{
    RedisFailure,
    connect::is_redirect,
    error_code,
    script_call::{Script, ScriptRef},
};

/// A failed attempt at a call.
pub(super) struct AttemptError {
    pub(super) failure: RedisFailure,
    /// True if the breaker opens, because the server counts as down.
    pub(super) trips_breaker: bool,
    /// The code of the server's error reply, if that trips the breaker.
    pub(super) code: Option<String>,
}

impl From<RedisFailure> for AttemptError {
    fn from(failure: RedisFailure) -> Self {
        Self { failure, trips_breaker: true, code: None }
    }
}

impl From<RedisError> for AttemptError {
    fn from(error: RedisError) -> Self {
        // A slot in migration is not a failure of the server.
        let trips_breaker = !is_redirect(&error) && error.code() != Some("TRYAGAIN");
        let failure = RedisFailure::classify(&error);
        let code = error_code(&error).filter(|_| trips_breaker && failure == RedisFailure::Server);
        Self { failure, trips_breaker, code }
    }
}

/// A Cluster's redirect of a call to another server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ClusterRedirect {
    /// The slot has moved.
    Moved,
    /// The slot is being migrated: the other server takes the call only after `ASKING`.
    Ask,
}

/// Calls a script.
///
/// # Errors
///
/// The server's error reply, or the connection's failure.
pub(super) async fn run<T: FromRedisValue>(
    connection: &MultiplexedConnection,
    command: impl Fn(ScriptRef) -> Cmd,
    redirect: Option<ClusterRedirect>,
) -> Result<T, RedisError> {
    let send = |command| {
        let mut connection = connection.clone();
        async move { send(&mut connection, &command, redirect).await }
    };
    Script::invoke(command, send).await
}

/// Sends one command.
///
/// # Errors
///
/// The server's error reply, or the connection's failure.
pub(super) async fn send<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    redirect: Option<ClusterRedirect>,
) -> Result<T, RedisError> {
    if redirect != Some(ClusterRedirect::Ask) {
        return command.query_async(connection).await;
    }
    let mut pipeline = ::redis::pipe();
    pipeline.cmd("ASKING").ignore().add_command(command.clone());
    let (reply,) = pipeline.query_async(connection).await?;
    Ok(reply)
}
