//! Replies that arrive after their calls have timed out.

use std::time::Duration;

use ::redis::RedisError;
use futures_util::future::BoxFuture;
use tidegate_base::time::StoreTime;
use tidegate_charge::{Acquisition, Limit, Verdict};
use tidegate_limit::Grant;

use super::{RedisFailure, script};

/// Maximum time to wait for the reply of a timed-out call.
pub const LATE_REPLY_TIMEOUT: Duration = Duration::from_mins(1);

/// A pending reply.
pub(super) type ReplyFuture = BoxFuture<'static, Result<Vec<i64>, RedisError>>;

/// A call that gave no decision.
pub struct CallError {
    /// Why there is no decision.
    pub failure: RedisFailure,
    /// The pending reply, if it may still arrive.
    pub late: Option<LateReply>,
}

/// The reply of a timed-out call. It keeps its connection open until the reply arrives.
pub struct LateReply(pub(super) ReplyFuture);

impl LateReply {
    /// The verdict; `None` if the connection fails or the reply is malformed.
    pub async fn verdict<'a>(
        self,
        limits: impl ExactSizeIterator<Item = &'a Limit>,
    ) -> Option<Verdict> {
        script::parse_verdict(limits, &self.0.await.ok()?)
    }

    /// The grant, and its time by the server's clock; `None` as in [`Self::verdict`].
    pub async fn grant(self, acquisition: &Acquisition<'_>) -> Option<(Grant, StoreTime)> {
        script::parse_grant(acquisition, &self.0.await.ok()?)
    }
}
