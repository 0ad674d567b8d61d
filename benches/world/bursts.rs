//! Many clients at once in front of a server that takes one connection at a time.

use std::{path::Path, time::Duration};

use testkit::burst::{Burst, one_at_a_time};

use crate::proxies::Kind;

const COUNTS: [usize; 3] = [60, 80, 200];
const BACKLOGS: [i32; 3] = [5, 50, 128];
/// What a client waits for a response; 0 is the status of a request that got none.
const PATIENCE: Duration = Duration::from_mins(1);
/// The server's time for a request.
const TIME: Duration = Duration::from_millis(5);

pub(crate) fn measure(program: &Path) {
    println!(
        "| GETs at once | backlog | proxy | statuses | slowest, s | other client's failures |"
    );
    println!("|---:|---:|---|---|---:|---:|");
    for count in COUNTS {
        for backlog in BACKLOGS {
            for kind in Kind::ALL {
                let Some(proxy) = kind.start(program, one_at_a_time(backlog, TIME)) else {
                    continue;
                };
                let burst = Burst::send(proxy.address, count, PATIENCE);
                let (failed, all) = (burst.failures_of_others(), burst.others.len());
                let slowest = burst.slowest.as_secs_f64();
                println!(
                    "| {count} | {backlog} | {kind} | {burst} | {slowest:.2} | {failed} of {all} |"
                );
            }
        }
    }
}
