//! [`RequestTracing`]: the part of a request's context that its trace needs.

use std::sync::Arc;

use crate::trace::{RequestTrace, SamplingDecision, TraceQueue};

/// The trace of a request, and the queue for its spans.
#[derive(Default)]
pub(super) struct RequestTracing {
    pub(super) trace: SamplingDecision,
    /// `None` if the request is not sampled.
    pub(super) queue: Option<Arc<TraceQueue>>,
}

impl RequestTracing {
    /// The trace of a sampled request.
    #[inline]
    pub(super) fn sampled(&mut self) -> Option<&mut RequestTrace> {
        self.trace.sampled()
    }
}
