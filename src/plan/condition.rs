//! Whether a request meets the conditions of a route.

use super::RequestAttributes;
use crate::{
    error::GatewayError,
    identity::{KeySecret, caller_percentile, header_value, query_value},
    route::{Condition, ConditionalRoute, ValueSource, ValueTest, Verdict},
    snapshot::Snapshot,
};

/// How the share of callers is decided that a route's `weight` is for.
#[derive(Clone, Copy)]
pub enum CallerShare {
    /// By the hash of the caller under this secret.
    Hashed(KeySecret),
    /// The caller is the one with this number, from 0 to 99.
    Fixed(u8),
}

impl RequestAttributes<'_> {
    /// Whether the request meets the conditions of `route`.
    ///
    /// # Errors
    /// A value can be read in more than one way.
    pub(super) fn meets(
        &self,
        snapshot: &Snapshot,
        route: &ConditionalRoute,
        share: CallerShare,
    ) -> Result<bool, GatewayError> {
        for condition in route.tests() {
            if !self.meets_condition(condition)? {
                return Ok(false);
            }
        }
        let Some(callers) = route.callers() else { return Ok(true) };
        Ok(callers.contains(&match share {
            CallerShare::Fixed(number) => number,
            CallerShare::Hashed(secret) => {
                let prefix = snapshot.identity.ipv6_prefix;
                let (sources, headers) = (self.token_sources, self.headers);
                caller_percentile(sources, headers, self.client.ip, prefix, secret)
            }
        }))
    }

    fn meets_condition(&self, condition: &Condition) -> Result<bool, GatewayError> {
        let is_sent = |name: &http::HeaderName| self.headers.contains(name);
        let value = match (&condition.source, &condition.test) {
            (ValueSource::Header(name), ValueTest::Present) => return Ok(is_sent(name)),
            (ValueSource::Header(name), ValueTest::Absent) => return Ok(!is_sent(name)),
            (ValueSource::Header(name), ValueTest::Equals(_)) => header_value(self.headers, name),
            (ValueSource::Query(name), _) => query_value(self.query, name),
        };
        let value = value.map_err(GatewayError::Ambiguous)?;
        Ok(match &condition.test {
            ValueTest::Present => value.is_some(),
            ValueTest::Absent => value.is_none(),
            ValueTest::Equals(wanted) => value.is_some_and(|value| *value == **wanted),
        })
    }

    /// Whether a request of a log meets the conditions of `route`: a log has neither headers nor the secret
    /// that divides callers, and its queries only if `has_query`.
    pub(super) fn recorded_verdict(&self, route: &ConditionalRoute, has_query: bool) -> Verdict {
        let mut verdict = Verdict::Met;
        for condition in route.tests() {
            let is_recorded = has_query && matches!(condition.source, ValueSource::Query(_));
            match is_recorded.then(|| self.meets_condition(condition)) {
                Some(Ok(true)) => {}
                Some(Ok(false)) => return Verdict::Unmet,
                Some(Err(_)) | None => verdict = Verdict::Unknown,
            }
        }
        match route.callers() {
            Some(callers) if callers.is_empty() => Verdict::Unmet,
            Some(callers) if callers.len() < 100 => Verdict::Unknown,
            _ => verdict,
        }
    }
}
