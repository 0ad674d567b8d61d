//! [`Consumer`]: who sends a request, once that is known.

use std::fmt;

/// A consumer: who sends a request, on a route that authenticates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Consumer<'c> {
    /// Its name.
    pub name: &'c str,
    /// The name of its plan.
    pub plan: Option<&'c str>,
}

/// A [`Consumer`] that outlives the table of consumers, in one allocation.
#[derive(Clone, Eq, PartialEq)]
pub struct OwnedConsumer {
    /// The name, and the plan after it.
    text: Box<str>,
    name_length: usize,
    has_plan: bool,
}

impl OwnedConsumer {
    /// The consumer, borrowed.
    pub fn view(&self) -> Consumer<'_> {
        let (name, plan) = self.text.split_at(self.name_length);
        Consumer { name, plan: self.has_plan.then_some(plan) }
    }
}

impl From<Consumer<'_>> for OwnedConsumer {
    fn from(Consumer { name, plan }: Consumer<'_>) -> Self {
        let text = [name, plan.unwrap_or_default()].concat().into();
        Self { text, name_length: name.len(), has_plan: plan.is_some() }
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
            let consumer = Consumer { name: "acme", plan };
            assert_eq!(OwnedConsumer::from(consumer).view(), consumer);
        }
    }
}
