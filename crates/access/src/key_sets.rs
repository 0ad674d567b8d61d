//! The key sets of servers: fetched in the background, on the control thread, and kept over
//! reloads.
//!
//! | file | content |
//! |---|---|
//! | `fetch` | fetches a key set once, by its URL or by OpenID Connect discovery |
//!
//! A set is fetched at the start, by the age that its server allows, and when a token names an
//! unknown key. While its server is away or sends no usable set, the last one is kept. Each server
//! has a task of its own, so that one that hangs delays no other.

mod fetch;

use std::sync::Arc;
use std::sync::mpsc::Sender;

use parking_lot::Mutex;
use tidegate_base::time::Millis;
use tidegate_system::clock::Clock;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::fetch::{FetchError, FetchedKeys, KeyClient};
use crate::auth::jwt::{JwtMethod, KeyServer, LiveKeySet, Refetch, RefreshSchedule};

/// The key sets of all servers that the configuration names.
#[derive(Debug, Default)]
pub struct KeySets {
    served: Mutex<Vec<Arc<ServedKeySet>>>,
    changed: Notify,
}

/// The key set of a server.
#[derive(Debug)]
struct ServedKeySet {
    server: Arc<KeyServer>,
    keys: Arc<LiveKeySet>,
    /// Cancelled when no method uses it any more.
    removed: CancellationToken,
}

impl KeySets {
    /// Gives each method the keys of its server: the current ones, if an earlier configuration had
    /// the same server, or new ones, which are fetched at once. Servers that no method has are
    /// forgotten.
    pub fn apply<'m>(&self, methods: impl Iterator<Item = &'m JwtMethod>) {
        let mut served = self.served.lock();
        let mut used: Vec<Arc<ServedKeySet>> = Vec::new();
        for method in methods {
            let Some(server) = method.server() else { continue };
            let same = |known: &&Arc<ServedKeySet>| known.server.has_keys_of(server);
            let known = used.iter().chain(&*served).find(same).map(Arc::clone);
            let known = known.unwrap_or_else(|| {
                Arc::new(ServedKeySet {
                    server: Arc::clone(server),
                    keys: LiveKeySet::awaited(),
                    removed: CancellationToken::new(),
                })
            });
            method.set_keys(Arc::clone(&known.keys));
            if !used.iter().any(|other| Arc::ptr_eq(other, &known)) {
                used.push(known);
            }
        }
        for known in &*served {
            if !used.iter().any(|other| Arc::ptr_eq(other, known)) {
                known.removed.cancel();
            }
        }
        *served = used;
        drop(served);
        self.changed.notify_one();
    }

    /// True without a server.
    pub fn is_empty(&self) -> bool {
        self.served.lock().is_empty()
    }

    /// Fetches the key sets of all servers, also of ones that reloads add. Drops `first` once the
    /// servers of the first configuration were asked. Runs until it is dropped.
    pub async fn run(self: Arc<Self>, clock: Clock, first: Sender<()>) {
        let (mut tasks, mut first) = (JoinSet::new(), Some(first));
        let mut running: Vec<Arc<ServedKeySet>> = Vec::new();
        loop {
            running.retain(|known| !known.removed.is_cancelled());
            for known in &*self.served.lock() {
                if !running.iter().any(|other| Arc::ptr_eq(other, known)) {
                    running.push(Arc::clone(known));
                    tasks.spawn(Arc::clone(known).refresh(clock.clone(), first.clone()));
                }
            }
            first = None;
            while tasks.try_join_next().is_some() {}
            self.changed.notified().await;
        }
    }
}

impl ServedKeySet {
    /// Keeps the set fresh until the server is removed. Drops `first` after the first attempt.
    async fn refresh(self: Arc<Self>, clock: Clock, first: Option<Sender<()>>) {
        let removed = self.removed.clone();
        removed.run_until_cancelled(self.refresh_forever(clock, first)).await;
    }

    async fn refresh_forever(&self, clock: Clock, mut first: Option<Sender<()>>) {
        let mut client = KeyClient::new(Arc::clone(&self.server), clock.clone());
        let mut schedule = RefreshSchedule::default();
        loop {
            self.keys.begin_fetch();
            let fetched = client.fetch().await;
            self.record(&mut schedule, &clock, fetched);
            self.keys.set_refetch(Refetch::Paused);
            drop(first.take());
            self.wait(schedule, &clock).await;
        }
    }

    fn record(
        &self,
        schedule: &mut RefreshSchedule,
        clock: &Clock,
        fetched: Result<FetchedKeys, FetchError>,
    ) {
        // Without random numbers all gateways fetch at one time, which a server bears.
        let random = getrandom::u64().unwrap_or_default();
        let (location, now) = (&self.server.location, clock.monotonic());
        match fetched {
            Ok(FetchedKeys { set, max_age }) => {
                let keys = set.len();
                if schedule.is_failing() {
                    tracing::info!(%location, keys, "the key set can be fetched again");
                } else {
                    tracing::debug!(%location, keys, "the key set was fetched");
                }
                self.keys.replace(set, clock.store_time());
                schedule.succeed(now, max_age, random);
            }
            Err(error) => {
                self.keys.count_failure();
                if !schedule.is_failing() {
                    let has_keys = self.keys.load().is_some();
                    let effect = if has_keys { "the last one stays" } else { "tokens get a 503" };
                    tracing::warn!(%location, %error, effect, "the key set cannot be fetched");
                }
                schedule.fail(now, random);
            }
        }
    }

    /// Waits until the next fetch: when the set is too old, or once an unknown key may cause one
    /// and does.
    async fn wait(&self, schedule: RefreshSchedule, clock: &Clock) {
        let (start, now) = (clock.uptime(), clock.monotonic());
        let after = |length: Millis| start + length.as_duration();
        let (due, refetch) = (schedule.due_in(now), schedule.refetch_in(now));
        clock.sleep_until(after(due.min(refetch))).await;
        if due <= refetch {
            return;
        }
        self.keys.set_refetch(Refetch::Allowed);
        tokio::select! {
            () = clock.sleep_until(after(due)) => {}
            () = self.keys.wanted() => {}
        }
    }
}
