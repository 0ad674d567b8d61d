//! A Redis Cluster: which node serves which slot, and how that is found out again.

use std::{
    ops::RangeInclusive,
    sync::{Arc, Once, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use redis::{ConnectionInfo, Value};
use tokio::{
    sync::{Notify, watch},
    time,
};

use super::{
    Failure, RedisOptions,
    background::Background,
    client,
    keeper::Reachability,
    node::Node,
    place::{Place, SLOTS},
};
/// The least time between two readings of the map.
const BETWEEN_READINGS: Duration = Duration::from_secs(1);

/// What stands for the name of a host that a node was not told.
const UNTOLD: &str = "?";

/// The owner of a slot that has none.
const NOBODY: u16 = u16::MAX;

/// Which node serves which slot.
pub(super) struct SlotMap {
    owners: Box<[u16]>,
    pub(super) nodes: Vec<Arc<Node>>,
}

impl SlotMap {
    fn empty() -> Self {
        Self { owners: vec![NOBODY; usize::from(SLOTS)].into(), nodes: Vec::new() }
    }

    /// The place among the nodes of the one that serves a slot.
    pub(super) fn owner(&self, Place(slot): Place) -> Option<usize> {
        let owner = *self.owners.get(usize::from(slot))?;
        (owner != NOBODY).then_some(owner.into())
    }

    /// The place of a node, which is added if it is not there.
    fn enter(&mut self, node: &Arc<Node>) -> u16 {
        let known = self.nodes.iter().position(|known| known.name == node.name);
        let at = known.unwrap_or_else(|| {
            self.nodes.push(Arc::clone(node));
            self.nodes.len() - 1
        });
        u16::try_from(at).unwrap_or(NOBODY)
    }

    /// Whether it has the node, and the slot, if one is given, is there.
    fn has(&self, slot: Option<u16>, node: &Node) -> bool {
        match slot.map(|slot| self.owner(Place(slot))) {
            Some(owner) => owner.is_some_and(|at| self.nodes[at].name == node.name),
            None => self.nodes.iter().any(|known| known.name == node.name),
        }
    }

    /// The same with another node, and one slot there, if one is given.
    fn with(&self, slot: Option<u16>, node: &Arc<Node>) -> Self {
        let mut map = Self { owners: self.owners.clone(), nodes: self.nodes.clone() };
        let at = map.enter(node);
        if let Some(owner) = slot.and_then(|slot| map.owners.get_mut(usize::from(slot))) {
            *owner = at;
        }
        map
    }
}

/// The Cluster, for all threads.
pub(super) struct Cluster {
    options: Arc<RedisOptions>,
    /// How a node is connected to, but for its address.
    like: ConnectionInfo,
    /// The nodes that the configuration names.
    seeds: Box<[Arc<Node>]>,
    map: ArcSwap<SlotMap>,
    /// How often the map was replaced, and whether a reading is over.
    progress: watch::Sender<(u64, bool)>,
    background: Arc<Background>,
    /// Starts the task that reads the map.
    reading: Once,
    /// A reading is wanted.
    wanted: Arc<Notify>,
}

impl Cluster {
    /// Connects nothing yet.
    pub(super) fn new(
        options: Arc<RedisOptions>,
        like: ConnectionInfo,
        seeds: Box<[Arc<Node>]>,
        background: Arc<Background>,
    ) -> Self {
        Self {
            options,
            like,
            seeds,
            map: ArcSwap::from_pointee(SlotMap::empty()),
            progress: watch::Sender::new((0, false)),
            background,
            reading: Once::new(),
            wanted: Arc::default(),
        }
    }

    pub(super) fn map(&self) -> arc_swap::Guard<Arc<SlotMap>> {
        self.map.load()
    }

    /// The nodes that serve slots; until they are known, those that the configuration names.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        let map = self.map();
        if map.nodes.is_empty() { self.seeds.to_vec() } else { map.nodes.clone() }
    }

    /// Tells of a new map, and whether any reading is over yet.
    pub(super) fn progress(&self) -> watch::Receiver<(u64, bool)> {
        self.progress.subscribe()
    }

    /// Returns when the first reading of the map is over, well or badly.
    pub(super) async fn read_once(&self) {
        // The sender is a part of `self`: an error cannot be.
        drop(self.progress.subscribe().wait_for(|(_, over)| *over).await);
    }

    /// Reads the map again in the background: soon, and not more than once a second.
    pub(super) fn refresh(self: &Arc<Self>) {
        self.reading.call_once(|| {
            self.background.spawn(read_on_request(Arc::downgrade(self), Arc::clone(&self.wanted)));
        });
        self.wanted.notify_one();
    }

    /// Where an error says that a slot is. `asked` is the node that said so. A slot that has moved is
    /// looked for there from now on; one that is on its way is not.
    pub(super) fn redirect(
        self: &Arc<Self>,
        error: &redis::RedisError,
        asked: &Node,
    ) -> Option<(Arc<Node>, bool)> {
        let moved = error.code() == Some("MOVED");
        let (address, slot) = error.redirect_node().filter(|_| client::is_elsewhere(error))?;
        let (host, port) = address.rsplit_once(':')?;
        if host == UNTOLD {
            self.refresh();
            return None;
        }
        let host = if host.is_empty() { asked.host()? } else { host };
        let node = self.node(host, port.parse().ok()?)?;
        let slot = moved.then_some(slot);
        if !self.map().has(slot, &node) {
            self.map.rcu(|map| map.with(slot, &node));
            self.progress.send_modify(|(version, _)| *version += 1);
        }
        if moved {
            self.refresh();
        }
        Some((node, !moved))
    }

    /// The node at an address: the one that is known already, or a new one.
    fn node(&self, host: &str, port: u16) -> Option<Arc<Node>> {
        let client = client::client_at(&self.like, host, port)?;
        let (options, background) = (Arc::clone(&self.options), Arc::clone(&self.background));
        let new = Node::server(client, options, background);
        let map = self.map();
        let known = map.nodes.iter().chain(&self.seeds).find(|node| node.name == new.name);
        Some(known.map_or_else(|| Arc::new(new), Arc::clone))
    }

    /// Asks one node after the other for the map.
    async fn read(&self) {
        let mut nodes = self.map().nodes.clone();
        let more = self.seeds.iter().filter(|seed| nodes.iter().all(|n| n.name != seed.name));
        let more: Vec<_> = more.cloned().collect();
        // Not always the same one first: it may be wrong for long.
        let start = getrandom::u32().unwrap_or(0) as usize;
        let count = nodes.len().max(1);
        nodes.rotate_left(start % count);
        nodes.extend(more);
        for node in nodes {
            match self.ask(&node).await {
                Ok(map) => {
                    self.map.store(Arc::new(map));
                    self.progress.send_modify(|progress| *progress = (progress.0 + 1, true));
                    return;
                }
                Err(failure) => {
                    let (shard, failure) = (&*node.name, failure.label());
                    tracing::debug!(shard, failure, "no map of the Cluster");
                }
            }
        }
        self.progress.send_modify(|(_, over)| *over = true);
    }

    async fn ask(&self, node: &Arc<Node>) -> Result<SlotMap, Failure> {
        let found = node.keeper.reachability();
        if let Reachability::Down(failure) = found
            && !found.answers()
        {
            return Err(failure);
        }
        let mut connection = node.open().await?;
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let asking = command.query_async::<Value>(&mut connection);
        let reply = match time::timeout(self.options.connect_timeout, asking).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => return Err(Failure::of(&error)),
            Err(_) => return Err(Failure::Timeout),
        };
        let ranges = ranges(reply, node.host().unwrap_or_default()).ok_or(Failure::Reply)?;
        let mut map = SlotMap::empty();
        for Range { slots, host, port } in ranges {
            let Some(node) = self.node(&host, port) else { continue };
            // A node may be new in this very map.
            let at = map.enter(&node);
            map.nodes[usize::from(at)].serves(*slots.start());
            map.owners[usize::from(*slots.start())..=usize::from(*slots.end())].fill(at);
        }
        if map.nodes.is_empty() { Err(Failure::Reply) } else { Ok(map) }
    }
}

/// Reads the map whenever that is wanted, at most once a second; ends when the Cluster is dropped.
async fn read_on_request(cluster: Weak<Cluster>, wanted: Arc<Notify>) {
    loop {
        wanted.notified().await;
        let Some(cluster) = cluster.upgrade() else { return };
        let pause = time::sleep(BETWEEN_READINGS);
        cluster.read().await;
        drop(cluster);
        pause.await;
    }
}

/// Slots and who serves them.
#[derive(Debug, Eq, PartialEq)]
struct Range {
    slots: RangeInclusive<u16>,
    host: String,
    port: u16,
}

/// What `CLUSTER SLOTS` says; a node that does not know its own host is where it was `asked`.
fn ranges(reply: Value, asked: &str) -> Option<Vec<Range>> {
    let Value::Array(entries) = reply else { return None };
    let mut ranges = Vec::new();
    for entry in entries {
        let Value::Array(entry) = entry else { return None };
        let mut entry = entry.into_iter();
        let (first, last) = (number(&entry.next()?)?, number(&entry.next()?)?);
        let Value::Array(primary) = entry.next()? else { return None };
        let mut primary = primary.into_iter();
        let host: Option<String> = redis::from_redis_value(primary.next()?).ok()?;
        let host = host.filter(|host| !host.is_empty()).unwrap_or_else(|| asked.to_owned());
        let port = number(&primary.next()?)?;
        if first > last || last >= SLOTS {
            return None;
        }
        if host != UNTOLD {
            ranges.push(Range { slots: first..=last, host, port });
        }
    }
    Some(ranges)
}

fn number(value: &Value) -> Option<u16> {
    let Value::Int(number) = value else { return None };
    u16::try_from(*number).ok()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Connector, Credentials, Presence, Reporter, Shared, Topology, shared::Servers},
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
    fn slots_are_read_with_the_host_that_was_asked_where_none_is_told() {
        let reply = Value::Array(vec![
            entry(0, 99, text("10.0.0.1"), 7_000),
            entry(100, 16_383, Value::Nil, 7_001),
            entry(100, 200, text("?"), 7_002),
        ]);
        let read = ranges(reply, "seed").unwrap();
        let range = |slots, host: &str, port| Range { slots, host: host.to_owned(), port };
        assert_eq!(read, [range(0..=99, "10.0.0.1", 7_000), range(100..=16_383, "seed", 7_001)]);
    }

    fn options() -> RedisOptions {
        RedisOptions {
            topology: Topology::Cluster(vec!["redis://127.0.0.1:1".into()]),
            credentials: Credentials::default(),
            tls_ca: None,
            namespace: "t".into(),
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(1),
        }
    }

    #[tokio::test]
    async fn a_map_whose_nodes_are_all_gone_is_read_again_by_whoever_asks_them() {
        for is_throttle in [true, false] {
            let shared = Arc::new(Shared::new(options()).unwrap());
            let Servers::Cluster(cluster) = &shared.servers else { panic!("a Cluster") };
            let mut map = SlotMap::empty();
            let gone = &cluster.seeds[0];
            let at = map.enter(gone);
            map.owners.fill(at);
            cluster.map.store(Arc::new(map));
            let mut reachability = gone.watch();
            let down = |found: &Reachability| matches!(found, Reachability::Down(_));
            assert!(reachability.wait_for(down).await.is_ok());
            if is_throttle {
                assert!(Connector::new(Arc::clone(&shared)).connect("t").await.is_err());
            } else {
                Reporter::new(&Presence::new((0, 0), 0), &shared).report().await;
            }
            let reading = time::timeout(Duration::from_secs(5), cluster.read_once());
            assert!(reading.await.is_ok(), "throttle: {is_throttle}");
        }
    }

    #[tokio::test]
    async fn a_slot_that_moved_to_a_host_without_a_name_is_looked_for_in_a_new_map() {
        let options = Arc::new(options());
        let client = client::client("redis://seed:1", &options.credentials, None).unwrap();
        let like = client.get_connection_info().clone();
        let background = Arc::new(Background::start().unwrap());
        let asked = Node::server(client, Arc::clone(&options), Arc::clone(&background));
        let cluster = Arc::new(Cluster::new(options, like, [].into(), background));
        let moved = |to: &str| -> redis::RedisError {
            let error = format!("-MOVED 1 {to}:7000\r\n");
            let reply = redis::parse_redis_value(error.as_bytes()).unwrap();
            reply.extract_error().unwrap_err()
        };
        assert!(cluster.redirect(&moved("?"), &asked).is_none());
        assert!(cluster.map().nodes.is_empty(), "no node is called that");
        let reading = time::timeout(Duration::from_secs(5), cluster.read_once());
        assert!(reading.await.is_ok(), "a new map is asked for");
        let (node, asking) = cluster.redirect(&moved("there"), &asked).unwrap();
        assert_eq!((&*node.name, asking), ("there:7000", false));
        let (node, _) = cluster.redirect(&moved(""), &asked).unwrap();
        assert_eq!(&*node.name, "seed:7000", "the host that was asked");
    }

    #[test]
    fn a_map_that_makes_no_sense_is_not_taken() {
        for entry in [
            entry(1, 0, text("h"), 1),
            entry(0, 16_384, text("h"), 1),
            entry(0, 1, text("h"), 70_000),
            entry(-1, 1, text("h"), 1),
            Value::Array(vec![Value::Int(0), Value::Int(1)]),
            Value::Int(1),
        ] {
            assert_eq!(ranges(Value::Array(vec![entry]), "seed"), None);
        }
        assert_eq!(ranges(Value::Nil, "seed"), None);
    }
}
