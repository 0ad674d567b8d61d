//! Traces: the W3C trace context of a request, its spans, and their export by OTLP.
//!
//! A worker decides when a request arrives whether it is sampled ([`SamplingRules::begin`]). Only for a sampled
//! request it keeps a [`RequestTrace`], which goes into the bounded [`TraceQueue`] when the request ends. The
//! control thread encodes and sends what is in the queue ([`export`]). No worker waits for the collector: if it is
//! down or slow, the queue fills, and spans are dropped and counted.
//!
//! | file | content |
//! |---|---|
//! | `context` | [`SpanContext`], [`TraceParent`]: the header `traceparent` |
//! | `ids` | [`IdSource`]: random ids |
//! | `sampling` | [`SamplingRules`]: the decision; [`SamplingDecision`]: its result |
//! | `request` | [`RequestTrace`]: the spans of a request |
//! | `queue` | [`TraceQueue`]: the bounded way to the control thread |
//! | `messages`, `encode` | the messages of OTLP, and how spans become one |
//! | `exporter` | sends batches, and tries again |

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
    sampling::{ParentTrust, Received, SamplingDecision, SamplingRules, Start, TraceHeader},
};
