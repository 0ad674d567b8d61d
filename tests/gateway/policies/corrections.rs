use serde_json::Value;
use tidegate::clock::Clock;

use super::{NOW, one_limit, statuses};
use crate::{
    client::Reply,
    stage::{Fleet, Stage, on_every_topology},
    upstream::Upstream,
};

/// Every algorithm that an answer can correct.
const LIMITS: [&str; 6] = [
    "algorithm: sliding_window, resolution: 6",
    "algorithm: sliding_window, resolution: 6, strict: true",
    "algorithm: sliding_log",
    "algorithm: fixed_window",
    "algorithm: token_bucket",
    "algorithm: leaky_bucket, max_wait: 10s",
];

/// A route that tells how the caller stands, beside the limited one.
fn with_status(yaml: &str) -> String {
    let status = "{name: status, match: {path: /status}, status: [calls]}, {name: all";
    yaml.replacen("{name: all", status, 1)
}

/// What an answer says must be what the store says.
fn tells_the_truth(fleet: &Fleet, reply: &Reply, what: &str) {
    let status = fleet.get("/status", "").json();
    let told = |name: &str| status["resources"]["calls"][name].as_u64();
    for name in ["limit", "remaining", "used", "reset"] {
        let header = reply.number(&format!("x-ratelimit-{name}"));
        assert_eq!(Some(header), told(name), "{what}: {name} of {status}");
    }
}

#[test]
fn headers_of_a_refunded_answer_are_those_of_the_store() {
    let upstream = statuses();
    on_every_topology(|stage| {
        for limit in LIMITS {
            let limit = format!("{limit}, quota: 10, window: 12s, key: [], refund: [304]");
            let clock = Clock::manual(NOW);
            let fleet = stage.start(&with_status(&one_limit(&upstream, &limit)), &clock);
            for step in 0..12 {
                let path = ["/200", "/304"][step % 2];
                let reply = fleet.get(path, "");
                if !limit.contains("leaky_bucket") {
                    tells_the_truth(&fleet, &reply, &format!("{limit}, {path}, step {step}"));
                } else if step == 0 {
                    tells_the_truth(&fleet, &reply, &limit);
                }
                clock.set(clock.now() + 1_100);
            }
        }
    });
}

#[test]
fn who_waits_for_the_reset_of_a_corrected_answer_is_admitted() {
    let upstream = statuses();
    on_every_topology(|stage| {
        let all = LIMITS[..5].iter().flat_map(|limit| [10, 7, 4].map(|cost| (limit, cost)));
        for (hour, (limit, cost)) in (0..).zip(all) {
            corrected_answers_are_obeyed(&upstream, stage, limit, cost, hour);
        }
    });
}

/// Three answers of that cost, in an hour in which nothing of another one counts.
fn corrected_answers_are_obeyed(
    upstream: &Upstream,
    stage: &Stage,
    limit: &str,
    cost: u32,
    hour: u64,
) {
    let limit = format!("{limit}, quota: 10, window: 60s, key: [], cost: response:X-Cost");
    let clock = Clock::manual(NOW + 300 + hour * 3_600_000);
    let fleet = stage.start(&with_status(&one_limit(upstream, &limit)), &clock);
    for _ in 0..3 {
        let reply = fleet.get(&format!("/200?cost={cost}"), "");
        assert_eq!(reply.status, 200, "{limit}, {cost}");
        tells_the_truth(&fleet, &reply, &format!("{limit}, {cost}"));
        if reply.number("x-ratelimit-remaining") == 0 {
            clock.set(reply.number("x-ratelimit-reset") * 1_000);
        }
    }
}

/// Each of these requests needs what the one before it gave back, wherever that was charged.
#[test]
fn a_refund_is_there_for_the_very_next_request() {
    let upstream = statuses();
    on_every_topology(|stage| {
        let reserves = ["", ", reserve: auto", ", reserve: 1"];
        let all = LIMITS.iter().flat_map(|limit| reserves.map(|reserve| (limit, reserve)));
        for (day, (limit, reserve)) in (0..).zip(all) {
            let can = limit.contains("sliding_window") || limit.contains("fixed_window");
            if can || reserve.is_empty() {
                each_refund_is_there(&upstream, stage, limit, reserve, day);
            }
        }
    });
}

/// On a day on which nothing of another one counts.
fn each_refund_is_there(upstream: &Upstream, stage: &Stage, limit: &str, reserve: &str, day: u64) {
    let quota = if limit.contains("leaky_bucket") { 1_000_000 } else { 1 };
    let limit = format!("{limit}, quota: {quota}, window: 1h, key: [], refund: [304]{reserve}");
    let limit = limit.replace("max_wait: 10s", "max_wait: 0s");
    let clock = Clock::manual(NOW + day * 86_400_000);
    let fleet = stage.start(&one_limit(upstream, &limit), &clock);
    for turn in 0..60 {
        let reply = if reserve.is_empty() {
            fleet.get("/304", "")
        } else {
            // Another gateway has what this one leases only when it gives it back.
            fleet.get_in_order("/304", "")
        };
        assert_eq!(reply.status, 304, "{limit}, turn {turn}");
    }
}

#[test]
fn a_status_route_tells_numbers() {
    let upstream = statuses();
    let yaml = with_status(&one_limit(&upstream, "quota: 10, window: 10s, key: []"));
    on_every_topology(|stage| {
        let fleet = stage.start(&yaml, &Clock::manual(NOW));
        let status: Value = fleet.get("/status", "").json();
        assert_eq!(status["resources"]["calls"]["remaining"], 10);
    });
}
