//! The CPU of a request through Envoy that asks the gateway, beside Envoy with its local limit and
//! the gateway alone.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{
    bench::median,
    interpreters,
    load::{Load, Origin, cpu},
    port::free_port,
    process::cpu_time,
    wait::eventually,
};

use crate::{
    Size,
    gateway::{Gateway, Store},
};

/// The prefix of the names of Envoy's types.
const TYPES: &str = "type.googleapis.com/envoy.extensions";

/// Envoy, on the core of the gateway. Killed when dropped.
struct Envoy {
    child: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Envoy {
    fn start(filter: &Value, origin: SocketAddr, service: SocketAddr) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("envoy.json");
        fs::write(&file, configuration(address, filter, origin, service)).expect("a file");
        cpu::pin(cpu::TESTED_CPU);
        let child = Command::new(interpreters::envoy())
            .args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error"])
            .arg("--config-path")
            .arg(file)
            .stderr(Stdio::null())
            .spawn()
            .expect("Envoy starts");
        cpu::pin(cpu::LOAD_CPU);
        eventually("Envoy listens", || TcpStream::connect(address).is_ok());
        Self { child, address, _directory: directory }
    }
}

/// Prints the table.
pub(crate) fn measure(size: Size) {
    let origin = Origin::start().expect("an origin").address();
    let gateway = Gateway::before(Store::Memory, origin);
    let local = Envoy::start(&local_limit(), origin, gateway.service);
    let asking = Envoy::start(&global_limit(), origin, gateway.service);
    let own = || gateway.process.cpu_time();
    let of = |envoy: &Envoy| cpu_time(envoy.child.id());
    let mut rows: [Vec<f64>; 4] = Default::default();
    for round in 0..=size.rounds {
        let before = [of(&local), of(&asking), own()];
        run(local.address, size.requests);
        let local_cpu = of(&local).saturating_sub(before[0]);
        run(asking.address, size.requests);
        let asking_cpu = of(&asking).saturating_sub(before[1]);
        let service_cpu = own().saturating_sub(before[2]);
        let before = own();
        run(gateway.process.address, size.requests);
        let alone_cpu = own().saturating_sub(before);
        // The first round warms up.
        if round > 0 {
            let us = |cpu: Duration| cpu.as_secs_f64() * 1e6 / size.requests as f64;
            for (row, cpu) in rows.iter_mut().zip([local_cpu, asking_cpu, service_cpu, alone_cpu]) {
                row.push(us(cpu));
            }
        }
    }
    let [local, asking, service, alone] = rows.map(median);
    println!("| CPU of a request | us |\n|---|---:|");
    println!("| Envoy with its local limit | {local:.1} |");
    println!("| Envoy that asks, and the gateway that decides | {asking:.1} + {service:.1} |");
    println!("| the gateway as the only proxy | {alone:.1} |");
}

fn run(target: SocketAddr, requests: u64) {
    let load = Load { target, connections: 16, requests, within: Duration::from_mins(2) };
    let tally = load.run().expect("responses");
    assert_eq!(tally.statuses.get(&200), Some(&requests), "{:?}", tally.statuses);
}

fn typed(name: &str) -> Value {
    json!({"@type": format!("{TYPES}.{name}")})
}

fn local_limit() -> Value {
    let always = json!({"default_value": {"numerator": 100}});
    let mut filter = typed("filters.http.local_ratelimit.v3.LocalRateLimit");
    filter["stat_prefix"] = "bench".into();
    filter["token_bucket"] = json!({"max_tokens": 4_000_000_000_u32, "tokens_per_fill": 4_000_000_000_u32, "fill_interval": "60s"});
    filter["filter_enabled"] = always.clone();
    filter["filter_enforced"] = always;
    filter
}

fn global_limit() -> Value {
    let mut filter = typed("filters.http.ratelimit.v3.RateLimit");
    filter["domain"] = "edge".into();
    filter["timeout"] = "5s".into();
    filter["failure_mode_deny"] = true.into();
    filter["rate_limit_service"] = json!({
        "transport_api_version": "V3",
        "grpc_service": {"envoy_grpc": {"cluster_name": "service"}},
    });
    filter
}

fn configuration(
    listen: SocketAddr,
    filter: &Value,
    origin: SocketAddr,
    service: SocketAddr,
) -> String {
    let mut manager = typed("filters.network.http_connection_manager.v3.HttpConnectionManager");
    manager["stat_prefix"] = "bench".into();
    manager["http_filters"] = json!([
        {"name": "limit", "typed_config": filter},
        {"name": "router", "typed_config": typed("filters.http.router.v3.Router")},
    ]);
    let actions = json!([{"actions": [{"generic_key": {"descriptor_key": "user", "descriptor_value": "all"}}]}]);
    manager["route_config"] = json!({"virtual_hosts": [{
        "name": "all",
        "domains": ["*"],
        "rate_limits": actions,
        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "origin", "timeout": "0s"}}],
    }]});
    let chain = json!({"filters": [{"name": "http", "typed_config": manager}]});
    json!({"static_resources": {
        "listeners": [{"address": socket(listen), "filter_chains": [chain]}],
        "clusters": [
            cluster("origin", origin, "http_protocol_options"),
            cluster("service", service, "http2_protocol_options"),
        ],
    }})
    .to_string()
}

fn cluster(name: &str, address: SocketAddr, version: &str) -> Value {
    let mut options = typed("upstreams.http.v3.HttpProtocolOptions");
    options["explicit_http_config"] = json!({version: {}});
    json!({
        "name": name,
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(address)}}]}],
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
    })
}

fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}
