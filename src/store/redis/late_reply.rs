//! Replies that come after their calls have timed out.

use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::RedisError;

use super::{Failure, script};
use crate::limit::{Acquisition, Grant, Limit, Millis, Verdict};

/// How long the reply of a timed-out call is awaited.
pub(in crate::store) const LATE_REPLY_TIMEOUT: Duration = Duration::from_mins(1);

/// A pending reply.
pub(super) type ReplyFuture = BoxFuture<'static, Result<Vec<i64>, RedisError>>;

/// Why a call gave no decision.
pub(in crate::store) struct CallError {
    pub(in crate::store) failure: Failure,
    /// The pending reply, if one may still come.
    pub(in crate::store) late: Option<LateReply>,
}

/// The reply of a timed-out call. It keeps its connection open until the reply comes.
pub(in crate::store) struct LateReply(pub(super) ReplyFuture);

impl LateReply {
    /// The verdict; `None` if the connection fails or the reply is malformed.
    pub(in crate::store) async fn verdict<'a>(
        self,
        limits: impl ExactSizeIterator<Item = &'a Limit>,
    ) -> Option<Verdict> {
        script::parse_verdict(limits, &self.0.await.ok()?)
    }

    /// The grant, and the time of it by the server's clock, in ms; `None` as in [`Self::verdict`].
    pub(in crate::store) async fn grant(
        self,
        acquisition: &Acquisition<'_>,
    ) -> Option<(Grant, Millis)> {
        script::parse_grant(acquisition, &self.0.await.ok()?)
    }
}
