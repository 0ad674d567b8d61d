//! What a response says of the limits that a call was charged to.

use std::cmp::Reverse;

use tidegate_charge::{Limit, Outcome, StoreDecision};
use tidegate_http1::Fields;
use tidegate_limit::{MAX_UNITS, Millis, StoreTime};
use tidegate_vocabulary::UnitWindow;

use super::messages::{
    CurrentLimit, DescriptorStatus, HeaderValue, Metadata, MetadataKind, MetadataList,
    MetadataValue, ProtoDuration, RateLimitUnit, ResponseCode, UInt32Value,
};

/// What a limit does with a call that it does not admit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LimitRole {
    /// It refuses the call, if it is enforced.
    #[default]
    Refuses,
    /// It admits the call, and the metadata names the descriptor: `quota_mode` of
    /// envoyproxy/ratelimit.
    Reports,
    /// It counts, and no response shows it: a limit that is not enforced, or a candidate.
    Counts,
}

/// A limit of a descriptor, and the outcome of its charge.
#[derive(Clone, Copy, Debug)]
pub struct LimitOutcome<'a> {
    /// The limit, with the caller's quota.
    pub limit: &'a Limit,
    /// The outcome.
    pub outcome: &'a Outcome,
    /// What it does if it does not admit the call.
    pub role: LimitRole,
}

impl LimitOutcome<'_> {
    /// True if the limit refuses the call.
    pub fn refuses(&self) -> bool {
        self.limit.enforce && self.outcome.refused().is_some()
    }

    /// True if the limit reports that the descriptor is over it.
    pub fn reports(&self) -> bool {
        self.role == LimitRole::Reports && self.outcome.refused().is_some()
    }
}

/// The status of a descriptor with these limits: that of the limit which refuses, with the longest
/// wait, or else has the least left.
pub fn limited_status<'a>(limits: impl Iterator<Item = LimitOutcome<'a>>) -> DescriptorStatus {
    let shown = limits.filter(|limit| limit.role != LimitRole::Counts);
    let decided = shown.filter_map(|limit| Some((limit, limit.outcome.decided()?)));
    let tightest = decided.min_by_key(|(limit, decided)| {
        let decision = &decided.decision;
        (!limit.refuses(), decision.remaining, Reverse(decision.reset_at))
    });
    let Some((limit, decided)) = tightest else { return unlimited_status() };
    let refuses = limit.refuses();
    let code = if refuses { ResponseCode::OverLimit } else { ResponseCode::Ok };
    let remaining = if refuses { 0 } else { decided.decision.remaining };
    let is_timed = limit.limit.algorithm().is_predictable();
    DescriptorStatus {
        code: code.into(),
        current_limit: Some(current_limit(limit.limit, decided.decision.limit)),
        limit_remaining: clamp(remaining),
        duration_until_reset: is_timed.then(|| until_reset(decided)),
    }
}

/// The status of a descriptor that `limit` admits never.
pub fn blocked_status(limit: &Limit) -> DescriptorStatus {
    DescriptorStatus {
        code: ResponseCode::OverLimit.into(),
        current_limit: Some(current_limit(limit, 0)),
        limit_remaining: 0,
        duration_until_reset: Some(duration(limit.quota.window)),
    }
}

/// The status of a descriptor to which no limit applies.
pub fn unlimited_status() -> DescriptorStatus {
    DescriptorStatus { code: ResponseCode::Ok.into(), ..DescriptorStatus::default() }
}

/// Header fields for the response to the client.
pub fn header_values(fields: &Fields) -> Vec<HeaderValue> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let values =
        fields.iter().map(|(name, value)| HeaderValue { key: text(name), value: text(value) });
    values.collect()
}

/// Whether a call has taken permits, which Envoy gives back when its request ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Permits {
    /// It has taken none.
    None,
    /// It has taken at least one, at this time by the store's clock.
    TakenAt(StoreTime),
}

/// Prefix of the metadata value that says when permits were taken.
const TAKEN_AT: &str = "taken@";

impl Permits {
    /// Parses the value that [`metadata`] writes and that Envoy sends back with a give-back.
    pub fn of_value(value: &str) -> Self {
        let at = value.strip_prefix(TAKEN_AT).and_then(|at| at.parse().ok());
        // Lua counts exactly up to this number.
        let at = at.filter(|at| *at <= MAX_UNITS);
        at.map_or(Self::None, |at| Self::TakenAt(StoreTime::from_unix_ms(at)))
    }
}

/// The metadata of a response: the name of the limit that refuses, the indices of the descriptors
/// that are over a limit which only reports, and `permits: taken@TIME`, by which Envoy knows that it
/// has permits to give back, and Tidegate which ones: TIME is in ms since 1970. `None` without any.
pub fn metadata(
    refused_by: Option<&str>,
    reported: &[usize],
    permits: Permits,
) -> Option<Metadata> {
    let mut metadata = Metadata::default();
    if let Permits::TakenAt(at) = permits {
        let taken = MetadataKind::Text(format!("{TAKEN_AT}{}", at.as_unix_ms()));
        metadata.fields.insert("permits".to_owned(), taken.into());
    }
    if let Some(name) = refused_by {
        metadata.fields.insert("refused_by".to_owned(), MetadataKind::Text(name.to_owned()).into());
    }
    if !reported.is_empty() {
        let values = reported.iter().map(|index| MetadataKind::Number(*index as f64).into());
        let values: Vec<MetadataValue> = values.collect();
        let list = MetadataKind::List(MetadataList { values });
        metadata.fields.insert("quotaModeEnabled".to_owned(), MetadataKind::Bool(true).into());
        metadata.fields.insert("quotaModeViolations".to_owned(), list.into());
    }
    Some(metadata).filter(|metadata| !metadata.fields.is_empty())
}

fn current_limit(limit: &Limit, quota: u64) -> CurrentLimit {
    let is_timed = limit.algorithm().is_predictable() && limit.algorithm().calendar().is_none();
    let window = UnitWindow::of_length(limit.quota.window).filter(|_| is_timed);
    let multiplier = window.map(|window| window.count).filter(|count| *count > 1);
    CurrentLimit {
        requests_per_unit: clamp(quota),
        unit: window.map_or(RateLimitUnit::Unknown, |window| window.unit).into(),
        name: limit.name().to_owned(),
        unit_multiplier: multiplier.map(|value| UInt32Value { value }),
    }
}

fn until_reset(decided: &StoreDecision) -> ProtoDuration {
    duration(decided.time_to_reset())
}

fn duration(length: Millis) -> ProtoDuration {
    let seconds = i64::try_from(length.as_whole_secs()).unwrap_or(i64::MAX);
    // Below 10^9.
    ProtoDuration { seconds, nanos: (length.as_ms() % 1_000) as i32 * 1_000_000 }
}

/// A number as the protocol has it: in 32 bits.
fn clamp(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use tidegate_charge::{DecisionSource, LimitIdentity};
    use tidegate_limit::{Algorithm, Decision, Quota, ms};
    use tidegate_system::clock::StoreTime;

    use super::*;

    const NOW: StoreTime = StoreTime::from_unix_ms(1_800_000_000_000);

    /// A limit with a window in ms.
    fn limit(name: &str, quota: u64, window: u64) -> Limit {
        let quota = Quota::new(quota, Millis::from_ms(window), Algorithm::FixedWindow);
        Limit::new(LimitIdentity::new(name, 0), quota)
    }

    fn decided(limit: &Limit, admitted: bool, remaining: u64) -> Outcome {
        let decision = Decision {
            admitted,
            limit: limit.quota.limit,
            remaining,
            used: limit.quota.limit - remaining,
            reset_at: NOW + ms(1_500),
            retry_at: (!admitted).then_some(NOW + ms(1_500)),
            wait: Millis::ZERO,
        };
        Outcome::Decided(StoreDecision::new(decision, NOW, DecisionSource::Store))
    }

    fn status(limits: &[(Limit, Outcome)]) -> DescriptorStatus {
        let outcome = |(limit, outcome)| LimitOutcome { limit, outcome, role: LimitRole::Refuses };
        limited_status(limits.iter().map(|(limit, own)| (limit, own)).map(outcome))
    }

    fn pair(limit: Limit, admitted: bool, remaining: u64) -> (Limit, Outcome) {
        let outcome = decided(&limit, admitted, remaining);
        (limit, outcome)
    }

    #[test]
    fn a_status_is_that_of_the_tightest_limit() {
        let admitted =
            status(&[pair(limit("a", 10, 60_000), true, 9), pair(limit("b", 5, 90_000), true, 4)]);
        assert_eq!(admitted.code(), ResponseCode::Ok);
        let current = admitted.current_limit.unwrap();
        assert_eq!((current.name.as_str(), current.requests_per_unit), ("b", 5));
        assert_eq!(current.unit(), RateLimitUnit::Second);
        assert_eq!(current.unit_multiplier, Some(UInt32Value { value: 90 }));
        assert_eq!(admitted.limit_remaining, 4);
        let reset = ProtoDuration { seconds: 1, nanos: 500_000_000 };
        assert_eq!(admitted.duration_until_reset, Some(reset));

        let refused =
            status(&[pair(limit("a", 10, 60_000), false, 7), pair(limit("b", 5, 60_000), true, 4)]);
        assert_eq!((refused.code(), refused.limit_remaining), (ResponseCode::OverLimit, 0));
        assert_eq!(refused.current_limit.unwrap().name, "a");
    }

    #[test]
    fn a_limit_that_is_not_enforced_does_not_refuse() {
        let shadow = Limit { enforce: false, ..limit("a", 10, 60_000) };
        let admitted = status(&[pair(shadow, false, 0)]);
        assert_eq!((admitted.code(), admitted.limit_remaining), (ResponseCode::Ok, 0));
    }

    #[test]
    fn a_limit_that_only_counts_is_not_shown() {
        let own = pair(limit("a", 10, 60_000), true, 3);
        let candidate = pair(Limit { enforce: false, ..limit("b", 5, 60_000) }, false, 0);
        let outcomes = [(&own, LimitRole::Refuses), (&candidate, LimitRole::Counts)];
        let outcomes =
            outcomes.map(|((limit, outcome), role)| LimitOutcome { limit, outcome, role });
        let shown = limited_status(outcomes.into_iter());
        assert_eq!((shown.current_limit.unwrap().name.as_str(), shown.limit_remaining), ("a", 3));
        assert_eq!(limited_status(outcomes[1..].iter().copied()), unlimited_status());
    }

    #[test]
    fn large_numbers_are_lowered_to_what_the_protocol_has() {
        let wide = status(&[pair(limit("a", 1 << 40, 60_000), true, 1 << 39)]);
        assert_eq!(wide.current_limit.unwrap().requests_per_unit, u32::MAX);
        assert_eq!(wide.limit_remaining, u32::MAX);
    }

    #[test]
    fn a_descriptor_without_a_decision_is_unlimited() {
        assert_eq!(status(&[]), unlimited_status());
        assert_eq!(status(&[(limit("a", 1, 1_000), Outcome::Unknown)]), unlimited_status());
        assert_eq!(status(&[(limit("a", 1, 1_000), Outcome::NotCharged)]), unlimited_status());
    }

    #[test]
    fn metadata_names_who_refuses_and_who_reports() {
        assert_eq!(metadata(None, &[], Permits::None), None);
        let fields = metadata(None, &[], Permits::TakenAt(NOW)).unwrap().fields;
        let value = format!("taken@{}", NOW.as_unix_ms());
        assert_eq!(fields["permits"], MetadataKind::Text(value.clone()).into());
        assert_eq!(Permits::of_value(&value), Permits::TakenAt(NOW));
        for other in ["taken", "taken@", "taken@x", "taken@-1", "taken@9007199254740992", "5"] {
            assert_eq!(Permits::of_value(other), Permits::None, "{other}");
        }
        let fields = metadata(Some("per-user"), &[2], Permits::None).unwrap().fields;
        assert_eq!(fields["refused_by"], MetadataKind::Text("per-user".into()).into());
        let list = MetadataList { values: vec![MetadataKind::Number(2.0).into()] };
        assert_eq!(fields["quotaModeViolations"], MetadataKind::List(list).into());
        assert_eq!(fields["quotaModeEnabled"], MetadataKind::Bool(true).into());
    }
}
