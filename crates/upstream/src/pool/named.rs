//! [`NamedPools`]: connections to one endpoint whose TLS name is that of the request's `Host`.

use std::{cell::RefCell, rc::Rc};

use ahash::RandomState;
use hashbrown::HashMap;
use tidegate_base::time::{CoarseTime, Millis};

use super::Pool;
use crate::requested_name::RequestedName;

/// Maximum number of names: clients may choose them. Connections for further ones are not kept.
const MAX_NAMES: usize = 256;

/// The connections to an endpoint, by the name in their handshake.
#[derive(Default)]
pub(super) struct NamedPools(RefCell<HashMap<RequestedName, Rc<Pool>, RandomState>>);

impl NamedPools {
    /// The connections for `name`, which `new` makes if there are none.
    pub(super) fn get(&self, name: &RequestedName, new: impl FnOnce() -> Rc<Pool>) -> Rc<Pool> {
        let mut pools = self.0.borrow_mut();
        if let Some(pool) = pools.get(name) {
            return Rc::clone(pool);
        }
        let pool = new();
        if pools.len() >= MAX_NAMES {
            pools.retain(|_, pool| pool.is_in_use());
        }
        if pools.len() < MAX_NAMES {
            pools.insert(Rc::clone(name), Rc::clone(&pool));
        }
        pool
    }

    /// Closes connections as [`Pool::sweep`] does, and forgets names without any.
    pub(super) fn sweep(&self, now: CoarseTime, limit: Millis) {
        self.0.borrow_mut().retain(|_, pool| {
            pool.sweep_own(now, limit);
            pool.is_in_use()
        });
    }

    pub(super) fn idle_count(&self) -> usize {
        self.0.borrow().values().map(|pool| pool.own_idle_count()).sum()
    }
}
