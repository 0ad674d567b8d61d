//! [`RequestTracing`]: the part of a request's context that its trace needs.

use std::sync::Arc;

use tidegate_rules::plan::Admission;
use tidegate_system::clock::Clock;
use tidegate_trace::{ChildSpanKind, RequestTrace, SamplingDecision, TraceHeader, TraceQueue};

/// The trace of a request; empty without `traces` in the configuration.
#[derive(Default)]
pub(super) struct RequestTracing(Option<Box<DecidedTrace>>);

/// The trace of a request, and the queue for its spans.
struct DecidedTrace {
    decision: SamplingDecision,
    /// `None` if the request is not sampled.
    queue: Option<Arc<TraceQueue>>,
}

impl RequestTracing {
    /// The trace by `decision`, whose spans go to `queue`.
    pub(super) fn new(decision: SamplingDecision, queue: &Arc<TraceQueue>) -> Self {
        let is_sampled = matches!(decision, SamplingDecision::Sampled(_));
        let queue = is_sampled.then(|| Arc::clone(queue));
        Self(Some(Box::new(DecidedTrace { decision, queue })))
    }

    /// The trace of a sampled request.
    #[inline]
    pub(super) fn sampled(&mut self) -> Option<&mut RequestTrace> {
        self.0.as_mut()?.decision.sampled()
    }

    /// Begins a child span if the request is sampled.
    #[inline]
    pub(super) fn begin_span(&mut self, clock: &Clock, kind: impl FnOnce() -> ChildSpanKind) {
        if let Some(trace) = self.sampled() {
            trace.begin(kind(), clock.uptime());
        }
    }

    /// Ends the child span.
    #[inline]
    pub(super) fn end_span(&mut self, clock: &Clock) {
        if let Some(trace) = self.sampled() {
            trace.end(clock.uptime());
        }
    }

    /// Ends the span of the store's decision.
    #[inline]
    pub(super) fn end_charge_span(&mut self, clock: &Clock, admission: Admission) {
        if let Some(trace) = self.sampled() {
            trace.end_charge(admission.label(), clock.uptime());
        }
    }

    /// The trace context to forward; `None` keeps the client's.
    #[inline]
    pub(super) fn header(&self) -> Option<TraceHeader> {
        self.0.as_ref()?.decision.header()
    }

    /// The id of the trace of a sampled request: 32 hexadecimal digits.
    #[inline]
    pub(super) fn sampled_id(&self) -> Option<[u8; 32]> {
        self.0.as_ref()?.decision.sampled_id()
    }

    /// Takes the trace of a sampled request, and the queue for its spans.
    pub(super) fn take_sampled(&mut self) -> Option<(Box<RequestTrace>, Arc<TraceQueue>)> {
        let DecidedTrace { decision, queue } = *self.0.take()?;
        match decision {
            SamplingDecision::Sampled(trace) => Some((trace, queue?)),
            SamplingDecision::Forwarded | SamplingDecision::Unsampled(_) => None,
        }
    }
}
