//! What a simulated fleet measured.

use std::{fmt, ops::RangeInclusive, rc::Rc};

use tidegate::{clock::StoreTime, throttle::Filter};

use crate::simulation::fake_link::Usage;

/// A request that recorded its token.
pub(super) struct Recording {
    pub(super) token: u64,
    pub(super) generation: u64,
    pub(super) at: StoreTime,
    pub(super) gateway: usize,
    /// True if the time until the token is known elsewhere is measured.
    pub(super) is_measured: bool,
}

/// The figures of a fleet.
pub(super) struct FleetReport {
    pub(super) gateways: usize,
    /// Times until known elsewhere, in ms, sorted.
    pub(super) delays: Vec<u64>,
    /// What Redis did during the measurement, which lasted this long.
    pub(super) usage: Usage,
    pub(super) seconds: f64,
    /// Recordings in a live generation that the filters of running gateways lack.
    pub(super) lost: usize,
    /// Live generations in which two running gateways have different bits.
    pub(super) different: usize,
}

impl FleetReport {
    /// The header of a table of reports.
    pub(super) const HEADER: &'static str = "| gateways | known elsewhere p50, p99, longest | calls a second | egress, \
        ingress MB/s | commits a second | conflicts a second |\n|---:|---:|---:|---:|---:|---:|";

    /// The time until known elsewhere that this share of the gateways meets, in ms.
    pub(super) fn delay(&self, share: f64) -> u64 {
        let at = (self.delays.len().saturating_sub(1)) as f64 * share;
        self.delays.get(at as usize).copied().unwrap_or(0)
    }

    /// Bytes a second that Redis sends at the full load: a value is 2.7 MB long, and the logs have
    /// a thousand times the tokens.
    pub(super) fn egress(&self) -> f64 {
        let Usage { values_read, log_read, .. } = self.usage;
        (values_read as f64 * VALUE_LEN + log_read as f64 * SCALE) / self.seconds
    }

    /// Bytes a second that Redis receives at the full load.
    pub(super) fn ingress(&self) -> f64 {
        let Usage { values_written, log_written, .. } = self.usage;
        (values_written as f64 * VALUE_LEN + log_written as f64 * SCALE) / self.seconds
    }
}

/// Length of a full value, in bytes.
const VALUE_LEN: f64 = 2.7e6;

/// The full load in units of the simulated one.
const SCALE: f64 = 1_000.0;

impl fmt::Display for FleetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| self.delay(share) as f64 / 1_000.0);
        let a_second = |count: u64| count as f64 / self.seconds;
        write!(
            f,
            "| {} | {p50:.2} s, {p99:.2} s, {longest:.2} s | {:.0} | {:.1}, {:.1} | {:.1} | {:.1} |",
            self.gateways,
            a_second(self.usage.calls),
            self.egress() / 1e6,
            self.ingress() / 1e6,
            a_second(self.usage.commits),
            a_second(self.usage.conflicts),
        )
    }
}

/// The number of recordings in live generations that a filter lacks, summed over the filters.
pub(super) fn count_lost<'a>(
    filters: &[Rc<Filter>],
    recordings: &(impl Iterator<Item = &'a Recording> + Clone),
) -> usize {
    let lacks = |filter: &Rc<Filter>| {
        let live = filter.live_generations();
        let within = recordings.clone().filter(|recording| live.contains(&recording.generation));
        within.filter(|recording| !filter.contains(recording.token)).count()
    };
    filters.iter().map(lacks).sum()
}

/// The number of generations whose bits differ between two filters.
pub(super) fn count_different(filters: &[Rc<Filter>], generations: RangeInclusive<u64>) -> usize {
    let is_different = |index: &u64| {
        let first = filters.first().and_then(|filter| filter.export(*index));
        filters.iter().any(|filter| filter.export(*index) != first)
    };
    generations.filter(is_different).count()
}
