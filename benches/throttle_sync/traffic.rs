//! What the exchange costs, at some traffic and at a hundred times as much of the same users.

use std::time::Duration;

use testkit::redis_server::RedisServer;
use tidegate::{
    clock,
    throttle::{Gate, Throttle},
};

use crate::gateways::{Gateways, pause};

/// How many are active by the end of a minute.
const USERS: u64 = 1_000;

/// How many answers a second one gateway gives at the lower traffic.
const ANSWERS: u64 = 2_000;

/// One line a traffic, and their ratio.
pub(crate) fn measure(time: Duration) -> Vec<String> {
    let rows = [1, 100].map(|times| one(time, ANSWERS * times));
    let line = |label: String, [calls, read, written]: [f64; 3]| {
        format!("| {label} | {calls:.3} | {read:.0} | {written:.0} |")
    };
    let ratio = std::array::from_fn(|i| rows[1][i] / rows[0][i]);
    let [calls, read, written]: [f64; 3] = ratio;
    vec![
        line(ANSWERS.to_string(), rows[0]),
        line((ANSWERS * 100).to_string(), rows[1]),
        format!("| ratio | {calls:.3} | {read:.3} | {written:.3} |"),
    ]
}

/// Calls, bytes read and bytes written a second and gateway, of two gateways that each give `answers`
/// a second, from one minute's beginning on.
fn one(time: Duration, answers: u64) -> [f64; 3] {
    let redis = RedisServer::start();
    let gateways = Gateways::start(2, &redis, 1_000_000);
    let gates: Vec<Gate> = gateways.throttles.iter().map(Throttle::gate).collect();
    let clock = tidegate::clock::Clock::system();
    while clock.now() % 60_000 > 2_000 {
        pause(5);
    }
    let read = || {
        [
            gateways.sum(|s| s.calls.get()),
            gateways.sum(|s| s.bytes_read.get()),
            gateways.sum(|s| s.bytes_written.get()),
        ]
    };
    let before = read();
    let (began, mut given) = (clock::instant(), 0_u64);
    while began.elapsed() < time {
        let due = (began.elapsed().as_secs_f64() * answers as f64) as u64;
        for answer in given..due {
            // Users come in one after the other, a thousand by the minute's end; whoever came last asks
            // first, so that both traffics learn of it at the same time.
            let active = USERS * (clock.now() % 60_000) / 60_000 + 1;
            let user = if answer == given { active } else { answer % active + 1 };
            let hash = user.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for gate in &gates {
                gate.remember(hash, 200, &gateways.settings);
            }
        }
        given = due;
        pause(1);
    }
    let seconds = began.elapsed().as_secs_f64() * gateways.throttles.len() as f64;
    let after = read();
    std::array::from_fn(|i| (after[i] - before[i]) as f64 / seconds)
}
