//! `POST /api/reload`: reads the configuration file again.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{AdminContext, problem::problem};
use crate::reload::ReloadError;

/// A reload that was applied.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Reloaded {
    /// The new generation of the configuration.
    generation: u64,
}

/// Reloads the configuration file.
pub(super) async fn reload(State(context): State<AdminContext>) -> Response {
    match context.reloader.reload().await {
        Ok(generation) => Json(Reloaded { generation }).into_response(),
        Err(ReloadError::Faults(faults)) => {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            let detail = "the configuration has faults; the running one stays";
            problem(StatusCode::BAD_REQUEST, detail, &faults)
        }
        Err(error @ ReloadError::Busy) => problem(StatusCode::CONFLICT, &error.to_string(), &[]),
        Err(error @ ReloadError::Thread(_)) => {
            problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), &[])
        }
    }
}
