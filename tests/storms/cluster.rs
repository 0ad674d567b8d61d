use std::cell::RefCell;

use testkit::{redis_server::RedisServer, redis_topology::RedisCluster, wait::eventually};

use crate::{
    report::DataLoss,
    storm::{Storm, is_primary, keys},
};

/// Starts a storm in its own namespace, without usage.
fn start_storm(cluster: &RedisCluster, namespace: &str) -> Storm {
    let urls: Vec<_> = cluster.nodes.iter().map(|node| format!("'{}'", node.url())).collect();
    let primaries: Vec<_> = cluster.nodes.iter().filter(|node| is_primary(node)).collect();
    let urls = urls.join(", ");
    Storm::start(&format!("cluster: [{urls}], namespace: {namespace}"), &primaries)
}

/// The indices of the primary that stores the limit `small_quota`, and of its replica.
fn nodes_of_small_quota(cluster: &RedisCluster, namespace: &str) -> [usize; 2] {
    let pattern = format!("{namespace}:*:small_quota:*");
    let find = |primary: bool| {
        let matches =
            |node: &RedisServer| is_primary(node) == primary && !keys(node, &pattern).is_empty();
        cluster.nodes.iter().position(matches)
    };
    let mut found = [None; 2];
    eventually("the replica has the record too", || {
        found = [find(true), find(false)];
        found.iter().all(Option::is_some)
    });
    found.map(|at| at.expect("the wait has ended"))
}

/// Waits until every node serves and every replica is in sync.
fn wait_healthy(cluster: &RedisCluster) {
    eventually("the Cluster is healthy", || {
        let primaries = cluster.nodes.iter().filter(|node| is_primary(node)).count();
        primaries == 3
            && cluster.nodes.iter().all(|node| {
                let replication = node.command::<String>(&["INFO", "replication"]);
                node.command::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && (is_primary(node) || replication.contains("master_link_status:up"))
            })
    });
}

#[test]
fn script_flush_resharding_and_failover_lose_no_charge() {
    let cluster = RedisCluster::start();
    let figures = start_storm(&cluster, "scripts").run(
        "Cluster: SCRIPT FLUSH on all nodes, three times",
        DataLoss::Nothing,
        |storm| {
            for _ in 0..3 {
                for node in &cluster.nodes {
                    let _: String = node.command(&["SCRIPT", "FLUSH"]);
                }
                storm.wait_for_traffic();
            }
        },
        |_| {},
    );
    assert!(figures.is_unaffected(), "{figures:?}");

    let figures = start_storm(&cluster, "slots").run(
        "Cluster: slots moved under load (ASK, MOVED)",
        DataLoss::Nothing,
        |storm| migrate_slots(&cluster, storm),
        |_| {},
    );
    assert!(figures.is_unaffected(), "{figures:?}");

    let storm = start_storm(&cluster, "planned");
    storm.run(
        "Cluster: CLUSTER FAILOVER",
        DataLoss::Nothing,
        |_| {},
        |_| {
            let [_, replica] = nodes_of_small_quota(&cluster, "planned");
            let _: String = cluster.nodes[replica].command(&["CLUSTER", "FAILOVER"]);
            eventually("the replica takes over", || is_primary(&cluster.nodes[replica]));
        },
    );
}

/// Migrates the slot of the limit `small_quota`, and the slots of some callers.
fn migrate_slots(cluster: &RedisCluster, storm: &Storm) {
    let [from, _] = nodes_of_small_quota(cluster, "slots");
    let to = (from + 1) % 3;
    let node = &cluster.nodes[from];
    let callers = keys(node, "slots:*:open:*").into_iter().take(4);
    let names = keys(node, "slots:*:small_quota:*").into_iter().chain(callers);
    let slots: Vec<String> =
        names.map(|name| node.command::<u16>(&["CLUSTER", "KEYSLOT", &name]).to_string()).collect();
    for slot in &slots {
        cluster.begin_migration(slot, from, to);
    }
    storm.wait_for_traffic();
    for slot in &slots {
        cluster.migrate_keys(slot, from, to);
    }
    storm.wait_for_traffic();
    for slot in &slots {
        cluster.end_migration(slot, to);
    }
    storm.wait_for_traffic();
}

#[test]
fn a_lost_primary_loses_only_unreplicated_charges() {
    let cluster = RefCell::new(RedisCluster::start());
    let wait_takeover = |at: usize| {
        eventually("the replica takes over", || is_primary(&cluster.borrow().nodes[at]));
    };
    let storm = start_storm(&cluster.borrow(), "hung");
    let hung = RefCell::new(0);
    storm.run(
        "Cluster: a primary hangs (kill -STOP), its replica takes over",
        DataLoss::Lag,
        |_| {},
        |storm| {
            let [primary, replica] = nodes_of_small_quota(&cluster.borrow(), "hung");
            hung.replace(primary);
            cluster.borrow().nodes[primary].suspend();
            storm.wait_detected();
            wait_takeover(replica);
        },
    );
    cluster.borrow().nodes[hung.into_inner()].resume();
    wait_healthy(&cluster.borrow());

    let storm = start_storm(&cluster.borrow(), "killed");
    storm.run(
        "Cluster: a primary killed, its replica takes over",
        DataLoss::Lag,
        |_| {},
        |storm| {
            let [primary, replica] = nodes_of_small_quota(&cluster.borrow(), "killed");
            cluster.borrow_mut().nodes[primary].kill();
            storm.wait_detected();
            wait_takeover(replica);
        },
    );
}
