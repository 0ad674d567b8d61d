//! What threads do to each other, in every order that the memory model allows (loom).

use std::sync::atomic::{AtomicBool, Ordering};

use loom::thread;

use super::*;
use crate::store::reservation::{
    atomics::{Atomics, Cell, Lock},
    told::Board,
    word::{Tokens, Word},
};

/// The model checker's parts. What was told has six cells, each of which may be read old or new: where
/// that is not the question, `LOOKS` is 0, and it is read under the lock.
#[derive(Clone, Copy)]
struct Checked<const LOOKS: usize>;

impl<const LOOKS: usize> Atomics for Checked<LOOKS> {
    type Cell = loom::sync::atomic::AtomicU64;
    type Lock<T: Send> = loom::sync::Mutex<T>;
    const LOOKS: usize = LOOKS;
}

impl Cell for loom::sync::atomic::AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    fn exchange(&self, current: u64, value: u64, success: Ordering) -> Result<u64, u64> {
        self.compare_exchange_weak(current, value, success, Ordering::Relaxed)
    }
}

impl<T: Send> Lock<T> for loom::sync::Mutex<T> {
    fn new(value: T) -> Self {
        Self::new(value)
    }

    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(&mut self.lock().unwrap())
    }
}

/// Tries all orders with so few switches by force: more take minutes.
fn check_with(switches: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    check_with(2, model);
}

fn joined<T>(handle: thread::JoinHandle<T>) -> T {
    handle.join().unwrap()
}

fn filled(deadline: u64, count: u32) -> Arc<Word<Checked<0>>> {
    let word = Word::default();
    word.publish(Tokens { deadline, count });
    Arc::new(word)
}

#[test]
fn no_token_is_taken_twice() {
    check(|| {
        let word = filled(10, 3);
        let takers = [2, 1, 2].map(|cost| {
            let word = word.clone();
            thread::spawn(move || word.take(cost, 9).map_or(0, |_| cost))
        });
        let taken: u32 = takers.map(joined).iter().sum();
        assert_eq!(word.claim().count, 3 - taken);
        assert!(taken >= 2, "one of two fits, whoever comes first");
    });
}

#[test]
fn what_is_claimed_is_not_taken() {
    check(|| {
        let word = filled(10, 2);
        let taker = thread::spawn({
            let word = word.clone();
            move || [9, 15].map(|ticks| word.take(1, ticks))
        });
        let claimed = word.claim().count;
        word.publish(Tokens { deadline: 20, count: 5 });
        let [early, late] = joined(taker);
        let old = early.filter(|held| held.deadline == 10);
        assert_eq!(claimed, 2 - u32::from(old.is_some()));
        assert!(late.is_none_or(|held| held.deadline == 20), "the first ended at 10");
        let new = [early, late].iter().flatten().filter(|held| held.deadline == 20).count();
        assert_eq!(word.claim().count, 5 - new as u32);
    });
}

#[test]
fn what_is_given_back_does_not_outlive_its_sub_window() {
    check(|| {
        let word = filled(10, 0);
        let giver = thread::spawn({
            let word = word.clone();
            move || word.give(10, 1)
        });
        let taker = thread::spawn({
            let word = word.clone();
            move || word.take(1, 12).is_some()
        });
        let claimed = word.claim().count;
        word.publish(Tokens { deadline: 20, count: 0 });
        let given = joined(giver);
        assert!(!joined(taker), "a token that ended at 10 was spent at 12");
        assert_eq!(claimed, u32::from(given));
        assert_eq!(word.claim(), Tokens { deadline: 20, count: 0 });
    });
}

/// All parts are those of one reply.
#[test]
fn what_was_told_is_read_from_one_reply() {
    let told =
        |n: u64| Told { end: n, deadline: n, remaining: n, reset_at: n, charged_at: n, offset: n };
    check(move || {
        let board = Arc::new(Board::<Checked<1>>::default());
        let reader = thread::spawn({
            let board = board.clone();
            move || {
                let Some((version, read)) = board.read() else { return };
                assert_eq!(read, told(version / 2), "of two replies");
            }
        });
        board.write(&told(1));
        joined(reader);
    });
}

/// A gateway of one entry in the model.
#[derive(Clone)]
struct Gateway<const LOOKS: usize> {
    book: Arc<Book<Caller, Checked<LOOKS>>>,
    entry: Arc<Entry<Caller, Checked<LOOKS>>>,
    in_flight: Arc<AtomicBool>,
}

/// What a caller came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Came {
    Taken,
    Served,
    Waiting,
    Fetched,
    Gone,
}

impl<const LOOKS: usize> Gateway<LOOKS> {
    fn new() -> Self {
        let book = Arc::new(Book::with_room(1));
        let entry = book.entry(&limit(Reserve::Off), KEY).unwrap();
        Self { book, entry, in_flight: Arc::default() }
    }

    /// One in flight at a time, and never two.
    fn begins(&self) {
        assert!(!self.in_flight.swap(true, Ordering::Relaxed), "two fetches in flight");
    }

    fn ends(&self) {
        self.in_flight.store(false, Ordering::Relaxed);
    }

    /// Grants all that is asked for and `spare` tokens, until nobody waits.
    fn drive(&self, fetching: Fetching<Caller, Checked<LOOKS>>, spare: u32) {
        let mut next = Some(fetching);
        while let Some(fetching) = next {
            let reply = reply(fetching.order().needed + spare, 50, 1);
            self.ends();
            next = fetching.complete(&reply);
            if next.is_some() {
                self.begins();
            }
        }
    }

    /// A caller comes, and drives the fetch that it has to.
    fn call(&self, caller: &Caller) -> Came {
        if self.entry.take(caller.cost, 1).is_some() {
            return Came::Taken;
        }
        match self.entry.join(caller.clone(), 1) {
            Joined::Served => Came::Served,
            Joined::Waiting => Came::Waiting,
            Joined::Gone(_) => Came::Gone,
            Joined::Fetch(fetching) => {
                self.begins();
                self.drive(fetching, 1);
                Came::Fetched
            }
        }
    }

    /// Two callers come while `end` ends a fetch that a first caller began; all have been told, once.
    fn meets(end: fn(&Self, Fetching<Caller, Checked<LOOKS>>)) {
        let gateway = Self::new();
        let first = Caller::of(1);
        let fetching = fetch(gateway.entry.join(first.clone(), 1));
        gateway.begins();
        let others = [1, 2].map(|cost| {
            let gateway = gateway.clone();
            thread::spawn(move || {
                let caller = Caller::of(cost);
                let came = gateway.call(&caller);
                (caller, came)
            })
        });
        end(&gateway, fetching);
        let mut spent = u64::from(first.is_granted());
        assert!(first.heard().is_some(), "the first hangs");
        for (caller, came) in others.map(joined) {
            assert_eq!(caller.heard().is_some(), came != Came::Taken, "{came:?}");
            let served = came == Came::Taken || caller.is_granted();
            spent += if served { u64::from(caller.cost) } else { 0 };
        }
        let numbers = gateway.book.numbers();
        assert_eq!(numbers.granted, spent + numbers.outstanding);
    }
}

#[test]
fn callers_meet_a_reply() {
    check(|| Gateway::<0>::meets(|gateway, fetching| gateway.drive(fetching, 1)));
}

#[test]
fn callers_meet_a_failure() {
    check(|| {
        Gateway::<0>::meets(|gateway, fetching| {
            gateway.ends();
            fetching.fail(Failure::Timeout, 1);
        });
    });
}

#[test]
fn callers_meet_a_fetch_that_is_dropped() {
    check(|| {
        Gateway::<0>::meets(|gateway, fetching| {
            gateway.ends();
            drop(fetching);
        });
    });
}

/// What a caller is told is left was left at one time: here and at the store, or at the store alone.
#[test]
fn what_is_left_here_is_told_with_the_reply_that_it_came_with() {
    check_with(1, || {
        let gateway = Gateway::<1>::new();
        let first = fetch(gateway.entry.join(Caller::of(1), 1));
        assert!(first.complete(&reply(2, 90, 1)).is_none());
        let taker = thread::spawn({
            let gateway = gateway.clone();
            move || gateway.entry.take(1, 1)
        });
        let second = gateway.entry.join(Caller::of(2), 1);
        if let Joined::Fetch(fetching) = second {
            assert!(fetching.complete(&reply(7, 60, 1)).is_none());
        }
        let Some(taken) = joined(taker) else { return };
        // 90 and none here; 60 with five or six here, or what the reply alone told.
        assert!(
            [90, 60].contains(&taken.remaining) || (64..=66).contains(&taken.remaining),
            "{}",
            taken.remaining
        );
        let numbers = gateway.book.numbers();
        assert!(numbers.granted > numbers.outstanding);
    });
}

/// A token that comes back while the next fetch is made is spent or kept, once.
#[test]
fn what_comes_back_during_a_fetch_is_kept_once() {
    check(|| {
        let gateway = Gateway::<1>::new();
        let first = fetch(gateway.entry.join(Caller::of(1), 1));
        assert!(first.complete(&reply(1, 50, 1)).is_none());
        let giver = thread::spawn({
            let gateway = gateway.clone();
            move || gateway.entry.give_back(START + 1, 1, 1)
        });
        let second = Caller::of(1);
        let came = gateway.call(&second);
        let given = joined(giver);
        let spent = 1 + u64::from(came == Came::Taken || second.is_granted()) - u64::from(given);
        let numbers = gateway.book.numbers();
        assert_eq!(numbers.granted, spent + numbers.outstanding);
    });
}

/// A desk may hold an entry that leaves the book: whatever the order, no token is left in it.
#[test]
fn an_entry_that_has_left_gets_no_tokens() {
    check(|| {
        let gateway = Gateway::<0>::new();
        let first = fetch(gateway.entry.join(Caller::of(1), 1));
        assert!(first.complete(&reply(2, 50, 1)).is_none());
        let user = thread::spawn({
            let gateway = gateway.clone();
            move || {
                let caller = Caller::of(1);
                let came = gateway.call(&caller);
                let given = gateway.entry.give_back(START + 1, 1, 1);
                (came, given)
            }
        });
        let mut out = Vec::new();
        gateway.book.sweep(1, |_| true, &mut out);
        gateway.book.sweep(1 + RETIRE, |_| true, &mut out);
        let (came, given) = joined(user);
        gateway.book.drain(&mut out);
        let back: u64 = out.iter().map(|give| u64::from(give.back.tokens)).sum();
        let numbers = gateway.book.numbers();
        assert_eq!((numbers.entries, numbers.outstanding), (0, 0));
        assert_eq!(gateway.entry.outstanding(), 0, "the desk still holds it");
        assert_eq!(numbers.given_back, back);
        // The first spent one, the second one, and one of them gave one back.
        let spent = 1 + u64::from(came != Came::Gone) - u64::from(given);
        assert_eq!(numbers.granted, spent + back, "{came:?} {given}");
    });
}
