//! The trace of a request: whether it is sampled, and what its span records.

use std::sync::Arc;

use super::{
    Gateway, charged_limit::ChargedLimit, context::RequestContext, request_trace::RequestTracing,
};
use crate::{
    http1::RequestHead,
    limit::Admission,
    metrics::Exemplar,
    plan,
    throttle::POLICY,
    trace::{ChildSpanKind, Received, RequestSummary, SamplingDecision, Start},
};

/// Longest path in a span, in bytes; the rest is cut off.
const MAX_PATH: usize = 1024;
/// Longest host in a span, in bytes.
const MAX_HOST: usize = 255;

impl Gateway {
    /// Decides whether the request is sampled.
    pub(super) fn begin_trace(&self, context: &RequestContext) -> RequestTracing {
        let Some(rules) = &context.rules.snapshot.traces else { return RequestTracing::default() };
        let head = context.head();
        let received = Received {
            parent: head.and_then(|head| only_value(head, "traceparent")),
            state: head.and_then(|head| only_value(head, "tracestate")),
            is_trusted: context.from_trusted_proxy,
        };
        let clock = &self.shared.clock;
        let start = || Start { uptime: clock.uptime(), nanos: clock.now_nanos() };
        let trace = rules.sampling.begin(received, &self.trace_ids, start);
        let is_sampled = matches!(trace, SamplingDecision::Sampled(_));
        let queue = is_sampled.then(|| Arc::clone(&self.shared.traces));
        RequestTracing { trace, queue }
    }

    /// Begins a child span if the request is sampled.
    #[inline]
    pub(super) fn begin_span(
        &self,
        context: &mut RequestContext,
        work: impl FnOnce() -> ChildSpanKind,
    ) {
        if let Some(trace) = context.tracing.sampled() {
            trace.begin(work(), self.shared.clock.uptime());
        }
    }

    /// Ends the child span.
    #[inline]
    pub(super) fn end_span(&self, context: &mut RequestContext) {
        if let Some(trace) = context.tracing.sampled() {
            trace.end(self.shared.clock.uptime());
        }
    }

    /// Ends the span of the store's decision.
    #[inline]
    pub(super) fn end_charge_span(&self, context: &mut RequestContext) {
        let label = context.admission.label();
        if let Some(trace) = context.tracing.sampled() {
            trace.end_charge(label, self.shared.clock.uptime());
        }
    }
}

/// The value of a single-valued header; duplicates are ignored as untrustworthy.
fn only_value<'h>(head: &'h RequestHead, name: &str) -> Option<&'h [u8]> {
    let mut values = head.fields.get_all(name);
    values.next().filter(|_| values.next().is_none())
}

impl RequestContext {
    /// Passes the spans of a sampled request on. Call when the request ends; `duration` is its total time.
    #[cold]
    pub(super) fn finish_trace(&mut self, duration: std::time::Duration) {
        let Some(queue) = self.tracing.queue.take() else { return };
        let summary = self.summary();
        let SamplingDecision::Sampled(mut trace) = std::mem::take(&mut self.tracing.trace) else {
            return;
        };
        trace.finish(summary, duration);
        let trace_id = trace.context.trace_id_text();
        self.counters.latency.keep_exemplar(Exemplar {
            trace_id,
            duration,
            time: trace.ended_at(),
        });
        queue.push(trace);
    }

    fn summary(&self) -> RequestSummary {
        let head = self.head();
        let route = self.route.map(|route| &self.rules.snapshot.routes[route]);
        let host = head.map(|head| plan::host(&head.fields)).unwrap_or_default();
        let cut = |text: &str, max: usize| Box::from(&text[..text.floor_char_boundary(max)]);
        RequestSummary {
            method: head.map_or("", |head| head.method.as_str()).into(),
            path: cut(self.path(), MAX_PATH),
            scheme: self.connection_scheme,
            protocol: head.map_or("", |head| head.version.protocol()),
            host: cut(&host, MAX_HOST),
            // Omitted unless there is an access log.
            client: self.access_logger.as_ref().map(|_| self.client_ip),
            route: route.map(|own| (own.name.clone(), own.edits.pattern.as_str().into())),
            status: self.status(),
            limit: self.admission.label(),
            refused_by: refusing_limits(self.admission, &self.limits),
            request_id: self.request_id.as_str().into(),
            error: self.cut_reason().map(crate::telemetry::CutReason::as_str),
        }
    }
}

/// The names of what refused the request: limits, or the throttle.
fn refusing_limits(admission: Admission, limits: &[ChargedLimit]) -> Vec<Box<str>> {
    match admission {
        Admission::Throttled => vec![POLICY.into()],
        Admission::Refused => {
            let enforced = limits.iter().filter(|limit| limit.limit().enforce);
            let refusing = enforced.filter(|limit| limit.outcome.refused().is_some());
            refusing.map(|limit| limit.limit().name().into()).collect()
        }
        _ => Vec::new(),
    }
}
