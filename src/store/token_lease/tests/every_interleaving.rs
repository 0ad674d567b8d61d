//! What threads do to one lease, in every order in which they can take its lock (loom):
//! `cargo test --features loom --lib every_interleaving`.

use std::sync::atomic::{AtomicBool, Ordering};

use loom::thread;

use super::*;

fn check(model: impl Fn() + Send + Sync + 'static) {
    loom::model(model);
}

fn joined<T>(handle: thread::JoinHandle<T>) -> T {
    handle.join().unwrap()
}

/// A gateway of one lease in the model.
#[derive(Clone)]
struct Gateway {
    lease: Handle,
    in_flight: Arc<AtomicBool>,
}

/// What a caller came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Came {
    Taken,
    Served,
    Waiting,
    Fetched,
    Unavailable,
}

impl Gateway {
    fn new() -> Self {
        let registry = Arc::new(LeaseRegistry::with_room(1));
        let lease = lease(&registry, &limit(Reserve::Off), KEY);
        Self { lease, in_flight: Arc::default() }
    }

    /// With `tokens` at tick 1, and one that was spent.
    fn stocked(tokens: u32) -> Self {
        let gateway = Self::new();
        let first = fetch(gateway.lease.join(Caller::of(1), 1));
        assert!(first.complete(&reply(1 + tokens, 90, 1)).is_none());
        gateway
    }

    /// One in flight at a time, and never two.
    fn begins(&self) {
        assert!(!self.in_flight.swap(true, Ordering::Relaxed), "two fetches in flight");
    }

    fn ends(&self) {
        self.in_flight.store(false, Ordering::Relaxed);
    }

    /// Grants all that is asked for and `spare` tokens, until no request waits.
    fn drive(&self, first: Fetch<Caller>, spare: u32) {
        let mut next = Some(first);
        while let Some(fetch) = next {
            let reply = reply(fetch.order().needed + spare, 50, 1);
            self.ends();
            next = fetch.complete(&reply);
            if next.is_some() {
                self.begins();
            }
        }
    }

    /// A caller comes, and drives the fetch that it has to.
    fn call(&self, caller: &Caller) -> Came {
        if self.lease.take(caller.cost, 1).is_some() {
            return Came::Taken;
        }
        match self.lease.join(caller.clone(), 1) {
            Joined::Served => Came::Served,
            Joined::Waiting => Came::Waiting,
            Joined::Unavailable(_) => Came::Unavailable,
            Joined::Fetch(fetch) => {
                self.begins();
                self.drive(fetch, 1);
                Came::Fetched
            }
        }
    }

    fn numbers(&self) -> Numbers {
        self.lease.registry.numbers()
    }

    /// Two callers come while `end` ends a fetch that a first caller began; all have an outcome, once.
    fn meets(end: fn(&Self, Fetch<Caller>)) {
        let gateway = Self::new();
        let first = Caller::of(1);
        let fetch = fetch(gateway.lease.join(first.clone(), 1));
        gateway.begins();
        let others = [1, 2].map(|cost| {
            let gateway = gateway.clone();
            thread::spawn(move || {
                let caller = Caller::of(cost);
                let came = gateway.call(&caller);
                (caller, came)
            })
        });
        end(&gateway, fetch);
        let mut spent = u64::from(first.is_granted());
        assert!(first.heard().is_some(), "the first hangs");
        for (caller, came) in others.map(joined) {
            assert_eq!(caller.heard().is_some(), came != Came::Taken, "{came:?}");
            let served = came == Came::Taken || caller.is_granted();
            spent += if served { u64::from(caller.cost) } else { 0 };
        }
        let numbers = gateway.numbers();
        assert_eq!(numbers.granted, spent + numbers.outstanding);
    }
}

#[test]
fn no_token_is_taken_twice() {
    check(|| {
        let gateway = Gateway::stocked(3);
        let takers = [2, 1, 2].map(|cost| {
            let gateway = gateway.clone();
            thread::spawn(move || gateway.lease.take(cost, 1).map_or(0, |_| cost))
        });
        let taken: u32 = takers.map(joined).iter().sum();
        assert_eq!(gateway.numbers().outstanding, u64::from(3 - taken));
        assert!(taken >= 2, "one of two fits, whichever comes first");
    });
}

#[test]
fn callers_meet_a_reply() {
    check(|| Gateway::meets(|gateway, fetch| gateway.drive(fetch, 1)));
}

#[test]
fn callers_meet_a_failure() {
    check(|| {
        Gateway::meets(|gateway, fetch| {
            gateway.ends();
            fetch.fail(Failure::Timeout, 1);
        });
    });
}

#[test]
fn callers_meet_a_fetch_that_is_dropped() {
    check(|| {
        Gateway::meets(|gateway, fetch| {
            gateway.ends();
            drop(fetch);
        });
    });
}

/// What a caller is told is left was left at one time, here and at the store.
#[test]
fn what_is_left_here_is_told_with_the_reply_that_it_came_with() {
    check(|| {
        let gateway = Gateway::stocked(1);
        let taker = thread::spawn({
            let gateway = gateway.clone();
            move || gateway.lease.take(1, 1)
        });
        if let Joined::Fetch(fetch) = gateway.lease.join(Caller::of(2), 1) {
            assert!(fetch.complete(&reply(7, 60, 1)).is_none());
        }
        let Some(taken) = joined(taker) else { return };
        // 90 and none here; 60 with 5 here after 2 were spent of 7, with or without the one before.
        assert!([90, 64, 65].contains(&taken.remaining), "{}", taken.remaining);
    });
}

/// A token that comes back while the next fetch is made is spent or kept, once.
#[test]
fn what_comes_back_during_a_fetch_is_kept_once() {
    check(|| {
        let gateway = Gateway::stocked(0);
        let giver = thread::spawn({
            let gateway = gateway.clone();
            move || gateway.lease.give_back(START + 1, 1, 1)
        });
        let second = Caller::of(1);
        let came = gateway.call(&second);
        let given = joined(giver);
        let spent = 1 + u64::from(came == Came::Taken || second.is_granted()) - u64::from(given);
        let numbers = gateway.numbers();
        assert_eq!(numbers.granted, spent + numbers.outstanding);
    });
}

/// A lease is removed while callers use it: whatever the order, no token is lost.
#[test]
fn a_lease_that_is_removed_leaves_no_tokens() {
    check(|| {
        let gateway = Gateway::stocked(1);
        let user = thread::spawn({
            let gateway = gateway.clone();
            move || {
                let caller = Caller::of(1);
                let came = gateway.call(&caller);
                (came, gateway.lease.give_back(START + 1, 1, 1))
            }
        });
        let (registry, mut out) = (&gateway.lease.registry, Vec::new());
        registry.sweep(1 + RETIRE, |_| true, &mut out);
        let (came, given) = joined(user);
        registry.drain(&mut out);
        let back: u64 = out.iter().map(|give| u64::from(give.back.tokens)).sum();
        let numbers = registry.numbers();
        assert_eq!((numbers.entries, numbers.outstanding, numbers.given_back), (0, 0, back));
        // The first spent one, the second one, and one of them gave one back.
        assert_eq!(numbers.granted, 2 - u64::from(given) + back, "{came:?} {given}");
    });
}
