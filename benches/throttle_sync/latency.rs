//! How soon a token is known elsewhere.

use std::time::{Duration, Instant};

use testkit::redis_server::RedisServer;
use tidegate::{
    clock,
    throttle::{Gate, Throttle},
};

use crate::gateways::{Gateways, pause};

/// How many tokens a second come new, over all gateways.
const NEWCOMERS: u64 = 40;

/// One row: tokens come new at changing gateways for `time`; each is asked for at all others until
/// they know it.
pub(crate) fn measure(count: usize, time: Duration) -> String {
    let redis = RedisServer::start();
    let gateways = Gateways::start(count, &redis, 100_000);
    let gates: Vec<Gate> = gateways.throttles.iter().map(Throttle::gate).collect();
    let (mut waiting, mut took) = (Vec::<(usize, u64, Instant)>::new(), Vec::<Duration>::new());
    let (commits, conflicts) =
        (gateways.sum(|s| s.commits.get()), gateways.sum(|s| s.conflicts.get()));
    let began = clock::instant();
    let (mut token, mut last) = (0_u64, began);
    while began.elapsed() < time || !waiting.is_empty() {
        if began.elapsed() < time && last.elapsed() >= Duration::from_millis(1000 / NEWCOMERS) {
            last = clock::instant();
            token += 1;
            let hash = token.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let at = token as usize % count;
            gates[at].remember(hash, 200, &gateways.settings);
            waiting
                .extend((0..count).filter(|&other| other != at).map(|other| (other, hash, last)));
        }
        waiting.retain(|&(at, hash, since)| {
            let known = gates[at].admit(hash, true, || 0).is_ok();
            if known {
                took.push(since.elapsed());
            }
            !known
        });
        pause(2);
    }
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64();
    let seconds = began.elapsed().as_secs_f64();
    let commits = (gateways.sum(|s| s.commits.get()) - commits) as f64 / seconds;
    let conflicts = gateways.sum(|s| s.conflicts.get()) - conflicts;
    format!(
        "| {count} | {} | {:.2} s | {:.2} s | {:.2} s | {commits:.1} | {conflicts} |",
        took.len(),
        at(0.5),
        at(0.99),
        at(1.0),
    )
}
