//! How long a token is known, over any sequence of turns, against a list of what was recorded when.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// Time goes on, in ms.
    Wait(Millis),
    /// Time goes on to so far behind the next boundary, and the control thread came just before it.
    Boundary(Millis),
    /// Time goes on to the end of what is remembered of the one who is forgotten next.
    Due,
    /// The control thread comes, and finds the clock so far behind.
    Turn(Millis),
    Record(u64),
    /// Another gateway's token comes, of a live generation so far from the oldest.
    Merge(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_000_u64).prop_map(Step::Wait),
        2 => (0..130_000_u64).prop_map(Step::Wait),
        2 => (0..40_u64, 0..3_000_u64).prop_map(|(minutes, ms)| Step::Wait(minutes * MINUTE + ms)),
        1 => (0..100_u64).prop_map(|minutes| Step::Wait(minutes * MINUTE)),
        2 => (0..GRACE - 1).prop_map(Step::Boundary),
        2 => Just(Step::Due),
        4 => Just(Step::Turn(0)),
        1 => (0..200_000_u64).prop_map(Step::Turn),
        6 => any::<u64>().prop_map(Step::Record),
        1 => (any::<u64>(), 0..32_u64).prop_map(|(token, index)| Step::Merge(token, index)),
    ]
}

/// A token, until when it must be known, and after when it must not.
type Seen = (u64, Millis, Millis);

fn memory_of(geometry: &Geometry) -> Millis {
    u64::from(geometry.memory) * geometry.generation
}

fn merged(filter: &Filter, token: u64, index: u64) -> Seen {
    let geometry = *filter.geometry();
    let other = Filter::new(geometry, *filter.seed(), index * geometry.generation);
    other.record(token);
    filter.merge(index, &other.cut(index).unwrap()).unwrap();
    let end = (index + 1) * geometry.generation + memory_of(&geometry);
    (token, end - 1, end + GRACE)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_token_is_known_for_its_memory_and_at_most_one_generation_more(
        minutes in prop_oneof![1..=30_u64, 1..=200_u64],
        offset in 0..200_000_u64,
        steps in prop::collection::vec(step(), 1..150),
    ) {
        // So rare that none seems known that is not.
        let geometry = sized(20, 1e-12, minutes);
        let (mut now, mut turned) = (START + offset, START + offset);
        let filter = Filter::new(geometry, seed(8), now);
        let mut seen: Vec<Seen> = Vec::new();
        for step in steps {
            match step {
                Step::Wait(time) => now += time,
                Step::Boundary(after) => {
                    now = (geometry.index(now) + 1) * geometry.generation;
                    turned = now - 1;
                    filter.turn(turned);
                    now += after;
                }
                Step::Due => {
                    let due = seen.iter().map(|(_, until, _)| *until).filter(|at| *at >= now).min();
                    now = due.unwrap_or(now);
                    filter.turn(now);
                    turned = now;
                }
                Step::Turn(late) => {
                    filter.turn(now - late);
                    turned = turned.max(now - late);
                }
                Step::Record(token) => {
                    // The control thread is never later than that.
                    if now - turned >= GRACE {
                        filter.turn(now);
                        turned = now;
                    }
                    filter.record(token);
                    let until = now + memory_of(&geometry);
                    seen.push((token, until, until + geometry.generation + GRACE));
                }
                Step::Merge(token, at) => {
                    let live = filter.live();
                    let index = (live.start() + at).min(*live.end());
                    seen.push(merged(&filter, token, index));
                }
            }
            let forgotten = seen.iter().find(|(token, until, _)| now <= *until && !filter.knows(*token));
            prop_assert_eq!(forgotten, None, "at {}", now);
            if turned == now {
                let old = seen.iter().find(|(token, _, after)| now > *after && filter.knows(*token));
                prop_assert_eq!(old, None, "at {}", now);
            }
            seen.retain(|(_, _, after)| now <= after + 100 * MINUTE);
        }
    }
}
