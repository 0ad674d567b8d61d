//! The trace of a request: whether it is sampled, and what its span records.

use std::time::Duration;

use tidegate_http1::RequestHead;
use tidegate_rules::plan::{self, Admission};
use tidegate_throttle::POLICY;
use tidegate_trace::{ReceivedContext, RequestStart, RequestSummary, UnixNanos};

use super::{
    Gateway,
    ledger::{Ledger, RequestEndFacts},
    request_trace::RequestTracing,
    rules::WorkerRules,
};
use crate::metrics::Exemplar;

/// Longest path in a span, in bytes; the rest is cut off.
const MAX_PATH: usize = 1024;
/// Longest host in a span, in bytes.
const MAX_HOST: usize = 255;

impl Gateway {
    /// Decides whether a request with this trace context is sampled.
    pub(super) fn begin_trace<'r>(
        &self,
        rules: &WorkerRules,
        received: impl FnOnce() -> ReceivedContext<'r>,
    ) -> RequestTracing {
        let Some(rules) = &rules.snapshot.traces else { return RequestTracing::default() };
        let clock = &self.shared.clock;
        let start = || RequestStart {
            uptime: clock.uptime(),
            time: UnixNanos::from_nanos(clock.now_nanos()),
        };
        let trace = rules.sampling.begin(received(), &self.trace_ids, start);
        RequestTracing::new(trace, &self.shared.traces)
    }
}

/// The trace context of a request.
pub(super) fn received(head: &RequestHead, from_trusted_proxy: bool) -> ReceivedContext<'_> {
    ReceivedContext {
        parent: only_value(head, "traceparent"),
        state: only_value(head, "tracestate"),
        is_trusted: from_trusted_proxy,
    }
}

/// The value of a single-valued header; duplicates are ignored as untrustworthy.
fn only_value<'h>(head: &'h RequestHead, name: &str) -> Option<&'h [u8]> {
    let mut values = head.fields.get_all(name);
    values.next().filter(|_| values.next().is_none())
}

impl Ledger {
    /// Queues the spans of a sampled request for export. Call when the request ends; `duration` is
    /// its total time.
    #[cold]
    pub(super) fn finish_trace(&mut self, facts: &RequestEndFacts<'_>, duration: Duration) {
        let Some((mut trace, queue)) = self.tracing.take_sampled() else { return };
        let summary = self.summary(facts);
        trace.finish(summary, duration);
        let trace_id = trace.context.trace_id_text();
        let time = trace.ended_at();
        self.counters().latency.keep_exemplar(Exemplar { trace_id, duration, time });
        queue.push(trace);
    }

    fn summary(&self, facts: &RequestEndFacts<'_>) -> RequestSummary {
        let head = facts.head;
        let host = head.map(|head| plan::host(&head.fields)).unwrap_or_default();
        let cut = |text: &str, max: usize| Box::from(&text[..text.floor_char_boundary(max)]);
        let route = self.route.as_ref().map(|route| {
            (route.settings.name.clone(), route.settings.edits.pattern.as_str().into())
        });
        let domain = || self.domain.as_ref().map(|own| (own.settings.label.clone(), "".into()));
        RequestSummary {
            method: head.map_or("", |head| head.method.as_str()).into(),
            path: cut(&String::from_utf8_lossy(facts.path), MAX_PATH),
            scheme: facts.connection_scheme,
            protocol: head.map_or("", |head| head.version.protocol()),
            host: cut(&host, MAX_HOST),
            // Recorded only if there is an access log.
            client: self.access_logger.as_ref().map(|_| self.client_ip),
            consumer: self.consumer().map(|consumer| consumer.name.into()),
            route: route.or_else(domain),
            status: self.status(),
            limit: self.admission.label(),
            refused_by: match self.admission {
                Admission::Throttled => vec![POLICY.into()],
                _ => self.refused_by.iter().map(|limit| limit.name().into()).collect(),
            },
            request_id: self.request_id.as_str().into(),
            error: self.cut_reason(facts.close_mode).map(crate::telemetry::CutReason::as_str),
        }
    }
}
