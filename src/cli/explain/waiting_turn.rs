//! What the waiting room does with a request.

use std::borrow::Cow;

use serde::Serialize;

use crate::identity::{Caller, Consumer};
use crate::plan::{NextStep, RequestRefusal};
use crate::snapshot::Snapshot;

/// What becomes of a request in the waiting room while the throttle does not admit its user.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(tag = "turn", rename_all = "snake_case")]
pub(super) enum WaitingTurn {
    /// The user gets a ticket and waits. Its place depends on the users that wait now.
    Waits {
        /// By how much earlier than it arrives the user joins the queue, in seconds.
        head_start: u64,
    },
    /// The request has no token that could become active, so it is refused without a place.
    NoToken,
}

impl WaitingTurn {
    /// What becomes of a request that the throttle applies to; `None` without a waiting room.
    /// `consumer` is the request's, on a route with `auth`.
    pub(super) fn of(
        snapshot: &Snapshot,
        next: &NextStep,
        consumer: Option<Consumer<'_>>,
    ) -> Option<Self> {
        let settings = snapshot.throttle.as_ref()?.waiting_room?;
        let caller = match next {
            NextStep::Proceed(pending) => pending.caller.as_ref(),
            NextStep::Refuse(RequestRefusal { caller, .. }) => caller.as_ref(),
            NextStep::Answer(_) | NextStep::ReadCheck(_) => None,
        };
        if consumer.is_none() && !matches!(caller, Some(Caller::Tokens(_))) {
            return Some(Self::NoToken);
        }
        let plan = consumer.and_then(|consumer| consumer.plan);
        let head_start = settings.length_of(snapshot.head_start(plan)).as_whole_secs();
        Some(Self::Waits { head_start })
    }

    /// A sentence for the operator.
    pub(super) fn text(self) -> Cow<'static, str> {
        match self {
            Self::Waits { head_start: 0 } => {
                "a user that is not active gets a ticket and waits; its place is not known here"
                    .into()
            }
            Self::Waits { head_start } => format!(
                "a user that is not active gets a ticket and waits, with a head start of {head_start} s; its place is not known here"
            )
            .into(),
            Self::NoToken => {
                "the request has no token: it gets no ticket, and is refused while throttling"
                    .into()
            }
        }
    }
}
