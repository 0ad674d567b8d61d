//! Reloads that change a quota: the usage stays, and the headers are exact.

use testkit::backend::{MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, on_all_at_once};
use tidegate::clock::{Clock, StoreTime, ms};

use super::{NOW, advertised, advertised_unchecked};

const QUOTA_10: &str = "
upstreams: {hello: {respond: {body: hello}}}
limits:
  small: {quota: 10, window: 10s}
routes:
  - {name: a, match: {path: /a}, upstream: hello, limits: [small]}
";

const QUOTA_20: &str = "
upstreams: {hello: {respond: {body: hello}}}
limits:
  small: {quota: 20, window: 10s}
routes:
  - {name: a, match: {path: /a}, upstream: hello, limits: [small]}
";

const QUOTA_4: &str = "
upstreams: {hello: {respond: {body: hello}}}
limits:
  small: {quota: 4, window: 10s}
routes:
  - {name: a, match: {path: /a}, upstream: hello, limits: [small]}
";

const QUOTA_8_COST_3: &str = "
upstreams: {hello: {respond: {body: hello}}}
limits:
  small: {quota: 8, window: 10s, cost: 3}
routes:
  - {name: a, match: {path: /a}, upstream: hello, limits: [small]}
";

#[test]
fn a_changed_quota_keeps_the_usage() {
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_TOPOLOGIES, |backend| {
        let clock = Clock::manual(NOW);
        let fleet = backend.start(QUOTA_10, &clock);
        for _ in 0..6 {
            fleet.get("/a", "");
        }
        fleet.reload(QUOTA_20);
        let raised = advertised(&fleet.get("/a", ""));
        assert_eq!((raised.limit, raised.used, raised.remaining), (20, 7, 13));
        fleet.reload(QUOTA_4);
        let lowered = advertised_unchecked(&fleet.get("/a", ""));
        assert_eq!((lowered.admitted, lowered.limit), (false, 4));
        assert_eq!((lowered.used, lowered.remaining), (7, 0), "overdrawn by the lowered quota");
        // The same with a cost within the lowered quota but above its remainder.
        fleet.reload(QUOTA_8_COST_3);
        let dear = advertised(&fleet.get("/a", ""));
        assert_eq!((dear.admitted, dear.used, dear.remaining), (false, 7, 1));
        clock.set(StoreTime::from_unix_ms(dear.reset * 1000));
        assert!(
            advertised(&fleet.get("/a", "")).admitted,
            "the reset is exact after a changed quota"
        );
        fleet.reload(QUOTA_4);
        let seconds = advertised_unchecked(&fleet.get("/a", "")).retry_after;
        if let Some(seconds) = seconds {
            clock.set(clock.store_time() + ms(seconds * 1000));
            assert!(advertised(&fleet.get("/a", "")).admitted);
        }
    });
}
