//! Targets with names: a small DNS server moves them, and stops answering.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use testkit::{
    client::get,
    gateway::Gateway,
    upstream::Upstream,
    wait::{eventually, sleep},
};
use tidegate::clock::{Clock, StoreTime, instant};

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;
const START: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// The data of a type's records, by name and type.
type Records = Arc<Mutex<HashMap<(String, u16), Vec<Vec<u8>>>>>;

/// A DNS server over UDP, with a TTL of 0.
struct DnsServer {
    address: SocketAddr,
    records: Records,
    is_silent: Arc<AtomicBool>,
    queries: Arc<AtomicUsize>,
}

impl DnsServer {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        let server = Self {
            address: socket.local_addr().expect("an address"),
            records: Records::default(),
            is_silent: Arc::default(),
            queries: Arc::default(),
        };
        let (records, is_silent) = (server.records.clone(), server.is_silent.clone());
        let queries = server.queries.clone();
        thread::spawn(move || {
            let mut query = [0; 1500];
            while let Ok((length, client)) = socket.recv_from(&mut query) {
                queries.fetch_add(1, Ordering::SeqCst);
                if !is_silent.load(Ordering::SeqCst) {
                    let _ = socket.send_to(&answer(&query[..length], &records), client);
                }
            }
        });
        server
    }

    fn set_addresses(&self, name: &str, addresses: &[&str]) {
        let mut records = self.records.lock().expect("no panic");
        let mut by_type = [(A, Vec::new()), (AAAA, Vec::new())];
        for address in addresses {
            match address.parse().expect("an address") {
                IpAddr::V4(v4) => by_type[0].1.push(v4.octets().to_vec()),
                IpAddr::V6(v6) => by_type[1].1.push(v6.octets().to_vec()),
            }
        }
        for (kind, data) in by_type {
            records.insert((name.to_owned(), kind), data);
        }
    }

    /// Each: priority, weight, port, host.
    fn set_services(&self, name: &str, services: &[(u16, u16, u16, &str)]) {
        let data = services.iter().map(|(priority, weight, port, host)| {
            let mut data: Vec<u8> =
                [priority, weight, port].iter().flat_map(|number| number.to_be_bytes()).collect();
            for label in host.split('.') {
                data.push(label.len() as u8);
                data.extend_from_slice(label.as_bytes());
            }
            data.push(0);
            data
        });
        self.records.lock().expect("no panic").insert((name.to_owned(), SRV), data.collect());
    }
}

fn answer(query: &[u8], records: &Records) -> Vec<u8> {
    let (mut at, mut labels) = (12, Vec::new());
    while query[at] > 0 {
        let label = &query[at + 1..=at + usize::from(query[at])];
        labels.push(String::from_utf8_lossy(label).to_lowercase());
        at += 1 + label.len();
    }
    let (name, kind) = (labels.join("."), u16::from_be_bytes([query[at + 1], query[at + 2]]));
    let records = records.lock().expect("no panic");
    let is_known = records.keys().any(|(own, _)| *own == name);
    let found = records.get(&(name, kind)).cloned().unwrap_or_default();
    let mut response = query[..2].to_vec();
    response.extend([0x81, if is_known { 0x80 } else { 0x83 }, 0, 1, 0, found.len() as u8]);
    response.extend([0; 4]);
    response.extend(&query[12..at + 5]);
    for data in found {
        response.extend([0xc0, 12]);
        response.extend(kind.to_be_bytes());
        response.extend([0, 1, 0, 0, 0, 0]);
        response.extend((data.len() as u16).to_be_bytes());
        response.extend(data);
    }
    response
}

fn yaml(dns: &DnsServer, target: &str, more: &str) -> String {
    format!(
        "workers: 2
upstreams:
  origin: {{targets: ['{target}'], name_servers: ['{}'], balance: round_robin{more}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        dns.address
    )
}

fn start(dns: &DnsServer, target: &str) -> Gateway {
    Gateway::start_at(&yaml(dns, target, ""), Clock::simulated(START))
}

fn targets(gateway: &Gateway) -> Vec<String> {
    let listed = get(gateway.admin(), "/api/upstreams", "").json();
    let targets = listed["upstreams"][0]["targets"].as_array().expect("an array");
    targets.iter().map(|target| target["target"].as_str().expect("a text").to_owned()).collect()
}

/// An upstream on each address, all with the same port.
fn on_one_port(addresses: &[&str]) -> (u16, Vec<Upstream>) {
    let first = Upstream::hello_on(&format!("{}:0", addresses[0]));
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
    let request = upstreams[0].request_texts().swap_remove(0);
    assert!(request.contains("Host: ") || request.contains("host: "), "{request}");

    dns.set_addresses("app.test", &["127.0.0.3"]);
    gateway.clock.advance(Duration::from_secs(6));
    eventually("the move is seen", || targets(&gateway) == [format!("127.0.0.3:{port}")]);
    let before = upstreams[0].request_count() + upstreams[1].request_count();
    for _ in 0..8 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(upstreams[2].request_count(), 8);
    assert_eq!(upstreams[0].request_count() + upstreams[1].request_count(), before);
    assert_eq!(gateway.metric("tidegate_target_healthy"), 1, "metrics of the others are gone");
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
    dns.records.lock().expect("no panic").clear();
    let asked = dns.queries.load(Ordering::SeqCst);
    for _ in 0..40 {
        gateway.clock.advance(Duration::from_secs(6));
        sleep(Duration::from_millis(20));
    }
    assert!(dns.queries.load(Ordering::SeqCst) > asked || asked > 0);
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
    let yaml = format!(
        "upstreams: {{origin: {{targets: ['http://localhost:{}']}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        upstream.address.port()
    );
    let gateway = Gateway::start(&yaml);
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
    let yaml = yaml(&dns, "srv://_http._tcp.app.test", "").replace("workers: 2", "workers: 1");
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
    let gateway = Gateway::start(&yaml(&dns, &target, ""));
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
    let target = format!("http://app.test:{port}");
    let gateway = Gateway::start(&yaml(&dns, &target, ", connect_timeout: 10s"));
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
