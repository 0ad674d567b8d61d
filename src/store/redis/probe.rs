//! Whether Redis can be used over a new connection: it takes a write, and has the scripts.

use std::time::Duration;

use redis::{RedisResult, Value, aio::MultiplexedConnection};
use tokio::time;

use super::{
    Failure, RedisOptions,
    client::{ConnectError, is_elsewhere},
    script::Scripts,
};

/// How long what was written stays, in ms.
const LIFETIME: u64 = 1_000;

/// Writes `key`, within the response timeout, and loads the scripts that Redis does not know: they are
/// long, so that may take as long as a connection.
pub(super) async fn probe(
    connection: &mut MultiplexedConnection,
    key: &str,
    options: &RedisOptions,
) -> Result<(), ConnectError> {
    let mut asking = redis::pipe();
    asking.ignore_errors().add_command(Scripts::exist());
    asking.cmd("SET").arg(key).arg(1).arg("PX").arg(LIFETIME);
    let asking = asking.query_async::<(RedisResult<Vec<bool>>, RedisResult<Value>)>(connection);
    let (known, written) = within(options.response_timeout, asking).await?;
    match written {
        // A Cluster's node that serves other slots, or none, says so, and is well.
        Err(error) if !is_elsewhere(&error) => return Err(ConnectError::by(&error)),
        _ => {}
    }
    // Who may not ask which are known is sent all.
    let loads = Scripts::load(&known.unwrap_or_default());
    if loads.is_empty() {
        return Ok(());
    }
    within(unhurried(options), loads.exec_async(connection)).await
}

/// How long what no request waits for may take: the loading of all scripts, and the answer to a ping.
pub(super) fn unhurried(options: &RedisOptions) -> Duration {
    options.connect_timeout.max(options.response_timeout)
}

async fn within<T>(
    patience: Duration,
    asking: impl Future<Output = RedisResult<T>>,
) -> Result<T, ConnectError> {
    match time::timeout(patience, asking).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(ConnectError::by(&error)),
        Err(_) => Err(Failure::Timeout.into()),
    }
}
