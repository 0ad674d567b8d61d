//! [`Window`]: the attempts from which the limit is adapted.

use tidegate_system::clock::CoarseTime;

/// The attempts since a time.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// The start.
    pub(super) began: CoarseTime,
    /// Number of attempts that were refused or timed out.
    pub(super) dropped: u32,
    /// The maximum of requests in flight.
    pub(super) max_in_flight: u32,
    /// Number of responses.
    responses: u32,
    /// The sum of the logarithms of their latencies, in us.
    logarithms: f64,
}

impl Window {
    /// An empty window that begins at `now`.
    pub(super) fn new(now: CoarseTime) -> Self {
        Self { began: now, dropped: 0, max_in_flight: 0, responses: 0, logarithms: 0.0 }
    }

    /// Adds a response with this latency, in us.
    pub(super) fn add(&mut self, latency: u64) {
        self.logarithms += (latency.max(1) as f64).ln();
        self.responses = self.responses.saturating_add(1);
    }

    /// Number of attempts.
    pub(super) fn len(&self) -> u32 {
        self.responses.saturating_add(self.dropped)
    }

    /// The geometric mean of the latencies, in us; `None` without a response.
    ///
    /// A few slow requests among fast ones change it little. If latencies are distributed
    /// exponentially, its standard error is 1.28/√n; a median's is 1.44/√n.
    pub(super) fn latency(&self) -> Option<f64> {
        (self.responses > 0).then(|| (self.logarithms / f64::from(self.responses)).exp())
    }
}
