//! Permits that calls take and give back.

use testkit::{
    backend::{MEMORY_AND_REDIS, MEMORY_AND_TOPOLOGIES, on_each},
    gateway::Gateway,
    rate_limit_client::{descriptor, given_back, with_hits},
    redis_server::RedisServer,
    yaml::without_indentation,
};
use tidegate::clock::ms;
use tidegate::{clock::Clock, rate_limit_service::messages::MetadataKind};

use super::{NOW, connect, connect_first};

const NOW_MS: u64 = NOW.as_unix_ms();

const RULES: &str = "
    rate_limit_service:
      address: 127.0.0.1:0
      domains: {edge: {limits: [running, {limit: running, match: {permits: 'taken@*'}}]}}
    limits:
      running: {algorithm: concurrency, quota: 2, window: 30s, key: ['descriptor:job']}
    upstreams: {app: {respond: {}}}
    routes: [{name: all, upstream: app}]
";

#[test]
fn a_permit_comes_back_with_negative_hits_at_any_later_time() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let clock = Clock::manual(NOW);
        let fleet = backend.start(RULES, &clock);
        let mut client = connect_first(&fleet);
        let mut take = || client.ask("edge", vec![descriptor("job=a")]).is_ok();
        assert!(take());
        clock.set(NOW + ms(7_300));
        assert!(take() && !take());
        clock.set(NOW + ms(12_000));
        let mut client = connect_first(&fleet);
        let back = client.ask("edge", vec![given_back("job=a", 1)]);
        assert_eq!(back.statuses(), ["ok 1"]);
        assert!(client.ask("edge", vec![descriptor("job=a")]).is_ok());
        assert!(!client.ask("edge", vec![descriptor("job=a")]).is_ok());
        assert_eq!(client.ask("edge", vec![given_back("job=a", 9)]).statuses(), ["ok 2"]);
        assert_eq!(client.ask("edge", vec![given_back("job=a", 9)]).statuses(), ["ok 2"]);
    });
}

#[test]
fn a_permit_that_is_not_given_back_ends_with_its_lease() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let clock = Clock::manual(NOW);
        let fleet = backend.start(RULES, &clock);
        let mut client = connect_first(&fleet);
        let mut take = || client.ask("edge", vec![descriptor("job=a")]).is_ok();
        assert!(take() && take() && !take());
        clock.set(NOW + ms(29_999));
        assert!(!take());
        clock.set(NOW + ms(31_000));
        assert!(take() && take() && !take());
    });
}

/// By this Envoy knows whether it has a permit to give back.
#[test]
fn an_admitted_call_reports_that_it_has_taken_permits() {
    let gateway = Gateway::start_at(RULES, Clock::manual(NOW));
    let mut client = connect(&gateway);
    let mut permits = |descriptor| {
        let decided = client.ask("edge", vec![descriptor]);
        let metadata = decided.0.dynamic_metadata.unwrap_or_default();
        metadata.fields.get("permits").cloned()
    };
    let taken = Some(MetadataKind::Text(format!("taken@{NOW_MS}")).into());
    assert_eq!(permits(descriptor("job=a")), taken);
    assert_eq!(permits(with_hits("job=a", 0)), None, "a peek");
    assert_eq!(permits(descriptor("job=a")), taken);
    assert_eq!(permits(descriptor("job=a")), None, "refused");
    assert_eq!(permits(given_back("job=a", 1)), None);
    assert_eq!(permits(descriptor("other=a")), None, "without a limit");
}

/// The requests whose permits are lost must not live on with the leases of later ones.
#[test]
fn a_lost_permit_ends_with_its_lease_whatever_requests_pass() {
    on_each(&MEMORY_AND_TOPOLOGIES, |backend| {
        let clock = Clock::manual(NOW);
        let fleet = backend.start(RULES, &clock);
        let mut client = connect_first(&fleet);
        let mut pass = |at: u64| {
            clock.set(NOW + ms(at));
            let decided = client.ask("edge", vec![descriptor("job=a")]);
            if decided.is_ok() {
                clock.set(NOW + ms(at) + ms(900));
                let back = format!("job=a,permits=taken@{}", NOW_MS + at);
                client.ask("edge", vec![given_back(&back, 1)]);
            }
            decided.statuses()
        };
        assert_eq!(pass(0), ["ok 1"]);
        // One is lost.
        clock.set(NOW);
        assert!(connect_first(&fleet).ask("edge", vec![descriptor("job=a")]).is_ok());
        for second in 1..29 {
            assert_eq!(pass(second * 1_000), ["ok 0"], "{second} s");
        }
        for second in 31..70 {
            assert_eq!(pass(second * 1_000), ["ok 1"], "{second} s");
        }
        // A time at which nothing was taken, and one that is none, give nothing else back.
        clock.set(NOW + ms(80_000));
        assert!(connect_first(&fleet).ask("edge", vec![descriptor("job=a")]).is_ok());
        let wrong = format!("job=a,permits=taken@{}", NOW_MS + 60_000);
        let mut client = connect_first(&fleet);
        assert_eq!(client.ask("edge", vec![given_back(&wrong, 1)]).statuses(), ["ok 1"]);
    });
}

/// A permit that a call has not taken would come back from another request.
#[test]
fn a_call_that_is_admitted_without_a_permit_reports_none() {
    let rules = RULES.replace("window: 30s,", "window: 30s, enforce: false,");
    let gateway = Gateway::start_at(&rules, Clock::manual(NOW));
    let mut client = connect(&gateway);
    let mut permits = || {
        let decided = client.ask("edge", vec![descriptor("job=a")]);
        assert!(decided.is_ok());
        decided.0.dynamic_metadata.is_some()
    };
    assert_eq!([permits(), permits(), permits()], [true, true, false]);
    let mut redis = RedisServer::start();
    let store = format!("store: {{redis: {{shards: [{{primary: '{}'}}]}}}}\n", redis.url());
    let rules = RULES.replace("window: 30s,", "window: 30s, on_failure: open,");
    let gateway = Gateway::start(&(store + &without_indentation(&rules)));
    redis.kill();
    let admitted = connect(&gateway).ask("edge", vec![descriptor("job=a")]);
    assert!(admitted.is_ok());
    assert_eq!(admitted.0.dynamic_metadata, None);
}
