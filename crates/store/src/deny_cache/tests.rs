//! Compares the cache with an unbounded one, and with the decisions of a store.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use tidegate_base::time::{Millis, MonotonicTime, StoreTime, ms};
use tidegate_charge::{Key, LeaseSize, LimitIdentity};
use tidegate_limit::{Algorithm, AlgorithmState, Quota};

use super::*;
use crate::record_id::record_id;

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// A limit whose requests cost up to 6.
fn limit_of(quota: u64) -> Arc<Limit> {
    Arc::new(Limit {
        cost: 6,
        ..Limit::new(
            LimitIdentity::new("refused", 7),
            Quota::sliding(quota, Millis::from_secs(60), 6),
        )
    })
}

fn refusal(limit: u64, used: u64, retry_at: StoreTime) -> Decision {
    Decision {
        admitted: false,
        limit,
        remaining: 0,
        used,
        reset_at: retry_at,
        retry_at: Some(retry_at),
        wait: Millis::ZERO,
    }
}

fn at_ms(ms: u64) -> MonotonicTime {
    MonotonicTime::from_ms(ms)
}

fn at(sent: u64) -> ReplyTiming {
    ReplyTiming { sent: at_ms(sent), received: at_ms(sent), decided_at: NOW + ms(sent) }
}

fn charge(limit: &Arc<Limit>, key: u128, cost: u64) -> Charge<'_> {
    Charge { limit, key: Key(key), cost }
}

#[test]
fn a_denial_applies_to_its_record_quota_and_cost_until_its_retry_time() {
    let (cache, limit) = (DenyCache::default(), limit_of(10));
    assert_eq!(cache.get(&charge(&limit, 1, 2), at_ms(0)), None);
    let denial = refusal(10, 10, NOW + ms(1_000));
    cache.insert(
        &charge(&limit, 1, 2),
        &denial,
        ReplyTiming { sent: at_ms(5), received: at_ms(25), decided_at: NOW },
    );
    let found = cache.get(&charge(&limit, 1, 2), at_ms(25)).unwrap();
    assert_eq!(found, Denial { decision: denial, now: NOW });
    assert_eq!(cache.get(&charge(&limit, 1, 2), at_ms(1_003)).unwrap().now, NOW + ms(977));
    assert_eq!(
        cache.get(&charge(&limit, 1, 2), at_ms(1_004)),
        None,
        "counted from when the call was sent"
    );
    for other in [charge(&limit, 1, 1), charge(&limit, 1, 3), charge(&limit, 2, 2)] {
        assert_eq!(cache.get(&other, at_ms(25)), None);
    }
    let raised = limit_of(11);
    assert_eq!(cache.get(&charge(&raised, 1, 2), at_ms(25)), None, "another quota");
    let algorithm = Algorithm::SlidingWindow { resolution: 6, strict: true };
    let strict =
        Arc::new(Limit { quota: Quota { algorithm, ..limit.quota }, ..Limit::clone(&limit) });
    assert_eq!(cache.get(&charge(&strict, 1, 2), at_ms(25)), None, "another counting mode");
    assert_eq!(cache.stats(at_ms(25)), DenyStats { hits: 2, entries: 1 });
    assert_eq!(cache.stats(at_ms(1_004)), DenyStats { hits: 2, entries: 0 });
}

#[test]
fn a_cost_above_the_quota_is_refused_without_a_retry_time() {
    let (cache, limit) = (DenyCache::default(), limit_of(10));
    let denial = refusal(10, 10, NOW + ms(1_000));
    cache.insert(&charge(&limit, 1, 1), &denial, at(0));
    let found = cache.get(&charge(&limit, 1, 11), at_ms(0)).unwrap();
    assert_eq!(found.decision, Decision { retry_at: None, ..denial });
}

#[test]
fn only_denials_in_force_are_cached() {
    let (cache, limit) = (DenyCache::default(), limit_of(10));
    let denial = refusal(10, 10, NOW + ms(1_000));
    cache.insert(&charge(&limit, 1, 1), &Decision { admitted: true, ..denial }, at(0));
    cache.insert(&charge(&limit, 1, 1), &Decision { retry_at: None, ..denial }, at(0));
    cache.insert(&charge(&limit, 1, 1), &refusal(10, 10, NOW), at(0));
    cache.insert(&charge(&limit, 1, 1), &refusal(10, 10, NOW + ms(1)), at(0));
    let late = ReplyTiming { received: at_ms(5_000), ..at(0) };
    cache.insert(&charge(&limit, 1, 1), &denial, late);
    let dry_run = Arc::new(Limit { enforce: false, ..Limit::clone(&limit) });
    cache.insert(&charge(&dry_run, 1, 1), &denial, at(0));
    let quota = Quota { algorithm: Algorithm::Concurrency, ..limit.quota };
    let concurrency = Arc::new(Limit { quota, ..Limit::clone(&limit) });
    cache.insert(&charge(&concurrency, 1, 1), &denial, at(0));
    assert_eq!(cache.stats(at_ms(0)).entries, 0);
    cache.insert(&charge(&limit, 1, 1), &denial, at(0));
    assert_eq!(cache.get(&charge(&dry_run, 1, 1), at_ms(0)), None, "does not enforce");
    assert!(cache.get(&charge(&limit, 1, 1), at_ms(0)).is_some());
}

/// Another gateway may have returned quota without this one being notified.
#[test]
fn a_denial_is_trusted_briefly_and_reports_the_whole_wait() {
    let (cache, denial) = (DenyCache::default(), refusal(10, 10, NOW + ms(3_600_000)));
    for lease_size in [LeaseSize::Off, LeaseSize::Auto, LeaseSize::Units(10)] {
        let limit = Arc::new(Limit { lease_size, ..Limit::clone(&limit_of(10)) });
        cache.insert(&charge(&limit, 1, 1), &denial, at(5));
        let found = cache.get(&charge(&limit, 1, 1), at_ms(5 + INITIAL_TRUST.as_ms() - 1)).unwrap();
        assert_eq!(found.decision, denial);
        assert_eq!(cache.get(&charge(&limit, 1, 1), at_ms(5 + INITIAL_TRUST.as_ms())), None);
        let short = refusal(10, 10, NOW + ms(500));
        cache.insert(&charge(&limit, 1, 1), &short, at(0));
        assert_eq!(cache.get(&charge(&limit, 1, 1), at_ms(499)), None);
        cache.remove(record_id(&limit, Key(1)));
    }
}

/// While the store gives no answer, no newer decision replaces the denial.
#[test]
fn a_stale_denial_lasts_until_its_retry_time() {
    let (cache, limit) = (DenyCache::default(), limit_of(10));
    let charge = charge(&limit, 1, 1);
    let denial = refusal(10, 10, NOW + ms(60_000));
    assert_eq!(cache.get_stale(&charge, at_ms(0)), None);
    cache.insert(&charge, &denial, at(0));
    assert_eq!(cache.get(&charge, at_ms(INITIAL_TRUST.as_ms())), None);
    let stale = cache.get_stale(&charge, at_ms(59_998)).unwrap();
    assert_eq!(stale, Denial { decision: denial, now: NOW + ms(59_997) });
    assert_eq!(cache.get_stale(&charge, at_ms(59_999)), None);
    cache.remove(record_id(&limit, Key(1)));
    assert_eq!(cache.get_stale(&charge, at_ms(INITIAL_TRUST.as_ms())), None);
}

/// A cheaper request may be admitted elsewhere, which moves the reset and the retry time.
#[test]
fn a_denial_of_more_than_the_limits_cost_holds_only_without_the_store() {
    let (cache, limit) = (DenyCache::default(), limit_of(10));
    for sent in [0, 100, 200] {
        cache.insert(&charge(&limit, 1, 7), &refusal(10, 5, NOW + ms(9_000)), at(sent));
        assert_eq!(cache.get(&charge(&limit, 1, 7), at_ms(sent)), None);
        assert!(cache.get_stale(&charge(&limit, 1, 7), at_ms(sent)).is_some());
    }
    cache.insert(&charge(&limit, 1, 6), &refusal(10, 5, NOW + ms(9_000)), at(300));
    assert!(cache.get(&charge(&limit, 1, 6), at_ms(300)).is_some());
}

/// A caller that is refused for long costs the store few calls. After a removal, trust starts over.
#[test]
fn each_repetition_is_trusted_for_twice_as_long() {
    let (cache, limit) = (DenyCache::default(), limit_of(10));
    let charge = charge(&limit, 1, 1);
    let until = |retry_at| refusal(10, 10, retry_at);
    let long = until(NOW + ms(3_600_000));
    let holds = |sent: u64, trust: Millis| {
        let trust = trust.as_ms();
        assert!(cache.get(&charge, at_ms(sent + trust - 1)).is_some());
        assert_eq!(cache.get(&charge, at_ms(sent + trust)), None);
        sent + trust
    };
    cache.insert(&charge, &long, at(0));
    // A concurrent call.
    cache.insert(&charge, &long, at(3));
    let mut sent = holds(3, INITIAL_TRUST);
    for times in [2, 4, 8] {
        cache.insert(&charge, &long, at(sent));
        sent = holds(sent, INITIAL_TRUST * times);
    }
    cache.remove(record_id(&limit, Key(1)));
    cache.insert(&charge, &until(NOW + ms(60_000)), at(sent));
    sent = holds(sent, INITIAL_TRUST);
    cache.insert(&charge, &until(NOW + ms(60_000)), at(sent));
    holds(sent, INITIAL_TRUST * 2);
    cache.insert(&charge, &long, at(70_000));
    holds(70_000, INITIAL_TRUST);
}

#[test]
fn remove_drops_every_quota_and_cost_of_a_record() {
    let (cache, quotas) = (DenyCache::default(), [limit_of(10), limit_of(20)]);
    let denial = refusal(10, 10, NOW + ms(1_000));
    for limit in &quotas {
        for key in [1, 2] {
            cache.insert(&charge(limit, key, 1), &denial, at(0));
            cache.insert(&charge(limit, key, 2), &denial, at(0));
        }
    }
    assert_eq!(cache.stats(at_ms(0)).entries, 8);
    cache.remove(record_id(&limit_of(30), Key(1)));
    assert_eq!(cache.stats(at_ms(0)).entries, 4);
    assert_eq!(cache.get(&charge(&quotas[0], 1, 1), at_ms(0)), None);
    assert!(cache.get(&charge(&quotas[1], 2, 2), at_ms(0)).is_some());
}

#[test]
fn a_reply_to_a_call_from_before_a_clear_is_not_cached() {
    let (cache, limit) = (DenyCache::default(), limit_of(10));
    let (charge, denial) = (charge(&limit, 1, 1), refusal(10, 10, NOW + ms(60_000)));
    cache.insert(&charge, &denial, at(0));
    cache.clear(at_ms(5));
    assert_eq!(cache.get(&charge, at_ms(6)), None);
    cache.insert(&charge, &denial, ReplyTiming { received: at_ms(7), ..at(5) });
    assert_eq!(cache.get_stale(&charge, at_ms(7)), None);
    cache.insert(&charge, &denial, at(6));
    assert!(cache.get(&charge, at_ms(7)).is_some());
}

#[test]
fn a_flood_of_callers_is_bounded_and_gets_no_wrong_answer() {
    let (cache, limit) = (DenyCache::default(), limit_of(10));
    assert!(cache.shards.iter().all(|shard| shard.table.lock().sets.is_empty()), "unused");
    let flood = 3 * DenyCache::CAPACITY as u64;
    let key = |n: u64| u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    for n in 0..flood {
        cache.insert(&charge(&limit, key(n), 1), &refusal(10, n, NOW + ms(1_000)), at(0));
    }
    let held = cache.stats(at_ms(0)).entries;
    assert!((DenyCache::CAPACITY * 9 / 10..=DenyCache::CAPACITY).contains(&held), "{held}");
    assert!(cache.shards.iter().all(|shard| shard.table.lock().sets.len() == SETS_PER_SHARD));
    let found = (0..flood).filter_map(|n| {
        let found = cache.get(&charge(&limit, key(n), 1), at_ms(1))?;
        assert_eq!(found.decision.used, n, "the denial of another record");
        Some(())
    });
    assert_eq!(found.count(), held);
    // Expired entries are replaced.
    for n in 0..1_000 {
        let timing = at(2_000);
        cache.insert(&charge(&limit, key(n), 1), &refusal(10, 0, NOW + ms(9_000)), timing);
        assert!(cache.get(&charge(&limit, key(n), 1), at_ms(2_000)).is_some());
    }
}

#[test]
fn the_entry_that_expires_first_is_replaced() {
    let entry = |expires| DenyEntry {
        quota_id: 1,
        expires,
        trusted_until: at_ms(0),
        trust: INITIAL_TRUST,
        received: at_ms(0),
        decided_at: NOW,
        decision: refusal(10, 10, NOW),
        cost: 1,
    };
    let mut set = CacheSet::EMPTY;
    set.entries = [400, 200, 300, 500].map(|expires| Some(entry(at_ms(expires))));
    assert_eq!(set.victim(at_ms(0)), 1);
    set.entries[3] = Some(entry(at_ms(90)));
    assert_eq!(set.victim(at_ms(100)), 3);
    set.entries[2] = None;
    assert_eq!(set.victim(at_ms(0)), 2, "an empty one first");
    assert_eq!(size_of::<Option<DenyEntry>>(), size_of::<DenyEntry>());
}

#[derive(Clone, Debug)]
enum Step {
    /// Receives a denial: key, quota index, cost, ms that the call took, ms until the retry time.
    Insert(u128, usize, u64, u64, u64),
    Get(u128, usize, u64),
    Remove(u128),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let (key, quota, cost) = (0_u128..3, 0_usize..2, 1_u64..3);
    let insert = (key.clone(), quota.clone(), cost.clone(), 0_u64..50, 0_u64..300)
        .prop_map(|(key, quota, cost, took, wait)| Step::Insert(key, quota, cost, took, wait));
    let get =
        (key.clone(), quota, 1_u64..4).prop_map(|(key, quota, cost)| Step::Get(key, quota, cost));
    let step = prop_oneof![3 => insert, 6 => get, 1 => key.prop_map(Step::Remove)];
    prop::collection::vec((0_u64..60, step), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn answers_match_an_unbounded_cache(steps in steps()) {
        let (cache, quotas) = (DenyCache::default(), [limit_of(2), limit_of(20)]);
        let mut model = BTreeMap::<(u128, usize, u64), (MonotonicTime, ReplyTiming, Decision)>::new();
        let (mut monotonic, mut hits) = (at_ms(100), 0);
        for (serial, (later, step)) in steps.into_iter().enumerate() {
            monotonic += ms(later);
            match step {
                Step::Insert(key, quota, cost, took, wait) => {
                    let timing = ReplyTiming { sent: monotonic - ms(took), received: monotonic, decided_at: NOW + ms(monotonic.as_ms()) };
                    let denial = refusal(quotas[quota].quota.limit, serial as u64, timing.decided_at + ms(wait));
                    cache.insert(&charge(&quotas[quota], key, cost), &denial, timing);
                    let expires = timing.sent + ms(wait.saturating_sub(1));
                    if expires > monotonic {
                        model.insert((key, quota, cost), (expires, timing, denial));
                    }
                }
                Step::Get(key, quota, cost) => {
                    let found = cache.get(&charge(&quotas[quota], key, cost), monotonic);
                    hits += u64::from(found.is_some());
                    let cached = model.get(&(key, quota, cost)).filter(|cached| monotonic < cached.0);
                    if quota == 0 && cost > 2 {
                        let any = (1..3).any(|cost| {
                            model.get(&(key, quota, cost)).is_some_and(|cached| monotonic < cached.0)
                        });
                        prop_assert_eq!(found.is_some(), any);
                        prop_assert!(found.is_none_or(|found| found.decision.retry_at.is_none()));
                    } else if let Some((_, timing, denial)) = cached {
                        let found = found.unwrap();
                        prop_assert_eq!(found.decision, *denial, "the newest");
                        prop_assert!(found.now <= timing.decided_at + (monotonic - timing.received));
                    } else {
                        prop_assert_eq!(found, None);
                    }
                }
                Step::Remove(key) => {
                    cache.remove(record_id(&quotas[0], Key(key)));
                    model.retain(|cached, _| cached.0 != key);
                }
            }
            let held = model.values().filter(|cached| monotonic < cached.0).count();
            prop_assert_eq!(cache.stats(monotonic), DenyStats { hits, entries: held });
        }
    }

    /// Times are in microseconds. Both clocks show whole ms, which do not begin at the same time.
    #[test]
    fn retry_times_are_neither_too_early_nor_too_late(
        charges in prop::collection::vec((0_u64..8_000_000, 1_u64..4), 1..20),
        cost in 1_u64..6,
        phases in (0_u64..1_000, 0_u64..1_000),
        delays in (0_u64..400_000, 0_u64..400_000),
        lookups in prop::collection::vec(0_u64..30_000_000, 1..20),
        algorithm in prop::sample::select(Algorithm::all(1, Millis::from_secs(5)).to_vec()),
    ) {
        let quota = Quota::new(6, Millis::from_secs(12), algorithm);
        let limit = Arc::new(Limit { quota, ..Limit::clone(&limit_of(6)) });
        let (store_time, monotonic) = (|t: u64| NOW + ms((t + phases.0) / 1_000), |t: u64| (t + phases.1) / 1_000);
        let (mut state, mut t) = (AlgorithmState::fresh(algorithm), 0);
        for (later, cost) in charges {
            t += later;
            state.admit(&quota, store_time(t), cost);
        }
        let (decided, received) = (t + delays.0, t + delays.0 + delays.1);
        let now = store_time(decided);
        let denial = state.decide(&quota, now, cost);
        let cache = DenyCache::default();
        let request = charge(&limit, 1, cost);
        cache.insert(&request, &denial, ReplyTiming { sent: at_ms(monotonic(t)), received: at_ms(monotonic(received)), decided_at: now });
        for after in lookups {
            let t = received + after;
            let Some(found) = cache.get(&request, at_ms(monotonic(t))) else { continue };
            let real = state.decide(&quota, store_time(t), cost);
            prop_assert!(!real.admitted, "refused for too long");
            prop_assert!(found.now <= store_time(t));
            prop_assert_eq!(found.decision.retry_at, real.retry_at);
            prop_assert!(found.now < found.decision.retry_at.unwrap());
        }
    }
}

/// An attacker that knows the hash secret can choose keys that agree in some bits.
#[test]
fn chosen_keys_evict_no_denials() {
    let limit = limit_of(10);
    for chosen in [|n: u128| n << 64 | n, |n: u128| n << 24, |n: u128| n << 100] {
        let cache = DenyCache::default();
        let key = |n: u128| chosen(n) ^ 7;
        for n in 0..1_000 {
            cache.insert(&charge(&limit, key(n), 1), &refusal(10, 10, NOW + ms(60_000)), at(0));
        }
        let held = (0..1_000)
            .filter(|&n| cache.get(&charge(&limit, key(n), 1), at_ms(1)).is_some())
            .count();
        assert!(held > 990, "{held}");
    }
}
