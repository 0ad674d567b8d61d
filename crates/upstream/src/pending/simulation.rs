//! The queue before a target with twenty places, in virtual time: what a flood of unimportant
//! requests does to the others, and how long a request waits at most.

use proptest::prelude::*;
use tidegate_base::mix::SplitMix;

use super::*;

/// Places at the target, and the mean time for which a request holds one, in µs: a thousand
/// requests a second.
const PLACES: usize = 20;
const SERVICE: u64 = 20_000;
/// Duration of a run, in µs.
const DURATION: u64 = 20_000_000;
const MAX_PENDING: u32 = 100;

/// Requests of one class: its priority, and their number a second.
type Load = (u8, u64);

/// What became of the requests of a class.
#[derive(Debug, Default)]
struct ClassOutcome {
    /// Times from the arrival to the end, in µs.
    latencies: Vec<u64>,
    shed: u64,
}

impl ClassOutcome {
    fn p99(&self) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        sorted[sorted.len() * 99 / 100] as f64
    }

    /// Requests a second that got a place.
    fn goodput(&self) -> f64 {
        self.latencies.len() as f64 * 1e6 / DURATION as f64
    }
}

/// Random arrivals of these classes; one outcome for each.
fn run(loads: &[Load]) -> Vec<ClassOutcome> {
    let queue = PendingQueue::default();
    let mut random = SplitMix::new(7);
    let mut outcomes: Vec<_> = loads.iter().map(|_| ClassOutcome::default()).collect();
    let mut waiting: Vec<(PendingTicket<'_>, usize, u64)> = Vec::new();
    let mut busy_until: Vec<u64> = Vec::new();
    // From half of the mean to one and a half.
    let mut service = SplitMix::new(8);
    let mut service = move || SERVICE / 2 + service.bits() % SERVICE;
    for now in (0..DURATION).step_by(100) {
        busy_until.retain(|end| *end > now);
        for (index, (priority, rate)) in loads.iter().enumerate() {
            // The chance of an arrival in 100 µs, in parts of ten thousand.
            let mut chance = *rate;
            while chance > 0 && random.bits() % 10_000 < chance.min(10_000) {
                chance = chance.saturating_sub(10_000);
                if busy_until.len() < PLACES && !queue.has_first() {
                    let took = service();
                    busy_until.push(now + took);
                    outcomes[index].latencies.push(took);
                    continue;
                }
                let client = Some([192, 0, 2, random.bits() as u8].into());
                let priority = Priority::new(*priority).expect("a priority");
                match queue.enter(MAX_PENDING, PlaceRequest { client, priority }) {
                    Some(ticket) => waiting.push((ticket, index, now)),
                    None => outcomes[index].shed += 1,
                }
            }
        }
        waiting.retain(|(ticket, index, _)| {
            outcomes[*index].shed += u64::from(ticket.is_displaced());
            !ticket.is_displaced()
        });
        while busy_until.len() < PLACES {
            let Some(first) = waiting.iter().position(|(ticket, ..)| ticket.is_first()) else {
                break;
            };
            let (ticket, index, arrived) = waiting.remove(first);
            ticket.take_place();
            let took = service();
            busy_until.push(now + took);
            outcomes[index].latencies.push(now + took - arrived);
        }
    }
    outcomes
}

#[test]
fn a_flood_of_the_lowest_class_leaves_the_highest_its_latency_and_others_their_share() {
    let quiet = run(&[(0, 100), (5, 600)]);
    let flooded = run(&[(0, 100), (5, 600), (9, 3_000)]);
    let ratio = flooded[0].p99() / quiet[0].p99();
    assert!(ratio <= 1.2, "{ratio}");
    assert_eq!(flooded[0].shed, 0);
    let (before, after) = (quiet[1].goodput(), flooded[1].goodput());
    assert!(after >= 0.98 * before, "{after} of {before} requests a second");
    assert!(flooded[2].goodput() >= 250.0, "what the others leave: {}", flooded[2].goodput());
}

#[test]
fn a_flood_of_important_requests_leaves_the_others_a_tenth() {
    let flooded = run(&[(0, 3_000), (5, 3_000), (9, 3_000)]);
    let [important, middle, low] = [0, 1, 2].map(|class: usize| flooded[class].goodput());
    assert!((850.0..=950.0).contains(&important), "{important}");
    assert!(middle >= 40.0 && low >= 40.0, "{middle} {low}");
}

#[test]
fn without_priorities_a_flood_takes_all() {
    let flooded = run(&[(5, 100), (5, 600), (5, 3_000)]);
    assert!(flooded[0].p99() > 2.0 * SERVICE as f64);
    assert!(flooded[1].shed > 0);
}

proptest! {
    /// Each tenth place goes to the oldest request, so a request gets one of the next ten for each
    /// that waits before it.
    #[test]
    fn a_request_waits_for_ten_places_for_each_older_request_at_most(
        before in proptest::collection::vec(0..10_u8, 0..30),
        priority in 0..10_u8,
        after in proptest::collection::vec(0..10_u8, 400),
    ) {
        let queue = PendingQueue::default();
        let request = |number| PlaceRequest {
            client: None,
            priority: Priority::new(number).expect("a priority"),
        };
        let enter = |number: &u8| queue.enter(10_000, request(*number)).expect("room");
        let mut others: Vec<_> = before.iter().map(enter).collect();
        let own = enter(&priority);
        let mut places = 0;
        for number in &after {
            others.push(enter(number));
            places += 1;
            if own.is_first() {
                break;
            }
            let first = others.iter().position(PendingTicket::is_first).expect("a first request");
            others.remove(first).take_place();
        }
        prop_assert!(places <= 10 * (before.len() + 1), "{places}");
        prop_assert!(own.is_first());
    }
}
