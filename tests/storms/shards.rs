use std::cell::RefCell;

use testkit::{
    redis_server::RedisServer,
    redis_topology::{primary, replica_of, replicate},
    truncating_proxy::TruncatingProxy,
    wait::eventually,
    yaml::fill,
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

fn start_storm(servers: &[RedisServer; 4]) -> Storm {
    start_storm_at([&servers[0].url(), &servers[1].url()], servers)
}

fn start_storm_at(urls: [&str; 2], servers: &[RedisServer; 4]) -> Storm {
    let topology = fill(
        "shards: [{primary: '{a}', replicas: ['{a2}']}, {primary: '{b}', replicas: ['{b2}']}]",
        [("a", urls[0]), ("a2", &servers[2].url()), ("b", urls[1]), ("b2", &servers[3].url())],
    );
    Storm::start(&topology, &[&servers[0], &servers[1]])
}

/// True if a server has the record of the limit `small_quota`.
fn has_small_quota(server: &RedisServer) -> bool {
    !keys(server, "*:small_quota:*").is_empty()
}

/// The index of the primary that stores the limit `small_quota`.
fn primary_of_small_quota(servers: &[RedisServer; 4]) -> usize {
    servers[..2].iter().position(has_small_quota).expect("it was charged somewhere")
}

#[test]
fn a_killed_primary_affects_only_its_callers() {
    let servers = RefCell::new(servers());
    let storm = start_storm(&servers.borrow());
    let callers = [0, 1].map(|at| storm.callers_of(at));
    let server = RefCell::new(0);
    let figures = storm.run(
        "2 shards: one primary killed, started again empty",
        DataLoss::AllBefore,
        |storm| {
            server.replace(primary_of_small_quota(&servers.borrow()));
            servers.borrow_mut()[*server.borrow()].kill();
            storm.wait_detected();
        },
        |_| servers.borrow_mut()[*server.borrow()].restart(),
    );
    assert!(figures.affected_only(&callers[server.into_inner()]), "{figures:?}");
}

#[test]
fn a_swapped_primary_affects_only_its_callers() {
    let servers = servers();
    let storm = start_storm(&servers);
    let callers = [0, 1].map(|at| storm.callers_of(at));
    let server = RefCell::new(0);
    let figures = storm.run(
        "2 shards: primary and replica change places, and back",
        // The old primary charges until it becomes a replica, and then loads the data of the new
        // one.
        DataLoss::UntilDetected,
        |storm| {
            let at = primary_of_small_quota(&servers);
            server.replace(at);
            eventually("the replica has the record", || has_small_quota(&servers[at + 2]));
            let _: String = servers[at + 2].command(&["REPLICAOF", "NO", "ONE"]);
            replicate(&servers[at], &servers[at + 2]);
            storm.wait_detected();
        },
        |_| {
            let at = *server.borrow();
            // A replica in its first sync is empty, and stays empty as a primary.
            eventually("the old primary has the record", || has_small_quota(&servers[at]));
            let _: String = servers[at].command(&["REPLICAOF", "NO", "ONE"]);
        },
    );
    assert!(figures.affected_only(&callers[server.into_inner()]), "{figures:?}");
}

#[test]
fn a_hung_replica_affects_no_client() {
    let servers = servers();
    let figures = start_storm(&servers).run(
        "2 shards: a replica hangs",
        DataLoss::Nothing,
        |storm| {
            servers[2].suspend();
            storm.wait_for_traffic();
        },
        |_| servers[2].resume(),
    );
    assert!(figures.is_unaffected(), "{figures:?}");
}

#[test]
fn truncated_replies_of_one_shard_affect_only_its_callers() {
    let servers = servers();
    let proxies = [0, 1].map(|at| TruncatingProxy::start(servers[at].port()));
    let urls = proxies.each_ref().map(TruncatingProxy::url);
    let storm = start_storm_at([&urls[0], &urls[1]], &servers);
    let callers = [0, 1].map(|at| storm.callers_of(at));
    let server = RefCell::new(0);
    let figures = storm.run(
        "2 shards: replies of one cut in half",
        DataLoss::Nothing,
        |storm| {
            server.replace(primary_of_small_quota(&servers));
            proxies[*server.borrow()].truncate();
            storm.wait_detected();
        },
        |_| proxies[*server.borrow()].forward(),
    );
    assert!(figures.affected_only(&callers[server.into_inner()]), "{figures:?}");
}
