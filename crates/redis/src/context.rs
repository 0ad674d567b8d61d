//! The state that all parts of the Redis store share: options, clock and background thread.

use std::time::Duration;

use tidegate_system::clock::Clock;

use super::{RedisOptions, RedisSetupError, background::BackgroundThread};

/// Made once for each process. Every wait uses its clock, including waits for a server's reply.
pub(super) struct RedisContext {
    pub(super) options: RedisOptions,
    pub(super) clock: Clock,
    pub(super) background: BackgroundThread,
}

impl RedisContext {
    /// Starts the background thread.
    ///
    /// # Errors
    ///
    /// [`RedisSetupError::Thread`].
    pub(super) fn new(options: RedisOptions, clock: Clock) -> Result<Self, RedisSetupError> {
        Ok(Self { options, clock, background: BackgroundThread::start()? })
    }

    /// Timeout of commands that no request waits for: loading scripts, and PING.
    pub(super) fn background_timeout(&self) -> Duration {
        self.options.connect_timeout.max(self.options.response_timeout)
    }
}
