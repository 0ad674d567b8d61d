//! The probe over a new connection: it writes a key and loads missing scripts.

use std::time::Duration;

use ::redis::{RedisResult, Value, aio::MultiplexedConnection};
use tidegate_base::time::Millis;
use tidegate_system::clock::Clock;

use super::{
    RedisFailure,
    connect::{ConnectError, is_redirect},
    context::RedisContext,
    script::Scripts,
};

/// Expiry of the written key.
const PROBE_KEY_TTL: Millis = Millis::from_secs(1);

/// Writes `key` within the response timeout, and loads the scripts that Redis has not cached. They
/// are long, so loading may take as long as connecting.
///
/// # Errors
///
/// The connection's failure, a timeout, or an error reply to the write or to a script.
pub(super) async fn probe(
    connection: &mut MultiplexedConnection,
    key: &str,
    context: &RedisContext,
) -> Result<(), ConnectError> {
    let mut checks = ::redis::pipe();
    checks.ignore_errors().add_command(Scripts::exists_command());
    checks.cmd("SET").arg(key).arg(1).arg("PX").arg(PROBE_KEY_TTL.as_ms());
    let checks = checks.query_async::<(RedisResult<Vec<bool>>, RedisResult<Value>)>(connection);
    let timeout = context.options.response_timeout;
    let (loaded, written) = with_timeout(&context.clock, timeout, checks).await?;
    match written {
        // A healthy server of a Cluster redirects the write if it does not serve the slot.
        Err(error) if !is_redirect(&error) => return Err(ConnectError::from(&error)),
        _ => {}
    }
    // A user without permission for SCRIPT EXISTS gets an error; load all scripts then.
    let loads = Scripts::load_commands(&loaded.unwrap_or_default());
    if loads.is_empty() {
        return Ok(());
    }
    with_timeout(&context.clock, context.background_timeout(), loads.exec_async(connection)).await
}

async fn with_timeout<T>(
    clock: &Clock,
    timeout: Duration,
    reply: impl Future<Output = RedisResult<T>>,
) -> Result<T, ConnectError> {
    match clock.timeout(timeout, reply).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(ConnectError::from(&error)),
        Err(_) => Err(RedisFailure::Timeout.into()),
    }
}
