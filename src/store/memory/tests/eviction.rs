//! Which records make room in a full store.

use super::*;

/// Victims of a flood, in a store of [`ROOM`].
const CALLERS: u64 = 20;

const ROOM: usize = 2_000;

/// So much later the flood begins.
const LATER: Millis = 5_000;

fn caller(n: u64) -> u128 {
    key(1_000_000 + n)
}

/// A store that is full of records of `flood` requests, each by another key, of `cost` each; before that,
/// callers have used so much of `limit`, one by one.
fn flooded(limit: &Limit, used: u32, flood: &Limit, cost: u32, requests: u64) -> Memory {
    let store = Memory::new(ROOM);
    for n in 0..CALLERS {
        for _ in 0..used {
            assert!(store.charge(&[charge(limit, caller(n))], NOW).admitted);
        }
    }
    for n in 0..requests {
        let charge = Charge { cost, ..charge(flood, key(n)) };
        assert!(store.charge(&[charge], NOW + LATER).admitted);
        assert!(store.len() <= ROOM);
    }
    store
}

/// How many of the callers still have their records.
fn spared(store: &Memory, limit: &Limit, used: u32) -> usize {
    let look =
        |n| store.look(&[charge(limit, caller(n))], NOW + LATER).decided(0).unwrap().decision.used;
    (0..CALLERS).filter(|&n| look(n) == u64::from(used)).count()
}

#[test]
fn a_flood_of_made_up_keys_evicts_itself_and_spares_callers_near_their_limit() {
    let limit = limit("a", 100);
    let store = flooded(&limit, 90, &limit, 1, 100_000);
    assert_eq!(store.len(), ROOM);
    assert_eq!(store.evictions(), 100_000 + CALLERS - ROOM as u64);
    assert_eq!(spared(&store, &limit, 90), 20);
}

/// Who would be let in once more beside those who are in flight.
#[test]
fn a_flood_that_spends_all_at_once_spares_requests_in_flight() {
    let (limit, narrow) = (limit("a", 100), limit("narrow", 1));
    let limit = Limit { algorithm: Algorithm::Concurrency, ..limit };
    let store = flooded(&limit, 2, &narrow, 1, 100_000);
    assert_eq!(spared(&store, &limit, 2), 20);
}

/// Each made-up key is blocked after one request, as are the callers.
#[test]
fn a_flood_that_spends_all_at_once_spares_callers_who_are_blocked() {
    let (limit, narrow) = (limit("a", 100), limit("narrow", 1));
    for used in [10, 90, 100] {
        let store = flooded(&limit, used, &limit, 100, 100_000);
        assert_eq!(spared(&store, &limit, used), 20, "{used} used, and a cost of 100");
        let store = flooded(&limit, used, &narrow, 1, 100_000);
        assert_eq!(spared(&store, &limit, used), 20, "{used} used, and a quota of 1");
    }
    let store = flooded(&narrow, 1, &narrow, 1, 100_000);
    assert_eq!(spared(&store, &narrow, 1), 20, "a quota of 1, spent before the flood");
}

/// Two requests a key, which spend all.
#[test]
fn a_flood_of_a_few_requests_a_key_spares_callers_who_made_more() {
    let limit = limit("a", 10);
    let store = Memory::new(ROOM);
    for n in 0..CALLERS {
        for _ in 0..9 {
            store.charge(&[charge(&limit, caller(n))], NOW);
        }
    }
    for n in 0..100_000 {
        for _ in 0..2 {
            let half = Charge { cost: 5, ..charge(&limit, key(n)) };
            store.charge(&[half], NOW + LATER);
        }
    }
    assert_eq!(spared(&store, &limit, 9), 20);
}

/// Where all others are as blocked, and came before, a flood still takes few of them.
#[test]
fn a_store_that_is_full_of_blocked_callers_loses_few_to_a_flood() {
    let limit = limit("a", 1);
    let store = Memory::new(ROOM);
    for n in 0..ROOM as u64 {
        store.charge(&[charge(&limit, caller(n))], NOW);
    }
    for n in 0..10 * ROOM as u64 {
        store.charge(&[charge(&limit, key(n))], NOW + LATER);
    }
    let kept = (0..ROOM as u64).filter(|&n| {
        store.look(&[charge(&limit, caller(n))], NOW + LATER).decided(0).unwrap().decision.used == 1
    });
    let kept = kept.count();
    assert!(kept > ROOM * 2 / 3, "{kept} of {ROOM}");
}

/// Otherwise a limit could be evaded by evicting its newest record each time.
#[test]
fn a_newcomer_is_counted_for_a_while_however_full_the_store_is() {
    let limit = limit("a", 1);
    let store = Memory::new(ROOM);
    for n in 0..ROOM as u64 {
        store.charge(&[charge(&limit, caller(n))], NOW);
    }
    let refused = (0..1_000_u64).filter(|&n| {
        store.charge(&[charge(&limit, key(2 * n))], NOW + LATER);
        store.charge(&[charge(&limit, key(2 * n + 1))], NOW + LATER);
        !store.charge(&[charge(&limit, key(2 * n))], NOW + LATER).admitted
    });
    let refused = refused.count();
    assert!(refused > 950, "{refused} of 1000");
}
