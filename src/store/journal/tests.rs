//! What the journal tells, and how much it holds.

use proptest::prelude::*;

use super::*;
use crate::limit::{OnFailure, Quota, Reserve, State};

/// The store's time at tick 0.
const NOW: Millis = 1_700_000_000_000;

fn limit(algorithm: Algorithm) -> Limit {
    let resolution = if algorithm == Algorithm::SlidingWindow { 6 } else { 1 };
    Limit {
        name: "lost".into(),
        fingerprint: 7,
        algorithm,
        quota: Quota::new(100, 6_000, resolution),
        cost: 1,
        on_failure: OnFailure::Local,
        reserve: Reserve::Off,
        enforce: true,
        index: 0,
    }
}

fn charged(journal: &Journal, limit: &Limit, key: u128, cost: u32, ticks: u64) {
    Noting { journal, ticks }.charged(&Charge { limit, key: Key(key), cost }, 1);
}

/// The `n`-th of a row of keys that are as random as hashed ones.
fn spread(n: u64) -> u128 {
    u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

fn all_of(journal: &Journal, ticks: u64) -> Vec<Caller> {
    let (callers, others) = journal.take(ticks, |_| true);
    assert!(!others, "all were wanted");
    callers
}

fn told(journal: &Journal, ticks: u64) -> Vec<(u128, Millis, u32)> {
    let mut all = Vec::new();
    loop {
        let callers = all_of(journal, ticks);
        if callers.is_empty() {
            all.sort_unstable();
            return all;
        }
        for caller in callers {
            let told = caller.told(ticks, NOW + ticks);
            all.extend(told.map(|(at, cost)| (caller.key.0, at, cost)));
        }
    }
}

#[test]
fn charges_of_one_part_of_a_window_are_one_sum() {
    let (journal, of) = (Journal::default(), limit(Algorithm::SlidingLog));
    for (ticks, cost) in [(1_500, 2), (2_200, 3), (2_300, 4)] {
        charged(&journal, &of, 1, cost, ticks);
    }
    charged(&journal, &of, 2, 9, 1_000);
    assert_eq!(journal.len(), 2);
    assert_eq!(told(&journal, 7_200), [(1, NOW + 2_200, 5), (1, NOW + 2_300, 4)]);
    assert_eq!((journal.len(), told(&journal, 7_200)), (0, vec![]), "told once");
}

#[test]
fn what_was_given_back_here_is_not_told() {
    let (journal, of) = (Journal::default(), limit(Algorithm::SlidingWindow));
    charged(&journal, &of, 1, 5, 1_000);
    charged(&journal, &of, 1, 5, 3_000);
    let noting = Noting { journal: &journal, ticks: 4_000 };
    let settle = |change| noting.settled(&Settlement { limit: &of, key: Key(1), change }, NOW, 1);
    settle(Change::Refund { charged_at: NOW - 1_000, cost: 2 });
    settle(Change::Refund { charged_at: NOW - 3_000, cost: 99 });
    settle(Change::Overdraw { cost: 7 });
    assert_eq!(told(&journal, 4_000), [(1, NOW + 3_000, 3), (1, NOW + 4_000, 7)]);
}

#[test]
fn slots_and_leases_are_nothing_to_tell() {
    let journal = Journal::default();
    for algorithm in [Algorithm::LeakyBucket, Algorithm::Concurrency] {
        charged(&journal, &limit(algorithm), 1, 5, 1_000);
    }
    assert_eq!(journal.len(), 0);
}

#[test]
fn a_bucket_tells_what_it_owes_of_its_share() {
    let (journal, of) = (Journal::default(), limit(Algorithm::TokenBucket));
    let noting = |ticks| Noting { journal: &journal, ticks };
    // A share of 50, and so 50 back in 6 s.
    noting(0).charged(&Charge { limit: &of, key: Key(1), cost: 50 }, 2);
    for second in 1..60 {
        noting(second * 120).charged(&Charge { limit: &of, key: Key(1), cost: 1 }, 2);
    }
    assert_eq!(told(&journal, 59 * 120 + 600), [(1, NOW + 59 * 120 + 600, 45)]);
}

#[test]
fn what_is_past_and_who_was_reset_are_forgotten() {
    let (journal, of) = (Journal::default(), limit(Algorithm::FixedWindow));
    charged(&journal, &of, 1, 5, 1_000);
    charged(&journal, &of, 2, 5, 2_000);
    charged(&journal, &of, 3, 5, 2_000);
    journal.forget(&of, Key(3));
    assert_eq!(journal.len(), 2);
    journal.expire(7_000);
    assert_eq!(journal.len(), 1);
    assert_eq!(told(&journal, 7_000), [(2, NOW + 2_000, 5)]);
}

#[test]
fn it_is_bounded_and_counts_what_it_drops() {
    let (journal, of) = (Journal::default(), limit(Algorithm::SlidingWindow));
    let flood = 2 * Journal::CAPACITY as u64;
    for n in 0..flood {
        charged(&journal, &of, spread(n), 1, 0);
    }
    assert!(journal.len() <= Journal::CAPACITY);
    assert_eq!(journal.len() as u64 + journal.told().1, flood);
    let full = journal.len();
    for n in 0..100 {
        charged(&journal, &of, spread(flood + n), 1, 100_000);
    }
    assert!(journal.len() < full, "what is past made room");
    for ticks in 0..60_000 {
        charged(&journal, &of, 1, 1, 100_000 + ticks);
    }
    let callers = all_of(&journal, 160_000);
    assert!(callers.iter().all(|caller| caller.len() < 20));
    assert!(journal.shards.iter().all(|shard| shard.lock().limits.len() <= 1), "one copy");
}

#[test]
fn what_was_not_told_goes_back_and_is_added_to_what_is_new() {
    for algorithm in [Algorithm::SlidingWindow, Algorithm::TokenBucket, Algorithm::FixedWindow] {
        let (journal, of) = (Journal::default(), limit(algorithm));
        charged(&journal, &of, 1, 5, 1_000);
        let taken = all_of(&journal, 1_000);
        let raised = Limit { quota: Quota { limit: 200, ..of.quota }, ..of.clone() };
        charged(&journal, &raised, 1, 2, 1_000);
        journal.put_back(taken, 1_000);
        assert_eq!(told(&journal, 1_000), [(1, NOW + 1_000, 7)], "{algorithm:?}");
    }
}

#[test]
fn who_is_not_wanted_stays() {
    let (journal, of) = (Journal::default(), limit(Algorithm::SlidingWindow));
    for key in 1..=10 {
        charged(&journal, &of, key, 5, 1_000);
    }
    let (taken, others) = journal.take(1_000, |Key(key)| key <= 4);
    assert_eq!((taken.len(), others, journal.len(), journal.untold()), (4, true, 6, 10));
    journal.heard(4);
    assert_eq!(told(&journal, 1_000).len(), 6);
}

#[test]
fn who_is_taken_and_put_back_is_untold_all_the_time() {
    const CALLERS: usize = 4_000;
    let (journal, of) = (Journal::default(), limit(Algorithm::SlidingWindow));
    for n in 0..CALLERS as u64 {
        charged(&journal, &of, spread(n), 5, 1_000);
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                let taken = all_of(&journal, 1_000);
                journal.put_back(taken, 1_000);
            }
            over.store(true, Ordering::Relaxed);
        });
        while !over.load(Ordering::Relaxed) {
            assert_eq!(journal.untold(), CALLERS);
        }
    });
    assert_eq!((journal.untold(), journal.len()), (CALLERS, CALLERS));
}

proptest! {
    /// Two gateways admit by their shares alone, then both tell a store that knows nothing: it counts
    /// no less than it would have counted of both.
    #[test]
    fn nothing_is_lost_of_what_gateways_admitted_alone(
        charges in prop::collection::vec((0_u64..900, 0_usize..2, 1_u32..9), 1..80),
        later in 0_u64..3_000,
        algorithm in prop::sample::select(vec![
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket,
        ]),
    ) {
        let of = limit(algorithm);
        let share = Quota { limit: of.quota.limit / 2, ..of.quota };
        let journals = [Journal::default(), Journal::default()];
        let mut local = [State::fresh(algorithm), State::fresh(algorithm)];
        let (mut all, mut ticks) = (State::fresh(algorithm), 0);
        for (wait, at, cost) in charges {
            ticks += wait;
            if local[at].admit(&share, NOW + ticks, cost).admitted {
                all.charge(&of.quota, NOW + ticks, cost);
                let charge = Charge { limit: &of, key: Key(1), cost };
                Noting { journal: &journals[at], ticks }.charged(&charge, 2);
            }
        }
        ticks += later;
        let mut merged = State::fresh(algorithm);
        for journal in &journals {
            for (_, charged_at, cost) in told(journal, ticks) {
                merged.settle(&of.quota, NOW + ticks, Change::Late { charged_at, cost });
            }
        }
        let used = |state: &mut State| state.decide(&of.quota, NOW + ticks, 0).used;
        prop_assert!(used(&mut merged) >= used(&mut all));
    }
}
