//! [`Consumer`]: who sends a request, once that is known.

use std::{fmt, sync::Arc};

use super::claims::TokenClaims;

/// A consumer: who sends a request, on a route that authenticates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Consumer<'c> {
    /// Its name.
    pub name: &'c str,
    /// The name of its plan.
    pub plan: Option<&'c str>,
    /// The claims of its token; `None` without a token, or if the configuration uses no claim.
    pub claims: Option<&'c TokenClaims>,
}

impl<'c> Consumer<'c> {
    /// A consumer without claims.
    pub const fn new(name: &'c str, plan: Option<&'c str>) -> Self {
        Self { name, plan, claims: None }
    }

    /// The claim called `name`.
    pub fn claim(&self, name: &str) -> Option<&'c str> {
        self.claims?.get(name)
    }
}

/// A [`Consumer`] that outlives the table of consumers, in one allocation. Claims are shared with the cached token.
#[derive(Clone, Eq, PartialEq)]
pub struct OwnedConsumer {
    /// The name, and the plan after it.
    text: Box<str>,
    name_length: usize,
    has_plan: bool,
    claims: Option<Arc<TokenClaims>>,
}

impl OwnedConsumer {
    /// The consumer, borrowed.
    pub fn view(&self) -> Consumer<'_> {
        let (name, plan) = self.text.split_at(self.name_length);
        Consumer { name, plan: self.has_plan.then_some(plan), claims: self.claims.as_deref() }
    }

    /// The same consumer with another plan.
    #[must_use]
    pub fn with_plan(&self, plan: &str) -> Self {
        let name = &self.text[..self.name_length];
        Self::with_claims(name, Some(plan), self.claims.clone())
    }

    /// The consumer called `name`, with the claims of its token.
    pub fn with_claims(name: &str, plan: Option<&str>, claims: Option<Arc<TokenClaims>>) -> Self {
        let text = [name, plan.unwrap_or_default()].concat().into();
        Self { text, name_length: name.len(), has_plan: plan.is_some(), claims }
    }
}

impl From<Consumer<'_>> for OwnedConsumer {
    fn from(Consumer { name, plan, claims }: Consumer<'_>) -> Self {
        Self::with_claims(name, plan, claims.map(|claims| Arc::new(claims.clone())))
    }
}

impl fmt::Debug for OwnedConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_shows_the_same_consumer() {
        for plan in [None, Some(""), Some("gold")] {
            let consumer = Consumer::new("acme", plan);
            assert_eq!(OwnedConsumer::from(consumer).view(), consumer);
        }
    }
}
