//! Traces: the W3C trace context of a request, its spans, and their export by OTLP.
//!
//! When a request arrives, its worker decides if it is sampled ([`SamplingRules::begin`]). A
//! sampled request has a [`RequestTrace`], which goes into the bounded [`TraceQueue`] when the
//! request ends. The control thread encodes and sends the queued spans ([`export`]). No worker
//! waits for the collector: if the collector is down or slow, the queue fills, and spans are
//! dropped and counted.
//!
//! It is no general instrumentation: a request has one span here, and one for each attempt at an
//! upstream.
//!
//! | file | content |
//! |---|---|
//! | `context` | [`SpanContext`], [`TraceParent`]: the header `traceparent` |
//! | `ids` | [`IdSource`]: random ids |
//! | `sampling` | [`SamplingRules`]: the decision; [`SamplingDecision`]: its result |
//! | `request` | [`RequestTrace`]: the spans of a request |
//! | `queue` | [`TraceQueue`]: the bounded queue to the control thread |
//! | `messages`, `encode` | the OTLP messages, and their encoding |
//! | `exporter` | sends batches and retries |
//!
//! ```
//! use tidegate_trace::TraceParent;
//!
//! let value = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
//! let parent = TraceParent::parse(value).expect("a valid value");
//! assert!(parent.is_sampled);
//! assert_eq!(parent.format(), *value);
//! ```

mod context;
mod encode;
mod exporter;
mod ids;
mod messages;
mod queue;
mod request;
mod sampling;

pub use self::{
    context::{SpanContext, TraceParent},
    exporter::{ExportSettings, export},
    ids::IdSource,
    queue::{TraceCounts, TraceQueue},
    request::{AttemptResult, ChildSpanKind, PeerServer, RequestSummary, RequestTrace},
    sampling::{
        ParentTrust, ReceivedContext, RequestStart, SamplingDecision, SamplingRules, TraceHeader,
        UnixNanos,
    },
};
