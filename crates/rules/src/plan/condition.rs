//! Checks if a request meets the conditions of a route.

use std::cell::OnceCell;

use http::HeaderName;
use tidegate_identity::{QueryPairs, caller_bucket, header_value, is_forwarding_field};
use tidegate_route::{Condition, ConditionResult, ConditionalRoute, ValueSource, ValueTest};

use super::{CallerBucket, RequestAttributes};
use crate::error::GatewayError;
use crate::snapshot::Snapshot;

/// The parameters of a query, parsed when a condition first tests one.
type LazyQuery<'r> = OnceCell<QueryPairs<'r>>;

/// True if a browser sends this header without a word of it in a preflight: it may send it by
/// itself, or a script may set it in any request (Fetch standard, "forbidden request-header" and
/// "CORS-safelisted request-header").
fn is_sent_unlisted(name: &HeaderName) -> bool {
    const NAMES: [&str; 21] = [
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "connection",
        "content-language",
        "content-length",
        "content-type",
        "cookie",
        "cookie2",
        "date",
        "dnt",
        "expect",
        "keep-alive",
        "range",
        "referer",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
    ];
    let name = name.as_str();
    NAMES.contains(&name) || name.starts_with("sec-") || name.starts_with("proxy-")
}

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
        Ok(self.is_among_callers(snapshot, route, caller))
    }

    /// True if the request that a preflight announces may meet the conditions of `route`. Of its
    /// headers, most names are known and few values. Where only that decides, routes without `cors`
    /// are left out, because they would not answer the preflight.
    ///
    /// # Errors
    /// A value can be read in more than one way.
    pub(super) fn may_meet(
        &self,
        snapshot: &Snapshot,
        route: &ConditionalRoute,
        caller: CallerBucket,
        query: &LazyQuery<'r>,
    ) -> Result<bool, GatewayError> {
        let mut is_certain = true;
        for condition in route.tests() {
            let is_met = match (&condition.source, &condition.test) {
                (ValueSource::Query(_), _) => self.meets_condition(condition, query)?,
                // The preflight has it, such as `Origin` or what a proxy adds: the request will
                // have the same.
                (ValueSource::Header(name), _) if self.is_sent_alike(name) => {
                    self.meets_condition(condition, query)?
                }
                (ValueSource::Header(name), ValueTest::Absent) => {
                    is_certain &= !is_sent_unlisted(name);
                    !self.lists(name)
                }
                (ValueSource::Header(name), ValueTest::Present | ValueTest::Equals(_)) => {
                    is_certain &= condition.test == ValueTest::Present && self.lists(name);
                    self.lists(name) || is_sent_unlisted(name)
                }
            };
            if !is_met {
                return Ok(false);
            }
        }
        let answers = is_certain || snapshot.routes[route.route].cors.is_some();
        Ok(answers && self.is_among_callers(snapshot, route, caller))
    }

    /// True if the preflight and the request that will follow have the same value of a header.
    fn is_sent_alike(&self, name: &HeaderName) -> bool {
        is_forwarding_field(name) || self.headers.contains(name) && !is_sent_unlisted(name)
    }

    /// True if the preflight lists this header of the request that will follow.
    fn lists(&self, name: &HeaderName) -> bool {
        let lists = self.headers.get_all("access-control-request-headers");
        let mut names = lists.flat_map(|list| list.split(|byte| *byte == b','));
        names.any(|own| own.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
    }

    /// True if the caller is in the share that `route` serves.
    fn is_among_callers(
        &self,
        snapshot: &Snapshot,
        route: &ConditionalRoute,
        caller: CallerBucket,
    ) -> bool {
        let Some(callers) = route.callers() else { return true };
        callers.contains(&match caller {
            CallerBucket::Fixed(number) => number,
            CallerBucket::Hashed(secret) => {
                let prefix = snapshot.identity.ipv6_prefix;
                let (sources, headers) = (self.token_sources, self.headers);
                caller_bucket(sources, headers, self.client.ip, prefix, secret)
            }
        })
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

    /// Decides as far as possible if a logged request meets the conditions of `route`: a log has
    /// neither headers nor the secret with which callers are hashed into shares. `query` is `None`
    /// if the log has no queries either.
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
