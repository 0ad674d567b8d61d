//! What the log does not have, and what is not replayed: told, so that nobody is misled.

use std::collections::BTreeSet;

use super::{Candidate, Format, Replay};
use crate::identity::Part;
use crate::snapshot::{Cost, Policy, Whose};

/// One sentence each.
pub(super) fn notes(replay: &Replay) -> Vec<String> {
    let has = |wanted| replay.files.iter().any(|file| file.format == Some(wanted));
    let mut notes = Vec::new();
    if has(Format::Json) {
        notes.push(missing(replay, "Tidegate's log", &["headers", "cookies", "query"], |part| {
            matches!(part, Part::Header(_) | Part::Cookie(_) | Part::Query(_))
        }));
    }
    if has(Format::Combined) {
        let parts =
            ["host (see --host)", "headers", "cookies", "token (the user's name stands for it)"];
        notes.push(missing(replay, "a log in the format `combined`", &parts, |part| {
            matches!(part, Part::Host | Part::Header(_) | Part::Cookie(_) | Part::Token)
        }));
    }
    if replay.from_proxies > 0 {
        notes.push(format!(
            "requests from trusted proxies: {}; the log does not have the clients behind them, so each \
             proxy is one client here",
            replay.from_proxies
        ));
    }
    for candidate in &replay.candidates {
        if candidate.snapshot.throttle.is_some() {
            notes.push(format!(
                "{}: the throttle (active users) is not replayed: nobody is refused by it here",
                candidate.name
            ));
        }
        notes.extend(costs(candidate));
        if candidate.evictions() > 0 {
            notes.push(format!(
                "{}: counters dropped because there were more than store.memory.max_keys: {}; too little \
                 may be refused",
                candidate.name,
                candidate.evictions()
            ));
        }
    }
    if replay.late > 0 {
        notes.push(format!(
            "lines that are more than {1} lines out of order: {0}; replayed at the time of the line \
             before them",
            replay.late,
            super::WINDOW
        ));
    }
    if replay.unasked > 0 {
        notes.push(format!(
            "requests that had ended at the gateway before any limit was asked (malformed, ambiguous or \
             too long): {}; not charged here either",
            replay.unasked
        ));
    }
    if replay.forgotten_callers() > 0 {
        notes.push(
            "there were too many callers to tell all apart: the counts by caller may be too low"
                .to_owned(),
        );
    }
    notes
}

/// What of the limits' rules a log cannot follow.
fn costs(candidate: &Candidate) -> Vec<String> {
    let (name, limits) = (&candidate.name, &candidate.snapshot.limits);
    let named = |which: fn(&Policy) -> bool| {
        let found = limits.iter().filter(|policy| which(policy));
        let names: Vec<&str> = found.map(|policy| &*policy.limit.name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let told = named(|policy| !matches!(policy.cost, Cost::Fixed(_)));
    let given = named(|policy| !policy.refund.is_empty());
    let tiers = named(|policy| {
        let unseen = |part: &Part| {
            matches!(part, Part::Token | Part::Header(_) | Part::Cookie(_) | Part::Query(_))
        };
        policy.tiers.iter().any(|tier| matches!(&tier.whose, Whose::Part(part, _) if unseen(part)))
    });
    let tiers = tiers.map(|limits| {
        format!(
            "{name}: the log does not tell who is in a tier; all have the limit's quota: {limits}"
        )
    });
    let told = told.map(|limits| {
        format!("{name}: the log does not have what requests cost; they cost 1 here: {limits}")
    });
    let given = given.map(|limits| {
        format!(
            "{name}: what is refunded is given back at once, not when the answer ends: {limits}"
        )
    });
    tiers.into_iter().chain(told).chain(given).collect()
}

/// Which parts of keys a log does not have, and which limits count by them.
fn missing(replay: &Replay, log: &str, parts: &[&str], lacks: impl Fn(&Part) -> bool) -> String {
    let concerned: BTreeSet<&str> =
        replay.candidates.iter().flat_map(|candidate| limits(candidate, &lacks)).collect();
    let parts = parts.join(", ");
    if concerned.is_empty() {
        return format!("{log} does not have: {parts}; no limit here counts by them");
    }
    let concerned = concerned.into_iter().collect::<Vec<_>>().join(", ");
    format!(
        "{log} does not have: {parts}; limits that count by them: {concerned} (a part that is missing is \
         empty, and a key that is wholly empty is the client's address)"
    )
}

fn limits(candidate: &Candidate, lacks: impl Fn(&Part) -> bool) -> impl Iterator<Item = &str> {
    let used = candidate.snapshot.routes.iter().flat_map(|route| &route.limits);
    used.filter(move |used| used.policy.key.0.iter().any(&lacks))
        .map(|used| &*used.policy.limit.name)
}
