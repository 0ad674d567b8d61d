//! Each error of Rockset's article by name: its logic, which has it, and ours, which has not.

#[path = "article/ours.rs"]
mod ours;
#[path = "article/theirs.rs"]
mod theirs;

use tidegate::store::{Failure, token_lease::WaiterOutcome};

use self::{
    ours::{Came, Gateway, START, WINDOW, drive},
    theirs::{Limiter, Step, Store, Version},
};

#[test]
fn inverted_expiry() {
    let (mut theirs, mut store) = (Limiter::new(Version::Locked, 100, 60), Store::of(1_000));
    assert!(theirs.alone(&mut store, 1, 10));
    assert_ne!(theirs.enter("", 1, 11), Step::Admitted, "fresh tokens are not spent");
    assert_eq!(theirs.enter("", 1, 70), Step::Admitted, "and those that have ended are");

    let (ours, mut store) = (Gateway::new(1_000, 100, 1), ours::Store::of(1_000));
    assert!(ours.alone(&mut store, 1, 10));
    assert!(matches!(ours.enter(1, 1, WINDOW - 2), Came::Admitted(_)));
    assert!(
        matches!(ours.enter(1, 1, WINDOW - 1), Came::Fetches(..)),
        "a ms before, for clocks of ms"
    );
}

#[test]
fn five_threads_fetch_five_batches() {
    let (mut theirs, mut store) = (Limiter::new(Version::Locked, 100, 60), Store::of(1_000));
    let fetching = (0..5).filter(|_| theirs.enter("", 20, 10) == Step::Fetches(20)).count();
    for _ in 0..fetching {
        let granted = store.acquire(100);
        assert!(theirs.fetched(20, granted, 10));
    }
    assert_eq!(store.calls, 5);
    // The text speaks of 450 that are left; by the code 400 are, and 80 of them are remembered.
    assert_eq!((1_000 - store.left - 5 * 20, theirs.reserved), (400, 80));

    let (ours, mut store) = (Gateway::new(1_000, 100, 1), ours::Store::of(1_000));
    let (first, fetching) = ours.fetches(20, 10);
    let others = [(); 4].map(|()| ours.waits(20, 10));
    drive(&mut store, fetching, 11);
    assert!(first.is_admitted() && others.iter().all(ours::Thread::is_admitted));
    assert_eq!(store.calls, 1);
    assert_eq!(u64::from(store.charged) - 5 * 20, ours.leases.numbers().outstanding);
    assert_eq!(store.charged, 120, "what one needed, and one batch");
}

#[test]
fn a_fetch_flag_never_cleared() {
    let (mut theirs, mut store) = (Limiter::new(Version::InLine, 10, 60), Store::of(1_000));
    assert!(theirs.alone(&mut store, 10, 0));
    assert_eq!(theirs.enter("", 10, 100), Step::AsksAlone, "nobody ever fetches again");

    let (ours, mut store) = (Gateway::new(1_000, 10, 1), ours::Store::of(1_000));
    for ticks in 0..20 {
        assert!(ours.alone(&mut store, 11, ticks));
    }
    // However a fetch ends.
    let (_, fetching) = ours.fetches(11, 30);
    fetching.fail(Failure::Timeout, 31);
    drop(ours.fetches(11, 32).1);
    assert!(ours.alone(&mut store, 11, 33));
}

#[test]
fn waiters_hung_by_an_error() {
    let mut theirs = Limiter::new(Version::InLine, 100, 60);
    assert_eq!(theirs.enter("", 20, 10), Step::Fetches(20));
    // The call throws: neither `fetched` nor a signal follows, and whoever comes waits for one.
    for _ in 0..4 {
        assert_eq!(theirs.enter("", 20, 11), Step::Waits(20));
    }

    let ends: [fn(ours::Fetch); 2] = [|fetching| fetching.fail(Failure::Io, 12), drop];
    for end in ends {
        let ours = Gateway::new(1_000, 100, 1);
        let (first, fetching) = ours.fetches(20, 10);
        let others = [(); 4].map(|()| ours.waits(20, 11));
        end(fetching);
        let failed =
            |thread: &ours::Thread| matches!(thread.heard(), Some(WaiterOutcome::Failed(_)));
        assert!(failed(&first) && others.iter().all(failed));
    }
}

#[test]
fn spurious_wake_ups() {
    let mut theirs = Limiter::new(Version::InLine, 100, 60);
    assert_eq!(theirs.enter("", 20, 10), Step::Fetches(20));
    assert_eq!(theirs.enter("", 20, 11), Step::Waits(20));
    assert!(!theirs.woken(20), "refused before the store has answered");

    let (ours, mut store) = (Gateway::new(1_000, 100, 1), ours::Store::of(1_000));
    let (_, fetching) = ours.fetches(20, 10);
    let waiting = ours.waits(20, 11);
    assert_eq!(waiting.heard(), None, "looked at before the store has answered");
    drive(&mut store, fetching, 12);
    assert!(waiting.is_admitted());
}

#[test]
fn tokens_lost_with_a_failed_fetch() {
    let mut theirs = Limiter::new(Version::Locked, 100, 60);
    theirs.reserved = 15;
    assert_eq!(theirs.enter("", 20, 10), Step::Fetches(5));
    assert!(!theirs.fetched(5, false, 11));
    assert_eq!(theirs.reserved, 0, "fifteen are gone");

    let (ours, mut store) = (Gateway::new(1_000, 15, 1), ours::Store::of(1_000));
    assert!(ours.alone(&mut store, 1, 0));
    let (_, fetching) = ours.fetches(20, 10);
    fetching.fail(Failure::Io, 11);
    assert_eq!(ours.leases.numbers().outstanding, 15);
    assert!(matches!(ours.enter(1, 15, 12), Came::Admitted(_)));
}

#[test]
fn twenty_refused_while_fifty_remain() {
    let (mut theirs, mut store) = (Limiter::new(Version::InLine, 100, 60), Store::of(50));
    assert!(!theirs.alone(&mut store, 20, 10), "a batch of 100 is not there");
    assert_eq!(store.left, 50);
    assert!(!Store::of(50).acquire(10 * 10), "ten of a queue asked for together: none passes");

    let (ours, mut store) = (Gateway::new(50, 100, 1), ours::Store::of(50));
    assert!(ours.alone(&mut store, 20, 10));

    let (ours, mut store) = (Gateway::new(50, 100, 1), ours::Store::of(50));
    let (first, fetching) = ours.fetches(10, 10);
    let mut threads: Vec<_> = (0..9).map(|_| ours.waits(10, 10)).collect();
    threads.push(first);
    drive(&mut store, fetching, 11);
    assert_eq!(threads.iter().filter(|thread| thread.is_admitted()).count(), 5);
    let refused =
        |thread: &&ours::Thread| matches!(thread.heard(), Some(WaiterOutcome::Refused { .. }));
    assert_eq!(threads.iter().filter(refused).count(), 5);
}

#[test]
fn one_keys_tokens_serve_another() {
    let (mut theirs, mut store) = (Limiter::new(Version::Aside, 100, 60), Store::of(1_000));
    assert!(theirs.alone(&mut store, 1, 10));
    assert_eq!(theirs.enter("another", 99, 11), Step::Admitted);

    let (ours, mut store) = (Gateway::new(1_000, 100, 1), ours::Store::of(1_000));
    assert!(ours.alone(&mut store, 1, 10));
    assert!(matches!(ours.enter(2, 1, 11), Came::Fetches(..)));
    assert!(matches!(ours.enter(1, 1, 11), Came::Admitted(_)));
}

#[test]
fn a_reservation_outlives_its_window() {
    // Fetched just before a window of 60 ends, it would be good until 119: with the comparison turned
    // round, and without one at all, as in the aside, these are two windows' tokens in one.
    let (mut theirs, mut store) = (Limiter::new(Version::Aside, 100, 60), Store::of(100));
    assert!(theirs.alone(&mut store, 1, 59));
    store.left = 100;
    let old = (0..200).filter(|_| theirs.enter("", 1, 61) == Step::Admitted).count();
    let new = usize::from(store.acquire(100)) * 100;
    assert_eq!(old + new, 199, "admitted in the window from 60, of 100");

    let (ours, mut store) = (Gateway::new(100, 100, 1), ours::Store::of(100));
    assert!(ours.alone(&mut store, 1, WINDOW - 3));
    assert!(
        matches!(ours.enter(1, 1, WINDOW - 2), Came::Admitted(taken) if taken.now < START + WINDOW)
    );
    let (_, fetching) = ours.fetches(1, WINDOW + 1);
    assert_eq!(fetching.order().back.tokens, 48, "they go back, and are not spent");
}

#[test]
fn the_barging_of_the_quick_aside() {
    let (mut theirs, mut store) = (Limiter::new(Version::Aside, 100, 60), Store::of(1_000_000));
    assert_eq!(theirs.enter("", 40, 10), Step::Fetches(40));
    assert_eq!(theirs.enter("", 60, 10), Step::Waits(60));
    let granted = store.acquire(100);
    assert!(theirs.fetched(40, granted, 11));
    assert_eq!(theirs.enter("", 60, 11), Step::Admitted, "it came last, and took what was kept");
    assert!(!theirs.woken(60), "refused, though the store never refused anything");

    let (ours, mut store) = (Gateway::new(1_000_000, 60, 1), ours::Store::of(1_000_000));
    let (first, fetching) = ours.fetches(40, 10);
    let second = ours.waits(60, 10);
    let third = ours.waits(60, 10);
    let reply = store.reply(&fetching, 11);
    let next = fetching.complete(&reply).expect("the third has still to be served");
    assert!(first.is_admitted() && second.is_admitted());
    assert!(ours.take(1, 1, 11).is_none(), "nobody takes while somebody waits");
    drive(&mut store, next, 12);
    assert!(third.is_admitted());
}

#[test]
fn batches_starve_other_hosts() {
    let mut store = Store::of(100);
    let mut hosts = [Limiter::new(Version::InLine, 10, 60); 20];
    let admitted = hosts.iter_mut().filter_map(|host| host.alone(&mut store, 1, 10).then_some(()));
    assert_eq!(admitted.count(), 10, "ten of a hundred are spent, and ten hosts refused");

    let mut store = ours::Store::of(100);
    let hosts: Vec<Gateway> = (0..20).map(|_| Gateway::new(100, 10, 20)).collect();
    assert!(hosts.iter().all(|host| host.alone(&mut store, 1, 10)));
}
