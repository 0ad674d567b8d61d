//! Checks the admissions against the bounds of their algorithm.

use tidegate::{clock::StoreTime, limit::Algorithm};

use super::world::{Admission, World};

/// Asserts all bounds of the run's algorithm, for each key.
pub(super) fn assert_bounds(world: &World) {
    for key in 0..world.plan.keys {
        let admissions = world.admitted.iter().flatten().filter(|admission| admission.key == key);
        let mut admissions: Vec<Admission> = admissions.copied().collect();
        admissions.sort_by_key(|admission| admission.at);
        match world.plan.limit.algorithm() {
            Algorithm::FixedWindow => assert_fixed_window(world, &admissions, &world.ends[key]),
            _ => assert_sliding_window(world, &admissions),
        }
    }
}

/// The sum of costs admitted from `from` until before `to`.
fn sum(admissions: &[Admission], from: StoreTime, to: StoreTime) -> u64 {
    let first = admissions.partition_point(|admission| admission.at < from);
    let last = admissions.partition_point(|admission| admission.at < to);
    admissions[first..last.max(first)].iter().map(|admission| admission.cost).sum()
}

/// Asserts that at most the quota is admitted in each window of the store.
fn assert_fixed_window(world: &World, admissions: &[Admission], ends: &[StoreTime]) {
    let quota = world.plan.limit.quota;
    for end in ends {
        let used = sum(admissions, *end - quota.window, *end);
        assert!(used <= quota.limit, "{used} in the window to {end:?}");
    }
    let in_a_window = |admission: &Admission| {
        ends.iter().any(|end| (*end - quota.window..*end).contains(&admission.at))
    };
    assert!(admissions.iter().all(in_a_window), "admitted in no window");
}

/// Asserts the bounds that `crates/limit/src/sliding_window.rs` states. Only intervals that begin
/// with a charge matter.
fn assert_sliding_window(world: &World, admissions: &[Admission]) {
    let quota = world.plan.limit.quota;
    let (limit, sub_window, window) = (quota.limit, quota.sub_window(), quota.window);
    for admission in admissions {
        let from = admission.at;
        let aligned = from.round_down_to(sub_window);
        let used = sum(admissions, aligned, aligned + window);
        assert!(used <= limit, "{used} in the sub-windows from {aligned:?}");
        let used = sum(admissions, from, from + (window - sub_window));
        assert!(used <= limit, "{used} in less than a window from {from:?}");
        let used = sum(admissions, from, from + window);
        if quota.algorithm.is_strict() {
            assert!(used <= limit, "{used} in a window from {from:?}");
        }
        let old = sum(admissions, aligned, aligned + sub_window);
        let bound = limit + (from.since(aligned) * old).div_ceil(sub_window);
        assert!(used <= bound, "{used} of {bound} in a window from {from:?}");
    }
}
