//! Envoy's rate limit service: limits of the configuration, asked over gRPC.

/// What is no call, and calls that are refused as such.
mod calls;
/// Plans, overrides and the consumer of a call.
mod consumers;
/// grpcio's client.
mod grpcio;
/// Health and reflection.
mod health;
/// Late hits, and hits that are given back.
mod late;
/// Access log, metrics and the admin API.
mod observed;
/// Permits that calls take and give back.
mod permits;
/// Files of envoyproxy/ratelimit.
mod tree;
/// Limits by the values of entries.
mod values;

use testkit::{
    backend::{Fleet, MEMORY_AND_REDIS, MEMORY_AND_TOPOLOGIES, on_each},
    gateway::Gateway,
    rate_limit_client::{RateLimitClient, descriptor, given_back, with_hits},
    yaml::without_indentation,
};
use tidegate::clock::ms;
use tidegate::{
    clock::{Clock, StoreTime},
    rate_limit_service::messages::{
        RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit,
    },
};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// Limits by one entry and by two.
const RULES: &str = "
    rate_limit_service:
      address: 127.0.0.1:0
      domains:
        edge: {limits: [per-user, per-path]}
    limits:
      per-user: {quota: 5, window: 1m, algorithm: fixed_window, key: [descriptor:user]}
      per-path: {quota: 2, window: 10s, algorithm: fixed_window, key: [descriptor:user, descriptor:path]}
    upstreams: {app: {respond: {}}}
    routes: [{name: all, upstream: app}]
";

fn connect(gateway: &Gateway) -> RateLimitClient {
    RateLimitClient::connect(gateway.server.rate_limit_service.expect("the service"))
}

/// A client of the first gateway of a fleet.
fn connect_first(fleet: &Fleet) -> RateLimitClient {
    connect(&fleet.gateways[0])
}

#[test]
fn without_routes_no_other_port_is_opened() {
    let rules = RULES.split("    upstreams:").next().expect("the first part");
    let gateway = Gateway::start_at(
        &format!("listen: []\n{}", without_indentation(rules)),
        Clock::manual(NOW),
    );
    assert_eq!(gateway.server.addresses, []);
    let decided = connect(&gateway).ask("edge", vec![descriptor("user=a")]);
    assert_eq!(decided.statuses().len(), 1);
}

#[test]
fn connections_to_the_service_do_not_close_the_other_ports() {
    let rules = format!("    http: {{max_connections_per_client: 2}}\n{RULES}");
    let gateway = Gateway::start_at(&rules, Clock::manual(NOW));
    let mut clients = [connect(&gateway), connect(&gateway)];
    for client in &mut clients {
        assert_eq!(client.ask("edge", vec![descriptor("user=a")]).statuses().len(), 1);
    }
    let response = testkit::client::get(gateway.address(), "/", "");
    assert_eq!(response.status, 200, "a proxy at the service takes no connection of this address");
}

#[test]
fn a_limit_applies_to_descriptors_with_exactly_its_names() {
    let gateway = Gateway::start_at(RULES, Clock::manual(NOW));
    let mut client = connect(&gateway);
    let mut ask = |text: &str| client.ask("edge", vec![descriptor(text)]).statuses();
    assert_eq!(ask("user=a"), ["ok 4"]);
    assert_eq!(ask("user=a"), ["ok 3"]);
    assert_eq!(ask("user=b"), ["ok 4"], "another value is another caller");
    assert_eq!(ask("user=a,path=/x"), ["ok 1"]);
    assert_eq!(ask("path=/x,user=a"), ["ok 0"], "the order of entries does not matter");
    assert_eq!(ask("path=/x,user=a"), ["over"]);
    assert_eq!(ask("user=a,path=/y"), ["ok 1"]);
    for none in ["path=/x", "user=a,path=/x,method=GET", "user=a,user=a", "USER=a", "userr=a", ""] {
        assert_eq!(ask(none), ["none"], "{none}");
    }
    assert_eq!(ask("user="), ["ok 4"], "an empty value is a value");
}

#[test]
fn a_call_is_charged_for_all_descriptors_or_for_none() {
    on_each(&MEMORY_AND_TOPOLOGIES, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        let both = || vec![descriptor("user=a"), descriptor("user=a,path=/x")];
        assert_eq!(client.ask("edge", both()).statuses(), ["ok 4", "ok 1"]);
        assert_eq!(client.ask("edge", both()).statuses(), ["ok 3", "ok 0"]);
        for _ in 0..5 {
            let refused = client.ask("edge", both());
            assert!(!refused.is_ok());
            assert_eq!(refused.statuses()[1], "over");
            assert_eq!(refused.refused_by().as_deref(), Some("per-path"));
        }
        // Nothing was charged to the user by the refused calls.
        assert_eq!(client.ask("edge", vec![descriptor("user=a")]).statuses(), ["ok 2"]);
    });
}

#[test]
fn gateways_share_the_counts_of_descriptors() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut clients: Vec<_> = fleet.gateways.iter().map(connect).collect();
        let count = clients.len();
        let ask = |n: usize| clients[n % count].ask("edge", vec![descriptor("user=a")]).is_ok();
        assert_eq!((0..20).map(ask).filter(|is_ok| *is_ok).count(), 5);
    });
}

#[test]
fn hits_of_the_call_and_of_a_descriptor() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        let call = |hits_addend, descriptors| RateLimitRequest {
            domain: "edge".into(),
            descriptors,
            hits_addend,
        };
        let mut ask = |hits, descriptors: Vec<RateLimitDescriptor>| {
            let response = client.try_ask(&call(hits, descriptors)).expect("a response");
            testkit::rate_limit_client::Decided(response).statuses()
        };
        assert_eq!(ask(3, vec![descriptor("user=a")]), ["ok 2"]);
        assert_eq!(ask(3, vec![descriptor("user=a")]), ["over"], "three do not fit");
        assert_eq!(ask(3, vec![with_hits("user=a", 2)]), ["ok 0"], "a descriptor has its own hits");
        assert_eq!(ask(0, vec![with_hits("user=b", 5)]), ["ok 0"]);
        assert_eq!(ask(0, vec![with_hits("user=c", u64::MAX)]), ["over"]);
        // Two descriptors with the same entries are charged together.
        assert_eq!(ask(2, vec![descriptor("user=d"), descriptor("user=d")]), ["ok 1", "ok 1"]);
        assert_eq!(ask(1, vec![descriptor("user=d"), descriptor("user=d")]), ["over", "over"]);
    });
}

#[test]
fn a_descriptor_with_zero_hits_is_a_peek() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        for _ in 0..10 {
            assert_eq!(client.ask("edge", vec![with_hits("user=a", 0)]).statuses(), ["ok 5"]);
        }
        client.ask("edge", vec![with_hits("user=a", 5)]);
        let peeked = client.ask("edge", vec![with_hits("user=a", 0), descriptor("user=b")]);
        assert!(!peeked.is_ok(), "nothing is left");
        assert_eq!(peeked.statuses(), ["over", "ok 5"]);
        assert_eq!(peeked.refused_by().as_deref(), Some("per-user"));
        assert_eq!(client.ask("edge", vec![descriptor("user=b")]).statuses(), ["ok 4"]);
    });
}

#[test]
fn negative_hits_are_given_back_and_never_more_than_were_charged() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        client.ask("edge", vec![with_hits("user=a", 5)]);
        assert_eq!(client.ask("edge", vec![given_back("user=a", 2)]).statuses(), ["ok 2"]);
        assert_eq!(client.ask("edge", vec![given_back("user=a", 100)]).statuses(), ["ok 5"]);
        assert_eq!(client.ask("edge", vec![descriptor("user=a")]).statuses(), ["ok 4"]);
        // A call that is refused gives them back too.
        client.ask("edge", vec![with_hits("user=a,path=/x", 2)]);
        let refused =
            client.ask("edge", vec![given_back("user=a", 1), descriptor("user=a,path=/x")]);
        assert!(!refused.is_ok());
        assert_eq!(client.ask("edge", vec![descriptor("user=a")]).statuses(), ["ok 4"]);
    });
}

/// What Envoy reports when a stream is done has happened: no report is dropped, whatever counts.
#[test]
fn late_hits_beyond_the_quota_are_charged() {
    for algorithm in ["sliding_window", "sliding_log", "fixed_window", "token_bucket"] {
        on_each(&MEMORY_AND_REDIS, |backend| {
            let rules = format!(
                "
                rate_limit_service:
                  address: 127.0.0.1:0
                  domains: {{edge: {{limits: [per-user, per-path], late_hits: charge}}}}
                limits:
                  per-user: {{quota: 100, window: 1h, algorithm: {algorithm}, key: [descriptor:user]}}
                  per-path: {{quota: 100, window: 1h, algorithm: {algorithm}, key: [descriptor:path]}}
                upstreams: {{app: {{respond: {{}}}}}}
                routes: [{{name: all, upstream: app}}]
                "
            );
            let fleet = backend.start(&rules, &Clock::manual(NOW));
            let mut client = connect_first(&fleet);
            let mut admitted = 0;
            for _ in 0..20 {
                admitted += usize::from(client.ask("edge", vec![descriptor("user=a")]).is_ok());
                client.ask("edge", vec![with_hits("user=a", 30), with_hits("path=/x", 5)]);
            }
            // Three reports fit, the fourth overdraws.
            assert!((3..=4).contains(&admitted), "{algorithm}: {admitted} of 20");
            let one = client.ask("edge", vec![descriptor("path=/x")]).is_ok();
            assert!(!one, "{algorithm}: the other descriptor of the same report is charged");
            assert!(client.ask("edge", vec![descriptor("user=b")]).is_ok(), "{algorithm}");
        });
    }
}

/// Leased units of a gateway were charged before; an override has another quota. Late hits are
/// charged beyond both.
#[test]
fn late_hits_beyond_leases_and_overrides_are_charged() {
    for limit in [
        "algorithm: fixed_window, reserve: 5",
        "algorithm: sliding_window, reserve: auto",
        "algorithm: token_bucket",
        "algorithm: sliding_log",
    ] {
        on_each(&MEMORY_AND_REDIS, |backend| {
            let rules = format!(
                "
                rate_limit_service:
                  address: 127.0.0.1:0
                  domains: {{edge: {{limits: [per-user], consumer: 'descriptor:user', late_hits: charge}}}}
                limits:
                  per-user: {{quota: 10, window: 1h, key: [consumer], {limit}}}
                upstreams: {{app: {{respond: {{}}}}}}
                routes: [{{name: all, upstream: app}}]
                "
            );
            // Without Redis, overrides are in a file.
            let folder = tempfile::tempdir().expect("a folder");
            let place = format!("overrides: {{file: '{}/o.yaml'}}\n", folder.path().display());
            let place = if backend.redis_server().is_some() { String::new() } else { place };
            let rules = place + &without_indentation(&rules);
            let fleet = backend.start(&rules, &Clock::manual(NOW));
            let body = r#"{"limit": "per-user", "consumer": "vip", "quota": 100, "until": null}"#;
            let put = consumers::put_override(&fleet.gateways[0], body);
            assert!(put.status < 300, "{limit}: {}", put.text());
            let mut client = connect_first(&fleet);
            for (user, quota) in [("a", 10), ("vip", 100)] {
                let mut admitted = 0;
                for _ in 0..200 {
                    let own = format!("user={user}");
                    admitted += u64::from(client.ask("edge", vec![descriptor(&own)]).is_ok());
                    client.ask("edge", vec![with_hits(&own, 3)]);
                }
                // Without late hits, two thirds of the calls would use up the quota before they are
                // refused.
                assert!(admitted <= quota, "{limit}, {user}: {admitted}");
                assert!(admitted >= quota / 5, "{limit}, {user}: {admitted}");
                let status = client.ask("edge", vec![with_hits(&format!("user={user}"), 0)]);
                assert!(!status.is_ok(), "{limit}, {user}: the debt counts");
            }
        });
    }
}

/// A descriptor with a limit of its own.
fn limited(text: &str, requests_per_unit: u32, unit: RateLimitUnit) -> RateLimitDescriptor {
    let limit = RateLimitOverride { requests_per_unit, unit: unit.into(), unit_multiplier: None };
    RateLimitDescriptor { limit: Some(limit), ..descriptor(text) }
}

#[test]
fn a_descriptor_may_have_a_limit_of_its_own() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(RULES, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        let mut ask = |descriptor| client.ask("edge", vec![descriptor]);
        let own = |quota| limited("user=a", quota, RateLimitUnit::Hour);
        assert_eq!(ask(own(2)).statuses(), ["ok 1"]);
        assert_eq!(ask(own(2)).statuses(), ["ok 0"]);
        let refused = ask(own(2));
        assert_eq!(refused.statuses(), ["over"]);
        let limit = refused.0.statuses[0].current_limit.clone().expect("a limit");
        assert_eq!((limit.unit(), limit.requests_per_unit), (RateLimitUnit::Hour, 2));
        assert_eq!(ask(own(3)).statuses(), ["ok 0"], "another quota, the same count");
        assert_eq!(ask(limited("user=a", 2, RateLimitUnit::Day)).statuses(), ["ok 1"]);
        assert_eq!(ask(limited("other=a", 2, RateLimitUnit::Hour)).statuses(), ["ok 1"]);
        assert_eq!(ask(limited("user=z", 0, RateLimitUnit::Second)).statuses(), ["over"]);
        // The configured limit has counted none of them.
        assert_eq!(ask(descriptor("user=a")).statuses(), ["ok 4"]);
    });
}

#[test]
fn a_response_has_the_limits_and_the_header_fields_for_the_client() {
    let clock = Clock::manual(NOW);
    let gateway = Gateway::start_at(RULES, clock.clone());
    let mut client = connect(&gateway);
    let call = || vec![descriptor("user=a"), descriptor("other=1"), descriptor("user=a,path=/x")];
    let admitted = client.ask("edge", call());
    assert_eq!(admitted.statuses(), ["ok 4", "none", "ok 1"]);
    assert_eq!(admitted.header("x-ratelimit-resource"), Some("per-path"), "the tightest");
    assert_eq!(admitted.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(admitted.header("x-ratelimit-limit"), Some("2"));
    assert_eq!(admitted.header("retry-after"), None);
    assert_eq!(admitted.0.dynamic_metadata, None);
    let [user, _, path] = &admitted.0.statuses[..] else { panic!("{admitted:?}") };
    let limit = user.current_limit.clone().expect("a limit");
    assert_eq!((limit.name.as_str(), limit.requests_per_unit), ("per-user", 5));
    assert_eq!((limit.unit(), limit.unit_multiplier), (RateLimitUnit::Minute, None));
    assert_eq!(user.duration_until_reset.expect("a duration").seconds, 60);
    let limit = path.current_limit.clone().expect("a limit");
    assert_eq!(
        (limit.unit(), limit.unit_multiplier.map(|own| own.value)),
        (RateLimitUnit::Second, Some(10))
    );

    client.ask("edge", call());
    clock.set(NOW + ms(4_500));
    let refused = client.ask("edge", call());
    assert!(!refused.is_ok());
    assert_eq!(refused.header("retry-after"), Some("6"));
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    let until = refused.0.statuses[2].duration_until_reset.expect("a duration");
    assert_eq!((until.seconds, until.nanos), (5, 500_000_000));
    // A caller that waits is admitted.
    clock.set(NOW + ms(10_500));
    assert!(client.ask("edge", call()).is_ok());
}

#[test]
fn a_limit_that_is_not_enforced_refuses_no_call() {
    let rules = RULES.replace("quota: 2,", "quota: 2, enforce: false,");
    let gateway = Gateway::start_at(&rules, Clock::manual(NOW));
    let mut client = connect(&gateway);
    let asked = |client: &mut RateLimitClient| {
        client.ask("edge", vec![descriptor("user=a,path=/x")]).statuses()
    };
    for _ in 0..3 {
        assert_eq!(asked(&mut client), ["none"], "it counts, and shows nothing");
    }
    gateway.wait_for_metric("tidegate_limit_decisions_total{", 3);
}

#[test]
fn two_hundred_parallel_calls_against_a_quota_of_a_hundred_admit_exactly_a_hundred() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let rules = RULES.replace("quota: 5, window: 1m", "quota: 100, window: 1h");
        let fleet = backend.start(&rules, &Clock::manual(NOW));
        let addresses: Vec<_> = fleet
            .gateways
            .iter()
            .map(|gateway| gateway.server.rate_limit_service.expect("the service"))
            .collect();
        let admitted: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..20)
                .map(|n| {
                    let address = addresses[n % addresses.len()];
                    scope.spawn(move || {
                        let mut client = RateLimitClient::connect(address);
                        let ask = |_| client.ask("edge", vec![descriptor("user=a")]).is_ok();
                        (0..10).map(ask).filter(|is_ok| *is_ok).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a count")).sum()
        });
        assert_eq!(admitted, 100);
    });
}

#[test]
fn a_reload_changes_the_limits_of_open_connections() {
    let gateway = Gateway::start_at(RULES, Clock::manual(NOW));
    let mut client = connect(&gateway);
    assert_eq!(client.ask("edge", vec![descriptor("user=a")]).statuses(), ["ok 4"]);
    gateway.reload(&RULES.replace("quota: 5,", "quota: 9,")).expect("a reload");
    assert_eq!(client.ask("edge", vec![descriptor("user=a")]).statuses(), ["ok 7"]);
    gateway.reload(&RULES.replace("edge:", "other:")).expect("a reload");
    assert_eq!(client.ask("edge", vec![descriptor("user=a")]).statuses(), ["none"]);
    assert_eq!(client.ask("other", vec![descriptor("user=a")]).statuses(), ["ok 2"]);
    let without = RULES.replace("address: 127.0.0.1:0", "address: 127.0.0.1:1");
    let fault = gateway.reload(&without).unwrap_err();
    assert!(fault.contains("`rate_limit_service` cannot change on reload"), "{fault}");
}

/// What gateways have left of the units that they reserved is not used.
#[test]
fn hits_that_are_given_back_leave_what_a_peek_finds() {
    let rules = RULES.replace(
        "quota: 5, window: 1m, algorithm: fixed_window,",
        "quota: 100, window: 1h, algorithm: fixed_window, reserve: 20,",
    );
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&rules, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        let mut ask = |own: RateLimitDescriptor| client.ask("edge", vec![own]).statuses();
        for (hits, left) in [(30, "ok 70"), (1, "ok 69")] {
            assert_eq!(ask(with_hits("user=a", hits)), [left]);
        }
        for (hits, left) in [(1, "ok 70"), (5, "ok 75")] {
            assert_eq!(ask(given_back("user=a", hits)), [left]);
            assert_eq!(ask(with_hits("user=a", 0)), [left], "a peek");
        }
    });
}
