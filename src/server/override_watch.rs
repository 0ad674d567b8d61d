//! Follows the overrides: reads them again, once a second, if another gateway or an operator has
//! changed them.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    gateway::Shared,
    overrides::{OverrideError, OverrideSet},
};

/// Interval between two reads of the version in Redis, or of the file's time.
const INTERVAL: Duration = Duration::from_secs(1);

/// The largest number of changes to log one by one.
const MAX_LOGGED: usize = 20;

/// Reads the overrides until `stop` is cancelled. `read` gets a message after the first attempt.
pub(super) async fn run(shared: Arc<Shared>, read: mpsc::Sender<()>, stop: CancellationToken) {
    let mut interval = shared.clock.background_interval(INTERVAL);
    let mut last_error = String::new();
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        let known = shared.overrides.set();
        let reading = shared.override_store.read_if_changed(&known);
        let Some(outcome) = stop.run_until_cancelled(reading).await else { return };
        follow(&shared, outcome, &mut last_error);
        // The receiver is gone after the start.
        let _ = read.send(());
    }
}

/// Applies what was read, or logs the error once.
fn follow(
    shared: &Shared,
    outcome: Result<Option<OverrideSet>, OverrideError>,
    last_error: &mut String,
) {
    let place = shared.override_store.label();
    match outcome {
        Ok(changed) => {
            if !last_error.is_empty() {
                tracing::info!(place, "overrides can be read again");
                last_error.clear();
            }
            if let Some(set) = changed {
                let before = shared.overrides.replace(set, &shared.live);
                log_difference(place, &before, &shared.overrides.set());
            }
        }
        // A file with faults is read again only when it changes: this is no recovery.
        Err(error) => {
            let text = error.to_string();
            if text != *last_error {
                const MESSAGE: &str = "overrides cannot be read; the known ones stay";
                // A lost Redis recovers by itself.
                if matches!(error, OverrideError::Redis(_)) {
                    tracing::warn!(place, error = text, "{MESSAGE}");
                } else {
                    tracing::error!(place, error = text, "{MESSAGE}");
                }
                *last_error = text;
            }
        }
    }
}

/// Logs the changes that another gateway or an operator made.
fn log_difference(place: &str, before: &OverrideSet, after: &OverrideSet) {
    let difference = after.difference(before);
    let (set, lifted) = (difference.set.len(), difference.lifted.len());
    if set + lifted == 0 {
        return;
    }
    tracing::info!(place, set, lifted, overrides = after.len(), "the overrides have changed");
    for own in difference.set.iter().take(MAX_LOGGED) {
        let was = before.get(own.id()).map_or_else(|| "none".to_owned(), ToString::to_string);
        let (by, reason) = (&*own.by, &*own.reason);
        tracing::info!(place, by, before = was, after = %own, reason, "an override was set elsewhere");
    }
    for own in difference.lifted.iter().take(MAX_LOGGED) {
        tracing::info!(place, before = %own, "an override was lifted elsewhere, or had ended");
    }
}
