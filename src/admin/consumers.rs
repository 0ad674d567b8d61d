//! `/api/consumers`: creates, shows and deletes consumers that are kept in Redis, and their keys. A
//! key is returned once, when it is made; neither keys nor hashes of passwords are logged.

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    AdminContext,
    problem::{WholeBody, problem},
};
use crate::{
    auth::ApiKey,
    config::{ConsumerConfig, ConsumerKeyConfig},
    consumer_store::{
        ChangeError, ChangeOutcome, ConsumerStore, PutConsumer, parse_key, parse_requested,
    },
    gateway::Shared,
};

/// Who makes changes: the admin API has one token, which has no name.
const OPERATOR: &str = "admin";

/// A consumer in Redis.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct ConsumerDescription {
    name: String,
    /// Its plan, or null.
    plan: Option<String>,
    /// The first day of its months, or null.
    billing_day: Option<u8>,
    keys: Vec<KeyDescription>,
    /// True if it has a password, whose hash is not shown.
    has_password: bool,
    labels: std::collections::BTreeMap<String, String>,
    disabled: bool,
    /// What is unusual about the record.
    notes: Vec<String>,
}

/// A key of a consumer.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct KeyDescription {
    id: Option<String>,
    sha256: String,
    /// When it ceases to be valid, or null.
    expires: Option<String>,
}

/// A key that was added.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct AddedKey {
    id: Option<String>,
    sha256: String,
    expires: Option<String>,
    /// The key, if it was made: it is shown only now.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// The name in the path.
type Name = Result<Path<String>, PathRejection>;

/// Creates a consumer, or replaces it. Without `keys` or `password`, a consumer that exists keeps
/// its own.
pub(super) async fn put(
    State(context): State<AdminContext>,
    WholeBody(body): WholeBody,
) -> Response {
    let shared = &context.shared;
    let Some(store) = store(shared) else { return no_store() };
    let requested = match parse_requested(&body) {
        Ok(requested) => requested,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail, &[]),
    };
    match store.put(&requested).await {
        Ok(PutConsumer { outcome, consumer }) => {
            let (name, keys) = (&*consumer.name, consumer.keys.len());
            let plan = consumer.plan.as_deref().unwrap_or("none");
            let (disabled, billing_day) = (consumer.disabled, consumer.billing_day);
            tracing::info!(
                by = OPERATOR,
                consumer = name,
                plan,
                keys,
                disabled,
                billing_day,
                "a consumer was {}",
                verb(outcome)
            );
            answer(status_of(outcome), describe(consumer, shared))
        }
        Err(error) => failed(&error),
    }
}

/// Shows a consumer.
pub(super) async fn show(State(context): State<AdminContext>, name: Name) -> Response {
    let Ok(Path(name)) = name else { return malformed_path() };
    let Some(store) = store(&context.shared) else { return no_store() };
    match store.show(&name).await {
        Ok(consumer) => answer(StatusCode::OK, describe(consumer, &context.shared)),
        Err(error) => failed(&error),
    }
}

/// Deletes a consumer and its keys.
pub(super) async fn delete(State(context): State<AdminContext>, name: Name) -> Response {
    let Ok(Path(name)) = name else { return malformed_path() };
    let Some(store) = store(&context.shared) else { return no_store() };
    match store.delete(&name).await {
        Ok(()) => {
            tracing::info!(by = OPERATOR, consumer = name, "a consumer was deleted");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => failed(&error),
    }
}

/// Adds a key to a consumer.
pub(super) async fn add_key(
    State(context): State<AdminContext>,
    name: Name,
    body: Result<WholeBody, Response>,
) -> Response {
    let Ok(Path(name)) = name else { return malformed_path() };
    let WholeBody(body) = match body {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let Some(store) = store(&context.shared) else { return no_store() };
    let requested = match parse_key(&body) {
        Ok(requested) => requested,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail, &[]),
    };
    let made = requested.sha256.is_none().then(ApiKey::generate).transpose();
    let Ok(made) = made else {
        let detail = "the system has no random numbers for a key";
        return problem(StatusCode::INTERNAL_SERVER_ERROR, detail, &[]);
    };
    let sha256 = match &made {
        Some(key) => key.hash().to_string(),
        None => requested.sha256.unwrap_or_default(),
    };
    let key = ConsumerKeyConfig { id: requested.id, sha256, expires: requested.expires };
    match store.add_key(&name, &key).await {
        Ok(outcome) => {
            let id = key.id.as_deref().unwrap_or_default();
            tracing::info!(
                by = OPERATOR,
                consumer = name,
                id,
                "a key of a consumer was {}",
                verb(outcome)
            );
            let ConsumerKeyConfig { id, sha256, expires } = key;
            let key = made.map(|key| key.as_str().to_owned());
            answer(status_of(outcome), AddedKey { id, sha256, expires, key })
        }
        Err(error) => failed(&error),
    }
}

/// Removes a key of a consumer.
pub(super) async fn remove_key(
    State(context): State<AdminContext>,
    path: Result<Path<(String, String)>, PathRejection>,
) -> Response {
    let Ok(Path((name, key))) = path else { return malformed_path() };
    let Some(store) = store(&context.shared) else { return no_store() };
    match store.remove_key(&name, &key).await {
        Ok(removed) => {
            let id = removed.id.as_deref().unwrap_or_default();
            tracing::info!(by = OPERATOR, consumer = name, id, "a key of a consumer was removed");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => failed(&error),
    }
}

/// The store, if the consumers are in it.
fn store(shared: &Shared) -> Option<&ConsumerStore> {
    shared.consumer_store.as_ref().filter(|_| shared.live.consumers().is_in_store())
}

fn no_store() -> Response {
    let detail =
        "the consumers are not in Redis; expected `consumers: {redis: true}` in the configuration";
    problem(StatusCode::CONFLICT, detail, &[])
}

fn malformed_path() -> Response {
    let detail = "the path is malformed; expected a name in UTF-8, percent-encoded";
    problem(StatusCode::BAD_REQUEST, detail, &[])
}

fn verb(outcome: ChangeOutcome) -> &'static str {
    match outcome {
        ChangeOutcome::Created => "created",
        ChangeOutcome::Replaced => "replaced",
    }
}

fn status_of(outcome: ChangeOutcome) -> StatusCode {
    match outcome {
        ChangeOutcome::Created => StatusCode::CREATED,
        ChangeOutcome::Replaced => StatusCode::OK,
    }
}

fn answer(status: StatusCode, body: impl Serialize) -> Response {
    (status, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

fn describe(consumer: ConsumerConfig, shared: &Shared) -> ConsumerDescription {
    let ConsumerConfig { name, plan, billing_day, keys, password, labels, disabled } = consumer;
    let mut notes = Vec::new();
    let unknown = plan.as_deref().filter(|plan| !shared.live.consumers().has_plan(plan));
    if let Some(plan) = unknown {
        notes.push(format!(
            "the configuration of this gateway has no plan `{plan}`: the consumer counts as one without a plan"
        ));
    }
    let keys = keys.into_iter().map(|key| {
        let ConsumerKeyConfig { id, sha256, expires } = key;
        KeyDescription { id, sha256, expires }
    });
    let has_password = password.is_some();
    ConsumerDescription {
        name,
        plan,
        billing_day,
        keys: keys.collect(),
        has_password,
        labels,
        disabled,
        notes,
    }
}

fn failed(error: &ChangeError) -> Response {
    let status = match error {
        ChangeError::Faulty(_) => StatusCode::BAD_REQUEST,
        ChangeError::UnknownConsumer | ChangeError::UnknownKey => StatusCode::NOT_FOUND,
        ChangeError::AmbiguousKey
        | ChangeError::OtherOwner
        | ChangeError::TooManyKeys
        | ChangeError::Malformed => StatusCode::CONFLICT,
        ChangeError::Contended | ChangeError::Redis(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    problem(status, &error.to_string(), &[])
}
