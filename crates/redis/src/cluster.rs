//! A Redis Cluster's slot map: the server of each slot, and the reads that refresh it.

use std::{
    ops::RangeInclusive,
    sync::{Arc, Once, Weak},
    time::Duration,
};

use ::redis::{ConnectionInfo, Value};
use arc_swap::ArcSwap;
use tidegate_system::clock::Clock;
use tokio::sync::{Notify, watch};

use super::{
    RedisFailure,
    call::ClusterRedirect,
    connect,
    context::RedisContext,
    health::Reachability,
    node::RedisNode,
    shard_id::{SLOTS, ShardId},
};

/// Minimum interval between two reads of the map.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Redis's placeholder for a missing host name.
const UNKNOWN_HOST: &str = "?";

/// The owner index of a slot that no server serves.
const NO_OWNER: u16 = u16::MAX;

/// The server of each slot.
pub(super) struct SlotMap {
    /// For each slot, an index into `nodes`, or [`NO_OWNER`].
    owners: Box<[u16]>,
    pub(super) nodes: Vec<Arc<RedisNode>>,
}

impl SlotMap {
    fn empty() -> Self {
        Self { owners: vec![NO_OWNER; usize::from(SLOTS)].into(), nodes: Vec::new() }
    }

    /// The index in `nodes` of the node that serves a slot.
    pub(super) fn owner(&self, ShardId(slot): ShardId) -> Option<usize> {
        let owner = *self.owners.get(usize::from(slot))?;
        (owner != NO_OWNER).then_some(owner.into())
    }

    /// The index of a node. Adds the node if it is missing.
    fn index_of(&mut self, node: &Arc<RedisNode>) -> u16 {
        let existing = self.nodes.iter().position(|other| other.name == node.name);
        let index = existing.unwrap_or_else(|| {
            self.nodes.push(Arc::clone(node));
            self.nodes.len() - 1
        });
        u16::try_from(index).unwrap_or(NO_OWNER)
    }

    /// True if the map has the node and, with `slot`, the node serves that slot.
    fn has(&self, slot: Option<u16>, node: &RedisNode) -> bool {
        match slot.map(|slot| self.owner(ShardId(slot))) {
            Some(owner) => owner.is_some_and(|index| self.nodes[index].name == node.name),
            None => self.nodes.iter().any(|other| other.name == node.name),
        }
    }

    /// A copy with the node added and, with `slot`, that slot assigned to it.
    fn with(&self, slot: Option<u16>, node: &Arc<RedisNode>) -> Self {
        let mut map = Self { owners: self.owners.clone(), nodes: self.nodes.clone() };
        let index = map.index_of(node);
        if let Some(owner) = slot.and_then(|slot| map.owners.get_mut(usize::from(slot))) {
            *owner = index;
        }
        map
    }
}

/// The progress of the map's reads, for tasks that wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MapStatus {
    /// Number of times that the map was replaced.
    version: u64,
    /// True once the first read is over, successful or not.
    is_first_read_over: bool,
}

/// The Cluster, shared by all threads.
pub(super) struct Cluster {
    context: Arc<RedisContext>,
    /// The credentials and TLS settings of every server; the address is the first seed's.
    template: ConnectionInfo,
    /// The configured servers.
    seeds: Box<[Arc<RedisNode>]>,
    map: ArcSwap<SlotMap>,
    status: watch::Sender<MapStatus>,
    /// Starts the task that reads the map.
    refresher: Once,
    /// Notified when a read is requested.
    requested: Arc<Notify>,
}

impl Cluster {
    /// Opens no connection yet.
    pub(super) fn new(
        context: Arc<RedisContext>,
        template: ConnectionInfo,
        seeds: Box<[Arc<RedisNode>]>,
    ) -> Self {
        Self {
            context,
            template,
            seeds,
            map: ArcSwap::from_pointee(SlotMap::empty()),
            status: watch::Sender::default(),
            refresher: Once::new(),
            requested: Arc::default(),
        }
    }

    pub(super) fn map(&self) -> arc_swap::Guard<Arc<SlotMap>> {
        self.map.load()
    }

    /// The nodes that serve slots; before the first map, the seeds.
    pub(super) fn nodes(&self) -> Vec<Arc<RedisNode>> {
        let map = self.map();
        if map.nodes.is_empty() { self.seeds.to_vec() } else { map.nodes.clone() }
    }

    /// Notifies of every new map, and of failed reads.
    pub(super) fn subscribe(&self) -> watch::Receiver<MapStatus> {
        self.status.subscribe()
    }

    /// Returns when the first read of the map is over, successful or not.
    pub(super) async fn wait_for_first_read(&self) {
        // Cannot fail: `self` owns the sender.
        drop(self.status.subscribe().wait_for(|status| status.is_first_read_over).await);
    }

    /// Requests a read of the map in the background, at most one a second.
    pub(super) fn refresh(self: &Arc<Self>) {
        self.refresher.call_once(|| {
            let requested = Arc::clone(&self.requested);
            let clock = self.context.clock.clone();
            let refresher = refresh_on_request(Arc::downgrade(self), requested, clock);
            self.context.background.spawn(refresher);
        });
        self.requested.notify_one();
    }

    /// The node to which an error reply of `sender` redirects; `None` if it does not. `MOVED`
    /// changes the slot's owner in the map; `ASK` only adds an unknown node.
    pub(super) fn redirect(
        self: &Arc<Self>,
        error: &::redis::RedisError,
        sender: &RedisNode,
    ) -> Option<(Arc<RedisNode>, ClusterRedirect)> {
        let is_moved = error.code() == Some("MOVED");
        let (address, slot) = error.redirect_node().filter(|_| connect::is_redirect(error))?;
        let (host, port) = address.rsplit_once(':')?;
        if host == UNKNOWN_HOST {
            self.refresh();
            return None;
        }
        let host = if host.is_empty() { sender.host()? } else { host };
        let node = self.node_at(host, port.parse().ok()?)?;
        let slot = is_moved.then_some(slot);
        if !self.map().has(slot, &node) {
            self.map.rcu(|map| map.with(slot, &node));
            self.status.send_modify(|status| status.version += 1);
        }
        if is_moved {
            self.refresh();
        }
        Some((node, if is_moved { ClusterRedirect::Moved } else { ClusterRedirect::Ask }))
    }

    /// The node at an address: the existing one, or a new one.
    fn node_at(&self, host: &str, port: u16) -> Option<Arc<RedisNode>> {
        let client = connect::client_at(&self.template, host, port)?;
        let new = RedisNode::fixed(client, Arc::clone(&self.context));
        let map = self.map();
        let existing = map.nodes.iter().chain(&self.seeds).find(|node| node.name == new.name);
        Some(existing.map_or_else(|| Arc::new(new), Arc::clone))
    }

    /// Asks one server after the other for the map, until one returns it.
    async fn read_map(&self) {
        let mut nodes = self.map().nodes.clone();
        let seeds = self.seeds.iter().filter(|seed| nodes.iter().all(|n| n.name != seed.name));
        let seeds: Vec<_> = seeds.cloned().collect();
        // Begins with a random server, because one may have a stale map for a long time.
        let start = getrandom::u32().unwrap_or(0) as usize;
        let count = nodes.len().max(1);
        nodes.rotate_left(start % count);
        nodes.extend(seeds);
        for node in nodes {
            match self.query_slots(&node).await {
                Ok(map) => {
                    self.map.store(Arc::new(map));
                    self.status.send_modify(|status| {
                        *status =
                            MapStatus { version: status.version + 1, is_first_read_over: true };
                    });
                    return;
                }
                Err(failure) => {
                    let (shard, failure) = (&*node.name, failure.label());
                    tracing::debug!(shard, failure, "cannot read the Cluster's slots");
                }
            }
        }
        self.status.send_modify(|status| status.is_first_read_over = true);
    }

    async fn query_slots(&self, node: &Arc<RedisNode>) -> Result<SlotMap, RedisFailure> {
        let reachability = node.health.reachability();
        if let Reachability::Down(failure) = reachability
            && !reachability.is_responding()
        {
            return Err(failure);
        }
        let mut connection = node.open_connection().await?;
        let mut command = ::redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let reply = command.query_async::<Value>(&mut connection);
        let RedisContext { options, clock, .. } = &*self.context;
        let reply = match clock.timeout(options.connect_timeout, reply).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => return Err(RedisFailure::classify(&error)),
            Err(_) => return Err(RedisFailure::Timeout),
        };
        let ranges =
            parse_slots(reply, node.host().unwrap_or_default()).ok_or(RedisFailure::Reply)?;
        let mut map = SlotMap::empty();
        for SlotRange { slots, host, port } in ranges {
            let Some(node) = self.node_at(&host, port) else { continue };
            // For a server that is not in the current map, `node_at` makes a node for each range:
            // use the first for all.
            let index = map.index_of(&node);
            map.nodes[usize::from(index)].set_slot(*slots.start());
            map.owners[usize::from(*slots.start())..=usize::from(*slots.end())].fill(index);
        }
        if map.nodes.is_empty() { Err(RedisFailure::Reply) } else { Ok(map) }
    }
}

/// Reads the map on request, at most once a second. Ends when the Cluster is dropped.
async fn refresh_on_request(cluster: Weak<Cluster>, requested: Arc<Notify>, clock: Clock) {
    loop {
        requested.notified().await;
        let Some(cluster) = cluster.upgrade() else { return };
        let next = clock.uptime() + MIN_REFRESH_INTERVAL;
        cluster.read_map().await;
        drop(cluster);
        clock.sleep_until(next).await;
    }
}

/// Consecutive slots, and the address of the primary that serves them.
#[derive(Debug, Eq, PartialEq)]
struct SlotRange {
    slots: RangeInclusive<u16>,
    host: String,
    port: u16,
}

/// Parses the reply to `CLUSTER SLOTS`: an array of (first slot, last slot, primary (host, port,
/// ...), ...). An entry without a host gets `sender_host`. `None` if the reply is malformed.
fn parse_slots(reply: Value, sender_host: &str) -> Option<Vec<SlotRange>> {
    let Value::Array(entries) = reply else { return None };
    let mut ranges = Vec::new();
    for entry in entries {
        let Value::Array(entry) = entry else { return None };
        let mut entry = entry.into_iter();
        let (first, last) = (parse_u16(&entry.next()?)?, parse_u16(&entry.next()?)?);
        let Value::Array(primary) = entry.next()? else { return None };
        let mut primary = primary.into_iter();
        let host: Option<String> = ::redis::from_redis_value(primary.next()?).ok()?;
        let host = host.filter(|host| !host.is_empty()).unwrap_or_else(|| sender_host.to_owned());
        let port = parse_u16(&primary.next()?)?;
        if first > last || last >= SLOTS {
            return None;
        }
        if host != UNKNOWN_HOST {
            ranges.push(SlotRange { slots: first..=last, host, port });
        }
    }
    Some(ranges)
}

fn parse_u16(value: &Value) -> Option<u16> {
    let Value::Int(number) = value else { return None };
    u16::try_from(*number).ok()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Connector, Credentials, Presence, RedisBackend, RedisOptions, Reporter, Topology,
            backend::Layout,
        },
        *,
    };

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary])
    }

    #[test]
    fn slots_without_a_host_get_the_host_of_the_queried_server() {
        let reply = Value::Array(vec![
            entry(0, 99, text("10.0.0.1"), 7_000),
            entry(100, 16_383, Value::Nil, 7_001),
            entry(100, 200, text("?"), 7_002),
        ]);
        let ranges = parse_slots(reply, "seed").unwrap();
        let range = |slots, host: &str, port| SlotRange { slots, host: host.to_owned(), port };
        assert_eq!(ranges, [range(0..=99, "10.0.0.1", 7_000), range(100..=16_383, "seed", 7_001)]);
    }

    fn options() -> RedisOptions {
        RedisOptions {
            topology: Topology::Cluster(vec!["redis://127.0.0.1:1".into()]),
            credentials: Credentials::default(),
            tls_ca: None,
            namespace: "t".into(),
            secret: tidegate_system::secret::SharedSecret::from_namespace("t"),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
        }
    }

    #[tokio::test]
    async fn a_failed_connection_refreshes_the_map() {
        for is_throttle in [true, false] {
            let backend = Arc::new(RedisBackend::new(options(), Clock::system()).unwrap());
            let Layout::Cluster(cluster) = &backend.layout else { panic!("not a Cluster") };
            let mut map = SlotMap::empty();
            let dead = &cluster.seeds[0];
            let index = map.index_of(dead);
            map.owners.fill(index);
            cluster.map.store(Arc::new(map));
            let mut reachability = dead.watch_health();
            let is_down = |found: &Reachability| matches!(found, Reachability::Down(_));
            assert!(reachability.wait_for(is_down).await.is_ok());
            if is_throttle {
                assert!(Connector::new(Arc::clone(&backend)).connect("t").await.is_err());
            } else {
                Reporter::new(&Presence::new(&backend.context.options.secret, 0), &backend)
                    .report()
                    .await;
            }
            let read = tokio::time::timeout(Duration::from_secs(5), cluster.wait_for_first_read());
            assert!(read.await.is_ok(), "throttle: {is_throttle}");
        }
    }

    #[tokio::test]
    async fn a_redirect_to_an_unknown_host_refreshes_the_map() {
        let context = Arc::new(RedisContext::new(options(), Clock::system()).unwrap());
        let credentials = &context.options.credentials;
        let client = connect::client_for_url("redis://seed:1", credentials, None).unwrap();
        let template = client.get_connection_info().clone();
        let sender = RedisNode::fixed(client, Arc::clone(&context));
        let cluster = Arc::new(Cluster::new(context, template, [].into()));
        let moved = |to: &str| -> ::redis::RedisError {
            let error = format!("-MOVED 1 {to}:7000\r\n");
            let reply = ::redis::parse_redis_value(error.as_bytes()).unwrap();
            reply.extract_error().unwrap_err()
        };
        assert!(cluster.redirect(&moved("?"), &sender).is_none());
        assert!(cluster.map().nodes.is_empty(), "the placeholder is not a host");
        let read = tokio::time::timeout(Duration::from_secs(5), cluster.wait_for_first_read());
        assert!(read.await.is_ok(), "the map is read");
        let (node, redirect) = cluster.redirect(&moved("there"), &sender).unwrap();
        assert_eq!((&*node.name, redirect), ("there:7000", ClusterRedirect::Moved));
        let (node, _) = cluster.redirect(&moved(""), &sender).unwrap();
        assert_eq!(&*node.name, "seed:7000", "the host of the sender");
    }

    #[test]
    fn a_malformed_slots_reply_is_rejected() {
        for entry in [
            entry(1, 0, text("h"), 1),
            entry(0, 16_384, text("h"), 1),
            entry(0, 1, text("h"), 70_000),
            entry(-1, 1, text("h"), 1),
            Value::Array(vec![Value::Int(0), Value::Int(1)]),
            Value::Int(1),
        ] {
            assert_eq!(parse_slots(Value::Array(vec![entry]), "seed"), None);
        }
        assert_eq!(parse_slots(Value::Nil, "seed"), None);
    }
}
