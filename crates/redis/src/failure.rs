//! [`RedisFailure`]: the reason why a call to Redis gave no decision.

/// The reason why Redis gave no decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RedisFailure {
    /// The breaker was open, or there was no connection: nothing was sent. Its label is `open`.
    Unsent,
    /// No reply in time. The call may have been executed or may still be, so it is not repeated.
    Timeout,
    /// The connection could not be made, or broke.
    Io,
    /// Redis replied with an error: read-only, loading, out of memory, not authorized, ...
    Server,
    /// The reply does not have the script's format.
    Reply,
}

impl RedisFailure {
    /// All variants, in the order of [`RedisFailure::index`].
    pub const ALL: [Self; 5] = [Self::Unsent, Self::Timeout, Self::Io, Self::Server, Self::Reply];

    /// The name in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unsent => "open",
            Self::Timeout => "timeout",
            Self::Io => "io",
            Self::Server => "server",
            Self::Reply => "reply",
        }
    }

    /// The position in [`RedisFailure::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Classifies an error of the `redis` crate.
    pub(super) fn classify(error: &::redis::RedisError) -> Self {
        // The error's text is not logged, because it may repeat arguments.
        let code = error_code(error);
        tracing::debug!(kind = ?error.kind(), code, "a Redis command failed");
        if error.is_timeout() {
            Self::Timeout
        } else if error.is_io_error() || error.is_connection_dropped() {
            Self::Io
        } else if matches!(
            error.kind(),
            ::redis::ErrorKind::Parse | ::redis::ErrorKind::UnexpectedReturnType
        ) {
            Self::Reply
        } else {
            Self::Server
        }
    }
}

/// The code of a server's error reply, its first word. For a pipeline, the code of the first error.
pub(super) fn error_code(error: &::redis::RedisError) -> Option<String> {
    let errors = error.clone().into_server_errors()?;
    errors.first().map(|(_, error)| error.code().to_owned())
}
