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
    /// The first day of its months, 1 to 31, for limits that count a calendar's months by consumer.
    pub billing_day: Option<u8>,
    /// The claims of its token; `None` without a token, or if the configuration uses no claim.
    pub claims: Option<&'c TokenClaims>,
}

impl<'c> Consumer<'c> {
    /// A consumer without claims and billing day.
    pub const fn new(name: &'c str, plan: Option<&'c str>) -> Self {
        Self { name, plan, billing_day: None, claims: None }
    }

    /// The header fields by which the gateway passes it on, with their values.
    pub fn fields(self) -> impl Iterator<Item = (&'static str, &'c str)> {
        let fields = [("x-consumer-name", Some(self.name)), ("x-consumer-plan", self.plan)];
        fields.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }

    /// The claim called `name`.
    pub fn claim(&self, name: &str) -> Option<&'c str> {
        self.claims?.get(name)
    }
}

/// A [`Consumer`] that outlives the table of consumers, in one allocation. Claims are shared with
/// the cached token.
#[derive(Clone, Eq, PartialEq)]
pub struct OwnedConsumer {
    /// The name, and the plan after it.
    text: Box<str>,
    name_length: usize,
    has_plan: bool,
    billing_day: Option<u8>,
    claims: Option<Arc<TokenClaims>>,
}

impl OwnedConsumer {
    /// The consumer, borrowed.
    pub fn view(&self) -> Consumer<'_> {
        let (name, plan) = self.text.split_at(self.name_length);
        Consumer {
            name,
            plan: self.has_plan.then_some(plan),
            billing_day: self.billing_day,
            claims: self.claims.as_deref(),
        }
    }

    /// The same consumer with another plan.
    #[must_use]
    pub fn with_plan(&self, plan: &str) -> Self {
        let name = &self.text[..self.name_length];
        let planned = Self::with_claims(name, Some(plan), self.claims.clone());
        Self { billing_day: self.billing_day, ..planned }
    }

    /// The same consumer with this billing day.
    #[must_use]
    pub fn with_billing_day(self, billing_day: Option<u8>) -> Self {
        Self { billing_day, ..self }
    }

    /// The consumer called `name`, with the claims of its token.
    pub fn with_claims(name: &str, plan: Option<&str>, claims: Option<Arc<TokenClaims>>) -> Self {
        let text = [name, plan.unwrap_or_default()].concat().into();
        Self { text, name_length: name.len(), has_plan: plan.is_some(), billing_day: None, claims }
    }
}

impl From<Consumer<'_>> for OwnedConsumer {
    fn from(Consumer { name, plan, billing_day, claims }: Consumer<'_>) -> Self {
        let claims = claims.map(|claims| Arc::new(claims.clone()));
        Self::with_claims(name, plan, claims).with_billing_day(billing_day)
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
            let consumer = Consumer { billing_day: Some(31), ..Consumer::new("acme", plan) };
            assert_eq!(OwnedConsumer::from(consumer).view(), consumer);
        }
    }
}
