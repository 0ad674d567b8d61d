//! [`DraftResponse`]: a response before the gateway has added the fields that every response has.

use http::StatusCode;
use tidegate_http1::{Fields, RequestHead, ResponseHead, Version, upgrade::requested_protocol};
use tidegate_rules::respond::{GRPC_HTTP_STATUS, LocalReply};
use tidegate_upstream::{ResponseBody, UpstreamContent};

/// A response without the fields that every response has.
pub(super) enum DraftResponse {
    /// Made by the gateway.
    Local(LocalReply),
    /// Made by the gateway for a gRPC client, which reads a refusal's status in a header field.
    GrpcRefusal(LocalReply),
    /// Made by the gateway while it is sent, with status 200.
    Streamed(Fields, ResponseBody),
    /// The upstream's.
    Upstream(ResponseHead, UpstreamContent),
}

impl DraftResponse {
    /// The status to log and to count. For a gRPC refusal, the HTTP status of its error.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Local(reply) | Self::GrpcRefusal(reply) => reply.status,
            Self::Streamed(..) => StatusCode::OK,
            Self::Upstream(head, _) => {
                StatusCode::from_u16(head.status).unwrap_or(StatusCode::BAD_GATEWAY)
            }
        }
    }

    /// The status to send.
    pub(super) fn sent_status(&self) -> StatusCode {
        match self {
            Self::GrpcRefusal(_) => GRPC_HTTP_STATUS,
            Self::Local(_) | Self::Streamed(..) | Self::Upstream(..) => self.status(),
        }
    }

    /// True if an HTTP/2 client would mistake the response for an accepted tunnel: any 2xx answer
    /// to CONNECT opens one.
    pub(super) fn is_mistaken_for_tunnel(&self, head: &RequestHead) -> bool {
        let begins_tunnel = matches!(self, Self::Upstream(_, UpstreamContent::Tunnel(_)));
        self.status().is_success() && !begins_tunnel && is_extended_connect(head)
    }

    /// The upstream's header fields; `None` if the gateway made the response.
    pub(super) fn upstream_fields(&self) -> Option<&Fields> {
        match self {
            Self::Local(_) | Self::GrpcRefusal(_) | Self::Streamed(..) => None,
            Self::Upstream(head, _) => Some(&head.fields),
        }
    }
}

/// True for an HTTP/2 extended CONNECT (RFC 8441).
pub(super) fn is_extended_connect(head: &RequestHead) -> bool {
    head.version == Version::Http2 && requested_protocol(head).is_some()
}
