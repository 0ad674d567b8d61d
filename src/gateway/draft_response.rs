//! [`DraftResponse`]: a response before the gateway has added the fields that every response has.

use http::StatusCode;

use crate::{
    framing::{Fields, ResponseHead},
    respond::LocalReply,
    upstream::ResponseBody,
};

/// A response without the fields that every response has.
#[expect(clippy::large_enum_variant, reason = "one for each request; a box would be an allocation")]
pub(super) enum DraftResponse {
    /// Made by the gateway.
    Local(LocalReply),
    /// The upstream's.
    Upstream(ResponseHead, ResponseBody),
}

impl DraftResponse {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Local(reply) => reply.status,
            Self::Upstream(head, _) => {
                StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY)
            }
        }
    }

    /// The upstream's header fields; `None` if the gateway made the response.
    pub(super) fn upstream_fields(&self) -> Option<&Fields> {
        match self {
            Self::Local(_) => None,
            Self::Upstream(head, _) => Some(&head.fields),
        }
    }
}
