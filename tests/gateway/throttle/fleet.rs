use super::{Crowd, check_refusal, tokens};
use crate::{client::get, gateway::Gateway, redis::RedisServer, wait::eventually};

const SETTINGS: &str = "max_active: 60, resume_below: 54, capacity: 1000";

#[test]
fn three_gateways_know_what_one_has_seen() {
    let redis = RedisServer::start();
    let crowd = Crowd::start(3, Some(&redis), SETTINGS);
    crowd.fill("user", 61);
    for at in 0..3 {
        let now = crowd.clock.now();
        check_refusal(&crowd.ask(at, "newcomer", "/a"), 60, now);
        check_refusal(&crowd.ask(at, "", "/a"), 60, now);
    }
    // Each token at each gateway: three rounds, each shifted by one.
    for shift in 0..3 {
        let shifted = std::iter::repeat_n("user-0".to_owned(), shift);
        crowd.ask_all(shifted.chain(tokens("user", 61)), 200);
    }
    let resets: Vec<u64> =
        (0..3).map(|at| crowd.ask(at, "newcomer", "/a").number("X-RateLimit-Reset")).collect();
    assert!(resets.iter().all(|reset| reset.abs_diff(resets[0]) <= 1), "{resets:?}");
}
