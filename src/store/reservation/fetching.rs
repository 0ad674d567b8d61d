//! The one fetch of an entry.

use std::sync::Arc;

use super::{Entry, Reply, Waiter, atomics::Atomics, atomics::Native, line::Ask};
use crate::{
    limit::{Key, Limit, Order},
    store::Failure,
};

/// The right to ask the store for tokens, and the duty to tell what came of it. Dropped, it tells those
/// who wait that it failed: so a fetch that panics, is cut off or is forgotten leaves nobody waiting, and
/// the next one may begin.
#[must_use = "dropped, it fails those who wait"]
pub struct Fetching<W: Waiter, A: Atomics = Native> {
    entry: Arc<Entry<W, A>>,
    ask: Ask,
    over: bool,
}

impl<W: Waiter, A: Atomics> Fetching<W, A> {
    pub(super) fn new(entry: Arc<Entry<W, A>>, ask: Ask) -> Self {
        Self { entry, ask, over: false }
    }

    /// What to ask the store for.
    pub fn order(&self) -> &Order {
        &self.ask.order
    }

    /// The limit whose record is asked.
    pub fn limit(&self) -> &Arc<Limit> {
        self.entry.limit()
    }

    /// Who is counted.
    pub fn key(&self) -> Key {
        self.entry.key()
    }

    /// Whether nothing was kept here when it began: then a request that costs the order's least is
    /// refused where the store refuses that.
    pub fn is_alone(&self) -> bool {
        self.ask.alone
    }

    /// The reply has come: serves those who wait. Returns the next fetch where somebody is left unserved.
    pub fn complete(mut self, reply: &Reply) -> Option<Self> {
        let next = self.entry.complete(&self.ask, reply);
        self.over = true;
        let next = next?;
        Some(Self::new(Arc::clone(&self.entry), next))
    }

    /// There is no reply, as is known at `ticks`: what is kept here serves those who wait as far as it
    /// reaches, and the others are told.
    pub fn fail(mut self, failure: Failure, ticks: u64) {
        self.entry.fail(&self.ask, Some(failure), Some(ticks));
        self.over = true;
    }
}

impl<W: Waiter, A: Atomics> Drop for Fetching<W, A> {
    fn drop(&mut self) {
        if !self.over {
            self.entry.fail(&self.ask, None, None);
        }
    }
}
