//! [`ResponseHeader`]: the header fields of a response, before a connection writes them.

use tidegate_http1::{Fields, ResponseHead};
use tidegate_rules::respond::SuppressedHeaders;

/// The header fields of a response. They stay with the request, because responses are moved many
/// times.
#[derive(Default)]
pub(super) struct ResponseHeader {
    /// The upstream's head, if an upstream answered.
    pub(super) upstream: Option<ResponseHead>,
    /// The gateway's own header fields.
    pub(super) own: Fields,
    /// The upstream's header fields that are removed, because `own` replaces them.
    pub(super) suppressed: SuppressedHeaders,
}
