//! Weighted round robin: a precomputed schedule, in which each endpoint's turns are evenly spaced.
//!
//! The smooth weighted round robin of nginx inspects all endpoints at each choice. Here the
//! schedule of one period is computed once, and a choice is one read. An endpoint of weight `w` has
//! `w` turns in a period, at the times `(k + phase) / w`. Endpoints of the same weight also have
//! evenly spaced phases, so they take turns in their order.

use std::collections::BTreeMap;

/// Maximum length of a period. Larger weights are scaled down, to at least one turn each.
const MAX_TURNS: u64 = 1 << 18;
/// The difference in phase between endpoints of different weights: the golden ratio, which spreads
/// them best.
const GOLDEN_RATIO: f64 = 0.618_033_988_749_894_9;

/// The endpoint of each turn of one period; empty if all weights are 0.
pub(super) fn schedule(weights: &[u32]) -> Box<[u32]> {
    let turns = turns(weights);
    let mut by_turns: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (index, &count) in turns.iter().enumerate().filter(|(_, count)| **count > 0) {
        by_turns.entry(count).or_default().push(index as u32);
    }
    let mut timed: Vec<(f64, u32)> = Vec::new();
    for (group, (count, members)) in by_turns.into_iter().rev().enumerate() {
        for (rank, &index) in members.iter().enumerate() {
            let phase = (rank as f64 + 0.5) / members.len() as f64 + group as f64 * GOLDEN_RATIO;
            let times = (0..count).map(|turn| (f64::from(turn) + phase.fract()) / f64::from(count));
            timed.extend(times.map(|time| (time, index)));
        }
    }
    timed.sort_unstable_by(|(time, index), (other_time, other_index)| {
        time.total_cmp(other_time).then(index.cmp(other_index))
    });
    timed.into_iter().map(|(_, index)| index).collect()
}

/// The turns of each endpoint in a period: its weight divided by their greatest common divisor.
fn turns(weights: &[u32]) -> Vec<u32> {
    let divisor = weights.iter().fold(0, |divisor, &weight| gcd(divisor, weight)).max(1);
    let total = weights.iter().map(|&weight| u64::from(weight / divisor)).sum::<u64>();
    let scaled = |weight: u32| {
        let turns = u64::from(weight / divisor);
        let fitting = if total > MAX_TURNS { turns * MAX_TURNS / total } else { turns };
        (fitting as u32).max(u32::from(turns > 0))
    };
    weights.iter().map(|&weight| scaled(weight)).collect()
}

fn gcd(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { gcd(other, one % other) }
}
