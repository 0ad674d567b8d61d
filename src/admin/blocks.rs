//! `GET /api/blocks` lists the callers that limits block, `DELETE /api/blocks/{name}` lifts the
//! block of one caller. Callers are named by their hashes, as in the access log: keys may be
//! tokens.

use axum::{
    Json,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{
    AdminContext,
    limits::{malformed_name, redis_unavailable, resolve},
    parameters::{MAX_LISTED, parse_count, parse_distinct},
    problem::problem,
};
use crate::store::KnownBlock;

/// Blocks, by the name of their limit and their end.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct BlockList {
    blocks: Vec<BlockedCaller>,
    /// The number of all blocks that this gateway knows: the ones that it began, and the ones that
    /// it has met since. With Redis, other gateways may know more.
    total: usize,
    /// The time of this answer, in ms since the epoch.
    now_ms: u64,
}

/// A caller that a limit blocks.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct BlockedCaller {
    limit: Box<str>,
    /// The caller's keyed hash, as in the access log: the parameter `hash` of a `DELETE`.
    hash: String,
    /// The first ms after the block, since the epoch.
    until_ms: u64,
    /// False if the limit is not enforced, so that the block refuses nothing.
    enforce: bool,
}

/// Lists the blocks in force that this gateway knows.
pub(super) async fn list(
    State(context): State<AdminContext>,
    RawQuery(query): RawQuery,
) -> Response {
    let count = match listed_count(query.as_deref().unwrap_or_default()) {
        Ok(count) => count,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail, &[]),
    };
    let blocks = context.shared.store.blocks();
    let total = blocks.len();
    let blocks = blocks.iter().take(count).map(describe).collect();
    let now_ms = context.shared.clock.store_time().as_unix_ms();
    ([(header::CACHE_CONTROL, "no-store")], Json(BlockList { blocks, total, now_ms }))
        .into_response()
}

fn describe(known: &KnownBlock) -> BlockedCaller {
    BlockedCaller {
        limit: known.block.blocked_name().into(),
        hash: format!("{:032x}", known.key.0),
        until_ms: known.until.as_unix_ms(),
        enforce: known.block.enforce,
    }
}

fn listed_count(query: &str) -> Result<usize, String> {
    let mut count = MAX_LISTED;
    for (name, value) in parse_distinct(query)? {
        if name != "count" {
            return Err("unknown parameter; expected `count`".to_owned());
        }
        count = parse_count(&value)?;
    }
    Ok(count)
}

/// Lifts the block of one caller under a limit; its counter stays.
pub(super) async fn lift(
    State(context): State<AdminContext>,
    name: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Response {
    let Ok(Path(name)) = name else { return malformed_name() };
    let (policy, query) = match resolve(&context.shared, &name, query.as_deref()) {
        Ok(found) => found,
        Err((status, detail)) => return problem(status, &detail, &[]),
    };
    let Some(block) = policy.limit.block.as_deref() else {
        return problem(
            StatusCode::CONFLICT,
            "this limit has no `block`; expected one that has",
            &[],
        );
    };
    match context.shared.store.reset(&[block], query.key).await {
        Ok(()) => {
            let hash = format!("{:032x}", query.key.0);
            tracing::info!(by = "admin", limit = name, hash, "the block of a caller was lifted");
            StatusCode::NO_CONTENT.into_response()
        }
        Err(failure) => redis_unavailable(failure),
    }
}
