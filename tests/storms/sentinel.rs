use std::cell::RefCell;

use crate::{
    figures::Forgets, redis_server::RedisServer, redis_topology::SentinelTrio, storm::Storm,
    wait::eventually,
};

fn over(trio: &SentinelTrio, namespace: &str) -> Storm {
    let nodes: Vec<_> = trio.sentinels.iter().map(|s| format!("'{}'", s.url())).collect();
    let nodes = nodes.join(", ");
    Storm::over(
        &format!("sentinel: {{master: main, nodes: [{nodes}]}}, namespace: {namespace}"),
        &[],
    )
}

/// Charges that a server was asked for by clients; what its primary tells it is none.
fn calls(server: &RedisServer) -> u64 {
    let stats = server.command::<String>(&["INFO", "commandstats"]);
    let calls =
        stats.split_once("cmdstat_evalsha:calls=").and_then(|(_, calls)| calls.split_once(','));
    calls.map_or(0, |(calls, _)| calls.parse().expect("a number"))
}

#[test]
fn sentinel_names_another_primary() {
    let trio = RefCell::new(SentinelTrio::start());
    let storm = over(&trio.borrow(), "planned");
    storm.rages(
        "Sentinel: SENTINEL FAILOVER",
        // Sentinel makes a new primary first, and tells of it and the old one a second later.
        Forgets::SinceTheFault,
        |_| {},
        |storm| {
            let trio = trio.borrow();
            let _: String = trio.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]);
            eventually("Sentinel names the other", || trio.primary() == Some(1));
            // The old one answers on: the gateways leave it when they hear that another is the primary.
            eventually("only the new primary is asked", || {
                let before = calls(&trio.servers[0]);
                storm.goes_on();
                calls(&trio.servers[0]) == before && calls(&trio.servers[1]) > 0
            });
        },
    );
    trio.borrow().whole();

    let storm = over(&trio.borrow(), "killed");
    storm.rages(
        "Sentinel: primary killed",
        Forgets::Lag,
        |_| {},
        |storm| {
            trio.borrow_mut().servers[1].kill();
            storm.is_noticed();
            eventually("Sentinel names the first", || trio.borrow().primary() == Some(0));
        },
    );
}
