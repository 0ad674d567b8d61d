//! Decides whether a request is sent again after a failed attempt, and where.

use tidegate_trace::AttemptResult;
use tidegate_transport::connection_state::ExpiredDeadline;

use super::{
    ForwardError, PassedTimeout, UpstreamError,
    attempt::{AttemptRecord, RequestAttempts, Retries},
    exchange::FailedExchange,
};
use crate::{
    RetryConditions,
    connection_budget::is_own_shortage,
    exchange::ExchangeError,
    http2::{max_resends, requires_http1},
    request::OutgoingRequest,
    retry_budget::backoff,
    target_health::Failure,
};

/// Maximum number of new connections for an unsent request. Bounds the attempts at servers that
/// accept connections and close them at once.
const MAX_NEW_CONNECTIONS: u32 = 2;

impl RequestAttempts<'_> {
    /// Prepares another attempt after this failure, or returns the request's error.
    pub(super) async fn retry_or_fail(
        &mut self,
        failed: FailedExchange,
        attempt: AttemptRecord,
        outgoing: &OutgoingRequest,
        retries: &mut Retries,
        retry_on: &RetryConditions,
    ) -> Result<(), ForwardError> {
        self.end_attempt(AttemptResult::Failed(failed.label()));
        let may_retry = outgoing.is_retryable() && !failed.has_sent_interim && retries.left > 0;
        let index = attempt.index;
        let error = match failed.error {
            ExchangeError::Expired => {
                let is_response_timeout =
                    self.client.state().expired_deadline() == Some(ExpiredDeadline::Upstream);
                if is_response_timeout {
                    self.record_failure(attempt, Failure::Timeout);
                    if retry_on.timeout && may_retry && self.can_try_another(index) {
                        self.client.state().resume_request();
                        return self.begin_retry(index, retries).await;
                    }
                } else if self.client.state().awaits_upstream() && self.had_most_time(attempt) {
                    // The request's own deadline, which may be shorter than the upstream's.
                    self.record_failure(attempt, Failure::Timeout);
                }
                let passed = if is_response_timeout {
                    PassedTimeout::Response(self.endpoints.set.servers.response_timeout)
                } else {
                    PassedTimeout::Request(None)
                };
                return Err(ForwardError::Upstream(UpstreamError::Timeout(passed)));
            }
            ExchangeError::Body(error) => return Err(ForwardError::Body(error)),
            ExchangeError::Request(error) => return Err(ForwardError::Request(error)),
            ExchangeError::UpgradeUnsupported => {
                return Err(ForwardError::Upstream(UpstreamError::UpgradeUnsupported));
            }
            ExchangeError::Failed(error) if is_own_shortage(&error) => {
                self.balancer.state.load.connection_budget.count_shortage();
                return Err(ForwardError::Upstream(UpstreamError::Shortage(error)));
            }
            ExchangeError::Failed(error) => error,
        };
        let is_unprocessed = retries.resends < max_resends(&error) && outgoing.is_whole();
        // Also for later requests, if this one cannot be repeated.
        let requires_http1 = requires_http1(&error) && self.endpoints.pools[index].require_http1();
        let is_unsent = outgoing.is_unsent() && may_reconnect(retries.new_connections);
        // The repetition uses a new connection, which cannot be stale.
        let is_repeatable = failed.is_stale && may_retry;
        // A server may close an idle connection at any time, so this is not recorded as its
        // failure.
        let is_harmless = failed.is_stale && (is_unprocessed || is_unsent || is_repeatable);
        if !is_harmless && !requires_http1 {
            self.record_failure(attempt, Failure::of_exchange(&error));
        }
        retries.resends += u32::from(is_unprocessed);
        retries.left -= u32::from(is_repeatable && !is_unprocessed && !is_unsent);
        if is_unprocessed || is_unsent || is_repeatable {
            if requires_http1 {
                self.require_new_connection();
            } else if is_repeatable {
                self.exclude_stale(index);
            } else if failed.is_stale {
                self.require_new_connection();
            } else {
                self.exclude(index);
            }
            return Ok(());
        }
        if may_retry && retry_on.reset && self.balancer.try_retry() {
            return self.begin_retry(index, retries).await;
        }
        Err(ForwardError::Upstream(UpstreamError::Failed(error)))
    }

    /// True if the attempt took at least half of the request's time so far.
    fn had_most_time(&self, attempt: AttemptRecord) -> bool {
        let now = self.balancer.state.clock().uptime();
        now.saturating_sub(attempt.start) >= now.saturating_sub(self.started) / 2
    }

    /// Takes a retry from the budget if another endpoint can be tried, or if the upstream has only
    /// one. True if the request may be sent again.
    pub(super) fn can_try_another(&mut self, index: usize) -> bool {
        self.has_choice_without(index) && self.balancer.try_retry()
    }

    /// Prepares the next attempt, which the budget has allowed, and waits a little.
    pub(super) async fn begin_retry(
        &mut self,
        index: usize,
        retries: &mut Retries,
    ) -> Result<(), ForwardError> {
        retries.left -= 1;
        self.exclude(index);
        self.retry_count += 1;
        let delay = backoff(self.retry_count, self.balancer.random());
        self.wait(delay.as_duration()).await.map_err(ForwardError::Upstream)
    }
}

/// True if an unsent request may try another new connection after `new_connections` of them.
fn may_reconnect(new_connections: u32) -> bool {
    new_connections < MAX_NEW_CONNECTIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsent_request_opens_at_most_two_new_connections() {
        let opened = (1..10).find(|opened| !may_reconnect(*opened));
        assert_eq!(opened, Some(MAX_NEW_CONNECTIONS));
    }
}
