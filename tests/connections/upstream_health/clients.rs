//! Clients whose requests fail at every target: they must not take the targets from the other
//! clients.

use std::sync::atomic::{AtomicBool, Ordering};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::Upstream,
    wait::sleep,
    yaml::fill,
};

use super::*;

const ATTACKER: [u8; 4] = [127, 0, 0, 9];
const VICTIM: [u8; 4] = [127, 0, 0, 5];

/// An upstream that closes the connection of a request for `/bad`, as nginx does by `return 444`.
fn hanging_up() -> Upstream {
    Upstream::with_handler(|request, socket| {
        !request.starts_with(b"GET /bad")
            && socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_ok()
    })
}

fn start(upstreams: &[Upstream]) -> Gateway {
    let targets: Vec<String> = upstreams.iter().map(Upstream::target).collect();
    Gateway::start(&fill(
        "
        workers: 2
        upstreams: {origin: {targets: {targets}, slow_start: 0s}}
        routes: [{name: all, upstream: origin}]
        ",
        [("targets", format!("{targets:?}"))],
    ))
}

/// Sends 10 requests together that fail at each target.
fn send_burst(gateway: &Gateway, source: [u8; 4]) {
    let connect = |_| Client::connect_from(source, gateway.address());
    let mut clients: Vec<Client> = (0..10).map(connect).collect();
    for client in &mut clients {
        client.send("GET /bad HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    for mut client in clients {
        assert!(matches!(client.read_response().status, 502 | 503));
    }
}

#[test]
fn requests_of_one_client_take_no_target_from_the_others() {
    for count in [1, 2] {
        let upstreams: Vec<Upstream> = (0..count).map(|_| hanging_up()).collect();
        let gateway = start(&upstreams);
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::SeqCst) {
                    send_burst(&gateway, ATTACKER);
                }
            });
            let statuses: Vec<u16> = (0..40)
                .map(|_| {
                    sleep(Duration::from_millis(25));
                    Client::connect_from(VICTIM, gateway.address()).get("/", "").status
                })
                .collect();
            has_ended.store(true, Ordering::SeqCst);
            assert_eq!(statuses, [200; 40], "{count} targets");
        });
    }
}

#[test]
fn a_target_that_fails_for_two_clients_is_left_alone() {
    let gateway = start(&[hanging_up()]);
    send_burst(&gateway, ATTACKER);
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 0);
    send_burst(&gateway, VICTIM);
    assert_eq!(gateway.metric("tidegate_target_ejections_total"), 1);
    assert_eq!(get(gateway.address(), "/", "").status, 503);
}
