//! One call of a script over one connection.

use redis::{Cmd, FromRedisValue, RedisError, aio::MultiplexedConnection};

use super::{Failure, client::is_elsewhere, code, script::By};

/// Why a call gave nothing.
pub(super) struct Miss {
    pub(super) failure: Failure,
    /// Whether the server that was asked counts as lost.
    pub(super) trips: bool,
    /// What the server said, where it refused the call.
    pub(super) why: Option<String>,
}

impl From<Failure> for Miss {
    fn from(failure: Failure) -> Self {
        Self { failure, trips: true, why: None }
    }
}

impl From<RedisError> for Miss {
    fn from(error: RedisError) -> Self {
        // A slot is on its way: that is no fault of the node.
        let trips = !is_elsewhere(&error) && error.code() != Some("TRYAGAIN");
        let failure = Failure::of(&error);
        let why = code(&error).filter(|_| trips && failure == Failure::Server);
        Self { failure, trips, why }
    }
}

/// Runs a script; `asking` says first that a Cluster's other node sent it here.
pub(super) async fn run<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: impl Fn(By) -> Cmd,
    asking: bool,
) -> Result<T, RedisError> {
    let answer: Result<T, _> = once(connection, &command(By::Name), asking).await;
    if answer.as_ref().is_err_and(is_forgotten) {
        return once(connection, &command(By::Text), asking).await;
    }
    answer
}

/// Whether Redis forgot the script. Then it ran nothing: asking again cannot charge twice.
pub(super) fn is_forgotten(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Sends one command.
pub(super) async fn once<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    asking: bool,
) -> Result<T, RedisError> {
    if !asking {
        return command.query_async(connection).await;
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(command.clone());
    let (reply,) = both.query_async(connection).await?;
    Ok(reply)
}
