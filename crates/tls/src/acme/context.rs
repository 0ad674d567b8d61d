//! [`OrderContext`]: what all orders of a gateway use.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tidegate_base::time::UnixSeconds;
use tidegate_redis::RedisFailure;
use tidegate_system::clock::Clock;

use super::{
    AcmeAccount, AcmeError, AcmeSettings, AcmeStorage, Challenges, StorageError, StoragePlace,
    account_store::AccountStore, redis::RedisStorage,
};

/// What all orders use.
pub(super) struct OrderContext {
    /// The responses to authorities, for workers.
    pub(super) challenges: Arc<Challenges>,
    /// What gateways share; `None` without Redis.
    pub(super) redis: Option<RedisStorage>,
    pub(super) clock: Clock,
    /// The number of orders, by [`OrderOutcome`].
    orders: [AtomicU64; 2],
    /// For each account, by its name: locked while it is opened, so that two certificates do not
    /// make two.
    accounts: Mutex<Vec<(String, AccountLock)>>,
}

type AccountLock = Arc<tokio::sync::Mutex<()>>;

/// How an order ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OrderOutcome {
    /// With a certificate.
    Issued,
    /// Without one.
    Failed,
}

impl OrderContext {
    pub(super) fn new(redis: Option<RedisStorage>, clock: Clock) -> Self {
        let (challenges, orders, accounts) = Default::default();
        Self { challenges, redis, clock, orders, accounts }
    }

    /// What gateways share.
    ///
    /// # Errors
    ///
    /// There is no Redis, which the configuration's check excludes.
    pub(super) fn shared(&self) -> Result<&RedisStorage, StorageError> {
        self.redis.as_ref().ok_or(StorageError::Redis(RedisFailure::Unsent))
    }

    /// The account for orders with these settings.
    ///
    /// # Errors
    ///
    /// The authority makes none, or the storage cannot be used.
    pub(super) async fn account<'c>(
        &'c self,
        settings: &'c Arc<AcmeSettings>,
    ) -> Result<AcmeAccount<'c>, AcmeError> {
        let store = match &settings.storage {
            StoragePlace::Folder(folder) => AccountStore::Folder(AcmeStorage::new(folder.clone())),
            StoragePlace::Redis(key) => AccountStore::Redis(self.shared()?, key.as_ref()),
        };
        // An authority that does not answer delays no other one.
        let lock = self.account_lock(settings.account_name());
        let _opening = lock.lock().await;
        Box::pin(AcmeAccount::open(settings, store, &self.clock)).await
    }

    fn account_lock(&self, name: String) -> AccountLock {
        let mut accounts = self.accounts.lock();
        if let Some((_, lock)) = accounts.iter().find(|(known, _)| *known == name) {
            return Arc::clone(lock);
        }
        let lock = AccountLock::default();
        accounts.push((name, Arc::clone(&lock)));
        lock
    }

    /// The time of day.
    pub(super) fn now(&self) -> UnixSeconds {
        UnixSeconds::of(self.clock.store_time())
    }

    /// Counts an order.
    pub(super) fn count(&self, outcome: OrderOutcome) {
        self.orders[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of orders with this outcome since the start.
    pub(super) fn orders(&self, outcome: OrderOutcome) -> u64 {
        self.orders[outcome as usize].load(Ordering::Relaxed)
    }
}
