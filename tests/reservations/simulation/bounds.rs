//! Checks the admissions against each algorithm's promises.

use tidegate::limit::{Algorithm, Millis};

use super::world::{Admission, World};

/// All bounds of the run's algorithm, for each key.
pub(super) fn hold(world: &World) {
    for key in 0..world.plan.keys {
        let passed = world.admitted.iter().flatten().filter(|admission| admission.key == key);
        let mut passed: Vec<Admission> = passed.copied().collect();
        passed.sort_by_key(|admission| admission.at);
        match world.plan.limit.algorithm {
            Algorithm::FixedWindow => fixed(world, &passed, &world.ends[key]),
            _ => sliding(world, &passed),
        }
    }
}

fn sum(passed: &[Admission], from: Millis, to: Millis) -> u64 {
    let first = passed.partition_point(|admission| admission.at < from);
    let last = passed.partition_point(|admission| admission.at < to);
    passed[first..last.max(first)].iter().map(|admission| u64::from(admission.cost)).sum()
}

/// Each window of the store holds at most the quota.
fn fixed(world: &World, passed: &[Admission], ends: &[Millis]) {
    let quota = world.plan.limit.quota;
    for end in ends {
        let used = sum(passed, end - quota.window, *end);
        assert!(used <= u64::from(quota.limit), "{used} in the window to {end}");
    }
    let in_a_window = |admission: &Admission| {
        ends.iter().any(|end| (end - quota.window..*end).contains(&admission.at))
    };
    assert!(passed.iter().all(in_a_window));
}

/// The bounds that `src/limit/sliding_window.rs` states. All intervals that matter begin with a charge.
fn sliding(world: &World, passed: &[Admission]) {
    let quota = world.plan.limit.quota;
    let (most, s, window) = (u64::from(quota.limit), quota.sub_window(), quota.window);
    for admission in passed {
        let from = admission.at;
        let aligned = from / s * s;
        let used = sum(passed, aligned, aligned + window);
        assert!(used <= most, "{used} in the sub-windows from {aligned}");
        let used = sum(passed, from, from + window - s);
        assert!(used <= most, "{used} in less than a window from {from}");
        let used = sum(passed, from, from + window);
        if quota.strict {
            assert!(used <= most, "{used} in a window from {from}");
        }
        let old = sum(passed, aligned, aligned + s);
        let bound = most + (old * (from - aligned)).div_ceil(s);
        assert!(used <= bound, "{used} of {bound} in a window from {from}");
    }
}
