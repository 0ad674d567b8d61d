//! The cost of synchronization at low traffic and at a hundred times as much from the same users.

use std::time::Duration;

use testkit::redis_server::RedisServer;
use tidegate::{
    clock,
    throttle::{AdmissionGate, Throttle},
};

use crate::gateways::{Gateways, pause};

/// Number of active users at the end of a minute.
const USERS: u64 = 1_000;

/// Responses per second and gateway at low traffic.
const RESPONSES_PER_SECOND: u64 = 2_000;

/// The rows of the table: one per rate of responses, and their ratio.
pub(crate) fn measure(time: Duration) -> Vec<String> {
    let rows = [1, 100].map(|times| measure_traffic(time, RESPONSES_PER_SECOND * times));
    let line = |label: String, [calls, read, written]: [f64; 3]| {
        format!("| {label} | {calls:.3} | {read:.0} | {written:.0} |")
    };
    let ratio = std::array::from_fn(|i| rows[1][i] / rows[0][i]);
    let [calls, read, written]: [f64; 3] = ratio;
    vec![
        line(RESPONSES_PER_SECOND.to_string(), rows[0]),
        line((RESPONSES_PER_SECOND * 100).to_string(), rows[1]),
        format!("| ratio | {calls:.3} | {read:.3} | {written:.3} |"),
    ]
}

/// Calls, bytes read and bytes written per second and gateway. Each of two gateways records `rate`
/// responses per second, from the start of a minute.
fn measure_traffic(time: Duration, rate: u64) -> [f64; 3] {
    let redis = RedisServer::start();
    let gateways = Gateways::start(2, &redis, 1_000_000);
    let gates: Vec<AdmissionGate> = gateways.throttles.iter().map(Throttle::gate).collect();
    let clock = tidegate::clock::Clock::system();
    while clock.store_time().as_unix_ms() % 60_000 > 2_000 {
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
    let (began, mut sent) = (clock::instant(), 0_u64);
    while began.elapsed() < time {
        let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        for number in sent..due {
            // Users appear one after the other until the end of the minute. The newest one sends
            // the first request of each batch, so that it is recorded at the same time at any rate.
            let active = USERS * (clock.store_time().as_unix_ms() % 60_000) / 60_000 + 1;
            let user = if number == sent { active } else { number % active + 1 };
            let hash = user.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for gate in &gates {
                gate.record_response(hash, 200, &gateways.settings);
            }
        }
        sent = due;
        pause(1);
    }
    let seconds = began.elapsed().as_secs_f64() * gateways.throttles.len() as f64;
    let after = read();
    std::array::from_fn(|i| (after[i] - before[i]) as f64 / seconds)
}
