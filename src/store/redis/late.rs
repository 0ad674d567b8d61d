//! Replies that come after their calls were given up.

use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::RedisError;

use super::{Failure, script};
use crate::limit::{Fetch, Grant, Limit, Millis, Verdict};

/// How long the reply of a call that was given up is awaited.
pub(in crate::store) const LATE: Duration = Duration::from_mins(1);

/// A reply on its way.
pub(super) type Reply = BoxFuture<'static, Result<Vec<i64>, RedisError>>;

/// No decision.
pub(in crate::store) struct Unanswered {
    pub(in crate::store) failure: Failure,
    /// The reply, where it may still come.
    pub(in crate::store) late: Option<LateReply>,
}

/// The reply of a call that was given up: its connection lives until it comes.
pub(in crate::store) struct LateReply(pub(super) Reply);

impl LateReply {
    /// The verdict, if it comes and is one.
    pub(in crate::store) async fn verdict<'a>(
        self,
        limits: impl ExactSizeIterator<Item = &'a Limit>,
    ) -> Option<Verdict> {
        script::verdict(limits, &self.0.await.ok()?)
    }

    /// What a fetch was granted, and the server's time of it, if that comes.
    pub(in crate::store) async fn granted(self, fetch: &Fetch<'_>) -> Option<(Grant, Millis)> {
        script::granted(fetch, &self.0.await.ok()?)
    }
}
