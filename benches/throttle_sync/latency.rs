//! Time from the recording of a token at one gateway until the other gateways admit it.

use std::time::{Duration, Instant};

use testkit::redis_server::RedisServer;
use tidegate::{
    clock::{self, StoreTime},
    throttle::{AdmissionGate, GateCaller, Throttle},
};

use crate::{
    gateways::{Gateways, pause},
    redis_load::RedisUsage,
};

/// New tokens per second, over all gateways.
const NEW_TOKENS_PER_SECOND: u64 = 40;

/// Measures one row of the table: for `time`, new tokens are recorded at each gateway in turn, and
/// the other gateways are polled until they admit the token.
pub(crate) fn measure(count: usize, time: Duration) -> String {
    let redis = RedisServer::start();
    let gateways = Gateways::start(count, &redis, 100_000);
    let gates: Vec<AdmissionGate> = gateways.throttles.iter().map(Throttle::gate).collect();
    let (mut waiting, mut took) = (Vec::<(usize, u64, Instant)>::new(), Vec::<Duration>::new());
    let (calls, usage) = (gateways.sum(|s| s.calls.get()), RedisUsage::read(&redis));
    let (commits, conflicts) =
        (gateways.sum(|s| s.commits.get()), gateways.sum(|s| s.conflicts.get()));
    let began = clock::instant();
    let (mut token, mut last) = (0_u64, began);
    while began.elapsed() < time || !waiting.is_empty() {
        if began.elapsed() < time
            && last.elapsed() >= Duration::from_millis(1000 / NEW_TOKENS_PER_SECOND)
        {
            last = clock::instant();
            token += 1;
            let hash = token.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let at = token as usize % count;
            gates[at].record_response(hash, 200, &gateways.settings);
            waiting
                .extend((0..count).filter(|&other| other != at).map(|other| (other, hash, last)));
        }
        waiting.retain(|&(at, hash, since)| {
            let is_admitted = gates[at].admit(GateCaller::Token(hash), || StoreTime::ZERO).is_ok();
            if is_admitted {
                took.push(since.elapsed());
            }
            !is_admitted
        });
        pause(2);
    }
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64();
    let seconds = began.elapsed().as_secs_f64();
    let calls = (gateways.sum(|s| s.calls.get()) - calls) as f64 / seconds;
    let after = RedisUsage::read(&redis);
    let (sent, cpu) =
        ((after.sent - usage.sent) as f64 / seconds, (after.cpu - usage.cpu) / seconds);
    let commits = (gateways.sum(|s| s.commits.get()) - commits) as f64 / seconds;
    let conflicts = gateways.sum(|s| s.conflicts.get()) - conflicts;
    format!(
        "| {count} | {} | {:.2} s | {:.2} s | {:.2} s | {commits:.1} | {conflicts} | {calls:.0} | {:.2} | {:.1} % |",
        took.len(),
        at(0.5),
        at(0.99),
        at(1.0),
        sent / 1e6,
        cpu * 100.0,
    )
}
