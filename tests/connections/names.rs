//! Targets with names: a small DNS server moves them, and stops answering.

use std::{net::SocketAddr, sync::atomic::Ordering, time::Duration};

use socket2::{Domain, Socket, Type};
use testkit::{
    client::get,
    dns_server::DnsServer,
    gateway::Gateway,
    port::free_port,
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, instant};

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

const ORIGIN: &str = "
upstreams: {origin: {targets: ['{target}'], name_servers: ['{dns}'], balance: round_robin}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

fn start(dns: &DnsServer, target: &str) -> Gateway {
    let yaml = fill(ORIGIN, [("target", target), ("dns", &dns.address.to_string())]);
    Gateway::start_at(&yaml, Clock::simulated(START))
}

fn targets(gateway: &Gateway) -> Vec<String> {
    let listed = get(gateway.admin(), "/api/upstreams", "").json();
    let targets = listed["upstreams"][0]["targets"].as_array().expect("an array");
    targets.iter().map(|target| target["target"].as_str().expect("a text").to_owned()).collect()
}

/// An upstream on each address, all with the same port.
fn on_one_port(addresses: &[&str]) -> (u16, Vec<Upstream>) {
    // One that no outgoing connection has at another address.
    let first = Upstream::hello_on(&format!("{}:{}", addresses[0], free_port()));
    let port = first.address.port();
    let others = addresses[1..].iter();
    let others = others.map(|address| Upstream::hello_on(&format!("{address}:{port}")));
    (port, std::iter::once(first).chain(others).collect())
}

#[test]
fn all_addresses_of_a_name_are_targets_and_moves_are_followed() {
    let (port, upstreams) = on_one_port(&["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
    let dns = DnsServer::start();
    dns.set_addresses("app.test", &["127.0.0.1", "127.0.0.2"]);
    let gateway = start(&dns, &format!("http://app.test:{port}"));
    assert_eq!(targets(&gateway), [format!("127.0.0.1:{port}"), format!("127.0.0.2:{port}")]);
    for _ in 0..8 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert!(upstreams[0].request_count() > 0 && upstreams[1].request_count() > 0);
    let request = upstreams[0].request_texts().swap_remove(0).to_lowercase();
    assert!(request.contains("\r\nhost: gateway.test\r\n"), "{request}");

    dns.set_addresses("app.test", &["127.0.0.3"]);
    gateway.clock.advance(Duration::from_secs(6));
    eventually("the move is seen", || targets(&gateway) == [format!("127.0.0.3:{port}")]);
    let before = upstreams[0].request_count() + upstreams[1].request_count();
    for _ in 0..8 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(upstreams[2].request_count(), 8);
    assert_eq!(upstreams[0].request_count() + upstreams[1].request_count(), before);
    assert_eq!(
        gateway.metric("tidegate_target_healthy"),
        1,
        "the metrics of the former targets are gone"
    );
}

/// Long before the TTL, which is at least 5 s.
#[test]
fn a_name_whose_targets_fail_is_resolved_again_within_a_second() {
    // Bound, and nothing listens there.
    let dead = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    dead.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let port = dead.local_addr().expect("an address").as_socket().expect("an IP address").port();
    let _moved = Upstream::hello_on(&format!("127.0.0.2:{port}"));
    let dns = DnsServer::start();
    dns.set_addresses("app.test", &["127.0.0.1"]);
    let gateway = start(&dns, &format!("http://app.test:{port}"));
    let ask = || get(gateway.address(), "/", "").status;
    assert_eq!(ask(), 502);
    dns.set_addresses("app.test", &["127.0.0.2"]);
    while ask() == 502 {}
    let asked = dns.queries.load(Ordering::SeqCst);
    assert_eq!(ask(), 503, "all targets are down");
    gateway.clock.advance(Duration::from_secs(1));
    eventually("the move is seen", || targets(&gateway) == [format!("127.0.0.2:{port}")]);
    assert_eq!(ask(), 200);
    // Each address family is one query, and a failing name is asked for once a second at most.
    assert!(dns.queries.load(Ordering::SeqCst) - asked <= 4);
}

/// Names of containers have underscores, which names of hosts may not have.
#[test]
fn a_name_of_a_container_is_resolved() {
    let upstream = Upstream::hello();
    let dns = DnsServer::start();
    for name in ["my_app", "project_web_1", "app_", "_app", "app-.test"] {
        dns.set_addresses(name, &["127.0.0.1"]);
        let gateway = start(&dns, &format!("http://{name}:{}", upstream.address.port()));
        assert_eq!(get(gateway.address(), "/", "").status, 200, "{name}");
    }
}

#[test]
fn the_last_good_answer_is_kept() {
    let upstream = Upstream::hello();
    let dns = DnsServer::start();
    dns.set_addresses("app.test", &["127.0.0.1"]);
    let gateway = start(&dns, &format!("http://app.test:{}", upstream.address.port()));
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    dns.is_silent.store(true, Ordering::SeqCst);
    let asked = dns.queries.load(Ordering::SeqCst);
    gateway.clock.advance(Duration::from_secs(6));
    eventually("it is asked again", || dns.queries.load(Ordering::SeqCst) > asked);
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    // A name that has vanished is no better than a silent server.
    dns.is_silent.store(false, Ordering::SeqCst);
    dns.clear();
    let asked = dns.queries.load(Ordering::SeqCst);
    for _ in 0..40 {
        gateway.clock.advance(Duration::from_secs(6));
        sleep(Duration::from_millis(20));
    }
    assert!(dns.queries.load(Ordering::SeqCst) > asked, "it is asked again and again");
    assert_eq!(get(gateway.address(), "/", "").status, 200);
}

#[test]
fn the_gateway_starts_without_an_answer() {
    let upstream = Upstream::hello();
    let dns = DnsServer::start();
    let gateway = start(&dns, &format!("http://late.test:{}", upstream.address.port()));
    let response = get(gateway.address(), "/", "");
    assert_eq!(response.status, 503);
    assert_eq!(response.json()["type"], "urn:tidegate:problem:upstreams-down");
    assert_eq!(response.header("retry-after"), Some("1"));
    dns.set_addresses("late.test", &["127.0.0.1"]);
    eventually("the name is resolved", || {
        gateway.clock.advance(Duration::from_secs(6));
        get(gateway.address(), "/", "").status == 200
    });
}

#[test]
fn localhost_needs_no_name_server() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&fill(
        "
        upstreams: {origin: {targets: ['http://localhost:{port}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("port", upstream.address.port())],
    ));
    for _ in 0..10 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
}

#[test]
fn services_have_ports_weights_and_priorities() {
    let upstreams: Vec<Upstream> = (0..3).map(|_| Upstream::hello()).collect();
    let port = |index: usize| upstreams[index].address.port();
    let dns = DnsServer::start();
    dns.set_addresses("a.test", &["127.0.0.1"]);
    let services =
        [(0, 3, port(0), "a.test"), (0, 1, port(1), "a.test"), (1, 9, port(2), "a.test")];
    dns.set_services("_http._tcp.app.test", &services);
    let yaml = fill(
        "
        workers: 1
        upstreams:
          origin:
            targets: ['srv://_http._tcp.app.test']
            name_servers: ['{dns}']
            balance: round_robin
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("dns", dns.address)],
    );
    let gateway = Gateway::start_at(&yaml, Clock::simulated(START));
    for _ in 0..40 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    let counts: Vec<usize> = upstreams.iter().map(Upstream::request_count).collect();
    assert_eq!(counts, [30, 10, 0], "the backup is not used");
}

#[test]
fn a_backup_service_is_used_while_the_others_fail() {
    let backup = Upstream::hello();
    let dns = DnsServer::start();
    dns.set_addresses("a.test", &["127.0.0.1"]);
    let services = [(0, 1, 1, "a.test"), (1, 1, backup.address.port(), "a.test")];
    dns.set_services("_http._tcp.app.test", &services);
    let gateway = start(&dns, "srv://_http._tcp.app.test");
    for _ in 0..5 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(backup.request_count(), 5);
}

#[test]
fn a_dead_address_family_is_passed_over() {
    // Nothing answers on the documentation prefix; the other family does.
    let upstream = Upstream::hello();
    let dns = DnsServer::start();
    dns.set_addresses("app.test", &["2001:db8::1", "127.0.0.1"]);
    let target = format!("http://app.test:{}", upstream.address.port());
    let gateway =
        Gateway::start(&fill(ORIGIN, [("target", target), ("dns", dns.address.to_string())]));
    for _ in 0..10 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(upstream.request_count(), 10);
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);
}

#[test]
fn a_silent_address_family_costs_a_quarter_of_a_second_once() {
    let upstream = Upstream::hello();
    let port = upstream.address.port();
    let (_listener, _waiting) = full_backlog(port);
    let dns = DnsServer::start();
    dns.set_addresses("app.test", &["::1", "127.0.0.1"]);
    let gateway = Gateway::start(&fill(
        "
        upstreams:
          origin:
            targets: ['http://app.test:{port}']
            name_servers: ['{dns}']
            balance: round_robin
            connect_timeout: 10s
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("port", port.to_string()), ("dns", dns.address.to_string())],
    ));
    let started = instant();
    for _ in 0..10 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    let elapsed = started.elapsed();
    assert!(
        elapsed > Duration::from_millis(200) && elapsed < Duration::from_secs(5),
        "{elapsed:?}"
    );
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1);
    assert_eq!(upstream.request_count(), 10);
}

/// A listener on `[::1]` to which connects hang: its queue is full.
fn full_backlog(port: u16) -> (Socket, Vec<Socket>) {
    let address: SocketAddr = (std::net::Ipv6Addr::LOCALHOST, port).into();
    let socket = || Socket::new(Domain::IPV6, Type::STREAM, None).expect("it succeeds");
    let listener = socket();
    listener.bind(&address.into()).expect("it succeeds");
    listener.listen(0).expect("it succeeds");
    let connect = |_| {
        let client = socket();
        client.set_nonblocking(true).expect("it succeeds");
        let _ = client.connect(&address.into());
        client
    };
    (listener, (0..8).map(connect).collect())
}
