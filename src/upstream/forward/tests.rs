use super::*;
use crate::upstream::{Protocol, ServerAddress, Target};

fn load_balancer(count: usize) -> (LoadBalancer, Rc<Cell<u64>>) {
    let clock = Rc::new(Cell::new(0));
    let pools = (0..count).map(|at| {
        let address = ServerAddress::Tcp { host: format!("s{at}").into(), port: 80 };
        let target = Target { address, protocol: Protocol::Http1, tls: None, send_proxy: None };
        Pool::new(target, Rc::clone(&clock))
    });
    (LoadBalancer::new(pools.collect()), clock)
}

#[test]
fn requests_rotate_and_retries_take_no_turn() {
    let (load_balancer, _) = load_balancer(3);
    for turn in [0, 1, 2, 0, 1] {
        assert_eq!(load_balancer.next_turn(), turn);
        assert_eq!(load_balancer.pick(turn, &[]), Some(turn));
        assert_eq!(
            load_balancer.pick(turn, &[turn]),
            Some((turn + 1) % 3),
            "a retry picks the next server"
        );
    }
    assert_eq!(load_balancer.pick(0, &[0, 1, 2]), None);
}

#[test]
fn server_that_refuses_connections_is_ejected_for_a_time() {
    let (load_balancer, clock) = load_balancer(2);
    load_balancer.pools[0].record_failure(Failure::Connect);
    for turn in [0, 1] {
        assert_eq!(load_balancer.pick(turn, &[]), Some(1), "server 0 is ejected");
    }
    clock.set(10_000);
    assert_eq!(load_balancer.pick(0, &[]), Some(0), "the ejection has ended");
    load_balancer.pools[0].record_failure(Failure::Connect);
    clock.set(29_999);
    assert_eq!(load_balancer.pick(0, &[]), Some(1), "twice as long the second time");
    clock.set(30_000);
    assert_eq!(load_balancer.pick(0, &[]), Some(0));
    load_balancer.pools[0].record_success();
    load_balancer.pools[0].record_failure(Failure::Connect);
    clock.set(40_000);
    assert_eq!(load_balancer.pick(0, &[]), Some(0), "a response resets the ejection time");
}

#[test]
fn five_failed_exchanges_in_a_row_eject_a_server() {
    let (load_balancer, _) = load_balancer(2);
    for _ in 0..4 {
        load_balancer.pools[0].record_failure(Failure::Exchange);
    }
    assert_eq!(load_balancer.pick(0, &[]), Some(0));
    load_balancer.pools[0].record_failure(Failure::Exchange);
    assert_eq!(load_balancer.pick(0, &[]), Some(1));
}

#[test]
fn rotation_continues_if_all_servers_are_ejected() {
    let (load_balancer, _) = load_balancer(2);
    for pool in load_balancer.pools() {
        pool.record_failure(Failure::Connect);
    }
    assert_eq!((load_balancer.pick(0, &[]), load_balancer.pick(1, &[])), (Some(0), Some(1)));
    assert_eq!(load_balancer.pick(0, &[0]), Some(1));
}

#[test]
fn at_most_a_fifth_of_the_requests_are_retried() {
    let (load_balancer, _) = load_balancer(1);
    while load_balancer.spend_retry() {}
    let mut spent = 0;
    for _ in 0..1000 {
        load_balancer.earn_retry();
        spent += usize::from(load_balancer.spend_retry());
    }
    assert_eq!(spent, 200);
}

#[test]
fn an_unsent_request_opens_at_most_two_new_connections() {
    let opened = (1..10).find(|opened| !may_reconnect(*opened));
    assert_eq!(opened, Some(MAX_NEW_CONNECTIONS));
}
