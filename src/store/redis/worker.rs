//! One worker's way to the shared store: a connection and a breaker for each server.

use std::{
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use redis::{Cmd, RedisError};
use tokio::task::AbortHandle;

use super::{
    Failure, Shared,
    breaker::{BreakerConnection, Live},
    call::{Miss, is_forgotten, once},
    cluster::{Cluster, SlotMap},
    late::{LATE, LateReply, Reply, Unanswered},
    place::Place,
    script::{self, By},
    shared::Servers,
};
use crate::{
    clock::{self, Clock},
    limit::{Charge, Fetch, Grant, Key, Millis, Settlement, Verdict},
};

/// Between two checks of whether a server that hung can be reached again.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// One worker's way to Redis.
pub(in crate::store) struct Worker {
    shared: Arc<Shared>,
    links: Arc<Links>,
    clock: Clock,
    /// Follows the Cluster's map, so that connections are there before requests need them.
    follower: Option<AbortHandle>,
}

/// The connections to the servers that are known now.
struct Links {
    cluster: Option<Arc<Cluster>>,
    now: ArcSwap<View>,
    replacing: Mutex<()>,
}

struct View {
    /// The map that the connections are in the order of; none without a Cluster.
    map: Option<Arc<SlotMap>>,
    links: Box<[Arc<BreakerConnection>]>,
}

/// What a call has sent last.
struct Asked {
    link: Arc<BreakerConnection>,
    live: Live,
    /// Whether the connection had ended before: nothing was sent.
    unsent: bool,
    /// The reply, until it has come.
    reply: Option<Reply>,
}

impl Worker {
    /// Starts connecting in the background of the current runtime.
    pub(in crate::store) fn new(shared: Arc<Shared>, clock: Clock) -> Self {
        let (cluster, nodes) = match &shared.servers {
            Servers::Fixed(shards) => (None, shards.iter().map(|shard| &shard.primary).collect()),
            Servers::Cluster(cluster) => (Some(Arc::clone(cluster)), Vec::new()),
        };
        let links = nodes
            .into_iter()
            .map(|node| Arc::new(BreakerConnection::new(Arc::clone(node))))
            .collect();
        let view = View { map: None, links };
        let links = Links { cluster, now: ArcSwap::from_pointee(view), replacing: Mutex::new(()) };
        let links = Arc::new(links);
        let follower = links.cluster.as_ref().map(|cluster| {
            cluster.refresh();
            tokio::spawn(follow(Arc::clone(&links), Arc::clone(cluster))).abort_handle()
        });
        Self { shared, links, clock, follower }
    }

    /// Where the records of a caller are. Cheap, and nothing at all where there is one server.
    pub(in crate::store) fn place(&self, key: Key) -> Place {
        self.shared.place(key)
    }

    /// How long a request may wait.
    pub(in crate::store) fn response_timeout(&self) -> Duration {
        self.shared.options.response_timeout
    }

    /// Whether a call there would be sent at once: there is a connection, and its breaker is closed.
    pub(in crate::store) fn is_live(&self, place: Place) -> bool {
        self.links.to(place).is_some_and(|link| link.is_closed())
    }

    /// One script call for all charges, whose keys must live at `place`. Waits no longer than the
    /// response timeout, nor beyond `until`, whatever happens; with an open breaker, not at all.
    pub(in crate::store) async fn charge(
        &self,
        place: Place,
        charges: &[Charge<'_>],
        until: Option<Instant>,
    ) -> Result<Verdict, Unanswered> {
        let command = |by, now| self.shared.scripts.charge(by, charges, now);
        let limits = || charges.iter().map(|charge| charge.limit);
        self.call(place, command, |reply| script::verdict(limits(), reply), until).await
    }

    /// One script call that takes tokens ahead, under the same rules; tells the time, too, by the server's
    /// clock.
    pub(in crate::store) async fn acquire(
        &self,
        place: Place,
        fetch: &Fetch<'_>,
    ) -> Result<(Grant, Millis), Unanswered> {
        let command = |by, now| self.shared.scripts.acquire(by, fetch, now);
        self.call(place, command, |reply| script::granted(fetch, reply), None).await
    }

    /// One script call that charges nothing, under the same rules.
    pub(in crate::store) async fn look(
        &self,
        place: Place,
        charges: &[Charge<'_>],
    ) -> Result<Verdict, Failure> {
        let command = |by, now| self.shared.scripts.look(by, charges, now);
        let limits = || charges.iter().map(|charge| charge.limit);
        let looked = self.call(place, command, |reply| script::verdict(limits(), reply), None);
        looked.await.map_err(|unanswered| unanswered.failure)
    }

    /// One script call for all corrections, under the same rules. One that gave no answer may have been
    /// made, and is not repeated; a server that hangs makes it once it goes on.
    pub(in crate::store) async fn settle(
        &self,
        place: Place,
        settlements: &[Settlement<'_>],
    ) -> Result<Verdict, Failure> {
        self.try_settle(place, settlements).await.map_err(|Unanswered { failure, late }| {
            if let Some(LateReply(reply)) = late {
                // Redis executes nothing of a connection that was closed while it was paused.
                tokio::spawn(tokio::time::timeout(LATE, reply));
            }
            failure
        })
    }

    /// The same for what no request waits for: where the server hangs, its reply is waited for until the
    /// place can be reached by another connection, and a moment longer.
    pub(in crate::store) async fn settle_patiently(
        &self,
        place: Place,
        settlements: &[Settlement<'_>],
    ) -> Result<Verdict, Failure> {
        let Unanswered { failure, late } = match self.try_settle(place, settlements).await {
            Ok(verdict) => return Ok(verdict),
            Err(unanswered) => unanswered,
        };
        let Some(late) = late else { return Err(failure) };
        let limits = settlements.iter().map(|settlement| settlement.limit);
        tokio::select! {
            verdict = late.verdict(limits) => verdict.ok_or(failure),
            () = self.reached_again(place) => Err(failure),
        }
    }

    async fn try_settle(
        &self,
        place: Place,
        settlements: &[Settlement<'_>],
    ) -> Result<Verdict, Unanswered> {
        let command = |by, now| self.shared.scripts.settle(by, settlements, now);
        let limits = || settlements.iter().map(|settlement| settlement.limit);
        self.call(place, command, |reply| script::verdict(limits(), reply), None).await
    }

    /// Returns a moment after the place can be reached, or after [`LATE`].
    async fn reached_again(&self, place: Place) {
        let reached = async {
            while !self.is_live(place) {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        };
        let _ = tokio::time::timeout(LATE, reached).await;
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }

    /// One call of a script on records at `place`: `command` makes it for a time to decide at (0: the
    /// server's own), `read` understands the reply. A call that may have been executed is never
    /// repeated.
    async fn call<T>(
        &self,
        place: Place,
        command: impl Fn(By, Millis) -> Cmd,
        read: impl FnOnce(&[i64]) -> Option<T>,
        until: Option<Instant>,
    ) -> Result<T, Unanswered> {
        let link = self.links.to(place);
        if link.as_ref().is_some_and(|link| link.is_open()) {
            self.links.failed();
            return Err(Unanswered { failure: Failure::Open, late: None });
        }
        let now = self.clock.manual_now().unwrap_or(0);
        let mut asked = None;
        let asking = self.ask(place, link, |by| command(by, now), &mut asked);
        let over = clock::instant() + self.shared.options.response_timeout;
        let over = until.map_or(over, |until| until.min(over));
        let waited = tokio::time::timeout_at(over.into(), asking).await;
        let outcome = waited.unwrap_or_else(|_| {
            if asked.is_some() {
                return Err(Failure::Timeout.into());
            }
            // Without a connection nothing was sent.
            if let Some(link) = self.links.to(place) {
                link.give_up_starting();
            }
            Err(Failure::Open.into())
        });
        let outcome = outcome.and_then(|reply| read(&reply).ok_or(Failure::Reply.into()));
        outcome.map_err(|Miss { failure, trips, why }| {
            if let Some(Asked { link, live, .. }) = asked.as_ref().filter(|_| trips) {
                link.trip(live, failure);
                if let Some(why) = why {
                    link.node().refuses(&why);
                }
            }
            let unsent = asked.as_ref().is_some_and(|asked| asked.unsent);
            let failure = if unsent { Failure::Open } else { failure };
            self.links.failed();
            let late = asked.and_then(|asked| asked.reply).map(LateReply);
            Unanswered { failure, late }
        })
    }

    /// Asks the server that has the place; where a Cluster says that another has it, that one, once.
    async fn ask(
        &self,
        place: Place,
        link: Option<Arc<BreakerConnection>>,
        command: impl Fn(By) -> Cmd,
        asked: &mut Option<Asked>,
    ) -> Result<Vec<i64>, Miss> {
        let link = match link {
            Some(link) => link,
            None => self.links.find(place).await?,
        };
        let live = link.live().await?;
        let mut first = asked.insert(Asked { link, live, unsent: false, reply: None });
        let mut answer = first.run(&command, false).await;
        if first.unsent {
            // The connection ended while it was idle: no failure of the server.
            let (link, live) = (Arc::clone(&first.link), first.link.replaced(&first.live).await?);
            first = asked.insert(Asked { link, live, unsent: false, reply: None });
            answer = first.run(&command, false).await;
        }
        let error = match answer {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        // It said that it did not execute the call.
        let redirected = self.links.redirected(&error, &first.link);
        let Some((link, asking)) = redirected else { return Err(error.into()) };
        // Whatever becomes of the call now is no fault of the first.
        *asked = None;
        let live = link.live().await?;
        let second = asked.insert(Asked { link, live, unsent: false, reply: None });
        Ok(second.run(&command, asking).await?)
    }
}

impl Asked {
    /// Sends the script's name, and its text where the server has forgotten it. If this future is dropped
    /// while it waits, the reply that may still come is in `self.reply`.
    async fn run(
        &mut self,
        command: impl Fn(By) -> Cmd,
        asking: bool,
    ) -> Result<Vec<i64>, RedisError> {
        let answer = self.once(command(By::Name), asking).await;
        if answer.as_ref().is_err_and(is_forgotten) {
            return self.once(command(By::Text), asking).await;
        }
        answer
    }

    async fn once(&mut self, command: Cmd, asking: bool) -> Result<Vec<i64>, RedisError> {
        let mut connection = self.live.connection.clone();
        let sent = async move { once(&mut connection, &command, asking).await };
        let reply: &mut Reply = self.reply.insert(Box::pin(sent));
        let answer = match futures_util::poll!(&mut *reply) {
            Poll::Pending => reply.await,
            Poll::Ready(answer) => {
                // What takes commands has ended with its connection: else it would not be done so soon.
                self.unsent = answer.as_ref().is_err_and(RedisError::is_connection_dropped);
                answer
            }
        };
        self.reply = None;
        answer
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(follower) = &self.follower {
            follower.abort();
        }
    }
}

impl Links {
    /// The connection for a place, where one is known.
    fn to(&self, place: Place) -> Option<Arc<BreakerConnection>> {
        let view = self.now.load();
        let Some(map) = &view.map else {
            return view.links.get(usize::from(place.0)).cloned();
        };
        let cluster = self.cluster.as_ref()?;
        if Arc::ptr_eq(map, &cluster.map()) {
            return view.links.get(map.owner(place)?).cloned();
        }
        drop(view);
        let view = self.replace(cluster);
        view.links.get(view.map.as_ref()?.owner(place)?).cloned()
    }

    /// The connection for a place that none was known for: waits for the Cluster's first map.
    async fn find(&self, place: Place) -> Result<Arc<BreakerConnection>, Failure> {
        let cluster = self.cluster.as_ref().ok_or(Failure::Open)?;
        cluster.read_once().await;
        self.replace(cluster);
        self.to(place).ok_or(Failure::Open)
    }

    /// Follows a Cluster's word that another node has the place; whether to say that it was sent there.
    fn redirected(
        &self,
        error: &RedisError,
        asked: &BreakerConnection,
    ) -> Option<(Arc<BreakerConnection>, bool)> {
        let cluster = self.cluster.as_ref()?;
        let (node, asking) = cluster.redirect(error, asked.node())?;
        let view = self.replace(cluster);
        let known = view.links.iter().find(|link| link.node().name == node.name);
        Some((known.map_or_else(|| Arc::new(BreakerConnection::new(node)), Arc::clone), asking))
    }

    /// Connections for the map of now: those that are there stay.
    fn replace(&self, cluster: &Arc<Cluster>) -> Arc<View> {
        let _replacing = self.replacing.lock();
        let map = Arc::clone(&cluster.map());
        let view = self.now.load_full();
        if view.map.as_ref().is_some_and(|known| Arc::ptr_eq(known, &map)) {
            return view;
        }
        let links = map.nodes.iter().map(|node| {
            let known = view.links.iter().find(|link| Arc::ptr_eq(link.node(), node));
            known.map_or_else(|| Arc::new(BreakerConnection::new(Arc::clone(node))), Arc::clone)
        });
        let links = links.collect();
        let view = Arc::new(View { map: Some(map), links });
        self.now.store(Arc::clone(&view));
        view
    }

    /// A call gave nothing: of a Cluster the map may be an old one.
    fn failed(&self) {
        if let Some(cluster) = &self.cluster {
            cluster.refresh();
        }
    }
}

/// Opens connections as the Cluster's map changes.
async fn follow(links: Arc<Links>, cluster: Arc<Cluster>) {
    let mut progress = cluster.progress();
    loop {
        if !cluster.map().nodes.is_empty() {
            links.replace(&cluster);
        }
        // The sender is a part of the Cluster: an error cannot be.
        if progress.changed().await.is_err() {
            return;
        }
    }
}
