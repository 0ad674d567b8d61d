//! [`AcmeCertificates`]: the certificates that the gateway orders and renews, each in a task of its
//! own on the control thread. They are kept over reloads.

use std::{
    sync::{Arc, mpsc},
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_redis::{Connector, RedisFailure};
use tidegate_system::clock::Clock;
use tokio::{sync::Notify, task::JoinSet};

use super::{
    AcmeReport, AcmeSettings, Challenges, ManagedCertificate, OrderOutcome, StoragePlace,
    context::OrderContext,
    lease::RESPONSE,
    redis::RedisStorage,
    responses::ChallengeResponse,
    seal::{StorageKey, open},
    storage::closest,
};
use crate::LiveCertificates;

/// Interval at which the gateway reads what others share.
const INTERVAL: Duration = Duration::from_secs(1);
/// The longest time in which orders end when the gateway stops: Redis may not answer.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// All certificates that are ordered.
pub struct AcmeCertificates {
    /// The responses to authorities, for workers.
    pub challenges: Arc<Challenges>,
    managed: Mutex<Vec<Arc<ManagedCertificate>>>,
    changed: Notify,
    context: Arc<OrderContext>,
}

/// The state of the storage in Redis, for operators.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SharedStorageStatus {
    /// The number of calls that failed since the start.
    pub failed_calls: u64,
    /// The label of the last call's failure; `None` if it succeeded.
    pub failure: Option<&'static str>,
    /// For each certificate that this gateway's `storage_key` does not open, or whose account it
    /// does not: the record and the cure.
    pub conflicts: Vec<String>,
}

impl AcmeCertificates {
    /// No certificates yet. The ones that gateways share are in the Redis of `connector`, to which
    /// no connection is opened yet.
    pub fn new(connector: Option<Connector>, clock: Clock) -> Self {
        let redis = connector.map(|connector| RedisStorage::new(connector, clock.clone()));
        let context = Arc::new(OrderContext::new(redis, clock));
        let challenges = Arc::clone(&context.challenges);
        Self { challenges, managed: Mutex::default(), changed: Notify::new(), context }
    }

    /// Keeps certificates for these listeners, and presents known ones on them. Certificates that
    /// no listener uses are forgotten, and stay in the storage. May wait for the folder.
    pub fn apply<'s>(
        &self,
        listeners: impl Iterator<Item = (&'s Arc<AcmeSettings>, &'s Arc<LiveCertificates>)>,
    ) {
        let mut managed = self.managed.lock();
        let mut used: Vec<(Arc<ManagedCertificate>, Vec<Arc<LiveCertificates>>)> = Vec::new();
        for (settings, live) in listeners {
            let live = Arc::clone(live);
            if let Some((_, shown)) = used.iter_mut().find(|(own, _)| own.settings == *settings) {
                shown.push(live);
                continue;
            }
            let known = managed.iter().find(|own| own.settings == *settings);
            let own = known.map_or_else(|| ManagedCertificate::stored(settings), Arc::clone);
            used.push((own, vec![live]));
        }
        for known in &*managed {
            if !used.iter().any(|(own, _)| Arc::ptr_eq(own, known)) {
                known.removed.cancel();
            }
        }
        let known: Vec<_> = managed.iter().filter_map(|own| own.certificate()).collect();
        *managed = used
            .into_iter()
            .map(|(own, listeners)| {
                own.present_on(listeners);
                if own.settings.storage.is_shared() {
                    // A folder's was presented when the listener was compiled.
                    own.present_meanwhile(closest(known.iter().cloned(), &own.settings.domains));
                }
                own
            })
            .collect();
        drop(managed);
        self.changed.notify_one();
    }

    /// Orders and renews the certificates, also of listeners that reloads add, until `stop` is
    /// ready. Then current orders end, and another gateway may begin them at once.
    pub async fn run(self: Arc<Self>, stop: impl Future<Output = ()>) {
        let mut tasks = JoinSet::new();
        tokio::select! {
            () = stop => {}
            () = self.keep_all(&mut tasks) => {}
        }
        for own in &*self.managed.lock() {
            own.removed.cancel();
        }
        let ended = async { while tasks.join_next().await.is_some() {} };
        // After that the leases expire.
        let _ = self.context.clock.timeout(END_TIMEOUT, ended).await;
    }

    /// Runs a task for each certificate; never returns.
    async fn keep_all(&self, tasks: &mut JoinSet<()>) {
        let mut running: Vec<Arc<ManagedCertificate>> = Vec::new();
        loop {
            running.retain(|known| !known.removed.is_cancelled());
            for known in &*self.managed.lock() {
                if !running.iter().any(|other| Arc::ptr_eq(other, known)) {
                    running.push(Arc::clone(known));
                    tasks.spawn(Arc::clone(known).keep(Arc::clone(&self.context)));
                }
            }
            while tasks.try_join_next().is_some() {}
            self.changed.notified().await;
        }
    }

    /// Follows what other gateways share: certificates and responses to authorities. `read` gets a
    /// message after each attempt. Runs until it is dropped.
    pub async fn follow(self: Arc<Self>, read: mpsc::Sender<()>) {
        let mut interval = self.context.clock.background_interval(INTERVAL);
        loop {
            interval.tick().await;
            if let Some(redis) = &self.context.redis {
                self.follow_once(redis).await;
            }
            // The receiver is gone after the start.
            let _ = read.send(());
        }
    }

    async fn follow_once(&self, redis: &RedisStorage) {
        let managed = self.managed.lock().clone();
        let shared: Vec<_> =
            managed.into_iter().filter(|own| own.settings.storage.is_shared()).collect();
        if shared.is_empty() {
            return self.challenges.share(&[]);
        }
        let names: Vec<String> = shared.iter().map(|own| own.settings.certificate_name()).collect();
        // A failure is counted and logged.
        let Ok(polled) = redis.poll(&names).await else { return };
        let keys = shared.iter().map(|own| &own.settings.storage);
        self.challenges.share(&opened(&polled.responses, keys));
        for (own, found) in shared.iter().zip(&polled.certificates) {
            // A failure is counted and logged, and the next attempt is in a second.
            let _ = own.follow(found, redis).await;
        }
    }

    /// Orders new certificates now, of listeners with `domain`, or all. Returns their number.
    pub fn renew(&self, domain: Option<&str>) -> usize {
        let managed = self.managed.lock();
        let is_meant = |own: &&Arc<ManagedCertificate>| {
            domain.is_none_or(|domain| own.settings.domains.iter().any(|name| **name == *domain))
        };
        managed.iter().filter(is_meant).inspect(|own| own.renew()).count()
    }

    /// The state of each certificate, in the configuration's order.
    pub fn reports(&self) -> Vec<AcmeReport> {
        self.managed.lock().iter().map(|own| own.report()).collect()
    }

    /// The number of orders with this outcome since the start.
    pub fn orders(&self, outcome: OrderOutcome) -> u64 {
        self.context.orders(outcome)
    }

    /// The state of the storage in Redis; `None` if no certificate is kept there.
    pub fn shared_storage(&self) -> Option<SharedStorageStatus> {
        let redis = self.context.redis.as_ref()?;
        let managed = self.managed.lock();
        let mut shared = managed.iter().filter(|own| own.settings.storage.is_shared()).peekable();
        shared.peek()?;
        Some(SharedStorageStatus {
            failed_calls: redis.failed_calls(),
            failure: redis.failure().map(RedisFailure::label),
            conflicts: shared.filter_map(|own| own.conflict()).collect(),
        })
    }
}

/// The responses in these records, which were sealed with the keys of any of the certificates.
fn opened<'p>(
    records: &[Vec<u8>],
    places: impl Iterator<Item = &'p StoragePlace>,
) -> Vec<ChallengeResponse> {
    let mut keys: Vec<Option<&StorageKey>> = Vec::new();
    for place in places {
        if !keys.contains(&place.storage_key()) {
            keys.push(place.storage_key());
        }
    }
    let read = |record: &Vec<u8>| {
        let text = keys.iter().find_map(|key| open(*key, RESPONSE, record).ok())?;
        ChallengeResponse::parse(&text)
    };
    records.iter().filter_map(read).collect()
}
