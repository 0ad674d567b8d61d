//! [`RequestTracing`]: the part of a request's context that its trace needs.

use std::sync::Arc;

use crate::trace::{RequestTrace, SamplingDecision, TraceHeader, TraceQueue};

/// The trace of a request, and the queue for its spans.
#[derive(Default)]
pub(super) struct RequestTracing {
    /// `None` without `traces` in the configuration.
    pub(super) trace: Option<SamplingDecision>,
    /// `None` if the request is not sampled.
    pub(super) queue: Option<Arc<TraceQueue>>,
}

impl RequestTracing {
    /// The trace of a sampled request.
    #[inline]
    pub(super) fn sampled(&mut self) -> Option<&mut RequestTrace> {
        self.trace.as_mut()?.sampled()
    }

    /// The trace context to forward; `None` keeps the client's.
    #[inline]
    pub(super) fn header(&self) -> Option<TraceHeader> {
        self.trace.as_ref()?.header()
    }
}
