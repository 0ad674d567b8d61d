//! `GET /api/limits`, and `GET` and `DELETE /api/limits/{name}`: what limits there are, what they decided,
//! and how one of their callers stands. No value of a key is told or logged: it may be a token.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{Control, problem};
use crate::{
    gateway::Shared,
    identity::{KeyInput, Secret, KeyInputError},
    limit::{Charge, Key, OnFailure},
    metrics::Metrics,
    snapshot::{Cost, Policy, Snapshot, Tier, TierMatch},
    store::Failure,
};

/// What follows the name in a request's target.
type Parameters = Query<Vec<(String, String)>>;

/// Every limit, and what it has decided since the process began.
pub(super) async fn list(State(control): State<Control>) -> Response {
    let shared = &control.shared;
    let snapshot = shared.live.snapshot();
    let limits: Vec<Value> =
        snapshot.limits.iter().map(|policy| described(policy, &shared.metrics)).collect();
    Json(json!({ "limits": limits })).into_response()
}

/// How one caller stands. Charges nothing.
pub(super) async fn show(
    State(control): State<Control>,
    Path(name): Path<String>,
    Query(parameters): Parameters,
) -> Response {
    let (policy, wanted) = match find(&control.shared, &name, &parameters) {
        Ok(found) => found,
        Err((status, detail)) => return problem(status, &detail, &[]),
    };
    let limit = policy.limit(wanted.tier);
    let charge = Charge { limit, key: wanted.key, cost: limit.cost };
    match control.shared.stores.peek(&[charge]).await {
        Ok(verdict) => {
            let Some(decided) = verdict.decided(0) else { return lost(Failure::Reply) };
            let decision = &decided.decision;
            let state = json!({
                "limit": decision.limit,
                "remaining": decision.remaining,
                "used": decision.used,
                "reset_at_ms": decision.reset_at,
                "retry_at_ms": decision.retry_at,
                "now_ms": decided.at,
                "blocked": limit.enforce && !decision.admitted,
            });
            ([(header::CACHE_CONTROL, "no-store")], Json(state)).into_response()
        }
        Err(failure) => lost(failure),
    }
}

/// Forgets what a limit, and its candidate, have counted of one caller.
pub(super) async fn reset(
    State(control): State<Control>,
    Path(name): Path<String>,
    Query(parameters): Parameters,
) -> Response {
    let (policy, wanted) = match find(&control.shared, &name, &parameters) {
        Ok(found) => found,
        Err((status, detail)) => return problem(status, &detail, &[]),
    };
    let both = [Some(&policy), policy.candidate.as_ref()];
    let limits: Vec<_> = both.into_iter().flatten().map(|policy| &*policy.limit).collect();
    match control.shared.stores.reset(&limits, wanted.key).await {
        Ok(()) => {
            tracing::info!(limit = name, "a caller's count was reset");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(failure) => lost(failure),
    }
}

/// Whom a request is about.
#[derive(Debug, Eq, PartialEq)]
struct Wanted {
    key: Key,
    tier: Option<u16>,
}

/// The limit called `name` and the caller whom `parameters` give, or what is refused and why.
fn find(
    shared: &Shared,
    name: &str,
    parameters: &[(String, String)],
) -> Result<(Arc<Policy>, Wanted), (StatusCode, String)> {
    let snapshot = shared.live.snapshot();
    let named = snapshot.limits.iter().find(|policy| *policy.limit.name == *name);
    let Some(policy) = named.cloned() else {
        let detail = "no limit has this name; expected one of those that /api/limits lists";
        return Err((StatusCode::NOT_FOUND, detail.to_owned()));
    };
    let (k0, k1) = shared.stores.secret();
    let wanted = wanted(parameters, &policy, &snapshot, Secret(k0, k1));
    let wanted = wanted.map_err(|detail| (StatusCode::BAD_REQUEST, detail))?;
    Ok((policy, wanted))
}

/// Whom `parameters` give, or what was expected of them.
fn wanted(
    parameters: &[(String, String)],
    policy: &Policy,
    snapshot: &Snapshot,
    secret: Secret,
) -> Result<Wanted, String> {
    let (mut values, mut hash, mut client_ip, mut tier) = (Vec::new(), None, None, None);
    for (name, value) in parameters {
        let before = match name.as_str() {
            "key" => {
                values.push(value.as_str());
                None
            }
            "hash" => hash.replace(value.as_str()),
            "client_ip" => client_ip.replace(value.as_str()),
            "tier" => tier.replace(value.as_str()),
            _ => return Err("unknown parameter; expected key, hash, client_ip, tier".to_owned()),
        };
        if before.is_some() {
            return Err(format!("`{name}` again; expected it once"));
        }
    }
    let key = match hash {
        Some(_) if !values.is_empty() || client_ip.is_some() => {
            return Err("`hash` beside `key` or `client_ip`; expected `hash` alone".to_owned());
        }
        Some(hash) => hashed(hash).ok_or("`hash` is none; expected 32 hexadecimal digits")?,
        None => {
            let identity = &snapshot.identity;
            let given = KeyInput {
                values: &values,
                client_ip,
                token_sources: &identity.token,
                ipv6_prefix: identity.ipv6_prefix,
            };
            policy
                .key
                .key_of_input(&given, secret)
                .map_err(|unfit| expected(unfit, policy, values.len()))?
        }
    };
    Ok(Wanted { key: Key(key), tier: tier.map(|tier| tier_of(tier, policy)).transpose()? })
}

/// A key as it stands in Redis.
fn hashed(text: &str) -> Option<u128> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u128::from_str_radix(text, 16).ok())?
}

fn tier_of(text: &str, policy: &Policy) -> Result<u16, String> {
    let tier = text.parse::<u16>().ok().filter(|tier| usize::from(*tier) < policy.tiers.len());
    tier.ok_or_else(|| match policy.tiers.len() {
        0 => "`tier`, though the limit has none; expected no `tier`".to_owned(),
        count => format!("there is no such `tier`; expected 0 to {}", count - 1),
    })
}

/// What should have been given instead of values that are no caller's.
fn expected(unfit: KeyInputError, policy: &Policy, given: usize) -> String {
    let parts: Vec<String> = policy.key.0.iter().map(ToString::to_string).collect();
    match unfit {
        KeyInputError::Count if parts.is_empty() => {
            format!("{given} of `key`; expected none: this limit counts everyone together")
        }
        KeyInputError::Count => format!(
            "{given} of `key`; expected {}, in this order: {}",
            parts.len(),
            parts.join(", ")
        ),
        KeyInputError::Address => {
            "what should be an address is none; expected one such as 192.0.2.1".into()
        }
        KeyInputError::Credentials => {
            "a token that a request could not have; expected it as it stands in its header".into()
        }
        KeyInputError::Empty => "each `key` is empty: such callers are counted by their address; expected \
                         `client_ip` beside it, or another `key`"
            .to_owned(),
    }
}

/// The answer where Redis gave none.
fn lost(failure: Failure) -> Response {
    let detail = format!("Redis gave no answer ({}); try again", failure.label());
    problem(StatusCode::SERVICE_UNAVAILABLE, &detail, &[])
}

fn described(policy: &Policy, metrics: &Metrics) -> Value {
    let limit = &policy.limit;
    let (quota, key) = (&limit.quota, &policy.key.0);
    let tiers: Vec<Value> = policy.tiers.iter().map(tier).collect();
    let candidate = policy.candidate.as_ref().map(|candidate| {
        let decisions = decisions(&candidate.limit.name, metrics);
        json!({ "quota": candidate.limit.quota.limit, "decisions": decisions })
    });
    json!({
        "name": limit.name,
        "algorithm": limit.algorithm.tag(),
        "quota": quota.limit,
        "window_ms": quota.window,
        "resolution": quota.resolution,
        "strict": quota.strict,
        "key": key.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "cost": cost(&policy.cost),
        "tiers": tiers,
        "enforce": limit.enforce,
        "candidate": candidate,
        "refund": policy.refund.as_slice(),
        "on_failure": match limit.on_failure {
            OnFailure::Local => "local",
            OnFailure::Open => "open",
            OnFailure::Closed => "closed",
        },
        "decisions": decisions(&limit.name, metrics),
    })
}

fn cost(cost: &Cost) -> Value {
    match cost {
        Cost::Fixed(cost) => json!(cost),
        Cost::Header { name, max } => json!({ "header": name.as_str(), "max_cost": max }),
        Cost::Response { name, max } => json!({ "response": name.as_str(), "max_cost": max }),
    }
}

/// A tier, but not the values that make it: they may be secrets.
fn tier(tier: &Tier) -> Value {
    let (part, values) = match &tier.matches {
        TierMatch::Part(part, values) => (part.to_string(), values.len()),
        TierMatch::Networks(networks) => ("client_ip".to_owned(), networks.len()),
    };
    json!({ "part": part, "values": values, "quota": tier.limit.quota.limit })
}

/// What the limit called `name` has decided, over all routes.
fn decisions(name: &str, metrics: &Metrics) -> Value {
    let all = metrics.decisions();
    let own = all.iter().filter(|((_, limit), _)| **limit == *name).map(|(_, decided)| decided);
    let [admitted, refused, unknown, would_refuse] = own.fold([0; 4], |mut sum, decided| {
        sum.iter_mut().zip(decided).for_each(|(sum, count)| *sum += count);
        sum
    });
    json!({
        "admitted": admitted,
        "refused": refused,
        "unknown": unknown,
        "would_refuse": would_refuse,
    })
}
