//! Overrides in each topology: stores that share a Redis read each other's changes.

use testkit::{
    redis_server::RedisServer,
    redis_topology::{RedisCluster, SentinelTopology},
};
use tidegate::clock::ms;
use tidegate::{
    clock::{Clock, StoreTime},
    overrides::{
        MAX_OVERRIDES, Override, OverrideChange, OverrideError, OverrideSet, OverrideStore,
    },
    redis::{Credentials, Topology},
};

use super::{counter_store_on, shards};
use crate::support::{NOW, eventually};

fn own(consumer: &str, quota: u64) -> Override {
    let text = format!(r#"{{"limit":"each","consumer":"{consumer}","quota":{quota}}}"#);
    Override::of_json(text.as_bytes()).expect("an override")
}

/// A gateway's store of overrides, and what it knows.
struct Follower {
    store: OverrideStore,
    known: OverrideSet,
}

impl Follower {
    fn new(topology: Topology, clock: &Clock) -> Self {
        let connector = counter_store_on(clock.clone(), topology).connector().expect("a Redis");
        let store = OverrideStore::redis(connector, clock.clone());
        Self { store, known: OverrideSet::default() }
    }

    /// One poll.
    async fn poll(&mut self) -> Result<(), OverrideError> {
        if let Some(set) = self.store.read_if_changed(&self.known).await? {
            self.known = set;
        }
        Ok(())
    }

    async fn set(&mut self, new: Override) -> Result<(), OverrideError> {
        let changed = self.store.change(OverrideChange::Set(new), &OverrideSet::default()).await?;
        self.known = changed.set.expect("the new set");
        Ok(())
    }

    /// The quotas of the consumers, in any order.
    fn quotas(&self) -> Vec<String> {
        let mut all: Vec<String> = self.known.iter().map(|(_, own)| own.to_string()).collect();
        all.sort();
        all
    }
}

/// Two stores follow each other, also where Redis lost its data or a change was lifted.
async fn assert_followed(topology: impl Fn() -> Topology) {
    let clock = Clock::system();
    let mut gateways = [0, 1].map(|_| Follower::new(topology(), &clock));
    let [one, other] = &mut gateways;
    eventually("the first change", async || one.set(own("acme", 5)).await.is_ok()).await;
    eventually("the other reads", async || other.poll().await.is_ok() && !other.known.is_empty())
        .await;
    assert_eq!(other.quotas(), ["each, consumer acme: 5"]);
    other.set(own("bread", 7)).await.expect("a change");
    other.set(own("acme", 9)).await.expect("a change");
    one.poll().await.expect("a reply");
    assert_eq!(one.quotas(), ["each, consumer acme: 9", "each, consumer bread: 7"]);
    let lifted =
        one.store.change(OverrideChange::Lift(own("bread", 1).id()), &OverrideSet::default()).await;
    let lifted = lifted.expect("a change");
    assert_eq!(
        lifted.before.map(|own| own.to_string()).as_deref(),
        Some("each, consumer bread: 7")
    );
    other.poll().await.expect("a reply");
    assert_eq!(other.quotas(), ["each, consumer acme: 9"]);
    let again =
        one.store.change(OverrideChange::Lift(own("bread", 1).id()), &OverrideSet::default()).await;
    assert!(matches!(again, Err(OverrideError::Unknown)), "{again:?}");
}

#[tokio::test]
async fn one_of_two_shards_has_all_overrides() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let reversed = || shards(&[&servers[1], &servers[0]]);
    assert_followed(|| shards(&servers.each_ref())).await;
    let count = |server: &RedisServer| server.command::<u32>(&["EXISTS", "tidegate:{overrides}"]);
    assert_eq!(servers.each_ref().map(count).iter().sum::<u32>(), 1);
    // The order in the configuration does not matter.
    let mut other = Follower::new(reversed(), &Clock::system());
    eventually("the same server", async || other.poll().await.is_ok() && !other.known.is_empty())
        .await;
}

#[tokio::test]
async fn a_slot_that_migrates_is_followed() {
    let cluster = RedisCluster::start();
    let topology = || Topology::Cluster(cluster.urls());
    assert_followed(topology).await;
    let mut follower = Follower::new(topology(), &Clock::system());
    eventually("the overrides", async || follower.poll().await.is_ok()).await;
    let before = follower.quotas();
    let (slot, from) = cluster.slot_of("overrides");
    let to = (from + 1) % 3;
    cluster.begin_migration(&slot, from, to);
    cluster.migrate_keys(&slot, from, to);
    // Redirected: an error, and no loss of the data.
    assert!(follower.poll().await.is_err());
    assert_eq!(follower.quotas(), before);
    cluster.end_migration(&slot, to);
    eventually("the new owner", async || follower.poll().await.is_ok()).await;
    assert_eq!(follower.quotas(), before);
    follower.set(own("new", 1)).await.expect("a change at the new owner");
}

#[tokio::test]
async fn a_failover_is_followed() {
    let mut redis = SentinelTopology::start();
    let nodes: Vec<Box<str>> = redis.sentinels.iter().map(|own| own.url().into()).collect();
    let topology = || Topology::Sentinel {
        master: "main".into(),
        nodes: nodes.clone(),
        credentials: Credentials::default(),
    };
    assert_followed(topology).await;
    let clock = Clock::system();
    let counters = counter_store_on(clock.clone(), topology());
    let stop = tokio_util::sync::CancellationToken::new();
    // It asks the sentinels.
    tokio::spawn(counters.clone().run(stop.clone()));
    let store = OverrideStore::redis(counters.connector().expect("a Redis"), clock);
    let mut follower = Follower { store, known: OverrideSet::default() };
    eventually("the overrides", async || follower.poll().await.is_ok()).await;
    assert_eq!(follower.quotas(), ["each, consumer acme: 9"]);
    redis.servers[0].kill();
    eventually("the new primary", async || follower.set(own("late", 3)).await.is_ok()).await;
    assert_eq!(follower.quotas(), ["each, consumer acme: 9", "each, consumer late: 3"]);
    stop.cancel();
}

#[tokio::test]
async fn lost_data_is_written_back_once_and_a_lost_version_is_not_mistaken() {
    let server = RedisServer::start();
    let clock = Clock::manual(NOW);
    let mut gateways = [0, 1, 2].map(|_| Follower::new(shards(&[&server]), &clock));
    let [one, other, third] = &mut gateways;
    one.set(own("acme", 5)).await.expect("a change");
    other.poll().await.expect("a reply");
    // A change that one gateway has not seen is lost with the data: what that gateway knows comes
    // back.
    other.set(own("bread", 7)).await.expect("a change");
    let _: String = server.command(&["FLUSHALL"]);
    one.poll().await.expect("a reply");
    assert_eq!(one.quotas(), ["each, consumer acme: 5"]);
    // The clock stands still: versions differ all the same.
    for _ in 0..2 {
        other.poll().await.expect("a reply");
        third.poll().await.expect("a reply");
    }
    let sets = [&*one, &*other, &*third].map(Follower::quotas);
    assert!(sets.iter().all(|set| *set == sets[0]), "{sets:?}");
    // Nothing known, nothing written.
    let _: String = server.command(&["FLUSHALL"]);
    let mut new = Follower::new(shards(&[&server]), &clock);
    new.poll().await.expect("a reply");
    assert_eq!(server.command::<u32>(&["EXISTS", "tidegate:{overrides}"]), 0);
}

#[tokio::test]
async fn the_number_is_bounded_and_ended_ones_make_room() {
    let server = RedisServer::start();
    let clock = Clock::manual(NOW);
    let mut gateway = Follower::new(shards(&[&server]), &clock);
    let until = |time: StoreTime, name: &str| Override { until: Some(time), ..own(name, 5) };
    gateway.set(until(NOW + ms(10), "short")).await.expect("a change");
    let mut command = redis::cmd("HSET");
    command.arg("tidegate:{overrides}");
    for number in 1..MAX_OVERRIDES {
        let own = own(&format!("c{number}"), 5);
        command.arg(own.id().to_string()).arg(own.to_json());
    }
    let client = redis::Client::open(server.url()).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    command.exec(&mut connection).expect("a reply");
    let full = gateway.set(own("more", 5)).await;
    assert!(matches!(full, Err(OverrideError::Full)), "{full:?}");
    gateway.set(own("c1", 6)).await.expect("one that exists may change");
    assert_eq!(gateway.known.len(), MAX_OVERRIDES);
    clock.set(NOW + ms(10));
    gateway.set(own("more", 5)).await.expect("the ended one makes room");
    assert_eq!(gateway.known.len(), MAX_OVERRIDES);
}
