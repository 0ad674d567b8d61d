use tidegate_balance::{PickRequest, Policy};
use tidegate_system::clock::{Clock, CoarseClock, CoarseTime, StoreTime};

use super::*;
use crate::{
    Bounds, EndpointState, InFlight, Protocol, RetryConditions, ServerAddress, Servers, Target,
    TlsNameSource, WeightedTarget,
    paced_place::{NoPlace, PlaceClaim},
    target_health::{AttemptKind, ConnectFailure, HealthSettings, LostConnection, ServiceLevel},
};

fn servers(count: usize, policy: Policy, bounds: Bounds) -> Arc<Servers> {
    let target = |index: usize| {
        let address = ServerAddress::Tcp { host: format!("10.0.0.{index}").into(), port: 80 };
        let target = Target {
            address,
            protocol: Protocol::Http1,
            tls: None,
            tls_name: TlsNameSource::Target,
            resolved: None,
            send_proxy: None,
        };
        WeightedTarget { target, weight: 1 }
    };
    Arc::new(Servers {
        targets: (0..count).map(target).collect(),
        policy,
        health: HealthSettings {
            failures: 5,
            duration: Millis::from_secs(10),
            max_duration: Millis::from_secs(300),
            max_share: 50,
            unhealthy_after: 1,
            healthy_after: 1,
            check_interval: Millis::ZERO,
            slow_start: Millis::ZERO,
        },
        check: None,
        bounds,
        connect_timeout: Duration::from_secs(1),
        response_timeout: Duration::from_secs(1),
        idle_timeout: Duration::from_secs(1),
        sends_via: true,
        retries: 1,
        retry_on: RetryConditions { connect: true, reset: true, ..RetryConditions::default() },
        name_servers: Vec::new(),
    })
}

fn balancer(count: usize, policy: Policy, bounds: Bounds) -> (LoadBalancer, Clock) {
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let servers = servers(count, policy, bounds);
    let state = Arc::new(UpstreamRuntime::new("app", &servers, clock.clone(), Arc::default()));
    (LoadBalancer::new(state, PoolTable::new(CoarseClock::new(CoarseTime::ZERO))), clock)
}

fn choose(balancer: &LoadBalancer, turn: u64, excluded: &[usize]) -> Option<usize> {
    let input =
        PickRequest { turn, key: TargetKey::default(), random: balancer.random(), excluded };
    let now = balancer.state.now();
    balancer.endpoints().set.choose(&input, now).map(|choice| choice.index)
}

fn fail(balancer: &LoadBalancer, clock: &Clock, index: usize, failure: Failure) {
    let (set, now) = (balancer.state.endpoints(), balancer.state.now());
    // Each failure is another client's.
    let client = IpAddr::from(balancer.random().to_be_bytes().map(u16::from));
    let kind = AttemptKind::Regular;
    set.record_failure(index, FailedAttempt { kind, failure, client, sent: now }, now, clock);
}

#[test]
fn requests_rotate_and_retries_keep_their_turn() {
    let (balancer, _) = balancer(3, Policy::RoundRobin, Bounds::default());
    let turns: Vec<_> = (0..6).map(|turn| choose(&balancer, turn, &[]).unwrap()).collect();
    assert_eq!(turns[..3], turns[3..], "in turn");
    let retried = choose(&balancer, 0, &[turns[0]]).unwrap();
    assert_ne!(retried, turns[0]);
    assert_eq!(choose(&balancer, 0, &[0, 1, 2]), None);
}

#[test]
fn an_ejection_holds_for_all_workers() {
    let (first, clock) = balancer(2, Policy::RoundRobin, Bounds::default());
    let pools = PoolTable::new(CoarseClock::new(CoarseTime::ZERO));
    let second = LoadBalancer::new(Arc::clone(&first.state), pools);
    fail(&first, &clock, 0, Failure::Connect(ConnectFailure::Refused));
    for turn in 0..4 {
        assert_eq!(choose(&second, turn, &[]), Some(1), "the other worker saw the failure");
    }
    assert_eq!(first.state.endpoints().members[0].state.ejections(), 1);
    clock.advance(Duration::from_secs(10));
    // It is drawn with a tenth of its weight.
    assert!((0..500).any(|turn| choose(&second, turn, &[]) == Some(0)), "a trial is due");
}

#[test]
fn all_down_tells_when_the_first_returns() {
    let (balancer, clock) = balancer(1, Policy::LeastRequests, Bounds::default());
    for _ in 0..5 {
        fail(&balancer, &clock, 0, Failure::Reset(LostConnection::Closed));
    }
    let health = balancer.state.endpoints().state(balancer.state.now());
    let ServiceLevel::AllDown { retry_after } = health else { panic!("{health:?}") };
    assert!((1..=10_000).contains(&retry_after.as_ms()), "{health:?}");
    assert_eq!(choose(&balancer, 0, &[]), None);
}

#[test]
fn a_full_endpoint_is_not_chosen_and_its_place_is_returned() {
    let bounds = Bounds { max_requests: Some(1), ..Bounds::default() };
    let (balancer, _) = balancer(2, Policy::RoundRobin, bounds);
    let endpoints = balancer.endpoints();
    let place = InFlight::begin(&endpoints.pools[0], &endpoints.set, None).unwrap();
    assert!(InFlight::begin(&endpoints.pools[0], &endpoints.set, None).is_err(), "full");
    assert!((0..4).all(|turn| choose(&balancer, turn, &[]) == Some(1)));
    let is_full_beside = |excluded| endpoints.set.has_full_endpoint(&[excluded], CoarseTime::ZERO);
    assert!(is_full_beside(1) && !is_full_beside(0));
    drop(place);
    assert!((0..4).any(|turn| choose(&balancer, turn, &[]) == Some(0)));
}

/// Connecting to `::1` on a machine without IPv6 fails like a shortage of ports, and must not be
/// retried for ever.
#[test]
fn an_address_that_was_never_reached_is_no_shortage_of_ports() {
    use rustix::io::Errno;
    let (balancer, _) = balancer(1, Policy::RoundRobin, Bounds::default());
    let endpoints = balancer.endpoints();
    let endpoint = endpoints.pools[0].endpoint();
    let [ports, files] = [Errno::ADDRNOTAVAIL, Errno::MFILE].map(io::Error::from);
    let begin = || InFlight::begin(&endpoints.pools[0], &endpoints.set, None).unwrap();
    let failed = begin();
    assert!(!endpoint.is_own_shortage(&ports) && endpoint.is_own_shortage(&files));
    drop(failed);
    endpoint.count_failure(Failure::Connect(ConnectFailure::Refused));
    assert!(!endpoint.is_own_shortage(&ports), "it has not responded");
    drop(begin());
    assert!(endpoint.is_own_shortage(&ports));
}

#[test]
fn a_client_holds_its_share_of_each_endpoint_at_its_own_pace() {
    let bounds = Bounds { max_requests: Some(4), ..Bounds::default() };
    let (balancer, _) = balancer(2, Policy::RoundRobin, bounds);
    let endpoints = balancer.endpoints();
    let (one, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let begin = |index: usize, client, is_paced| {
        let claim = Some(PlaceClaim { client, is_paced });
        InFlight::begin(&endpoints.pools[index], &endpoints.set, claim)
    };
    let mut held = vec![begin(0, one, true).unwrap(), begin(0, one, true).unwrap()];
    for is_paced in [true, false] {
        assert_eq!(begin(0, one, is_paced).err(), Some(NoPlace::ShareFull));
    }
    assert!(balancer.has_share(one), "at the other endpoint");
    held.push(begin(0, other, true).unwrap());
    let unpaced = begin(0, other, false).unwrap();
    assert_eq!(begin(0, other, false).err(), Some(NoPlace::Full));
    // A response that begins to wait for its client counts even beyond the client's share.
    let waiting =
        [unpaced.pace(CoarseTime::ZERO).unwrap(), unpaced.pace(CoarseTime::ZERO).unwrap()];
    let endpoint = endpoints.pools[0].endpoint();
    assert_eq!((endpoint.paced_places(), endpoint.paced().excess(2)), (5, 1));
    held.extend([begin(1, one, true).unwrap(), begin(1, one, true).unwrap()]);
    assert!(!balancer.has_share(one));
    drop((held, waiting, unpaced));
    assert!(balancer.has_share(one) && begin(0, one, false).is_ok());
    assert_eq!(endpoint.paced_places() + endpoint.in_flight(), 0);
}

/// The share follows the tightest bound, and is at least one place.
#[test]
fn the_share_is_a_part_of_the_tightest_bound() {
    for (max_requests, max_connections, streams, share) in [
        (Some(50), None, 0, 25),
        (Some(50), Some(20), 0, 10),
        (Some(50), Some(20), 100, 25),
        (None, Some(3), 10, 15),
        (Some(1), None, 0, 1),
    ] {
        let bounds = Bounds { max_connections, max_requests, ..Bounds::default() };
        let endpoint = EndpointState::for_test("10.0.0.1");
        endpoint.set_streams(streams);
        assert_eq!(endpoint.client_share(&bounds), share, "{bounds:?} {streams}");
    }
}

#[test]
fn health_and_load_outlive_a_reload() {
    let (balancer, clock) = balancer(2, Policy::RoundRobin, Bounds::default());
    let before = balancer.endpoints();
    let place = InFlight::begin(&before.pools[1], &before.set, None);
    fail(&balancer, &clock, 0, Failure::Connect(ConnectFailure::Refused));
    let servers = servers(3, Policy::RoundRobin, Bounds::default());
    let addresses = servers
        .targets
        .iter()
        .map(|own| crate::EndpointAddress::of_target(&own.target, own.weight));
    let addresses = addresses.collect();
    assert!(!balancer.state.set_addresses(&servers, addresses), "of another configuration");
    balancer.state.reconfigure(&servers);
    let after = balancer.endpoints();
    assert_eq!(after.pools.len(), 3);
    assert!(Rc::ptr_eq(&before.pools[1], &after.pools[1]), "the pool stays");
    assert_eq!(after.set.members[1].state.in_flight(), 1);
    assert!((0..20).all(|turn| choose(&balancer, turn, &[]) != Some(0)), "still ejected");
    // Records in the old set no longer show.
    let failed = FailedAttempt {
        kind: AttemptKind::Regular,
        failure: Failure::Connect(ConnectFailure::Refused),
        client: [10, 0, 0, 1].into(),
        sent: CoarseTime::ZERO,
    };
    before.set.record_failure(1, failed, CoarseTime::ZERO, &clock);
    assert!((0..50).any(|turn| choose(&balancer, turn, &[]) == Some(1)));
    drop(place);
    assert_eq!(after.set.members[1].state.in_flight(), 0);
}
