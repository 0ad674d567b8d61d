use super::*;
use crate::upstream::Target;

fn balance(count: usize) -> (Balance, Rc<Cell<u64>>) {
    let clock = Rc::new(Cell::new(0));
    let pools = (0..count).map(|at| {
        let target = Target { host: format!("s{at}").into(), port: 80 };
        Pool::new(target, Rc::clone(&clock))
    });
    (Balance::new(pools.collect()), clock)
}

#[test]
fn requests_take_turns_and_a_retry_takes_none() {
    let (balance, _) = balance(3);
    for turn in [0, 1, 2, 0, 1] {
        assert_eq!(balance.turn(), turn);
        assert_eq!(balance.choose(turn, &[]), Some(turn));
        assert_eq!(balance.choose(turn, &[turn]), Some((turn + 1) % 3), "the retry asks the next");
    }
    assert_eq!(balance.choose(0, &[0, 1, 2]), None);
}

#[test]
fn a_server_that_cannot_be_connected_to_is_left_alone_and_comes_back() {
    let (balance, clock) = balance(2);
    balance.pools[0].fail(Failure::Connect);
    for turn in [0, 1] {
        assert_eq!(balance.choose(turn, &[]), Some(1), "no request waits for it");
    }
    clock.set(10_000);
    assert_eq!(balance.choose(0, &[]), Some(0), "one request looks whether it is back");
    balance.pools[0].fail(Failure::Connect);
    clock.set(29_999);
    assert_eq!(balance.choose(0, &[]), Some(1), "twice as long the second time");
    clock.set(30_000);
    assert_eq!(balance.choose(0, &[]), Some(0));
    balance.pools[0].succeed();
    balance.pools[0].fail(Failure::Connect);
    clock.set(40_000);
    assert_eq!(balance.choose(0, &[]), Some(0), "an answer makes good for it");
}

#[test]
fn a_server_is_not_ejected_for_one_failed_exchange() {
    let (balance, _) = balance(2);
    for _ in 0..4 {
        balance.pools[0].fail(Failure::Exchange);
    }
    assert_eq!(balance.choose(0, &[]), Some(0));
    balance.pools[0].fail(Failure::Exchange);
    assert_eq!(balance.choose(0, &[]), Some(1));
}

#[test]
fn where_all_are_ejected_the_turn_decides() {
    let (balance, _) = balance(2);
    for pool in balance.pools() {
        pool.fail(Failure::Connect);
    }
    assert_eq!((balance.choose(0, &[]), balance.choose(1, &[])), (Some(0), Some(1)));
    assert_eq!(balance.choose(0, &[0]), Some(1));
}

#[test]
fn retries_stay_below_a_fifth_of_the_requests() {
    let (balance, _) = balance(1);
    while balance.spend() {}
    let mut spent = 0;
    for _ in 0..1000 {
        balance.earn();
        spent += usize::from(balance.spend());
    }
    assert_eq!(spent, 200);
}
