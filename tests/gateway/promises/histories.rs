//! Random histories on the moved clock: whatever happened before, what an answer tells is true.

use std::fmt::Write;

use tidegate::clock::Clock;

use super::{NOW, Told, route, rules, told};
use crate::stage::{Fleet, on_every_topology};

/// Numbers that look random, the same in every run (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Limits of many shapes, each on a path of its own, and some paths with two of them.
const SHAPES: [(u32, &str, u32, u32); 8] = [
    (1, "1s", 1, 1),
    (3, "1s", 5, 1),
    (5, "10s", 5, 1),
    (7, "7s", 7, 1),
    (2, "1m", 6, 1),
    (10, "10s", 1, 3),
    (9, "3s", 60, 2),
    (100, "1m", 12, 7),
];

/// The configuration, and its paths.
fn shapes() -> (String, Vec<String>) {
    let (mut limits, mut routes, mut paths) = (String::new(), Vec::new(), Vec::new());
    for (index, (quota, window, resolution, cost)) in SHAPES.iter().enumerate() {
        write!(
            limits,
            "l{index}: {{quota: {quota}, window: {window}, resolution: {resolution}, \
             cost: {cost}, key: [token]}}, "
        )
        .expect("a string takes it");
        let other = (index + 3) % SHAPES.len();
        for (path, limits) in [
            (format!("/p{index}"), format!("l{index}")),
            (format!("/q{index}"), format!("l{index}, l{other}")),
        ] {
            routes.push(route(&path, &limits));
            paths.push(path);
        }
    }
    (rules(&limits, &routes.join(", ")), paths)
}

/// Runs `history` for each path, with a caller of its own.
fn for_all(history: impl Fn(&Fleet, &Clock, &str, &str, &mut Dice) + Sync) {
    on_every_topology(|stage| {
        let clock = Clock::manual(NOW);
        let (yaml, paths) = shapes();
        let fleet = stage.start(&yaml, &clock);
        for (number, path) in paths.iter().enumerate() {
            let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
            history(&fleet, &clock, &format!("caller-{number}"), path, &mut dice);
        }
    });
}

/// Moves the clock on by a random part of what such a window is long.
fn advance(clock: &Clock, dice: &mut Dice) {
    let most = [2, 200, 1_500, 9_000][dice.below(4) as usize];
    clock.set(clock.now() + dice.below(most));
}

#[test]
fn who_waits_as_told_is_admitted() {
    for_all(|fleet, clock, caller, path, dice| {
        let ask = || told(&fleet.get_as(caller, path));
        let mut waits = 0;
        for _ in 0..120 {
            advance(clock, dice);
            let first = ask();
            if first.admitted {
                continue;
            }
            waits += 1;
            match dice.below(2) {
                0 => {
                    let seconds = first.retry_after.expect("the cost is within the quota");
                    clock.set(clock.now() + seconds * 1000);
                }
                _ => clock.set(clock.now().max(first.reset * 1000)),
            }
            let then = ask();
            assert!(then.admitted, "{path}: told {first:?}, waited, and met {then:?}");
        }
        assert!(waits > 3, "{path}: {waits} refusals show little");
    });
}

#[test]
fn nothing_remaining_means_that_the_next_is_refused() {
    for_all(|fleet, clock, caller, path, dice| {
        // Limits with a cost of 1 alone: there, what remains is what may still be asked.
        if !matches!(path, "/p0" | "/p1" | "/p2" | "/p3" | "/p4") {
            return;
        }
        for _ in 0..60 {
            advance(clock, dice);
            let first = told(&fleet.get_as(caller, path));
            let next = told(&fleet.get_as(caller, path));
            assert_eq!(first.remaining == 0, !next.admitted, "{first:?} {next:?}");
            assert!(next.admitted || next.remaining == 0, "a refusal shows 0: {next:?}");
        }
    });
}

#[test]
fn the_reset_moves_later_only_with_a_charge_and_never_back() {
    for_all(|fleet, clock, caller, path, dice| {
        // One limit a path: with two, the one that is shown changes.
        if !path.starts_with("/p") {
            return;
        }
        let mut last: Option<Told> = None;
        for _ in 0..80 {
            advance(clock, dice);
            let now = told(&fleet.get_as(caller, path));
            if let Some(last) = last {
                assert!(now.reset >= last.reset, "moved back: {last:?} {now:?}");
                let passed = last.reset * 1000 <= clock.now();
                assert!(
                    now.admitted || now.reset == last.reset || passed,
                    "moved by a refusal: {last:?} {now:?}"
                );
            }
            last = Some(now);
        }
    });
}
