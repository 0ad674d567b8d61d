//! The policies that choose a target, with weights.

use std::collections::BTreeSet;

use testkit::{client::get, gateway::Gateway, upstream::Upstream};

fn start(upstreams: &[Upstream], weights: &[u32], more: &str) -> Gateway {
    let targets = upstreams.iter().zip(weights);
    let targets: Vec<String> = targets
        .map(|(upstream, weight)| format!("{{url: '{}', weight: {weight}}}", upstream.target()))
        .collect();
    Gateway::start(&format!(
        "workers: 1
upstreams: {{origin: {{targets: [{}]{more}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        targets.join(", ")
    ))
}

fn counts(upstreams: &[Upstream]) -> Vec<usize> {
    upstreams.iter().map(Upstream::request_count).collect()
}

#[test]
fn the_rotation_follows_the_weights_exactly() {
    let upstreams = [Upstream::hello(), Upstream::hello(), Upstream::hello()];
    let gateway = start(&upstreams, &[3, 1, 0], ", balance: round_robin");
    for _ in 0..40 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(counts(&upstreams), [30, 10, 0]);
}

#[test]
fn random_choices_follow_the_weights_about() {
    for balance in ["least_requests", "peak_ewma"] {
        let upstreams = [Upstream::hello(), Upstream::hello(), Upstream::hello()];
        let gateway = start(&upstreams, &[2, 2, 0], &format!(", balance: {balance}"));
        for _ in 0..200 {
            assert_eq!(get(gateway.address(), "/", "").status, 200);
        }
        let counts = counts(&upstreams);
        assert_eq!(counts[2], 0, "{balance}: {counts:?}");
        // The latency of one may be much worse by chance.
        let least = if balance == "peak_ewma" { 1 } else { 20 };
        assert!(counts[0] >= least && counts[1] >= least, "{balance}: {counts:?}");
    }
}

#[test]
fn a_hash_sends_each_key_to_one_target() {
    let upstreams = [Upstream::hello(), Upstream::hello(), Upstream::hello()];
    let more = ", balance: hash, hash_key: ['header:x-user']";
    let gateway = start(&upstreams, &[1, 1, 1], more);
    for user in 0..60 {
        for _ in 0..2 {
            let headers = format!("x-user: {user}\r\n");
            assert_eq!(get(gateway.address(), "/", &headers).status, 200);
        }
    }
    let mut seen = 0;
    for upstream in &upstreams {
        let users: BTreeSet<String> = upstream
            .request_texts()
            .iter()
            .filter_map(|text| Some(text.lines().find(|line| line.starts_with("x-user"))?.into()))
            .collect();
        assert!(users.len() >= 5, "{}", users.len());
        seen += users.len();
    }
    assert_eq!(seen, 60, "no user had two targets");
}
