//! Notes on data that a log lacks and rules that are not replayed, so that results are not misread.

use std::collections::BTreeSet;

use super::{ConfigReplay, Format, Replay};
use crate::identity::KeyPart;
use crate::snapshot::{LimitPolicy, TierMatch};

/// The notes, one sentence each.
pub(super) fn notes(replay: &Replay) -> Vec<String> {
    let has = |format| replay.files.iter().any(|file| file.format == Some(format));
    let mut notes = Vec::new();
    if has(Format::Json) {
        notes.push(missing_parts(
            replay,
            "Tidegate's log",
            &["headers", "cookies", "query", "claims", "bodies"],
            |part| {
                matches!(
                    part,
                    KeyPart::Header(_)
                        | KeyPart::Cookie(_)
                        | KeyPart::Query(_)
                        | KeyPart::Claim(_)
                        | KeyPart::Json(_)
                )
            },
        ));
    }
    if has(Format::Combined) {
        let parts =
            ["host (see --host)", "headers", "cookies", "token (the user name is used instead)"];
        notes.push(missing_parts(replay, "a log in the format `combined`", &parts, |part| {
            matches!(part, KeyPart::Host | KeyPart::Header(_) | KeyPart::Cookie(_) | KeyPart::Token)
        }));
    }
    if replay.from_proxies > 0 {
        notes.push(format!(
            "requests from trusted proxies: {}; the log does not contain the clients behind them, so each \
             proxy counts as one client, whom routes with `allow` or `deny` refuse",
            replay.from_proxies
        ));
    }
    for config in &replay.configs {
        notes.extend(throttle_note(config));
        if config.undecided > 0 {
            notes.push(format!(
                "{}: requests whose route depends on a header, a query or a weight that the log does not \
                 show: {}; not replayed",
                config.name, config.undecided
            ));
        }
        if config.snapshot.routes.iter().any(|route| route.cors.is_some()) {
            notes.push(format!(
                "{}: a log does not contain the headers of a preflight; each OPTIONS of a route with `cors` \
                 is taken for one and not charged",
                config.name
            ));
        }
        notes.extend(limit_notes(config));
        if config.evictions() > 0 {
            notes.push(format!(
                "{}: counters evicted because there were more than store.memory.max_keys: {}; there may \
                 be too few refusals",
                config.name,
                config.evictions()
            ));
        }
    }
    if replay.late > 0 {
        notes.push(format!(
            "lines that are more than {1} lines out of order: {0}; replayed at the time of the line \
             before them",
            replay.late,
            super::REORDER_LINES
        ));
    }
    if replay.not_checked > 0 {
        notes.push(format!(
            "requests that the gateway had ended before any limit was charged (malformed, ambiguous or \
             too long): {}; not charged here either",
            replay.not_checked
        ));
    }
    if replay.evicted_callers() > 0 {
        notes.push(
            "there were too many callers to count all of them: the counts by caller may be too low"
                .to_owned(),
        );
    }
    notes
}

/// A note on what a replay does of the throttle, if there is one.
fn throttle_note(config: &ConfigReplay) -> Option<String> {
    config.snapshot.throttle.as_ref()?;
    let name = &config.name;
    let Some(patience) = config.patience() else {
        return Some(format!("{name}: the throttle is not replayed and refuses no request here"));
    };
    let patience = humantime::format_duration(patience.as_duration());
    Some(format!(
        "{name}: the waiting room is that of one gateway. A user that is refused is assumed to ask again when its \
         ticket asks for it, until it is admitted, or gives up after {patience}; its requests of the log are not \
         sent while it waits. Limits are charged at the times of the log, whether or not a user waits"
    ))
}

/// Notes on rules of limits that cannot be replayed from a log.
fn limit_notes(config: &ConfigReplay) -> Vec<String> {
    let (name, limits) = (&config.name, &config.snapshot.limits);
    let named = |which: fn(&LimitPolicy) -> bool| {
        let found = limits.iter().filter(|policy| which(policy));
        let names: Vec<&str> = found.map(|policy| policy.limit.name()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let costs = named(|policy| policy.cost.is_variable());
    let refunds = named(|policy| !policy.refunds.are_none());
    let tiers = named(|policy| {
        let is_missing = |part: &KeyPart| {
            matches!(
                part,
                KeyPart::Token
                    | KeyPart::Header(_)
                    | KeyPart::Cookie(_)
                    | KeyPart::Query(_)
                    | KeyPart::Claim(_)
                    | KeyPart::Json(_)
            )
        };
        policy
            .tiers
            .iter()
            .any(|tier| matches!(&tier.matches, TierMatch::Part(part, _) if is_missing(part)))
    });
    let tiers = tiers.map(|limits| {
        format!(
            "{name}: the log does not show which tier a caller is in; all have the limit's own quota: {limits}"
        )
    });
    let costs = costs.filter(|_| config.without_cost > 0).map(|limits| {
        format!(
            "{name}: requests whose line has no `cost` of a limit: {}; each is charged the configured \
             estimate, or 1 if the request or its response has it: {limits}",
            config.without_cost
        )
    });
    let refunds = refunds.map(|limits| {
        format!("{name}: refunds are made at once instead of at the end of the response: {limits}")
    });
    tiers.into_iter().chain(costs).chain(refunds).collect()
}

/// Notes the parts of keys that a log does not contain, and the limits that count by them.
fn missing_parts(
    replay: &Replay,
    log: &str,
    parts: &[&str],
    lacks: impl Fn(&KeyPart) -> bool,
) -> String {
    let affected: BTreeSet<&str> =
        replay.configs.iter().flat_map(|config| affected_limits(config, &lacks)).collect();
    let parts = parts.join(", ");
    if affected.is_empty() {
        return format!("{log} does not contain: {parts}; no limit counts by them");
    }
    let affected = affected.into_iter().collect::<Vec<_>>().join(", ");
    format!(
        "{log} does not contain: {parts}; limits that count by them: {affected} (a missing part is empty; if \
         nothing else identifies the caller, the client's address is counted in its place)"
    )
}

fn affected_limits(
    config: &ConfigReplay,
    lacks: impl Fn(&KeyPart) -> bool,
) -> impl Iterator<Item = &str> {
    let policies = config.snapshot.routes.iter().flat_map(|route| &route.limits);
    policies.filter(move |policy| policy.key.0.iter().any(&lacks)).map(|policy| policy.limit.name())
}
