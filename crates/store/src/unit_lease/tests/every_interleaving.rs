//! Threads that use one lease, in every order in which they can take its lock (loom):
//! `cargo test -p tidegate-store --features loom --lib every_interleaving`.

use std::sync::atomic::{AtomicBool, Ordering};

use loom::thread;

use super::*;

fn check(model: impl Fn() + Send + Sync + 'static) {
    loom::model(model);
}

fn join<T>(handle: thread::JoinHandle<T>) -> T {
    handle.join().unwrap()
}

/// A gateway with one lease.
#[derive(Clone)]
struct Gateway {
    lease: TestLease,
    in_flight: Arc<AtomicBool>,
}

/// The way in which a request got its units.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum CallOutcome {
    Taken,
    Served,
    Waiting,
    Fetched,
    Unavailable,
}

impl Gateway {
    fn new() -> Self {
        let registry = Arc::new(LeaseRegistry::with_capacity(1));
        let lease = lease(&registry, &limit(LeaseSize::Off), KEY);
        Self { lease, in_flight: Arc::default() }
    }

    /// A gateway that has `units` at 1 ms, after one was spent.
    fn stocked(units: u64) -> Self {
        let gateway = Self::new();
        let first = expect_fetch(gateway.lease.join(TestWaiter::of(1), 1));
        assert!(first.complete(&reply(1 + units, 90, 1)).is_none());
        gateway
    }

    /// Begins a fetch. Panics if one is in flight.
    fn begin_fetch(&self) {
        assert!(!self.in_flight.swap(true, Ordering::Relaxed), "two fetches in flight");
    }

    fn end_fetch(&self) {
        self.in_flight.store(false, Ordering::Relaxed);
    }

    /// Completes fetches with the needed units and `spare` more, until no request waits.
    fn complete_all(&self, first: LeaseFetch<TestWaiter>, spare: u64) {
        let mut next = Some(first);
        while let Some(fetch) = next {
            let reply = reply(fetch.demand().needed + spare, 50, 1);
            self.end_fetch();
            next = fetch.complete(&reply);
            if next.is_some() {
                self.begin_fetch();
            }
        }
    }

    /// Makes a request, and the fetches that it begins.
    fn call(&self, waiter: &TestWaiter) -> CallOutcome {
        if self.lease.take(waiter.cost, 1).is_some() {
            return CallOutcome::Taken;
        }
        match self.lease.join(waiter.clone(), 1) {
            JoinOutcome::Served => CallOutcome::Served,
            JoinOutcome::Waiting => CallOutcome::Waiting,
            JoinOutcome::Unavailable(_) => CallOutcome::Unavailable,
            JoinOutcome::Fetch(fetch) => {
                self.begin_fetch();
                self.complete_all(fetch, 1);
                CallOutcome::Fetched
            }
        }
    }

    fn stats(&self) -> LeaseStats {
        self.lease.registry.stats()
    }

    /// Makes two requests while `end` ends the fetch of a first one. Checks that each has one
    /// outcome.
    fn check_requests_during(end: fn(&Self, LeaseFetch<TestWaiter>)) {
        let gateway = Self::new();
        let first = TestWaiter::of(1);
        let fetch = expect_fetch(gateway.lease.join(first.clone(), 1));
        gateway.begin_fetch();
        let others = [1, 2].map(|cost| {
            let gateway = gateway.clone();
            thread::spawn(move || {
                let waiter = TestWaiter::of(cost);
                let outcome = gateway.call(&waiter);
                (waiter, outcome)
            })
        });
        end(&gateway, fetch);
        let mut spent = u64::from(first.is_granted());
        assert!(first.outcome().is_some(), "the first request still waits");
        for (waiter, outcome) in others.map(join) {
            assert_eq!(waiter.outcome().is_some(), outcome != CallOutcome::Taken, "{outcome:?}");
            let served = outcome == CallOutcome::Taken || waiter.is_granted();
            spent += if served { u64::from(waiter.cost) } else { 0 };
        }
        let stats = gateway.stats();
        assert_eq!(stats.granted, spent + stats.outstanding);
    }
}

#[test]
fn no_unit_is_taken_twice() {
    check(|| {
        let gateway = Gateway::stocked(3);
        let takers = [2, 1, 2].map(|cost| {
            let gateway = gateway.clone();
            thread::spawn(move || gateway.lease.take(cost, 1).map_or(0, |_| cost))
        });
        let taken: u64 = takers.map(join).iter().sum();
        assert_eq!(gateway.stats().outstanding, u64::from(3 - taken));
        assert!(taken >= 2, "the first taker always fits");
    });
}

#[test]
fn requests_during_a_reply_have_one_outcome() {
    check(|| Gateway::check_requests_during(|gateway, fetch| gateway.complete_all(fetch, 1)));
}

#[test]
fn requests_during_a_failure_have_one_outcome() {
    check(|| {
        Gateway::check_requests_during(|gateway, fetch| {
            gateway.end_fetch();
            fetch.fail(RedisFailure::Timeout, MonotonicTime::from_ms(1));
        });
    });
}

#[test]
fn requests_during_a_dropped_fetch_have_one_outcome() {
    check(|| {
        Gateway::check_requests_during(|gateway, fetch| {
            gateway.end_fetch();
            drop(fetch);
        });
    });
}

#[test]
fn remaining_combines_the_lease_and_the_store_of_one_time() {
    check(|| {
        let gateway = Gateway::stocked(1);
        let taker = thread::spawn({
            let gateway = gateway.clone();
            move || gateway.lease.take(1, 1)
        });
        if let JoinOutcome::Fetch(fetch) = gateway.lease.join(TestWaiter::of(2), 1) {
            assert!(fetch.complete(&reply(7, 60, 1)).is_none());
        }
        let Some(taken) = join(taker) else { return };
        // The store's units plus the lease's: 90 + 0 before the reply; 60 + (7 - 2 - 1) after it,
        // and 1 more if the stocked unit is still in the lease.
        assert!([90, 64, 65].contains(&taken.remaining), "{}", taken.remaining);
    });
}

#[test]
fn a_refund_during_a_fetch_is_kept_once() {
    check(|| {
        let gateway = Gateway::stocked(0);
        let refunder = thread::spawn({
            let gateway = gateway.clone();
            move || gateway.lease.refund(START + ms(1), 1, 1)
        });
        let second = TestWaiter::of(1);
        let outcome = gateway.call(&second);
        let refunded = join(refunder);
        let spent = 1 + u64::from(outcome == CallOutcome::Taken || second.is_granted())
            - u64::from(refunded);
        let stats = gateway.stats();
        assert_eq!(stats.granted, spent + stats.outstanding);
    });
}

#[test]
fn removing_a_lease_loses_no_unit() {
    check(|| {
        let gateway = Gateway::stocked(1);
        let user = thread::spawn({
            let gateway = gateway.clone();
            move || {
                let waiter = TestWaiter::of(1);
                let outcome = gateway.call(&waiter);
                (outcome, gateway.lease.refund(START + ms(1), 1, 1))
            }
        });
        let (registry, mut out) = (&gateway.lease.registry, Vec::new());
        registry.sweep(MonotonicTime::from_ms(1) + REMOVAL_TIMEOUT, |_| true, &mut out);
        let (outcome, refunded) = join(user);
        registry.drain(&mut out);
        let back: u64 = out.iter().map(|unspent| u64::from(unspent.to_return.units)).sum();
        let stats = registry.stats();
        assert_eq!((stats.entries, stats.outstanding, stats.returned), (0, 0, back));
        // Both requests spent one unit, and at most one was refunded.
        assert_eq!(stats.granted, 2 - u64::from(refunded) + back, "{outcome:?} {refunded}");
    });
}
