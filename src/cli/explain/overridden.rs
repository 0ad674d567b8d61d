//! The overrides that apply to the request of `explain`.

use std::io::{self, Write};

use serde::Serialize;

use crate::charge::Key;
use crate::identity::{AmbiguousValue, KeySecret, Subject};
use crate::overrides::{OverridesContent, time_text};
use crate::snapshot::{OverrideTable, OverridesAt, Route, Snapshot};

/// A fixed secret: no hash leaves this process.
const FIXED: KeySecret = KeySecret(0, 0);

/// The overrides of a file, and the secret under which it has keys.
pub(super) struct ExplainedOverrides {
    /// `None`: there are none.
    pub(super) at: Option<OverridesAt>,
    pub(super) secret: KeySecret,
}

impl ExplainedOverrides {
    /// The overrides in `content`, for a request at `now`.
    pub(super) fn new(
        content: &OverridesContent,
        snapshot: &Snapshot,
        now: crate::clock::StoreTime,
    ) -> Self {
        let table = OverrideTable::new(&content.set, snapshot);
        let at = (!content.set.is_empty()).then(|| OverridesAt { table: table.into(), now });
        let secret = content.secret.map_or(FIXED, |secret| secret.for_keys());
        Self { at, secret }
    }

    /// The overrides of the limits of `route` for `subject`.
    ///
    /// # Errors
    ///
    /// A part of a key is ambiguous.
    pub(super) fn of_route(
        &self,
        route: &Route,
        subject: &Subject<'_>,
    ) -> Result<Vec<OverrideExplanation>, AmbiguousValue> {
        let mut found = Vec::new();
        let Some(at) = &self.at else { return Ok(found) };
        for policy in &route.limits {
            for subject in &*policy.key.subjects(subject)? {
                let key = Key(policy.key.key(subject, self.secret)?);
                let Some(applied) = at.find(policy, key, subject.consumer) else { continue };
                let (own, (kind, value)) = (&applied.own, applied.own.target.parts());
                let until = own.until.map(crate::clock::StoreTime::as_unix_ms);
                found.push(OverrideExplanation {
                    id: own.id().to_string(),
                    limit: own.limit.to_string(),
                    target: format!("{kind} {value}"),
                    quota: own.quota.to_string(),
                    until: own.until.map(time_text),
                    until_ms: until,
                    reason: own.reason.to_string(),
                    text: own.to_string(),
                });
            }
        }
        Ok(found)
    }
}

/// An override that applies to the request.
#[derive(Serialize)]
pub(super) struct OverrideExplanation {
    id: String,
    pub(super) limit: String,
    target: String,
    quota: String,
    /// When it ends, as the admin API takes it; null: it has no end.
    until: Option<String>,
    /// The same in ms since the epoch.
    until_ms: Option<u64>,
    reason: String,
    #[serde(skip)]
    text: String,
}

impl OverrideExplanation {
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let reason = match &*self.reason {
            "" => String::new(),
            reason => format!(" ({reason})"),
        };
        writeln!(out, "override   {}{reason}", self.text)
    }
}
