//! Each error of Rockset's article by name: in the article's logic, and absent in ours.

mod flawed_limiter;
mod lease_registry;

use tidegate::store::{Failure, token_lease::WaiterOutcome};

use self::{
    flawed_limiter::{Limiter, Step, Store, Version},
    lease_registry::{EntryOutcome, Gateway, START, WINDOW, drive},
};

#[test]
fn inverted_expiry() {
    let (mut flawed, mut store) = (Limiter::new(Version::Locked, 100, 60), Store::of(1_000));
    assert!(flawed.alone(&mut store, 1, 10));
    assert_ne!(flawed.enter("", 1, 11), Step::Admitted, "fresh tokens are not spent");
    assert_eq!(flawed.enter("", 1, 70), Step::Admitted, "and those that have ended are");

    let (registry, mut store) = (Gateway::new(1_000, 100, 1), lease_registry::Store::of(1_000));
    assert!(registry.alone(&mut store, 1, 10));
    assert!(matches!(registry.enter(1, 1, WINDOW - 2), EntryOutcome::Admitted(_)));
    assert!(
        matches!(registry.enter(1, 1, WINDOW - 1), EntryOutcome::Fetches(..)),
        "a ms before, for clocks of ms"
    );
}

#[test]
fn five_threads_fetch_five_batches() {
    let (mut flawed, mut store) = (Limiter::new(Version::Locked, 100, 60), Store::of(1_000));
    let fetching = (0..5).filter(|_| flawed.enter("", 20, 10) == Step::Fetches(20)).count();
    for _ in 0..fetching {
        let granted = store.acquire(100);
        assert!(flawed.fetched(20, granted, 10));
    }
    assert_eq!(store.calls, 5);
    // The article's text says that 450 are left; by its code 400 are, and 80 of them are recorded.
    assert_eq!((1_000 - store.left - 5 * 20, flawed.reserved), (400, 80));

    let (registry, mut store) = (Gateway::new(1_000, 100, 1), lease_registry::Store::of(1_000));
    let (first, fetching) = registry.fetches(20, 10);
    let others = [(); 4].map(|()| registry.waits(20, 10));
    drive(&mut store, fetching, 11);
    assert!(first.is_admitted() && others.iter().all(lease_registry::Thread::is_admitted));
    assert_eq!(store.calls, 1);
    assert_eq!(u64::from(store.charged) - 5 * 20, registry.leases.stats().outstanding);
    assert_eq!(store.charged, 120, "what one needed, and one batch");
}

#[test]
fn a_fetch_flag_never_cleared() {
    let (mut flawed, mut store) = (Limiter::new(Version::InLine, 10, 60), Store::of(1_000));
    assert!(flawed.alone(&mut store, 10, 0));
    assert_eq!(flawed.enter("", 10, 100), Step::AsksAlone, "no thread ever fetches again");

    let (registry, mut store) = (Gateway::new(1_000, 10, 1), lease_registry::Store::of(1_000));
    for ticks in 0..20 {
        assert!(registry.alone(&mut store, 11, ticks));
    }
    // For every end of a fetch.
    let (_, fetching) = registry.fetches(11, 30);
    fetching.fail(Failure::Timeout, 31);
    drop(registry.fetches(11, 32).1);
    assert!(registry.alone(&mut store, 11, 33));
}

#[test]
fn waiters_released_on_error() {
    let mut flawed = Limiter::new(Version::InLine, 100, 60);
    assert_eq!(flawed.enter("", 20, 10), Step::Fetches(20));
    // The call throws: neither `fetched` nor a signal follows, and every later thread waits.
    for _ in 0..4 {
        assert_eq!(flawed.enter("", 20, 11), Step::Waits(20));
    }

    let ends: [fn(lease_registry::Fetch); 2] = [|fetching| fetching.fail(Failure::Io, 12), drop];
    for end in ends {
        let registry = Gateway::new(1_000, 100, 1);
        let (first, fetching) = registry.fetches(20, 10);
        let others = [(); 4].map(|()| registry.waits(20, 11));
        end(fetching);
        let failed = |thread: &lease_registry::Thread| {
            matches!(thread.heard(), Some(WaiterOutcome::Failed(_)))
        };
        assert!(failed(&first) && others.iter().all(failed));
    }
}

#[test]
fn spurious_wake_ups() {
    let mut flawed = Limiter::new(Version::InLine, 100, 60);
    assert_eq!(flawed.enter("", 20, 10), Step::Fetches(20));
    assert_eq!(flawed.enter("", 20, 11), Step::Waits(20));
    assert!(!flawed.woken(20), "refused before the store has answered");

    let (registry, mut store) = (Gateway::new(1_000, 100, 1), lease_registry::Store::of(1_000));
    let (_, fetching) = registry.fetches(20, 10);
    let waiting = registry.waits(20, 11);
    assert_eq!(waiting.heard(), None, "looked at before the store has answered");
    drive(&mut store, fetching, 12);
    assert!(waiting.is_admitted());
}

#[test]
fn tokens_of_a_failed_fetch() {
    let mut flawed = Limiter::new(Version::Locked, 100, 60);
    flawed.reserved = 15;
    assert_eq!(flawed.enter("", 20, 10), Step::Fetches(5));
    assert!(!flawed.fetched(5, false, 11));
    assert_eq!(flawed.reserved, 0, "fifteen are gone");

    let (registry, mut store) = (Gateway::new(1_000, 15, 1), lease_registry::Store::of(1_000));
    assert!(registry.alone(&mut store, 1, 0));
    let (_, fetching) = registry.fetches(20, 10);
    fetching.fail(Failure::Io, 11);
    assert_eq!(registry.leases.stats().outstanding, 15);
    assert!(matches!(registry.enter(1, 15, 12), EntryOutcome::Admitted(_)));
}

#[test]
fn twenty_refused_while_fifty_remain() {
    let (mut flawed, mut store) = (Limiter::new(Version::InLine, 100, 60), Store::of(50));
    assert!(!flawed.alone(&mut store, 20, 10), "a batch of 100 is not there");
    assert_eq!(store.left, 50);
    assert!(!Store::of(50).acquire(10 * 10), "one fetch for ten waiters: none passes");

    let (registry, mut store) = (Gateway::new(50, 100, 1), lease_registry::Store::of(50));
    assert!(registry.alone(&mut store, 20, 10));

    let (registry, mut store) = (Gateway::new(50, 100, 1), lease_registry::Store::of(50));
    let (first, fetching) = registry.fetches(10, 10);
    let mut threads: Vec<_> = (0..9).map(|_| registry.waits(10, 10)).collect();
    threads.push(first);
    drive(&mut store, fetching, 11);
    assert_eq!(threads.iter().filter(|thread| thread.is_admitted()).count(), 5);
    let refused = |thread: &&lease_registry::Thread| {
        matches!(thread.heard(), Some(WaiterOutcome::Refused { .. }))
    };
    assert_eq!(threads.iter().filter(refused).count(), 5);
}

#[test]
fn one_keys_tokens_serve_another() {
    let (mut flawed, mut store) = (Limiter::new(Version::Aside, 100, 60), Store::of(1_000));
    assert!(flawed.alone(&mut store, 1, 10));
    assert_eq!(flawed.enter("another", 99, 11), Step::Admitted);

    let (registry, mut store) = (Gateway::new(1_000, 100, 1), lease_registry::Store::of(1_000));
    assert!(registry.alone(&mut store, 1, 10));
    assert!(matches!(registry.enter(2, 1, 11), EntryOutcome::Fetches(..)));
    assert!(matches!(registry.enter(1, 1, 11), EntryOutcome::Admitted(_)));
}

#[test]
fn a_reservation_outlives_its_window() {
    // Fetched just before a window of 60 ends, it would be valid until 119: with the comparison reversed,
    // or without one as in the aside, the tokens of two windows are spent in one.
    let (mut flawed, mut store) = (Limiter::new(Version::Aside, 100, 60), Store::of(100));
    assert!(flawed.alone(&mut store, 1, 59));
    store.left = 100;
    let old = (0..200).filter(|_| flawed.enter("", 1, 61) == Step::Admitted).count();
    let new = usize::from(store.acquire(100)) * 100;
    assert_eq!(old + new, 199, "admitted in the window from 60, of 100");

    let (registry, mut store) = (Gateway::new(100, 100, 1), lease_registry::Store::of(100));
    assert!(registry.alone(&mut store, 1, WINDOW - 3));
    assert!(
        matches!(registry.enter(1, 1, WINDOW - 2), EntryOutcome::Admitted(taken) if taken.now < START + WINDOW)
    );
    let (_, fetching) = registry.fetches(1, WINDOW + 1);
    assert_eq!(fetching.demand().returned.tokens, 48, "they go back, and are not spent");
}

#[test]
fn barging_past_waiters() {
    let (mut flawed, mut store) = (Limiter::new(Version::Aside, 100, 60), Store::of(1_000_000));
    assert_eq!(flawed.enter("", 40, 10), Step::Fetches(40));
    assert_eq!(flawed.enter("", 60, 10), Step::Waits(60));
    let granted = store.acquire(100);
    assert!(flawed.fetched(40, granted, 11));
    assert_eq!(flawed.enter("", 60, 11), Step::Admitted, "it came last, and took what was kept");
    assert!(!flawed.woken(60), "refused, though the store never refused anything");

    let (registry, mut store) =
        (Gateway::new(1_000_000, 60, 1), lease_registry::Store::of(1_000_000));
    let (first, fetching) = registry.fetches(40, 10);
    let second = registry.waits(60, 10);
    let third = registry.waits(60, 10);
    let reply = store.reply(&fetching, 11);
    let next = fetching.complete(&reply).expect("the third has still to be served");
    assert!(first.is_admitted() && second.is_admitted());
    assert!(registry.take(1, 1, 11).is_none(), "no request bypasses the waiters");
    drive(&mut store, next, 12);
    assert!(third.is_admitted());
}

#[test]
fn batches_starve_other_hosts() {
    let mut store = Store::of(100);
    let mut hosts = [Limiter::new(Version::InLine, 10, 60); 20];
    let admitted = hosts.iter_mut().filter_map(|host| host.alone(&mut store, 1, 10).then_some(()));
    assert_eq!(admitted.count(), 10, "ten of a hundred are spent, and ten hosts refused");

    let mut store = lease_registry::Store::of(100);
    let hosts: Vec<Gateway> = (0..20).map(|_| Gateway::new(100, 10, 20)).collect();
    assert!(hosts.iter().all(|host| host.alone(&mut store, 1, 10)));
}
