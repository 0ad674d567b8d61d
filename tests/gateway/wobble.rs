use std::{collections::BTreeSet, time::Duration};

use tidegate::clock::Clock;

use crate::{
    stage::on_every_topology,
    wait::{pause, timed},
};

const YAML: &str = "upstreams: {hello: {respond: {body: hello}}}
limits: {slow: {quota: 150, window: 1m, key: [token]}}
routes: [{name: a, match: {path: /a}, upstream: hello, limits: [slow]}]
";

#[test]
fn a_thousand_requests_over_seconds_and_gateways_read_one_reset() {
    on_every_topology(|stage| {
        let fleet = stage.start(YAML, &Clock::system());
        let mut resets = [const { BTreeSet::<u64>::new() }; 4];
        let mut refused = 0;
        let ((), took) = timed(|| {
            for number in 0..1_000 {
                let caller = number % resets.len();
                let reply = fleet.get_as(&format!("caller-{caller}"), "/a");
                resets[caller].insert(reply.number("X-RateLimit-Reset"));
                refused += u32::from(reply.status == 429);
                pause(Duration::from_millis(3));
            }
        });
        assert!(took > Duration::from_millis(2_500), "over several seconds: {took:?}");
        assert_eq!(refused, 400, "refusals tell it too");
        for reset in resets {
            assert_eq!(reset.len(), 1, "it wobbles: {reset:?}");
        }
    });
}
