use std::cell::RefCell;

use testkit::{redis_server::RedisServer, redis_topology::SentinelTrio, wait::eventually};

use crate::{report::DataLoss, storm::Storm};

fn start_storm(trio: &SentinelTrio, namespace: &str) -> Storm {
    let nodes: Vec<_> = trio.sentinels.iter().map(|s| format!("'{}'", s.url())).collect();
    let nodes = nodes.join(", ");
    Storm::start(
        &format!("sentinel: {{master: main, nodes: [{nodes}]}}, namespace: {namespace}"),
        &[],
    )
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
    let trio = RefCell::new(SentinelTrio::start());
    let storm = start_storm(&trio.borrow(), "planned");
    storm.run(
        "Sentinel: SENTINEL FAILOVER",
        // Sentinel promotes first, and reports the new primary and the old one a second later.
        DataLoss::SinceFault,
        |_| {},
        |storm| {
            let trio = trio.borrow();
            let _: String = trio.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]);
            eventually("Sentinel reports the other primary", || trio.primary() == Some(1));
            // The old primary keeps answering until the gateways learn of the new one.
            eventually("only the new primary receives charges", || {
                let before = charges(&trio.servers[0]);
                storm.wait_for_traffic();
                charges(&trio.servers[0]) == before && charges(&trio.servers[1]) > 0
            });
        },
    );
    trio.borrow().wait_ready_for_failover();

    let storm = start_storm(&trio.borrow(), "killed");
    storm.run(
        "Sentinel: primary killed",
        DataLoss::Lag,
        |_| {},
        |storm| {
            trio.borrow_mut().servers[1].kill();
            storm.wait_detected();
            eventually("Sentinel reports the first primary", || trio.borrow().primary() == Some(0));
        },
    );
}
