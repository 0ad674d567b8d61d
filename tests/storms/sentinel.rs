use std::cell::RefCell;

use crate::{figures::Forgets, redis_topology::SentinelTrio, storm::Storm, wait::eventually};

fn over(trio: &SentinelTrio, namespace: &str) -> Storm {
    let nodes: Vec<_> = trio.sentinels.iter().map(|s| format!("'{}'", s.url())).collect();
    let nodes = nodes.join(", ");
    Storm::over(
        &format!("sentinel: {{master: main, nodes: [{nodes}]}}, namespace: {namespace}"),
        &[],
    )
}

#[test]
fn sentinel_names_another_primary() {
    let trio = RefCell::new(SentinelTrio::start());
    let storm = over(&trio.borrow(), "planned");
    storm.rages(
        "Sentinel: SENTINEL FAILOVER",
        Forgets::SinceTheFault,
        |_| {},
        |_| {
            let trio = trio.borrow();
            let _: String = trio.sentinels[0].command(&["SENTINEL", "FAILOVER", "main"]);
            eventually("Sentinel names the other", || trio.primary() == Some(1));
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
