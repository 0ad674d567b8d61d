//! Records an attempt's outcome: in its span, in its endpoint's health and latency, and for
//! adaptive concurrency.

use tidegate_balance::{AttemptOutcome, FAILURE_LATENCY};
use tidegate_system::clock::CoarseTime;
use tidegate_trace::AttemptResult;

use super::{AttemptRecord, CONNECT_FAILED, RequestAttempts};
use crate::{
    adaptive_concurrency::{Sample, SampleOutcome},
    forward::{ForwardError, UpstreamError},
    target_health::{FailedAttempt, Failure},
};

impl RequestAttempts<'_> {
    /// Ends the span of the attempt if the request is sampled.
    #[inline]
    pub(in crate::forward) fn end_attempt(&mut self, result: AttemptResult) {
        let clock = self.clock();
        if let Some(trace) = &mut self.trace {
            trace.end_attempt(result, clock.uptime());
        }
    }

    /// Ends the span of an attempt that got no connection.
    #[cold]
    pub(in crate::forward) fn fail_to_acquire(&mut self, error: UpstreamError) -> ForwardError {
        let label = match &error {
            UpstreamError::Timeout(_) => "timeout",
            _ => CONNECT_FAILED,
        };
        self.end_attempt(AttemptResult::Failed(label));
        ForwardError::Upstream(error)
    }

    /// Records a response that is not retried.
    pub(in crate::forward) fn record_success(
        &mut self,
        attempt: AttemptRecord,
        observed: AttemptOutcome,
    ) {
        let AttemptRecord { index, kind, start, concurrency } = attempt;
        let set = &self.endpoints.set;
        let clock = self.clock();
        let uptime = clock.uptime();
        self.attempts.time = Some(uptime.saturating_sub(self.started));
        let now = uptime.to_coarse();
        let latency = uptime.saturating_sub(start).as_micros() as u64;
        set.members[index].state.observe_latency(latency, now);
        set.members[index].state.observe_result(observed, now);
        set.record_success(index, kind, now, clock);
        let outcome = SampleOutcome::Responded;
        self.record_sample(index, Sample { latency, in_flight: concurrency, outcome }, now);
    }

    /// Records a failure of an endpoint.
    #[cold]
    pub(in crate::forward) fn record_failure(&mut self, attempt: AttemptRecord, failure: Failure) {
        let AttemptRecord { index, kind, start, concurrency } = attempt;
        let set = &self.endpoints.set;
        let clock = self.clock();
        let uptime = clock.uptime();
        if let Failure::Status(_) = failure {
            self.attempts.time = Some(uptime.saturating_sub(self.started));
        }
        let now = uptime.to_coarse();
        let latency = uptime.saturating_sub(start).as_micros() as u64;
        set.members[index].state.observe_latency(latency.max(FAILURE_LATENCY), now);
        let failed =
            FailedAttempt { kind, failure, client: self.client_address, sent: start.to_coarse() };
        set.record_failure(index, failed, now, clock);
        let outcome = match failure {
            Failure::Timeout | Failure::Status(503) => SampleOutcome::Dropped,
            Failure::Status(_) => SampleOutcome::Responded,
            // A failed connection shows nothing about the load.
            _ => return,
        };
        self.record_sample(index, Sample { latency, in_flight: concurrency, outcome }, now);
    }

    /// Records an attempt for adaptive concurrency.
    fn record_sample(&self, index: usize, sample: Sample, now: CoarseTime) {
        let set = &self.endpoints.set;
        if set.servers.bounds.adaptive.is_some() {
            set.members[index].state.record_sample(sample, now);
        }
    }
}
