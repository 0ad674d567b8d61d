//! [`OverrideSet`]: all overrides.

use std::{collections::BTreeMap, sync::Arc};

use tidegate_system::clock::StoreTime;

use super::record::{Override, OverrideId, OverrideTarget};

/// The largest number of overrides, ended ones included until the next change.
pub const MAX_OVERRIDES: usize = 10_000;

/// All overrides, by their ids.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OverrideSet(BTreeMap<OverrideId, Arc<Override>>);

impl OverrideSet {
    /// The override with this id.
    pub fn get(&self, id: OverrideId) -> Option<&Arc<Override>> {
        self.0.get(&id)
    }

    /// All overrides, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (OverrideId, &Arc<Override>)> {
        self.0.iter().map(|(id, own)| (*id, own))
    }

    /// The overrides whose ids follow `id`, in order; all without one.
    pub fn after(
        &self,
        id: Option<OverrideId>,
    ) -> impl Iterator<Item = (OverrideId, &Arc<Override>)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = id.map_or(Unbounded, Excluded);
        self.0.range((from, Unbounded)).map(|(id, own)| (*id, own))
    }

    /// The number of overrides, ended ones included.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of overrides that apply at `now`.
    pub fn count_in_force(&self, now: StoreTime) -> usize {
        self.0.values().filter(|own| own.is_in_force(now)).count()
    }

    /// Sets an override; returns the one that it replaces.
    pub fn insert(&mut self, new: Override) -> Option<Arc<Override>> {
        self.0.insert(new.id(), Arc::new(new))
    }

    /// Removes an override and returns it.
    pub fn remove(&mut self, id: OverrideId) -> Option<Arc<Override>> {
        self.0.remove(&id)
    }

    /// Removes the overrides that have ended at `now`.
    pub fn remove_ended(&mut self, now: StoreTime) {
        self.0.retain(|_, own| own.is_in_force(now));
    }

    /// Removes the overrides that name a key.
    pub(super) fn remove_keys(&mut self) {
        self.0.retain(|_, own| !matches!(own.target, OverrideTarget::Key(_)));
    }

    /// The overrides that are new or different in `self`, and the ones of `before` that are gone.
    pub fn difference<'s>(&'s self, before: &'s Self) -> SetDifference<'s> {
        let is_new = |(id, own): &(OverrideId, &Arc<Override>)| before.get(*id) != Some(*own);
        let is_gone = |(id, _): &(OverrideId, &Arc<Override>)| self.get(*id).is_none();
        SetDifference {
            set: self.iter().filter(is_new).map(|(_, own)| &**own).collect(),
            lifted: before.iter().filter(is_gone).map(|(_, own)| &**own).collect(),
        }
    }
}

/// How two sets differ.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct SetDifference<'s> {
    /// New or different ones.
    pub set: Vec<&'s Override>,
    /// Removed ones.
    pub lifted: Vec<&'s Override>,
}
