use std::cell::RefCell;

use testkit::{redis_server::RedisServer, redis_topology::RedisCluster, wait::eventually};

use crate::{
    report::DataLoss,
    storm::{Storm, is_primary, keys},
};

/// Each storm has its own namespace, so that it begins without usage.
fn over(cluster: &RedisCluster, namespace: &str) -> Storm {
    let urls: Vec<_> = cluster.nodes.iter().map(|node| format!("'{}'", node.url())).collect();
    let primaries: Vec<_> = cluster.nodes.iter().filter(|node| is_primary(node)).collect();
    let urls = urls.join(", ");
    Storm::over(&format!("cluster: [{urls}], namespace: {namespace}"), &primaries)
}

/// The node of the shared limit `/few`, and its replica.
fn homes_of_few(cluster: &RedisCluster, namespace: &str) -> [usize; 2] {
    let pattern = format!("{namespace}:*:few:*");
    let find = |primary: bool| {
        let is_it =
            |node: &RedisServer| is_primary(node) == primary && !keys(node, &pattern).is_empty();
        cluster.nodes.iter().position(is_it)
    };
    let mut found = [None; 2];
    eventually("the replica has it, too", || {
        found = [find(true), find(false)];
        found.iter().all(Option::is_some)
    });
    found.map(|at| at.expect("found just now"))
}

/// Waits until every node serves and every replica is in sync.
fn is_whole(cluster: &RedisCluster) {
    eventually("the Cluster is whole", || {
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
fn slots_and_replicas_move() {
    let cluster = RedisCluster::start();
    let figures = over(&cluster, "scripts").rages(
        "Cluster: SCRIPT FLUSH on all nodes, three times",
        DataLoss::Nothing,
        |storm| {
            for _ in 0..3 {
                for node in &cluster.nodes {
                    let _: String = node.command(&["SCRIPT", "FLUSH"]);
                }
                storm.goes_on();
            }
        },
        |_| {},
    );
    assert!(figures.is_undisturbed(), "{figures:?}");

    let figures = over(&cluster, "slots").rages(
        "Cluster: slots moved under load (ASK, MOVED)",
        DataLoss::Nothing,
        |storm| slots_move(&cluster, storm),
        |_| {},
    );
    assert!(figures.is_undisturbed(), "{figures:?}");

    let storm = over(&cluster, "planned");
    storm.rages(
        "Cluster: CLUSTER FAILOVER",
        DataLoss::Nothing,
        |_| {},
        |_| {
            let [_, replica] = homes_of_few(&cluster, "planned");
            let _: String = cluster.nodes[replica].command(&["CLUSTER", "FAILOVER"]);
            eventually("the replica takes over", || is_primary(&cluster.nodes[replica]));
        },
    );
}

/// The slot of the shared limit, and those of some callers.
fn slots_move(cluster: &RedisCluster, storm: &Storm) {
    let [from, _] = homes_of_few(cluster, "slots");
    let to = (from + 1) % 3;
    let node = &cluster.nodes[from];
    let callers = keys(node, "slots:*:open:*").into_iter().take(4);
    let names = keys(node, "slots:*:few:*").into_iter().chain(callers);
    let slots: Vec<String> =
        names.map(|name| node.command::<u16>(&["CLUSTER", "KEYSLOT", &name]).to_string()).collect();
    for slot in &slots {
        cluster.begin_migration(slot, from, to);
    }
    storm.goes_on();
    for slot in &slots {
        cluster.migrate_keys(slot, from, to);
    }
    storm.goes_on();
    for slot in &slots {
        cluster.end_migration(slot, to);
    }
    storm.goes_on();
}

#[test]
fn primaries_lost() {
    let cluster = RefCell::new(RedisCluster::start());
    let takes_over = |at: usize| {
        eventually("the replica takes over", || is_primary(&cluster.borrow().nodes[at]));
    };
    let storm = over(&cluster.borrow(), "hung");
    let hung = RefCell::new(0);
    storm.rages(
        "Cluster: a primary hangs (kill -STOP), its replica takes over",
        DataLoss::Lag,
        |_| {},
        |storm| {
            let [primary, replica] = homes_of_few(&cluster.borrow(), "hung");
            hung.replace(primary);
            cluster.borrow().nodes[primary].suspend();
            storm.wait_detected();
            takes_over(replica);
        },
    );
    cluster.borrow().nodes[hung.into_inner()].resume();
    is_whole(&cluster.borrow());

    let storm = over(&cluster.borrow(), "killed");
    storm.rages(
        "Cluster: a primary killed, its replica takes over",
        DataLoss::Lag,
        |_| {},
        |storm| {
            let [primary, replica] = homes_of_few(&cluster.borrow(), "killed");
            cluster.borrow_mut().nodes[primary].kill();
            storm.wait_detected();
            takes_over(replica);
        },
    );
}
