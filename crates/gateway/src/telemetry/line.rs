//! An access line: its fields (`field`) and its formats: `json`, `text` and `combined`. `layout`
//! chooses the format once for a log; lines are written directly into a buffer.

mod combined;
mod json;
mod layout;
mod text;
mod time;
mod values;

use std::{net::IpAddr, time::Duration};
pub use tidegate_vocabulary::AccessField;

pub(super) use self::layout::LineFormatter;
pub use self::layout::{AccessFormat, AccessLayout};
use tidegate_base::{priority::Priority, time::StoreTime};

use self::time::TimeCache;

/// Why a request or its response ended before it was complete.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CutReason {
    /// The client closed the connection before its response was complete.
    ClientClosed,
    /// The client stopped reading or sending.
    ClientTimeout,
    /// The client read too slowly to keep its place at the upstream: below `min_rate`, or beyond
    /// its share of places.
    ClientSlow,
    /// The response was truncated or malformed after its head.
    UpstreamBroken,
    /// The response's body paused for longer than `response_idle_timeout`.
    UpstreamIdle,
    /// The response took longer than `response_body_timeout`.
    ResponseBodyTimeout,
    /// A tunnel carried no byte for longer than `tunnel_idle_timeout`.
    TunnelIdle,
    /// The gateway was stopped, and `drain_timeout` passed.
    DrainTimeout,
}

impl CutReason {
    /// The value of the field `cut` in the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClientClosed => "client_closed",
            Self::ClientTimeout => "client_timeout",
            Self::ClientSlow => "client_slow",
            Self::UpstreamBroken => "upstream_broken",
            Self::UpstreamIdle => "upstream_idle",
            Self::ResponseBodyTimeout => "response_body_timeout",
            Self::TunnelIdle => "tunnel_idle",
            Self::DrainTimeout => "drain_timeout",
        }
    }
}

/// What one limit has charged for a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LimitCost<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The final cost, in units of the limit's quota.
    pub units: u64,
}

/// The fields of one request in the access log.
#[derive(Clone, Debug)]
pub struct AccessLine<'a> {
    /// When the request started.
    pub time: StoreTime,
    /// The client's address, as determined from trusted proxies.
    pub client: IpAddr,
    /// The method; empty if the request could not be parsed.
    pub method: &'a [u8],
    /// The requested host.
    pub host: &'a [u8],
    /// The normalized path, without query.
    pub path: &'a [u8],
    /// The protocol and its version, such as `HTTP/1.1`; empty if the request could not be parsed.
    pub protocol: &'static str,
    /// The response's status; 499 if the client closed before the response.
    pub status: u16,
    /// The route's name; empty if there is none.
    pub route: &'a str,
    /// The decision of the limits: `admitted`, `refused` or `unknown`; `none` without limits or
    /// route; `denied` if the route's `allow` or `deny` refused it; `throttled` if the throttle
    /// denied it; `not_checked` if it ended for another reason before the limits were charged.
    pub limit: &'static str,
    /// The limit that refused the request, or the throttle's policy; empty without a refusal.
    pub refused_by: &'a str,
    /// The keyed hash of the access token, which is the key of limits by `token`; only if the
    /// layout has it.
    pub token: Option<u128>,
    /// The name of the consumer; empty without one.
    pub consumer: &'a str,
    /// Length of the response's body, in bytes.
    pub bytes: u64,
    /// Bytes that the client sent through a tunnel; `None` without a tunnel.
    pub received: Option<u64>,
    /// The final costs of limits whose cost depends on the request or its response; empty without
    /// such a limit, or if nothing was charged. Only if the layout has it.
    pub cost: &'a [LimitCost<'a>],
    /// Time from the request's head to the response's last byte.
    pub duration: Duration,
    /// Delay by a leaky bucket; a part of `duration`.
    pub delay: Duration,
    /// The server of the last attempt, as `host:port`; empty if there was none.
    pub upstream: &'a str,
    /// Time from the start of forwarding, connects and retries included, to the head of the
    /// response; `None` without a response.
    pub upstream_time: Option<Duration>,
    /// Number of attempts at upstream servers.
    pub attempts: u32,
    /// The request's priority; `None` if its upstream has no bounds.
    pub priority: Option<Priority>,
    /// Why the request or its response ended early; `None` if both are complete.
    pub cut: Option<CutReason>,
    /// True if the response was sent completely.
    pub complete: bool,
    /// The request's id.
    pub request_id: &'a [u8],
    /// The request's `Referer`, without query; only if the layout has it.
    pub referer: &'a [u8],
    /// The request's `User-Agent`; only if the layout has it.
    pub user_agent: &'a [u8],
    /// The id of the request's trace, in hexadecimal digits, if it is sampled.
    pub trace_id: Option<[u8; 32]>,
}

impl AccessLine<'_> {
    /// The line as JSON, without a line feed.
    pub fn json(&self) -> String {
        let mut line = Vec::new();
        json::append(self, &mut TimeCache::default(), &mut line);
        line.pop();
        // Always UTF-8: invalid bytes in fields were replaced.
        String::from_utf8(line).unwrap_or_default()
    }

    /// The value of a text field; empty for other fields.
    fn text(&self, field: AccessField) -> &[u8] {
        match field {
            AccessField::Method => self.method,
            AccessField::Host => self.host,
            AccessField::Path => self.path,
            AccessField::Protocol => self.protocol.as_bytes(),
            AccessField::Route => self.route.as_bytes(),
            AccessField::Limit => self.limit.as_bytes(),
            AccessField::RefusedBy => self.refused_by.as_bytes(),
            AccessField::Consumer => self.consumer.as_bytes(),
            AccessField::Upstream => self.upstream.as_bytes(),
            AccessField::Cut => self.cut.map_or("", CutReason::as_str).as_bytes(),
            AccessField::RequestId => self.request_id,
            AccessField::TraceId => self.trace_id.as_ref().map_or(b"", |id| id.as_slice()),
            AccessField::Referer => self.referer,
            AccessField::UserAgent => self.user_agent,
            _ => b"",
        }
    }
}

#[cfg(test)]
mod tests;
