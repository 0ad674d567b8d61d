use std::{collections::BTreeSet, sync::Mutex, thread};

use testkit::{
    backend::{Fleet, MEMORY_AND_TOPOLOGIES, on_all_at_once},
    wait::eventually,
};
use tidegate::clock::{Clock, StoreTime, ms};

const QUOTA: u64 = 500;
const EXCESS: u64 = 200;
const CLIENTS: u64 = 20;

/// A configuration in which no charge expires during the test.
fn rules(cost: u64) -> String {
    format!(
        "upstreams: {{hello: {{respond: {{body: hello}}}}}}
limits:
  small: {{quota: {QUOTA}, window: 24h, resolution: 1, key: [token], cost: {cost}}}
  more: {{quota: 100000, window: 24h, resolution: 1, key: []}}
routes: [{{name: a, match: {{path: /a}}, upstream: hello, limits: [small, more]}},
         {{name: b, match: {{path: /b}}, upstream: hello, limits: [more]}}]
"
    )
}

/// Sends more requests than the quota from all clients at once. Returns `remaining` of each
/// admission, and the number of refusals.
fn send_concurrently(fleet: &Fleet) -> (Vec<u64>, u64) {
    let (admitted, refused) = (Mutex::new(Vec::new()), Mutex::new(0));
    thread::scope(|scope| {
        for number in 0..CLIENTS as usize {
            let (admitted, refused) = (&admitted, &refused);
            let mut client = fleet.connect(number);
            scope.spawn(move || {
                for _ in 0..(QUOTA + EXCESS) / CLIENTS {
                    let response = client.get("/a", "Authorization: everyone\r\n");
                    match response.status {
                        200 => {
                            let remaining = response.number("X-RateLimit-Remaining");
                            admitted.lock().expect("not poisoned").push(remaining);
                        }
                        429 => *refused.lock().expect("not poisoned") += 1,
                        other => panic!("{other}: {}", response.text()),
                    }
                }
            });
        }
    });
    (admitted.into_inner().expect("no panic"), refused.into_inner().expect("no panic"))
}

#[test]
fn concurrent_requests_admit_exactly_the_quota() {
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        for cost in [1, 3] {
            let fleet = backend.start(
                &rules(cost),
                &Clock::manual(StoreTime::from_unix_ms(1_700_000_000_000) + ms(cost * 200_000_000)),
            );
            let (admitted, refused) = send_concurrently(&fleet);
            assert_eq!(admitted.len() as u64, QUOTA / cost);
            assert_eq!(refused, QUOTA + EXCESS - QUOTA / cost);
            // Each value of `remaining` occurs once.
            let distinct: BTreeSet<u64> = admitted.iter().copied().collect();
            let all: BTreeSet<u64> = (1..=QUOTA / cost).map(|n| QUOTA - n * cost).collect();
            assert_eq!(distinct, all);
            let mut sent = 0;
            let mut charges_only_admitted = || {
                sent += 1;
                fleet.get("/b", "").number("X-RateLimit-Used") == QUOTA / cost + sent
            };
            if backend.is_sharded() {
                // With the limits on different servers, a refusal is refunded after its response.
                eventually("refused requests charge no other limit", charges_only_admitted);
            } else {
                assert!(charges_only_admitted(), "refused requests charge no other limit");
            }
        }
    });
}
