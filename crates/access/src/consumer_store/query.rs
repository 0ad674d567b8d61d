//! [`OwnedQuery`]: what is looked up, and the jobs of the task that reads.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::auth::{ConsumerQuery, ConsumerTable, KeyHash, ProofDigest};

/// A hash of a random password, for the time before the first one is read.
pub(super) const DECOY: &str = "$argon2id$v=19$m=19456,t=2,p=1$mPYxCvCyqDDwBHFnqGSsTg$\
    9kQCEoLPp5ruBQ7Wxvl7Rjk4bpaBlqc3gWDwqJmBk9c";

/// A query that outlives its request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum OwnedQuery {
    Key(KeyHash),
    Name(Box<str>),
}

/// The consumers cannot be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LookupFailed;

/// What a lookup gives: the table of the consumer, or of an unknown one.
pub(super) type LookupAnswer = Result<Arc<ConsumerTable>, LookupFailed>;

/// A lookup that is to be made.
pub(super) struct LookupJob {
    pub(super) digest: ProofDigest,
    pub(super) query: OwnedQuery,
    pub(super) reply: oneshot::Sender<LookupAnswer>,
}

impl OwnedQuery {
    pub(super) fn view(&self) -> ConsumerQuery<'_> {
        match self {
            Self::Key(hash) => ConsumerQuery::Key(*hash),
            Self::Name(name) => ConsumerQuery::Name(name),
        }
    }
}

impl From<ConsumerQuery<'_>> for OwnedQuery {
    fn from(query: ConsumerQuery<'_>) -> Self {
        match query {
            ConsumerQuery::Key(hash) => Self::Key(hash),
            ConsumerQuery::Name(name) => Self::Name(name.into()),
        }
    }
}
