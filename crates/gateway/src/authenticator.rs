//! [`Authenticator`]: what a worker needs to find out who sends a request.
//!
//! `authentication.rs` does so, with `consumer_records.rs` and `auth_failures.rs`.

use std::{rc::Rc, sync::Arc};

use tidegate_access::auth::jwt::TokenCache;
use tidegate_store::StoreHandle;
use tidegate_system::clock::CoarseClock;

use super::{Shared, auth_service::AuthServices};

/// Finds out who sends the requests of a worker.
pub(super) struct Authenticator {
    pub(super) shared: Arc<Shared>,
    /// Counts the failures of addresses.
    pub(super) store: Rc<StoreHandle>,
    /// Connections to services that authenticate requests.
    pub(super) services: AuthServices,
    /// The signed tokens that were verified.
    pub(super) tokens: TokenCache,
    pub(super) coarse_clock: CoarseClock,
}

impl Authenticator {
    /// The authenticator of the current worker.
    pub(super) fn new(
        shared: Arc<Shared>,
        store: Rc<StoreHandle>,
        coarse_clock: CoarseClock,
    ) -> Self {
        let (services, tokens) = (AuthServices::default(), TokenCache::new());
        Self { shared, store, services, tokens, coarse_clock }
    }
}
