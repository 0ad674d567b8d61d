//! One call of a script over one connection.

use redis::{Cmd, FromRedisValue, RedisError, aio::MultiplexedConnection};

use super::script::By;

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
