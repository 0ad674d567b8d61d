//! The users that have taken a place, until their first responses begin.

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::{HashMap, hash_map::Entry};
use parking_lot::Mutex;

/// The users that have taken places and whose first responses have not begun: the number of
/// requests of each.
#[derive(Debug, Default)]
pub(super) struct EnteringUsers(Mutex<HashMap<u64, u32, RandomState>>);

impl EnteringUsers {
    /// Their number.
    pub(super) fn count(&self) -> u64 {
        self.0.lock().len() as u64
    }

    /// True if the user has taken a place.
    pub(super) fn contains(&self, holder: u64) -> bool {
        self.0.lock().contains_key(&holder)
    }
}

/// A request of a user that has taken a place, while its response has not begun. The place is kept
/// meanwhile.
#[derive(Debug)]
pub struct EnteringUser {
    holder: u64,
    users: Arc<EnteringUsers>,
}

impl EnteringUser {
    pub(super) fn new(holder: u64, users: &Arc<EnteringUsers>) -> Self {
        *users.0.lock().entry(holder).or_default() += 1;
        Self { holder, users: Arc::clone(users) }
    }
}

impl Drop for EnteringUser {
    fn drop(&mut self) {
        if let Entry::Occupied(mut requests) = self.users.0.lock().entry(self.holder) {
            *requests.get_mut() -= 1;
            if *requests.get() == 0 {
                requests.remove();
            }
        }
    }
}
