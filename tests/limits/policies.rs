//! Costs, refunds, tiers and shadow limits.

/// Rate-limit headers after an adjustment by the response.
mod adjustments;
/// Costs from request and response headers.
mod costs;
/// Refunded responses.
mod refunds;
/// Shadow limits.
mod shadow;
/// Tiers.
mod tiers;

use std::io::Write;

use testkit::{upstream::Upstream, yaml::fill};
use tidegate::clock::StoreTime;

/// The start of the manual clock.
pub(crate) const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// Responds to `/304` and the like with that status, and with `X-Cost` if the query has `cost`.
pub(crate) fn status_upstream() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let status = path.get(1..4).unwrap_or("200");
        let cost = path
            .split_once("cost=")
            .map_or(String::new(), |(_, cost)| format!("X-Cost: {}\r\n", cost.replace("%20", " ")));
        let length = if status == "304" { "" } else { "Content-Length: 0\r\n" };
        write!(socket, "HTTP/1.1 {status} Test\r\n{cost}{length}\r\n").is_ok()
    })
}

/// `yaml` with the upstream's target as `{upstream}`.
fn fill_upstream(yaml: &str, upstream: &Upstream) -> String {
    fill(yaml, [("upstream", upstream.target())])
}
