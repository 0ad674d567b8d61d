use std::cell::RefCell;

use testkit::{
    redis_server::RedisServer,
    redis_topology::{primary, replica_of, replicate},
    truncating_proxy::TruncatingProxy,
    wait::eventually,
};

use crate::{
    report::DataLoss,
    storm::{Storm, keys},
};

/// Two primaries (0 and 1), each with one replica (2 and 3).
fn servers() -> [RedisServer; 4] {
    let [a, b] = [primary(), primary()];
    let [c, d] = [replica_of(&a), replica_of(&b)];
    [a, b, c, d]
}

fn over(servers: &[RedisServer; 4]) -> Storm {
    through([&servers[0].url(), &servers[1].url()], servers)
}

fn through(urls: [&str; 2], servers: &[RedisServer; 4]) -> Storm {
    let shard =
        |at: usize| format!("{{primary: '{}', replicas: ['{}']}}", urls[at], servers[at + 2].url());
    Storm::over(&format!("shards: [{}, {}]", shard(0), shard(1)), &[&servers[0], &servers[1]])
}

/// Whether a server has the shared limit's record.
fn has_few(server: &RedisServer) -> bool {
    !keys(server, "*:few:*").is_empty()
}

/// The index of the primary that has it.
fn home_of_few(servers: &[RedisServer; 4]) -> usize {
    servers[..2].iter().position(has_few).expect("it was charged somewhere")
}

#[test]
fn one_primary_killed() {
    let servers = RefCell::new(servers());
    let storm = over(&servers.borrow());
    let homes = [0, 1].map(|at| storm.callers_of(at));
    let home = RefCell::new(0);
    let figures = storm.rages(
        "2 shards: one primary killed, started again empty",
        DataLoss::AllBefore,
        |storm| {
            home.replace(home_of_few(&servers.borrow()));
            servers.borrow_mut()[*home.borrow()].kill();
            storm.wait_detected();
        },
        |_| servers.borrow_mut()[*home.borrow()].restart(),
    );
    assert!(figures.concerns_only(&homes[home.into_inner()]), "{figures:?}");
}

#[test]
fn a_replica_promoted_and_demoted() {
    let servers = servers();
    let storm = over(&servers);
    let homes = [0, 1].map(|at| storm.callers_of(at));
    let home = RefCell::new(0);
    let figures = storm.rages(
        "2 shards: primary and replica change places, and back",
        // The old one charges until it follows the new one, and then takes over the new one's data.
        DataLoss::UntilNoticed,
        |storm| {
            let at = home_of_few(&servers);
            home.replace(at);
            eventually("the replica has it", || has_few(&servers[at + 2]));
            let _: String = servers[at + 2].command(&["REPLICAOF", "NO", "ONE"]);
            replicate(&servers[at], &servers[at + 2]);
            storm.wait_detected();
        },
        |_| {
            let at = *home.borrow();
            // A replica in its first sync is empty, and stays empty as a primary.
            eventually("the old one has it", || has_few(&servers[at]));
            let _: String = servers[at].command(&["REPLICAOF", "NO", "ONE"]);
        },
    );
    assert!(figures.concerns_only(&homes[home.into_inner()]), "{figures:?}");
}

#[test]
fn a_replica_that_hangs() {
    let servers = servers();
    let figures = over(&servers).rages(
        "2 shards: a replica hangs",
        DataLoss::Nothing,
        |storm| {
            servers[2].suspend();
            storm.goes_on();
        },
        |_| servers[2].resume(),
    );
    assert!(figures.is_undisturbed(), "{figures:?}");
}

#[test]
fn replies_of_one_shard_truncated() {
    let servers = servers();
    let proxies = [0, 1].map(|at| TruncatingProxy::start(servers[at].port()));
    let urls = proxies.each_ref().map(TruncatingProxy::url);
    let storm = through([&urls[0], &urls[1]], &servers);
    let homes = [0, 1].map(|at| storm.callers_of(at));
    let home = RefCell::new(0);
    let figures = storm.rages(
        "2 shards: answers of one cut in half",
        DataLoss::Nothing,
        |storm| {
            home.replace(home_of_few(&servers));
            proxies[*home.borrow()].truncate();
            storm.wait_detected();
        },
        |_| proxies[*home.borrow()].forward(),
    );
    assert!(figures.concerns_only(&homes[home.into_inner()]), "{figures:?}");
}
