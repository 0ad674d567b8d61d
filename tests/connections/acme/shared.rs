//! Several gateways with one Redis make one order, and respond to the authority for each other.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    pebble::Pebble,
    port::free_port,
    process::Process,
    redis_server::RedisServer,
    redis_topology::RedisCluster,
    tls::{Authority, connect},
    wait::{eventually, sleep, timed},
};

use super::{A, B, FAILED, ISSUED, Setting, names_and_issuer, post, state};
use crate::tidegate_command;

/// The addresses of the two gateways, which have the same ports.
pub(super) const FIRST: &str = "127.0.0.1";
pub(super) const SECOND: &str = "127.0.0.2";
/// The address of a [`Gate`].
pub(super) const GATE: &str = "127.0.0.3";
/// The time in which a gateway follows another one. The pause between two reads is a second.
const FOLLOWED: Duration = Duration::from_secs(3);

/// Pebble and Redis.
pub(super) struct SharedSetting {
    pub(super) setting: Setting,
    pub(super) redis: RedisServer,
}

impl SharedSetting {
    pub(super) fn new() -> Self {
        Self::with_redis(RedisServer::start())
    }

    pub(super) fn with_redis(redis: RedisServer) -> Self {
        let setting = Setting::with_pebble(|ports| Pebble::with_all_nonces(ports, &[A, B]));
        Self { setting, redis }
    }

    /// The configuration of a gateway at this address.
    pub(super) fn yaml(&self, host: &str, domains: &str, challenge: &str) -> String {
        let Setting { ports, storage, .. } = &self.setting;
        let mut yaml = self.setting.yaml(domains, challenge);
        for port in [ports.tls, ports.http] {
            yaml = yaml.replace(&format!("{FIRST}:{port}"), &format!("{host}:{port}"));
        }
        let yaml =
            yaml.replace(&format!("storage: {}", storage.path().display()), "storage: redis");
        let url = self.redis.url();
        format!("{yaml}store: {{redis: {{shards: [{{primary: '{url}'}}]}}}}\n")
    }

    /// A gateway at this address.
    pub(super) fn start(&self, host: &str) -> Gateway {
        Gateway::start(&self.yaml(host, A, "tls-alpn-01"))
    }

    /// Two gateways with a certificate for [`A`].
    pub(super) fn issued(&self) -> [Gateway; 2] {
        let first = self.start(FIRST);
        first.wait_for_metric(ISSUED, 1);
        [first, self.start(SECOND)]
    }

    /// Lets Pebble find [`A`] at this address.
    pub(super) fn lead_to(&self, host: &str) {
        self.setting.pebble.dns.set_addresses(A, &[host]);
    }

    /// True if both show the same certificate, which is not `old`.
    pub(super) fn is_renewed(&self, gateways: &[Gateway; 2], old: &[u8]) -> bool {
        let [first, second] = gateways.each_ref().map(|own| self.setting.shown(own));
        first == second && *first != *old
    }
}

/// Listens at [`GATE`] on a port, and lets connections pass to [`FIRST`] once it is open.
pub(super) struct Gate {
    is_reached: Arc<AtomicBool>,
    is_open: Arc<AtomicBool>,
}

impl Gate {
    pub(super) fn new(port: u16) -> Self {
        let address: Ipv4Addr = GATE.parse().expect("an address");
        let listener = TcpListener::bind(SocketAddr::from((address, port))).expect("a free port");
        let gate = Self { is_reached: Arc::default(), is_open: Arc::default() };
        let (is_reached, is_open) = (Arc::clone(&gate.is_reached), Arc::clone(&gate.is_open));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                is_reached.store(true, Ordering::Release);
                let is_open = Arc::clone(&is_open);
                thread::spawn(move || {
                    while !is_open.load(Ordering::Acquire) {
                        sleep(Duration::from_millis(10));
                    }
                    let server = TcpStream::connect((FIRST, port)).expect("the gateway");
                    pass(&client, &server);
                });
            }
        });
        gate
    }

    /// Waits until the authority has connected.
    pub(super) fn wait(&self) {
        eventually("the authority connects", || self.is_reached.load(Ordering::Acquire));
    }

    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Release);
    }
}

/// Passes bytes in both directions until both ends have closed.
fn pass(client: &TcpStream, server: &TcpStream) {
    thread::scope(|scope| {
        for (mut from, mut to) in [(client, server), (server, client)] {
            scope.spawn(move || {
                // Either end may close at any time.
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Write);
            });
        }
    });
}

fn sum(gateways: &[Gateway; 2], metric: &str) -> u64 {
    gateways.iter().map(|own| own.metric(metric)).sum()
}

#[test]
fn two_gateways_make_one_order() {
    let shared = SharedSetting::new();
    let gateways = thread::scope(|scope| {
        let started = [FIRST, SECOND].map(|host| scope.spawn(|| shared.start(host)));
        started.map(|own| own.join().expect("a gateway"))
    });
    eventually("one certificate at both", || {
        let [first, second] = gateways.each_ref().map(|own| shared.setting.shown(own));
        first == second && names_and_issuer(&first).1.contains("Pebble")
    });
    assert_eq!(shared.setting.pebble.orders(), 1);
    assert_eq!((sum(&gateways, ISSUED), sum(&gateways, FAILED)), (1, 0));
    let [first, second] = gateways.each_ref().map(state);
    assert_eq!(first["storage"], "redis");
    assert_eq!(first["expires_at"], second["expires_at"]);
    assert!(shared.setting.files("").is_empty(), "no file is written");
    eventually("the order leaves nothing behind", || {
        let mut keys: Vec<String> = shared.redis.command(&["KEYS", "tidegate:{acme}:*"]);
        keys.sort();
        let kinds: Vec<_> = keys.iter().filter_map(|key| key.split(':').nth(2)).collect();
        kinds == ["account", "certificates", "versions"]
    });
}

#[test]
#[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
fn any_gateway_responds_to_the_authority() {
    for challenge in ["tls-alpn-01", "http-01"] {
        let shared = SharedSetting::new();
        let setting = &shared.setting;
        let first = Gateway::start(&shared.yaml(FIRST, A, challenge));
        first.wait_for_metric(ISSUED, 1);
        let second = Gateway::start(&shared.yaml(SECOND, A, challenge));
        assert_eq!(setting.shown(&second), setting.shown(&first), "at once");
        let mut gateways = [first, second];
        for (round, host) in [SECOND, FIRST].into_iter().enumerate() {
            // The authority reaches only the gateway that does not order.
            shared.lead_to(host);
            let old = setting.shown(&gateways[0]);
            let before = gateways[0].metric(ISSUED);
            assert_eq!(post(&gateways[0], "/api/acme/renew").status, 202);
            gateways[0].wait_for_metric(ISSUED, before + 1);
            let ((), time) = timed(|| {
                eventually("the other follows", || shared.is_renewed(&gateways, &old));
            });
            println!("{challenge}: the other gateway followed after {time:?}");
            assert!(time < FOLLOWED, "{time:?}");
            assert_eq!(setting.pebble.orders(), round + 2);
            gateways.reverse();
        }
        assert_eq!(sum(&gateways, FAILED), 0);
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
fn a_gateway_that_dies_leaves_its_order_to_another() {
    let shared = SharedSetting::new();
    shared.lead_to(GATE);
    let gate = Gate::new(shared.setting.ports.tls);
    let file = shared.setting.storage.path().join("tidegate.yaml");
    let admin = format!("admin: {{address: '127.0.0.1:{}'}}\n", free_port());
    fs::write(&file, shared.yaml(FIRST, A, "tls-alpn-01") + &admin).expect("a file");
    let config = file.to_str().expect("a path");
    let folder = shared.setting.storage.path();
    let mut dying = Process::start(tidegate_command(folder, &["--config", config]));
    gate.wait();
    let second = shared.start(SECOND);
    eventually("it waits", || state(&second)["is_ordered_elsewhere"] == true);
    assert_eq!(second.metric("tidegate_acme_orders_total"), 0);
    shared.lead_to(SECOND);
    dying.signal(Signal::KILL);
    dying.wait_exit();
    let ((), time) = timed(|| second.wait_for_metric(ISSUED, 1));
    println!("another gateway had the certificate after {time:?}");
    assert!(time > Duration::from_secs(5), "the lease protects the order: {time:?}");
    assert_eq!(shared.setting.pebble.orders(), 2);
    assert!(names_and_issuer(&shared.setting.shown(&second)).1.contains("Pebble"));
}

/// A gateway leaves as at SIGTERM, while it serves until its load balancer has noticed; or stops at
/// once.
#[test]
#[expect(clippy::print_stdout, reason = "the figure is a part of the proof")]
fn a_gateway_that_stops_leaves_its_order_to_another_at_once() {
    for leave in [|own: &Gateway| own.server.leave(), |own: &Gateway| _ = own.stop()] {
        let shared = SharedSetting::new();
        shared.lead_to(GATE);
        let gate = Gate::new(shared.setting.ports.tls);
        let first = shared.start(FIRST);
        gate.wait();
        let second = shared.start(SECOND);
        eventually("it waits", || state(&second)["is_ordered_elsewhere"] == true);
        shared.lead_to(SECOND);
        let ((), time) = timed(|| {
            leave(&first);
            eventually("it orders", || state(&second)["is_ordering"] == true);
        });
        println!("another gateway began the order after {time:?}");
        assert!(time < Duration::from_secs(5), "{time:?}");
        second.wait_for_metric(ISSUED, 1);
        assert_eq!(second.metric(FAILED), 0);
        assert_eq!(shared.setting.pebble.orders(), 2);
    }
}

#[test]
fn gateways_wait_together_after_a_failed_order() {
    let shared = SharedSetting::new();
    shared.lead_to("127.0.0.9");
    let gateways = [FIRST, SECOND].map(|host| shared.start(host));
    eventually("both know the failure", || {
        gateways.iter().all(|own| {
            let state = state(own);
            let error = state["last_error"].to_string();
            state["failures"] == 1 && error.contains("the authority's check of a.test failed")
        })
    });
    // Longer than a gateway waits between two attempts to order.
    sleep(Duration::from_millis(2_500));
    assert_eq!((shared.setting.pebble.orders(), sum(&gateways, FAILED)), (1, 1));
    let now = gateways[1].clock.store_time().as_unix_ms() / 1000;
    let retry = state(&gateways[1])["retry_at"].as_u64().expect("a time") - now;
    assert!((50..=75).contains(&retry), "{retry}");
    // An operator need not wait.
    shared.lead_to(FIRST);
    assert_eq!(post(&gateways[1], "/api/acme/renew").status, 202);
    gateways[1].wait_for_metric(ISSUED, 1);
    eventually("both are well", || gateways.iter().all(|own| state(own)["last_error"].is_null()));
}

#[test]
fn changed_domains_are_served_by_the_old_certificate_until_the_new_one_is_there() {
    let shared = SharedSetting::new();
    let [first, second] = shared.issued();
    let old = shared.setting.shown(&first);
    shared.setting.pebble.dns.set_addresses(B, &["127.0.0.9"]);
    let both = |host| shared.yaml(host, "a.test, b.test", "tls-alpn-01");
    first.reload(&both(FIRST)).expect("no fault");
    assert_eq!(shared.setting.shown(&first), old, "after a reload");
    drop(second);
    let second = Gateway::start(&both(SECOND));
    assert_eq!(shared.setting.shown(&second), old, "after a restart");
    eventually("an order has failed", || state(&second)["failures"] == 1);
    shared.setting.pebble.dns.set_addresses(B, &[FIRST]);
    post(&second, "/api/acme/renew");
    let gateways = [first, second];
    eventually("both have the new one", || shared.is_renewed(&gateways, &old));
    assert_eq!(names_and_issuer(&shared.setting.shown(&gateways[0])).0, [A, B]);
}

#[test]
fn gateways_share_a_cluster() {
    let shared = SharedSetting::with_redis(RedisServer::not_started());
    let cluster = RedisCluster::start();
    let urls: Vec<String> = cluster.urls().iter().map(|url| format!("'{url}'")).collect();
    let server = format!("shards: [{{primary: '{}'}}]", shared.redis.url());
    let gateways = [FIRST, SECOND].map(|host| {
        let yaml = shared.yaml(host, A, "tls-alpn-01");
        Gateway::start(&yaml.replace(&server, &format!("cluster: [{}]", urls.join(", "))))
    });
    eventually("one certificate at both", || {
        shared.is_renewed(&gateways, &[]) && {
            names_and_issuer(&shared.setting.shown(&gateways[0])).1.contains("Pebble")
        }
    });
    assert_eq!((shared.setting.pebble.orders(), sum(&gateways, FAILED)), (1, 0));
}

#[test]
fn clients_of_an_ordered_certificate_can_need_one() {
    let setting = Setting::new();
    let clients = Authority::new("clients");
    let ca = clients.write(setting.storage.path(), "clients-ca.txt");
    let yaml = setting.yaml(A, "tls-alpn-01");
    let client_ca = format!("client_ca: {}\n        challenge:", ca.display());
    let gateway = Gateway::start(&yaml.replace("challenge:", &client_ca));
    gateway.wait_for_metric(ISSUED, 1);
    let identity = clients.issue(&["client.test"]);
    let mut known = testkit::tls::trusting_client(&["http/1.1"]);
    known.client_auth_cert_resolver =
        clients.client(Some(&identity), &[]).client_auth_cert_resolver;
    let ask = |config: &Arc<rustls::ClientConfig>| {
        let mut client = connect(gateway.address(), A, config).ok()?;
        client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        client.try_read_response().map(|response| response.status)
    };
    let known = Arc::new(known);
    for renewals in 1..=2 {
        assert_eq!(ask(&known), Some(200), "{renewals}");
        assert_eq!(ask(&setting.client), None, "{renewals}");
        post(&gateway, "/api/acme/renew");
        gateway.wait_for_metric(ISSUED, renewals + 1);
    }
}

#[test]
fn two_authorities_check_one_domain() {
    let setting = Setting::new();
    let other = Pebble::start(setting.ports, &[A]);
    let yaml = setting.yaml(A, "tls-alpn-01");
    let (start, rest) = yaml.split_once("  - {address").expect("the second listener");
    let (_, first) = start.split_once("listen:\n").expect("the first listener");
    let second = first
        .replace(&setting.pebble.url(), &other.url())
        .replace(&setting.pebble.ca().display().to_string(), &other.ca().display().to_string())
        .replace(&format!(":{}", setting.ports.tls), ":0");
    let gateway = Gateway::start(&format!("{start}{second}  - {{address{rest}"));
    eventually("two certificates", || gateway.metric("tidegate_acme_orders_total") >= 2);
    assert_eq!((gateway.metric(ISSUED), gateway.metric(FAILED)), (2, 0), "{}", errors(&gateway));
    for _ in 0..3 {
        let before = gateway.metric(ISSUED);
        post(&gateway, "/api/acme/renew");
        gateway.wait_for_metric(ISSUED, before + 2);
        assert_eq!(gateway.metric(FAILED), 0, "{}", errors(&gateway));
    }
}

fn errors(gateway: &Gateway) -> Value {
    get(gateway.admin(), "/api/acme", "").json()
}

#[test]
fn only_tokens_of_current_orders_are_answered() {
    let shared = SharedSetting::new();
    shared.lead_to(GATE);
    let _gate = Gate::new(shared.setting.ports.http);
    let gateways = [FIRST, SECOND].map(|host| Gateway::start(&shared.yaml(host, A, "http-01")));
    let token = || {
        let shared: Vec<String> =
            shared.redis.command(&["ZRANGE", "tidegate:{acme}:responses", "0", "-1"]);
        let token = shared.first()?.split(' ').nth(1)?.to_owned();
        Some(token)
    };
    eventually("an order", || token().is_some());
    let token = token().expect("a token");
    let path = format!("/.well-known/acme-challenge/{token}");
    for gateway in &gateways {
        let plain = gateway.server.addresses[1];
        eventually("its response", || {
            let response = get(plain, &path, "Connection: close\r\n");
            response.status == 200 && response.text().starts_with(&format!("{token}."))
        });
        let mut client = Client::connect(plain);
        assert_eq!(client.get(&format!("{path}x"), "").status, 308);
    }
}
