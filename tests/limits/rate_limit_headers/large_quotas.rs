//! Quotas and costs up to 2^53 - 1.

use testkit::backend::{MEMORY_AND_REDIS, on_each};
use tidegate::clock::Clock;

use super::{NOW, advertised};

/// The largest quota.
const LARGEST: u64 = 9_007_199_254_740_991;

/// The largest integer that a structured field can have (RFC 9651).
const STRUCTURED: u64 = 999_999_999_999_999;

#[test]
fn the_largest_quota_is_exact_in_headers() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        for limit in [
            "algorithm: fixed_window, window: 30d",
            "window: 30d, resolution: 6",
            "window: 366d, resolution: 1, strict: true",
        ] {
            let yaml = format!(
                "
                upstreams: {{hello: {{respond: {{body: hello}}}}}}
                limits:
                  spend: {{quota: {LARGEST}, {limit}, cost: header:x-cost}}
                headers: {{standard: draft-11}}
                routes:
                  - {{name: a, match: {{path: /a}}, upstream: hello, limits: [spend]}}
                "
            );
            let fleet = backend.start(&yaml, &Clock::manual(NOW));
            let mut used = 0;
            for cost in [1, (1 << 31) + 1, 1 << 32, 1_234_567_890_123_457, LARGEST / 2] {
                let response = fleet.get("/a", &format!("X-Cost: {cost}\r\n"));
                let shown = advertised(&response);
                used += cost;
                assert_eq!((shown.limit, shown.used), (LARGEST, used), "{limit}");
                let policy = response.header("RateLimit-Policy").expect("a policy");
                assert!(policy.contains(&format!("q={STRUCTURED};")), "{policy}");
                let left = response.header("RateLimit").expect("the state");
                assert!(left.contains(&format!("r={};", STRUCTURED.min(LARGEST - used))), "{left}");
            }
            let rest = LARGEST - used;
            let refused = advertised(&fleet.get("/a", &format!("X-Cost: {}\r\n", rest + 1)));
            assert_eq!((refused.admitted, refused.remaining), (false, rest), "{limit}");
            let admitted = advertised(&fleet.get("/a", &format!("X-Cost: {rest}\r\n")));
            assert_eq!((admitted.admitted, admitted.used), (true, LARGEST), "{limit}");
            let refused = advertised(&fleet.get("/a", "X-Cost: 1\r\n"));
            assert_eq!((refused.admitted, refused.remaining), (false, 0), "{limit}");
            assert!(refused.retry_after.is_some());
            let invalid = fleet.get("/a", &format!("X-Cost: {}\r\n", LARGEST + 1));
            assert_eq!(invalid.status, 400, "{}", invalid.head);
        }
    });
}
