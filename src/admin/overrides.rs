//! `GET /api/overrides` lists the overrides, `PUT` sets one, `DELETE /api/overrides/{id}` lifts it.
//! Keys of callers are neither returned nor logged, only their hashes: they may be tokens.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    AdminContext,
    caller::caller_key,
    parameters::{MAX_LISTED, parse_count, parse_distinct},
    problem::{WholeBody, problem},
};
use crate::{
    clock::StoreTime,
    gateway::Shared,
    overrides::{
        Changed, Override, OverrideChange, OverrideError, OverrideId, OverrideTarget,
        parse_request, time_text,
    },
    snapshot::AppliedOverride,
};

/// Overrides, in the order of their ids.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct OverrideList {
    overrides: Vec<OverrideDescription>,
    /// The number of all overrides.
    total: usize,
    /// The id to pass as `after` for the next ones; null if these are the last.
    next: Option<String>,
    /// Where they are kept: `redis`, `file`, or `none` if they cannot be set.
    #[cfg_attr(test, schemars(extend("enum" = ["redis", "file", "none"])))]
    place: &'static str,
}

/// An override.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct OverrideDescription {
    /// Derived from the limit and the target, so it stays the same.
    id: String,
    limit: Box<str>,
    /// The consumer that it applies to, or null.
    consumer: Option<Box<str>>,
    /// The plan that it applies to, or null.
    plan: Option<Box<str>>,
    /// The hash of the key that it applies to, or null.
    hash: Option<String>,
    /// A number, a rate such as `5000/1m`, `unlimited` or `blocked`.
    quota: String,
    /// When it ends, as `PUT` takes it; null: it has no end.
    until: Option<String>,
    /// The same in ms since the epoch.
    until_ms: Option<u64>,
    reason: Box<str>,
    /// Who set it.
    by: Box<str>,
    /// When it was set, in ms since the epoch.
    set_at_ms: Option<u64>,
    /// True if it applies now.
    in_force: bool,
    /// Why it does not apply with this gateway's configuration; null if it does.
    fault: Option<String>,
    /// Why it may apply to no caller now.
    notes: Vec<String>,
}

/// Lists the overrides.
pub(super) async fn list(
    State(context): State<AdminContext>,
    RawQuery(query): RawQuery,
) -> Response {
    let page = match parse_page(query.as_deref().unwrap_or_default()) {
        Ok(page) => page,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail, &[]),
    };
    let shared = &context.shared;
    let set = shared.overrides.set();
    let now = shared.clock.store_time();
    let mut rest = set.after(page.after);
    let overrides: Vec<OverrideDescription> =
        rest.by_ref().take(page.count).map(|(_, own)| describe(own, shared, now)).collect();
    let next = rest.next().and_then(|_| overrides.last().map(|last| last.id.clone()));
    let (total, place) = (set.len(), shared.override_store.label());
    let list = OverrideList { overrides, total, next, place };
    ([(header::CACHE_CONTROL, "no-store")], Json(list)).into_response()
}

/// The part of the list that a query asks for.
#[derive(Debug, Eq, PartialEq)]
struct Page {
    after: Option<OverrideId>,
    count: usize,
}

fn parse_page(query: &str) -> Result<Page, String> {
    let mut page = Page { after: None, count: MAX_LISTED };
    for (name, value) in parse_distinct(query)? {
        match name.as_str() {
            "after" => {
                let id = OverrideId::parse(&value);
                page.after = Some(id.ok_or("`after` is no id; expected `next` of another list")?);
            }
            "count" => page.count = parse_count(&value)?,
            _ => return Err("unknown parameter; expected `after` or `count`".to_owned()),
        }
    }
    Ok(page)
}

/// Sets an override, instead of the one of the same limit and target.
pub(super) async fn set(
    State(context): State<AdminContext>,
    WholeBody(body): WholeBody,
) -> Response {
    let shared = &context.shared;
    let new = match requested(&body, shared) {
        Ok(new) => new,
        Err((status, detail)) => return problem(status, &detail, &[]),
    };
    match shared
        .override_store
        .change(OverrideChange::Set(new.clone()), &shared.overrides.set())
        .await
    {
        Ok(changed) => {
            let before = before_text(&changed);
            apply(shared, changed);
            tracing::info!(
                by = &*new.by, before, after = %new, reason = &*new.reason, "an override was set"
            );
            let mut described = describe(&new, shared, shared.clock.store_time());
            note_missing_record(&mut described, shared).await;
            for note in &described.notes {
                tracing::warn!(note, "an override that was set may apply to no caller");
            }
            Json(described).into_response()
        }
        Err(error) => failed(&error),
    }
}

/// Lifts an override.
pub(super) async fn lift(
    State(context): State<AdminContext>,
    id: Result<Path<String>, PathRejection>,
) -> Response {
    let id = id.ok().and_then(|Path(id)| OverrideId::parse(&id));
    let Some(id) = id else {
        let detail =
            "the path has no id of an override; expected 32 hexadecimal digits in lower case";
        return problem(StatusCode::BAD_REQUEST, detail, &[]);
    };
    let shared = &context.shared;
    match shared.override_store.change(OverrideChange::Lift(id), &shared.overrides.set()).await {
        Ok(changed) => {
            let before = before_text(&changed);
            apply(shared, changed);
            tracing::info!(by = OPERATOR, before, after = "none", "an override was lifted");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => failed(&error),
    }
}

/// Who makes changes: the admin API has one token, which has no name.
const OPERATOR: &str = "admin";

fn before_text(changed: &Changed) -> String {
    changed.before.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
}

/// Applies a change at this gateway at once.
fn apply(shared: &Shared, changed: Changed) {
    if let Some(set) = changed.set {
        shared.overrides.replace(set, &shared.live);
    }
}

/// The override that a body asks for, or the status and detail of the error.
fn requested(body: &[u8], shared: &Shared) -> Result<Override, (StatusCode, String)> {
    let bad = |detail: String| (StatusCode::BAD_REQUEST, detail);
    let requested = parse_request(body).map_err(bad)?;
    let snapshot = shared.live.snapshot();
    let named = snapshot.limits.iter().find(|policy| policy.limit.name() == &*requested.own.limit);
    let Some(policy) = named else {
        let detail = "no limit has this name; expected one that /api/limits lists";
        return Err((StatusCode::NOT_FOUND, detail.to_owned()));
    };
    let now = shared.clock.store_time();
    let mut own = Override { by: OPERATOR.into(), set_at: Some(now), ..requested.own };
    if let Some(key) = &requested.key {
        let values: Vec<&str> = key.values.iter().map(String::as_str).collect();
        let secret = shared.store.key_secret();
        let key = caller_key(&values, key.client_ip.as_deref(), policy, &snapshot, secret);
        own.target = OverrideTarget::Key(key.map_err(bad)?);
    }
    if own.until.is_some_and(|until| until <= now) {
        return Err(bad("`until` has passed; expected a later time".to_owned()));
    }
    let own = Arc::new(own);
    AppliedOverride::new(&own, policy).map_err(|fault| bad(format!("`quota` is {fault}")))?;
    Ok(Arc::unwrap_or_clone(own))
}

pub(super) fn describe(own: &Override, shared: &Shared, now: StoreTime) -> OverrideDescription {
    let fault = shared.overrides.fault_of(own.id());
    let (mut consumer, mut plan, mut hash) = (None, None, None);
    match &own.target {
        OverrideTarget::Consumer(name) => consumer = Some(name.clone()),
        OverrideTarget::Plan(name) => plan = Some(name.clone()),
        OverrideTarget::Key(key) => hash = Some(format!("{:032x}", key.0)),
    }
    OverrideDescription {
        id: own.id().to_string(),
        limit: own.limit.clone(),
        consumer,
        plan,
        hash,
        quota: own.quota.to_string(),
        until: own.until.map(time_text),
        until_ms: own.until.map(StoreTime::as_unix_ms),
        reason: own.reason.clone(),
        by: own.by.clone(),
        set_at_ms: own.set_at.map(StoreTime::as_unix_ms),
        in_force: fault.is_none() && own.is_in_force(now),
        fault,
        notes: note_of_target(&own.target, shared).into_iter().collect(),
    }
}

/// Why an override may apply to no caller: the consumers or plans that this gateway has read lack
/// its target.
fn note_of_target(target: &OverrideTarget, shared: &Shared) -> Option<String> {
    let consumers = shared.live.consumers();
    let is_listed = !consumers.is_in_store() && !consumers.is_empty();
    match target {
        OverrideTarget::Consumer(name) if is_listed && consumers.consumer(name).is_none() => {
            Some(unknown_consumer(name))
        }
        OverrideTarget::Plan(name) if !consumers.has_plan(name) => Some(format!(
            "the configuration of this gateway has no plan `{name}`: until it has, the override applies to no caller"
        )),
        OverrideTarget::Key(_) | OverrideTarget::Consumer(_) | OverrideTarget::Plan(_) => None,
    }
}

fn unknown_consumer(name: &str) -> String {
    format!(
        "no consumer in the list is called `{name}`: the override applies only to a caller that a token, a certificate \
         or a service names so"
    )
}

/// Adds the note of a consumer that the records in Redis lack.
async fn note_missing_record(described: &mut OverrideDescription, shared: &Shared) {
    let Some(store) = &shared.consumer_store else { return };
    if let Some(name) = &described.consumer
        && shared.live.consumers().is_in_store()
        && let Ok(found) = store.named(name).await
        && found.consumer(name).is_none()
    {
        described.notes.push(unknown_consumer(name));
    }
}

fn failed(error: &OverrideError) -> Response {
    let status = match error {
        OverrideError::NoPlace | OverrideError::Full | OverrideError::OtherSecret => {
            StatusCode::CONFLICT
        }
        OverrideError::Faults(faults) => {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            let detail = "the file of overrides has faults, so it is not written; mend it first";
            return problem(StatusCode::CONFLICT, detail, &faults);
        }
        OverrideError::Unknown => StatusCode::NOT_FOUND,
        OverrideError::Redis(_) => StatusCode::SERVICE_UNAVAILABLE,
        OverrideError::Write { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    problem(status, &error.to_string(), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_bounded() {
        let id = "0123456789abcdef0123456789abcdef";
        let page = parse_page(&format!("after={id}&count=5")).unwrap();
        assert_eq!(page, Page { after: OverrideId::parse(id), count: 5 });
        assert_eq!(parse_page(""), Ok(Page { after: None, count: MAX_LISTED }));
        for query in [
            "count=0",
            "count=1001",
            "after=1",
            "from=1",
            "count=%2",
            "count=1&count=1",
            "count=5&count=6",
        ] {
            assert!(parse_page(query).is_err(), "{query}");
        }
    }
}
