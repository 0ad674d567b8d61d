//! Checks if a request meets the conditions of a route.

use std::cell::OnceCell;

use super::{CallerBucket, RequestAttributes};
use crate::{
    error::GatewayError,
    identity::{QueryPairs, caller_bucket, header_value, is_forwarding_field},
    route::{Condition, ConditionResult, ConditionalRoute, ValueSource, ValueTest},
    snapshot::Snapshot,
};

/// The parameters of a query, parsed when a condition first tests one.
type LazyQuery<'r> = OnceCell<QueryPairs<'r>>;

impl<'r> RequestAttributes<'r> {
    /// True if the request meets the conditions of `route`.
    ///
    /// # Errors
    /// A value can be read in more than one way.
    pub(super) fn meets(
        &self,
        snapshot: &Snapshot,
        route: &ConditionalRoute,
        caller: CallerBucket,
        query: &LazyQuery<'r>,
    ) -> Result<bool, GatewayError> {
        for condition in route.tests() {
            if !self.meets_condition(condition, query)? {
                return Ok(false);
            }
        }
        let Some(callers) = route.callers() else { return Ok(true) };
        Ok(callers.contains(&match caller {
            CallerBucket::Fixed(number) => number,
            CallerBucket::Hashed(secret) => {
                let prefix = snapshot.identity.ipv6_prefix;
                let (sources, headers) = (self.token_sources, self.headers);
                caller_bucket(sources, headers, self.client.ip, prefix, secret)
            }
        }))
    }

    fn meets_condition(
        &self,
        condition: &Condition,
        query: &LazyQuery<'r>,
    ) -> Result<bool, GatewayError> {
        let is_sent = |name: &http::HeaderName| self.headers.contains(name);
        if let ValueSource::Header(name) = &condition.source
            && !self.is_from_trusted_proxy
            && is_forwarding_field(name)
        {
            // Counts as absent: the upstream does not receive these fields from an untrusted peer.
            return Ok(condition.test == ValueTest::Absent);
        }
        let value = match (&condition.source, &condition.test) {
            (ValueSource::Header(name), ValueTest::Present) => return Ok(is_sent(name)),
            (ValueSource::Header(name), ValueTest::Absent) => return Ok(!is_sent(name)),
            (ValueSource::Header(name), ValueTest::Equals(_)) => header_value(self.headers, name),
            (ValueSource::Query(name), _) => {
                query.get_or_init(|| QueryPairs::new(self.query)).value(name)
            }
        };
        let value = value.map_err(GatewayError::Ambiguous)?;
        Ok(match &condition.test {
            ValueTest::Present => value.is_some(),
            ValueTest::Absent => value.is_none(),
            ValueTest::Equals(wanted) => value.is_some_and(|value| *value == **wanted),
        })
    }

    /// Decides as far as possible if a logged request meets the conditions of `route`: a log has neither headers nor
    /// the secret with which callers are hashed into shares. `query` is `None` if the log has no queries either.
    pub(super) fn meets_as_logged(
        &self,
        route: &ConditionalRoute,
        query: Option<&LazyQuery<'r>>,
    ) -> ConditionResult {
        let mut verdict = ConditionResult::Met;
        for condition in route.tests() {
            let is_of_query = matches!(condition.source, ValueSource::Query(_));
            let recorded = query.filter(|_| is_of_query);
            match recorded.map(|query| self.meets_condition(condition, query)) {
                Some(Ok(true)) => {}
                Some(Ok(false)) => return ConditionResult::Unmet,
                Some(Err(_)) | None => verdict = ConditionResult::Unknown,
            }
        }
        match route.callers() {
            Some(callers) if callers.is_empty() => ConditionResult::Unmet,
            Some(callers) if callers.len() < 100 => ConditionResult::Unknown,
            _ => verdict,
        }
    }
}
