//! [`OverrideChange`]: what an operator changes, what it does, and why it may fail.

use std::sync::Arc;

use tidegate_config::Faults;
use tidegate_redis::RedisFailure;

use super::{
    record::{Override, OverrideId, OverrideTarget},
    set::{MAX_OVERRIDES, OverrideSet},
};

/// A change of the overrides.
#[derive(Clone, Debug)]
pub enum OverrideChange {
    /// Sets an override, instead of the one of the same limit and target.
    Set(Override),
    /// Removes the override with this id.
    Lift(OverrideId),
}

/// What a change did.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The override before; `None` if there was none.
    pub before: Option<Arc<Override>>,
    /// All overrides after the change; `None` if they could not be read, though the change was
    /// made.
    pub set: Option<OverrideSet>,
}

/// Why overrides could not be read or changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OverrideError {
    /// There is no place to keep them.
    #[error(
        "overrides are not kept anywhere; expected `store.redis`, or `overrides.file` in the configuration"
    )]
    NoPlace,
    /// Redis gave no answer.
    #[error("no reply from Redis ({}); try again", .0.label())]
    Redis(RedisFailure),
    /// The file has faults.
    #[error("the file of overrides has faults: {}", .0.in_one_line())]
    Faults(Faults),
    /// The file cannot be written.
    #[error(
        "cannot write {path}: {error}; expected a folder in which the gateway may replace the file"
    )]
    Write {
        /// The file.
        path: String,
        /// The system's error.
        error: String,
    },
    /// The keys in the file are hashed under the secret of another process.
    #[error(
        "the keys in the file of overrides were hashed under another secret than this process uses; restart it to \
         use the file's"
    )]
    OtherSecret,
    /// There are too many.
    #[error("there are {} overrides; expected to lift one first", MAX_OVERRIDES)]
    Full,
    /// No override has this id.
    #[error("no override has this id; expected one that /api/overrides lists")]
    Unknown,
}

impl OverrideChange {
    /// True if the change names a key.
    pub(super) fn names_key(&self) -> bool {
        matches!(self, Self::Set(Override { target: OverrideTarget::Key(_), .. }))
    }
}
