//! An answer before the gateway has added what every answer has.

use http::StatusCode;

use crate::{
    framing::{AnswerHead, Fields},
    respond::Reply,
    upstream::AnswerStream,
};

/// An answer before the gateway has added what every answer has.
#[expect(clippy::large_enum_variant, reason = "there is one a request, and a box is an allocation")]
pub(super) enum Draft {
    /// Made here.
    Reply(Reply),
    /// The upstream's.
    Upstream(AnswerHead, AnswerStream),
}

impl Draft {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Reply(reply) => reply.status,
            Self::Upstream(head, _) => {
                StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY)
            }
        }
    }

    /// The upstream's header fields, where one answered.
    pub(super) fn upstream_fields(&self) -> Option<&Fields> {
        match self {
            Self::Reply(_) => None,
            Self::Upstream(head, _) => Some(&head.fields),
        }
    }
}
