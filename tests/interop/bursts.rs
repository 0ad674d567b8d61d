//! A burst of connections on a server with a short queue, beside other proxies.

use std::{net::SocketAddr, thread, time::Duration};

use testkit::{
    burst::{Burst, one_at_a_time},
    gateway::Gateway,
    port::free_port,
    yaml::fill,
};

use crate::server::{Server, loopback};

const COUNT: usize = 60;
/// CI's machines are slow, and each lost connection waits for the kernel's timer.
const SLACK: Duration = Duration::from_secs(10);

/// A peer's clients wait no longer: some of its requests would take a minute, by the kernel's
/// doubled intervals.
const PEERS_PATIENCE: Duration = Duration::from_secs(8);

/// A server whose kernel drops most of a burst.
fn server() -> SocketAddr {
    one_at_a_time(5, Duration::from_millis(5))
}

fn through_nginx() -> Burst {
    let (port, directory) = (free_port(), tempfile::tempdir().expect("a directory"));
    let target = server();
    let http = format!(
        "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{target}; }} }}"
    );
    let _server = Server::nginx(directory.path(), &http, &[port]);
    Burst::send(loopback(port), COUNT, PEERS_PATIENCE)
}

fn through_haproxy() -> Burst {
    let (port, directory) = (free_port(), tempfile::tempdir().expect("a directory"));
    let target = server();
    let sections = format!(
        "listen all
  mode http
  bind 127.0.0.1:{port}
  server only {target}"
    );
    let _server = Server::haproxy(directory.path(), &sections, &[port]);
    Burst::send(loopback(port), COUNT, PEERS_PATIENCE)
}

#[test]
fn a_burst_on_a_short_queue_is_served_as_by_nginx_and_haproxy() {
    let gateway = Gateway::start(&fill(
        "
        upstreams: {app: {targets: ['http://{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("target", server().to_string())],
    ));
    let [own, nginx, haproxy] = thread::scope(|scope| {
        let own = scope.spawn(|| Burst::send(gateway.address(), COUNT, Duration::from_mins(1)));
        let peers = [scope.spawn(through_nginx), scope.spawn(through_haproxy)];
        let [nginx, haproxy] = peers.map(|peer| peer.join().expect("no panic"));
        [own.join().expect("no panic"), nginx, haproxy]
    });
    let figures =
        [("Tidegate", &own), ("nginx", &nginx), ("HAProxy", &haproxy)].map(|(name, it)| {
            format!("{name}: {it}, at most {:?}, others {:?}", it.slowest, it.others)
        });
    let figures = figures.join("\n");
    assert_eq!(own.statuses, [200; COUNT], "{figures}");
    assert_eq!(own.failures_of_others(), 0, "{figures}");
    assert_eq!(gateway.metric("tidegate_upstream_ejections_total"), 0, "{figures}");
    assert!(own.slowest <= nginx.slowest * 5 + SLACK, "{figures}");
}
