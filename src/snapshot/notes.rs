//! What is allowed, and may not be meant.

use super::Snapshot;
use crate::{throttle::mode::Mode, upstream::Kind};

impl Snapshot {
    /// What an operator should know of this configuration though nothing is wrong with it; one line
    /// each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(throttle) = &self.throttle {
            if throttle.mode == Mode::On {
                notes.push(
                    "with `mode: on` a gateway that knows nobody yet lets nobody in".to_owned(),
                );
            }
            let unchecked = self
                .routes
                .iter()
                .filter(|route| route.throttle && matches!(route.upstream.kind, Kind::Respond(_)));
            notes.extend(unchecked.map(|route| {
                let name = &route.name;
                format!(
                    "route {name} is answered by the gateway itself, which checks no token: any \
                     token becomes known there; `throttle: false` leaves it out"
                )
            }));
        }
        notes
    }
}
