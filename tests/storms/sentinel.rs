use std::cell::RefCell;

use testkit::{redis_server::RedisServer, redis_topology::SentinelTrio, wait::eventually};

use crate::{report::DataLoss, storm::Storm};

fn over(trio: &SentinelTrio, namespace: &str) -> Storm {
    let nodes: Vec<_> = trio.sentinels.iter().map(|s| format!("'{}'", s.url())).collect();
    let nodes = nodes.join(", ");
    Storm::over(
        &format!("sentinel: {{master: main, nodes: [{nodes}]}}, namespace: {namespace}"),
        &[],
    )
}

/// Charges that clients sent to a server; replicated ones do not count.
fn calls(server: &RedisServer) -> u64 {
    let stats = server.command::<String>(&["INFO", "commandstats"]);
    let calls =
        stats.split_once("cmdstat_evalsha:calls=").and_then(|(_, calls)| calls.split_once(','));
    calls.map_or(0, |(calls, _)| calls.parse().expect("a number"))
}

#[test]
fn sentinel_failover() {
    let trio = RefCell::new(SentinelTrio::start());
    let storm = over(&trio.borrow(), "planned");
    storm.rages(
        "Sentinel: SENTINEL FAILOVER",
        // Sentinel promotes first, and reports the new primary and the old one a second later.
        DataLoss::SinceTheFault,
        |_| {},
        |storm| {
            let trio = trio.borrow();
            let _: String = trio.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]);
            eventually("Sentinel names the other", || trio.primary() == Some(1));
            // The old one keeps answering: the gateways leave it when they learn of the new primary.
            eventually("only the new primary is asked", || {
                let before = calls(&trio.servers[0]);
                storm.goes_on();
                calls(&trio.servers[0]) == before && calls(&trio.servers[1]) > 0
            });
        },
    );
    trio.borrow().wait_ready_for_failover();

    let storm = over(&trio.borrow(), "killed");
    storm.rages(
        "Sentinel: primary killed",
        DataLoss::Lag,
        |_| {},
        |storm| {
            trio.borrow_mut().servers[1].kill();
            storm.wait_detected();
            eventually("Sentinel names the first", || trio.borrow().primary() == Some(0));
        },
    );
}
