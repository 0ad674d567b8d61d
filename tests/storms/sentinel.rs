use std::cell::RefCell;

use testkit::{
    redis_server::RedisServer, redis_topology::SentinelTopology, wait::eventually, yaml::fill,
};

use crate::{report::DataLoss, storm::Storm};

fn start_storm(topology: &SentinelTopology, namespace: &str) -> Storm {
    let nodes: Vec<_> = topology.sentinels.iter().map(|s| format!("'{}'", s.url())).collect();
    let topology = fill(
        "sentinel: {master: main, nodes: [{nodes}]}, namespace: {namespace}",
        [("nodes", &*nodes.join(", ")), ("namespace", namespace)],
    );
    Storm::start(&topology, &[])
}

/// The number of charges that clients sent to a server, without replicated ones.
fn charges(server: &RedisServer) -> u64 {
    let stats = server.command::<String>(&["INFO", "commandstats"]);
    let charges =
        stats.split_once("cmdstat_evalsha:calls=").and_then(|(_, charges)| charges.split_once(','));
    charges.map_or(0, |(charges, _)| charges.parse().expect("a number"))
}

#[test]
fn a_sentinel_failover_loses_only_the_old_primarys_last_charges() {
    let topology = RefCell::new(SentinelTopology::start());
    let storm = start_storm(&topology.borrow(), "planned");
    storm.run(
        "Sentinel: SENTINEL FAILOVER",
        // Sentinel promotes first, and reports the new primary and the old one a second later.
        DataLoss::SinceFault,
        |_| {},
        |storm| {
            let topology = topology.borrow();
            let _: String = topology.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]);
            eventually("Sentinel reports the other primary", || topology.primary() == Some(1));
            // The old primary keeps answering until the gateways learn of the new one.
            eventually("only the new primary receives charges", || {
                let before = charges(&topology.servers[0]);
                storm.wait_for_traffic();
                charges(&topology.servers[0]) == before && charges(&topology.servers[1]) > 0
            });
        },
    );
    topology.borrow().wait_ready_for_failover();

    let storm = start_storm(&topology.borrow(), "killed");
    storm.run(
        "Sentinel: primary killed",
        DataLoss::Lag,
        |_| {},
        |storm| {
            topology.borrow_mut().servers[1].kill();
            storm.wait_detected();
            eventually("Sentinel reports the first primary", || {
                topology.borrow().primary() == Some(0)
            });
        },
    );
}
