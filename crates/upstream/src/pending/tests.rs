use futures_util::FutureExt as _;

use super::*;

/// A request of this client, with the default priority.
fn of(client: Option<IpAddr>) -> PlaceRequest {
    PlaceRequest { client, priority: Priority::default() }
}

/// A request with this priority, of a client of its own.
fn with_priority(number: u8, client: u8) -> PlaceRequest {
    let priority = Priority::new(number).expect("a priority");
    PlaceRequest { client: Some([192, 0, 2, client].into()), priority }
}

#[test]
fn the_queue_is_bounded_and_wakes_in_order() {
    let queue = PendingQueue::default();
    let enter = || queue.enter(2, of(None));
    let (first, second) = (enter().unwrap(), enter().unwrap());
    assert!(enter().is_none(), "full");
    queue.wake_next();
    assert!(second.woken().now_or_never().is_none());
    assert!(first.woken().now_or_never().is_some());
    assert!(first.is_first() && !second.is_first());
    drop(first);
    assert!(second.woken().now_or_never().is_some(), "it is the first now");
    assert_eq!(queue.len(), 1);
    drop(second);
    assert!(queue.is_empty());
}

#[test]
fn one_that_leaves_passes_its_wake_on() {
    let queue = PendingQueue::default();
    let enter = || queue.enter(9, of(None));
    let (first, second) = (enter().unwrap(), enter().unwrap());
    queue.wake_next();
    drop(first);
    assert!(second.woken().now_or_never().is_some());
}

#[test]
fn no_client_fills_the_queue() {
    let queue = PendingQueue::default();
    let client = |number| Some([192, 0, 2, number].into());
    let mut greedy: Vec<_> = (0..4).filter_map(|_| queue.enter(4, of(client(1)))).collect();
    assert!(queue.enter(4, of(client(1))).is_none(), "its own requests stay");
    let others = [queue.enter(4, of(client(2))).unwrap(), queue.enter(4, of(client(3))).unwrap()];
    let displaced: Vec<bool> = greedy.iter().map(PendingTicket::is_displaced).collect();
    assert_eq!(displaced, [false, false, true, true], "the newest leave");
    assert!(queue.enter(4, of(client(2))).is_none(), "as many as another has");
    assert!(greedy[2].woken().now_or_never().is_some());
    greedy.truncate(2);
    assert_eq!(queue.len(), 4);
    drop((greedy, others));
    assert!(queue.is_empty() && queue.queue.lock().by_client.is_empty());
}

#[test]
fn one_that_is_passed_over_passes_its_wake_on() {
    let queue = PendingQueue::default();
    let (first, second) = (queue.enter(9, of(None)).unwrap(), queue.enter(9, of(None)).unwrap());
    queue.wake_next();
    assert!(first.woken().now_or_never().is_some());
    first.set_passed_over(true);
    assert!(second.woken().now_or_never().is_some());
    first.set_passed_over(true);
    assert!(second.woken().now_or_never().is_none(), "once");
    second.set_passed_over(true);
    assert!(first.woken().now_or_never().is_none(), "both wait for their shares");
}

#[test]
fn one_that_waits_for_its_share_is_passed_over() {
    let queue = PendingQueue::default();
    let first = queue.enter(9, of(None)).unwrap();
    first.set_passed_over(true);
    assert!(!queue.has_first(), "a new request need not wait");
    queue.wake_next();
    assert!(first.woken().now_or_never().is_some(), "there is no other");
    let second = queue.enter(9, of(None)).unwrap();
    assert!(first.is_first() && second.is_first() && queue.has_first());
    queue.wake_next();
    assert!(first.woken().now_or_never().is_none());
    assert!(second.woken().now_or_never().is_some());
    first.set_passed_over(false);
    assert!(first.is_first() && !second.is_first());
    queue.wake_next();
    assert!(first.woken().now_or_never().is_some());
    first.set_passed_over(true);
    assert!(second.woken().now_or_never().is_some(), "the place is not left unused");
    first.set_passed_over(true);
    assert!(second.woken().now_or_never().is_none(), "it is woken once");
}

#[test]
fn nine_of_ten_places_go_to_the_most_important_class_and_one_to_the_oldest_request() {
    let queue = PendingQueue::default();
    let mut old: Vec<_> = (0..3).map(|_| queue.enter(99, with_priority(9, 1)).unwrap()).collect();
    let mut important: Vec<_> =
        (0..20).map(|_| queue.enter(99, with_priority(0, 2)).unwrap()).collect();
    let mut order = String::new();
    for _ in 0..23 {
        let (class, name) = if old.first().is_some_and(PendingTicket::is_first) {
            (&mut old, '9')
        } else {
            (&mut important, '0')
        };
        let first = class.remove(0);
        assert!(first.is_first());
        first.take_place();
        order.push(name);
    }
    assert_eq!(order, "00000000090000000009009");
}

#[test]
fn a_request_that_gives_up_does_not_use_a_turn() {
    let queue = PendingQueue::default();
    let old = queue.enter(99, with_priority(9, 1)).unwrap();
    for _ in 0..30 {
        drop(queue.enter(99, with_priority(0, 2)).unwrap());
        assert!(old.is_first());
    }
    let important = queue.enter(99, with_priority(0, 2)).unwrap();
    assert!(important.is_first() && !old.is_first());
}

#[test]
fn a_more_important_request_takes_a_place_that_is_free_already() {
    let queue = PendingQueue::default();
    let old = queue.enter(9, with_priority(9, 1)).unwrap();
    queue.wake_next();
    let important = queue.enter(9, with_priority(0, 2)).unwrap();
    assert!(important.woken().now_or_never().is_some(), "nothing else would wake it");
    assert!(old.woken().now_or_never().is_some() && !old.is_first());
    drop(important);
    assert!(old.woken().now_or_never().is_some() && old.is_first());
}

#[test]
fn important_requests_displace_others_but_a_twentieth_of_the_queue() {
    let queue = PendingQueue::default();
    let enter = |priority, client| queue.enter(40, with_priority(priority, client));
    let others: Vec<_> = (0..40).map(|client| enter(9, client).unwrap()).collect();
    assert!(enter(9, 99).is_none());
    let important: Vec<_> = (40..90).filter_map(|client| enter(0, client)).collect();
    let stay = others.iter().filter(|other| !other.is_displaced()).count();
    assert_eq!((important.len(), stay), (38, 2), "two of forty positions are kept");
    assert!(others[..2].iter().all(|oldest| !oldest.is_displaced()), "the newest leave");
    assert_eq!(queue.len(), 40);
}

#[test]
fn a_queue_of_important_requests_keeps_a_twentieth_for_each_class() {
    let queue = PendingQueue::default();
    let enter = |priority, client| queue.enter(40, with_priority(priority, client));
    let important: Vec<_> = (0..40).map(|client| enter(0, client).unwrap()).collect();
    for priority in 1..10 {
        let clients = priority * 20..priority * 20 + 10;
        let others: Vec<_> = clients.filter_map(|client| enter(priority, client)).collect();
        assert_eq!(others.len(), 2);
        std::mem::forget(others);
    }
    let stay = important.iter().filter(|other| !other.is_displaced()).count();
    assert_eq!((stay, queue.len()), (40 - 9 * 2, 40));
}

#[test]
fn in_a_short_queue_the_most_important_stay() {
    let queue = PendingQueue::default();
    let important = queue.enter(1, with_priority(0, 1)).unwrap();
    assert!(queue.enter(1, with_priority(9, 2)).is_none());
    drop(important);
    let other = queue.enter(1, with_priority(9, 2)).unwrap();
    let important = queue.enter(1, with_priority(0, 1)).unwrap();
    assert!(other.is_displaced() && important.is_first());
}

#[test]
fn important_requests_displace_those_of_the_address_that_has_most() {
    let queue = PendingQueue::default();
    let enter = |priority, client| queue.enter(20, with_priority(priority, client)).unwrap();
    let greedy: Vec<_> = (0..20).map(|_| enter(9, 1)).collect();
    let others: Vec<_> = (2..8).map(|client| enter(9, client)).collect();
    let important: Vec<_> = (10..16).map(|client| enter(0, client)).collect();
    assert!(others.iter().chain(&important).all(|other| !other.is_displaced()));
    let stay = greedy.iter().filter(|own| !own.is_displaced()).count();
    assert_eq!(stay, 20 - 6 - 6);
}

#[test]
fn a_class_that_takes_what_it_keeps_displaces_the_address_that_has_most() {
    let queue = PendingQueue::default();
    let enter = |priority, client| queue.enter(40, with_priority(priority, client)).unwrap();
    let greedy: Vec<_> = (0..40).map(|_| enter(0, 1)).collect();
    let others: Vec<_> = (2..8).map(|client| enter(0, client)).collect();
    let usual: Vec<_> = (10..12).map(|client| enter(5, client)).collect();
    assert!(others.iter().chain(&usual).all(|other| !other.is_displaced()));
    assert_eq!(greedy.iter().filter(|own| !own.is_displaced()).count(), 40 - 6 - 2);
}

#[test]
fn no_address_keeps_more_than_half_of_a_full_queue_from_less_important_requests() {
    let queue = PendingQueue::default();
    let greedy = PlaceRequest { priority: Priority::new(0).unwrap(), ..with_priority(0, 9) };
    let own: Vec<_> = (0..20).map(|_| queue.enter(20, greedy).unwrap()).collect();
    let others: Vec<_> =
        (0..12).filter_map(|client| queue.enter(20, with_priority(5, client))).collect();
    assert_eq!(own.iter().filter(|own| !own.is_displaced()).count(), 10);
    assert!(own[..10].iter().all(|oldest| !oldest.is_displaced()), "the newest leave");
    assert_eq!(others.len(), 10, "the rest is as important as the queue allows");
}
