use std::{collections::BTreeSet, time::Duration};

use testkit::{
    backend::{MEMORY_AND_TOPOLOGIES, on_all_at_once},
    wait::{sleep, timed},
};
use tidegate::clock::Clock;

const YAML: &str = "upstreams: {hello: {respond: {body: hello}}}
limits: {slow: {quota: 150, window: 1m, key: [token]}}
routes: [{name: a, match: {path: /a}, upstream: hello, limits: [slow]}]
";

#[test]
fn one_window_advertises_one_reset() {
    on_all_at_once(&MEMORY_AND_TOPOLOGIES, |backend| {
        // In real time, by the clocks of Redis and of the gateways: the advertised reset must not
        // move.
        let fleet = backend.start(YAML, &Clock::system());
        let mut resets = [const { BTreeSet::<u64>::new() }; 4];
        let mut refused = 0;
        let ((), took) = timed(|| {
            for number in 0..1_000 {
                let caller = number % resets.len();
                let response = fleet.get_as(&format!("caller-{caller}"), "/a");
                resets[caller].insert(response.number("X-RateLimit-Reset"));
                refused += u32::from(response.status == 429);
                sleep(Duration::from_millis(1));
            }
        });
        assert!(took > Duration::from_secs(1), "over more than one second: {took:?}");
        assert_eq!(refused, 400, "refusals advertise the reset too");
        for reset in resets {
            assert_eq!(reset.len(), 1, "the reset moved: {reset:?}");
        }
    });
}
