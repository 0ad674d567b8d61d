//! The share of a quota that one of several gateways enforces by itself.

use super::*;
use tidegate_base::time::ms;

#[test]
fn shares_are_rounded_up() {
    let limit = limit("a", 10);
    let store = MemoryStore::new(1_000);
    let share = (0..10).filter(|_| store.charge_share(&[charge(&limit, 1)], NOW, 3).admitted);
    assert_eq!(share.count(), 4);
}

/// The algorithm at `at` in [`Algorithm::all`].
fn sized(at: usize, quota: u64, max_wait: u32) -> Arc<Limit> {
    let quota = Quota::new(
        quota,
        Millis::from_secs(6),
        Algorithm::all(6, Millis::from_ms(max_wait.into()))[at],
    );
    Arc::new(Limit { quota, ..Limit::clone(&limit("a", 1)) })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A share decides the first request of a caller as the whole quota does, and delays no request
    /// for longer than `max_wait`.
    #[test]
    fn a_share_admits_the_first_request_that_the_quota_admits(
        at in 0_usize..6,
        quota in 1_u64..60,
        cost in 1_u64..70,
        gateways in 1_u32..=20,
        max_wait in prop_oneof![Just(0), 1_u32..20_000],
    ) {
        let limit = sized(at, quota, max_wait);
        let charges = [Charge { cost, ..charge(&limit, 1) }];
        let whole = MemoryStore::new(10).charge(&charges, NOW);
        let share = MemoryStore::new(10).charge_share(&charges, NOW, gateways);
        prop_assert_eq!(share.admitted, whole.admitted);
        prop_assert!(share.decided(0).unwrap().decision.wait <= limit.algorithm().max_wait());
    }

    /// The same for a request that charges one record twice, for two limits that count alike.
    #[test]
    fn a_share_admits_what_the_quota_admits_of_two_charges(
        at in 0_usize..6,
        quota in 1_u64..60,
        costs in (1_u64..40, 1_u64..40),
        gateways in 1_u32..=20,
        max_wait in 0_u32..20_000,
    ) {
        let limit = sized(at, quota, max_wait);
        let charge = |cost| Charge { cost, ..charge(&limit, 1) };
        let charges = [charge(costs.0), charge(costs.1)];
        let whole = MemoryStore::new(10).charge(&charges, NOW);
        let share = MemoryStore::new(10).charge_share(&charges, NOW, gateways);
        prop_assert_eq!(share.admitted, whole.admitted);
    }

    /// A caller that waits until the share's retry time is admitted.
    #[test]
    fn retry_after_of_a_share_admits(
        at in 0_usize..6,
        quota in 1_u64..60,
        costs in prop::collection::vec(1_u64..20, 1..12),
        gateways in 1_u32..=20,
        max_wait in 0_u32..20_000,
    ) {
        let limit = sized(at, quota, max_wait);
        let store = MemoryStore::new(10);
        let mut now = NOW;
        for cost in costs {
            let charges = [Charge { cost, ..charge(&limit, 1) }];
            let whole = MemoryStore::new(10).charge(&charges, now).admitted;
            let verdict = store.charge_share(&charges, now, gateways);
            prop_assert!(verdict.decided(0).unwrap().decision.wait <= limit.algorithm().max_wait());
            if verdict.admitted {
                continue;
            }
            let retry_at = verdict.decided(0).unwrap().decision.retry_at;
            prop_assert_eq!(retry_at.is_some(), whole);
            if let Some(at) = retry_at {
                now = at;
                prop_assert!(store.charge_share(&charges, now, gateways).admitted);
            }
        }
    }
}

/// Requests whose slots last longer than a share's `max_wait` are admitted at the share's rate.
#[test]
fn expensive_requests_do_not_raise_the_rate_of_a_shared_leaky_bucket() {
    let quota = Quota::new(
        6,
        Millis::from_secs(6),
        Algorithm::LeakyBucket { max_wait: Millis::from_secs(2) },
    );
    let limit = Arc::new(Limit { quota, ..Limit::clone(&limit("a", 1)) });
    let store = MemoryStore::new(10);
    // A share of 2 in 6 s has a slot every 3 s: the last of a request's three slots begins 6 s
    // after the first.
    let charges = [Charge { cost: 3, ..charge(&limit, 1) }];
    let seconds = 600;
    let passed = (0..seconds)
        .filter(|second| store.charge_share(&charges, NOW + ms(second * 1_000), 3).admitted);
    let slots = 3 * passed.count() as u64;
    assert!((seconds / 3 - 6..=seconds / 3 + 3).contains(&slots), "{slots} in {seconds} s");
}
