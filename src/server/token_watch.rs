//! Warns if the throttle recognises no user, because no request carries an access token: for
//! example, browsers send a session cookie that `client.token` does not name.

use std::time::Duration;

use crate::gateway::Shared;

/// Interval between two checks of the counters.
const INTERVAL: Duration = Duration::from_mins(1);

/// The warning is logged after this number of requests, if none has a token.
const SUSPICIOUS: u64 = 100;

/// The counters since a request with a token was last seen.
#[derive(Debug, Default)]
struct TokenWatch {
    with_token: u64,
    /// The number of requests without a token when a request with one was last seen.
    without_token: u64,
    is_reported: bool,
}

impl TokenWatch {
    /// Takes the counts, since the start, of requests with and without a token. Returns the number
    /// of requests without a token if a warning is due: once until a token is seen again.
    fn look(&mut self, [with_token, without_token]: [u64; 2]) -> Option<u64> {
        if with_token != self.with_token {
            *self = Self { with_token, without_token, is_reported: false };
        }
        let since = without_token.saturating_sub(self.without_token);
        let is_due = since >= SUSPICIOUS && !self.is_reported;
        self.is_reported |= is_due;
        is_due.then_some(since)
    }
}

/// Checks the counters once a minute; never returns.
pub(super) async fn run(shared: &Shared) {
    let mut watch = TokenWatch::default();
    loop {
        shared.clock.sleep(INTERVAL).await;
        if let Some(requests) = watch.look(shared.metrics.throttle_requests()) {
            tracing::warn!(
                requests,
                "the throttle recognises no user: none of these requests carried a token of client.token; \
                 sessions of browsers need [cookie:NAME] there"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_requests_without_any_token_are_reported_once() {
        let mut watch = TokenWatch::default();
        assert_eq!(watch.look([0, 99]), None);
        assert_eq!(watch.look([0, 140]), Some(140));
        assert_eq!(watch.look([0, 10_000]), None, "reported");
        assert_eq!(watch.look([1, 10_100]), None, "a token");
        assert_eq!(watch.look([1, 10_150]), None);
        assert_eq!(watch.look([1, 10_200]), Some(100), "none since then");
        assert_eq!(watch.look([2, 20_000]), None);
        assert_eq!(watch.look([3, 30_000]), None, "some requests carry one");
    }
}
