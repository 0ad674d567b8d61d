//! [`BearerContent`]: which methods of a route read a value after `Authorization: Bearer`.

use std::sync::Arc;

use tidegate_identity::{ApiKeySource, has_token_form};

use super::kind::{AuthKind, AuthMethod};

/// What a value after `Authorization: Bearer` may be, by the methods of a route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum BearerContent {
    /// Only one kind of method reads it.
    OneKind,
    /// A token if it has two dots, an API key if it does not.
    KeyOrToken,
}

impl BearerContent {
    /// What the values are on a route with these methods.
    pub(super) fn of(methods: &[Arc<AuthMethod>]) -> Self {
        let reads_key = |method: &Arc<AuthMethod>| {
            matches!(&method.kind, AuthKind::ApiKey { sources, .. }
                if sources.iter().any(ApiKeySource::is_authorization))
        };
        let has_both =
            methods.iter().any(reads_key) && methods.iter().any(|method| method.jwt().is_some());
        if has_both { Self::KeyOrToken } else { Self::OneKind }
    }

    /// True if an API key method leaves the value to another method.
    pub(super) fn is_token(self, value: &[u8]) -> bool {
        self == Self::KeyOrToken && has_token_form(value)
    }

    /// True if a method of tokens leaves the value to another method.
    pub(super) fn is_key(self, value: &[u8]) -> bool {
        self == Self::KeyOrToken && !has_token_form(value)
    }
}
