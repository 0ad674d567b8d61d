//! [`AccessField`]: the fields of an access line.

use serde::{Deserialize, Serialize};

/// A field of an access line.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AccessField {
    /// When the request began.
    Time,
    /// The client's address.
    Client,
    /// The method.
    Method,
    /// The requested host.
    Host,
    /// The normalized path, without query.
    Path,
    /// The protocol and its version.
    Protocol,
    /// The response's status.
    Status,
    /// The route's name.
    Route,
    /// The decision of the limits.
    Limit,
    /// The limit that refused the request.
    RefusedBy,
    /// The keyed hash of the access token.
    Token,
    /// The name of the consumer.
    Consumer,
    /// Bytes of the response's body.
    Bytes,
    /// Bytes that the client sent through a tunnel.
    Received,
    /// What limits with a variable cost have charged.
    Cost,
    /// Time to the last byte of the response.
    DurationMs,
    /// Delay by a leaky bucket.
    DelayMs,
    /// The server of the last attempt.
    Upstream,
    /// Time to the head of the upstream's response.
    UpstreamMs,
    /// Attempts at upstream servers.
    Attempts,
    /// The request's priority at an upstream with bounds, from 0 to 9.
    Priority,
    /// Why the request or its response ended early.
    Cut,
    /// True if the response was sent completely.
    Complete,
    /// The request's id.
    RequestId,
    /// The id of the request's trace, if it is sampled.
    TraceId,
    /// The request's `Referer`, without query.
    Referer,
    /// The request's `User-Agent`.
    UserAgent,
}

impl AccessField {
    /// The default fields of JSON lines, in their order.
    pub const JSON: [Self; 25] = [
        Self::Time,
        Self::Client,
        Self::Method,
        Self::Host,
        Self::Path,
        Self::Protocol,
        Self::Status,
        Self::Route,
        Self::Limit,
        Self::RefusedBy,
        Self::Token,
        Self::Consumer,
        Self::Bytes,
        Self::Received,
        Self::Cost,
        Self::DurationMs,
        Self::DelayMs,
        Self::Upstream,
        Self::UpstreamMs,
        Self::Attempts,
        Self::Priority,
        Self::Cut,
        Self::Complete,
        Self::RequestId,
        Self::TraceId,
    ];

    /// The default fields of text lines, in their order.
    pub const TEXT: [Self; 17] = [
        Self::Time,
        Self::Status,
        Self::Method,
        Self::Host,
        Self::Path,
        Self::Client,
        Self::DurationMs,
        Self::Bytes,
        Self::Route,
        Self::Limit,
        Self::RefusedBy,
        Self::Cost,
        Self::Upstream,
        Self::UpstreamMs,
        Self::DelayMs,
        Self::Cut,
        Self::RequestId,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Client => "client",
            Self::Method => "method",
            Self::Host => "host",
            Self::Path => "path",
            Self::Protocol => "protocol",
            Self::Status => "status",
            Self::Route => "route",
            Self::Limit => "limit",
            Self::RefusedBy => "refused_by",
            Self::Token => "token",
            Self::Consumer => "consumer",
            Self::Bytes => "bytes",
            Self::Received => "received",
            Self::Cost => "cost",
            Self::DurationMs => "duration_ms",
            Self::DelayMs => "delay_ms",
            Self::Upstream => "upstream",
            Self::UpstreamMs => "upstream_ms",
            Self::Attempts => "attempts",
            Self::Priority => "priority",
            Self::Cut => "cut",
            Self::Complete => "complete",
            Self::RequestId => "request_id",
            Self::TraceId => "trace_id",
            Self::Referer => "referer",
            Self::UserAgent => "user_agent",
        }
    }
}
