//! The time for which the filter holds a token under random rotations, compared with a list of all
//! recordings.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Time advances.
    Wait(Millis),
    /// Time advances to this long after the next boundary; the last rotation was just before it.
    Boundary(Millis),
    /// Time advances to the next expiry of a token.
    Expiry,
    /// The filter is rotated by a clock that is late by this time.
    Rotate(Millis),
    Record(u64),
    /// Another gateway's token is merged; the second number counts live generations from the
    /// oldest.
    Merge(u64, u64),
}

/// Times of less than this many ms.
fn times(bound: u64) -> impl Strategy<Value = Millis> {
    (0..bound).prop_map(Millis::from_ms)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => times(3_000).prop_map(Step::Wait),
        2 => times(130_000).prop_map(Step::Wait),
        2 => (0..40_u64, times(3_000)).prop_map(|(minutes, time)| Step::Wait(MINUTE * minutes + time)),
        1 => (0..100_u64).prop_map(|minutes| Step::Wait(MINUTE * minutes)),
        2 => times(GRACE.as_ms() - 1).prop_map(Step::Boundary),
        2 => Just(Step::Expiry),
        4 => Just(Step::Rotate(Millis::ZERO)),
        1 => times(200_000).prop_map(Step::Rotate),
        6 => any::<u64>().prop_map(Step::Record),
        1 => (any::<u64>(), 0..32_u64).prop_map(|(token, index)| Step::Merge(token, index)),
    ]
}

/// True if the filter may hold `token` by chance, because a filter with all possible recordings
/// holds it. In filters this small, some tokens have few distinct positions, so the configured rate
/// is exceeded.
fn is_false_positive(
    filter: &Filter,
    recordings: &[Recording],
    token: u64,
    now: StoreTime,
) -> bool {
    let other = Filter::new(*filter.geometry(), *filter.hash_keys(), now);
    for (held, ..) in recordings.iter().filter(|(_, _, after)| now <= *after) {
        other.record(*held);
    }
    other.contains(token)
}

/// A token, the time until which it must be held, and the time after which it must not be.
type Recording = (u64, StoreTime, StoreTime);

fn memory_of(geometry: &Geometry) -> Millis {
    geometry.generation_length * geometry.complete_generations.into()
}

fn merge_from_other(filter: &Filter, token: u64, index: u64) -> Recording {
    let geometry = *filter.geometry();
    let other = Filter::new(geometry, *filter.hash_keys(), geometry.start_of(index));
    other.record(token);
    filter.merge(index, &other.export(index).unwrap()).unwrap();
    let end = geometry.start_of(index + 1) + memory_of(&geometry);
    (token, end - Millis::MILLISECOND, end + GRACE)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_token_is_held_for_its_memory_and_at_most_one_generation_more(
        minutes in prop_oneof![1..=30_u64, 1..=200_u64],
        offset in times(200_000),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let geometry = sized(20, 1e-12, minutes);
        let (mut now, mut rotated) = (START + offset, START + offset);
        let filter = Filter::new(geometry, hash_keys(8), now);
        let mut recordings: Vec<Recording> = Vec::new();
        for step in steps {
            match step {
                Step::Wait(time) => now += time,
                Step::Boundary(after) => {
                    now = geometry.start_of(geometry.index(now) + 1);
                    rotated = now - Millis::MILLISECOND;
                    filter.rotate(rotated);
                    now += after;
                }
                Step::Expiry => {
                    let due = recordings.iter().map(|(_, until, _)| *until).filter(|at| *at >= now).min();
                    now = due.unwrap_or(now);
                    filter.rotate(now);
                    rotated = now;
                }
                Step::Rotate(late) => {
                    filter.rotate(now - late);
                    rotated = rotated.max(now - late);
                }
                Step::Record(token) => {
                    // The throttle's thread is never later than `GRACE`.
                    if now.since(rotated) >= GRACE {
                        filter.rotate(now);
                        rotated = now;
                    }
                    filter.record(token);
                    let until = now + memory_of(&geometry);
                    recordings.push((token, until, until + geometry.generation_length + GRACE));
                }
                Step::Merge(token, at) => {
                    let live = filter.live_generations();
                    let index = (live.start() + at).min(*live.end());
                    recordings.push(merge_from_other(&filter, token, index));
                }
            }
            let forgotten = recordings.iter().find(|(token, until, _)| now <= *until && !filter.contains(*token));
            prop_assert_eq!(forgotten, None, "at {:?}", now);
            if rotated == now {
                let old = recordings.iter().find(|(token, _, after)| {
                    now > *after
                        && filter.contains(*token)
                        && !is_false_positive(&filter, &recordings, *token, now)
                });
                prop_assert_eq!(old, None, "at {:?}", now);
            }
            recordings.retain(|(_, _, after)| now <= *after + MINUTE * 100);
        }
    }
}
