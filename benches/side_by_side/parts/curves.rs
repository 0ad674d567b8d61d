//! The parts whose figures are curves: latency by load, and memory by number of connections.

use anyhow::Result;

use super::Run;
use crate::{
    measure::{LoadSteps, Metric},
    scenario::{
        ClientProtocol::{self, Http1, Http1Tls, Http2Tls},
        Scenario,
    },
};

/// Loads in percent of the saturation.
pub(crate) const LOADS: [u8; 7] = [20, 40, 60, 70, 80, 90, 95];
/// Most rounds of the loads: one takes two minutes and a half.
const MAX_LOAD_ROUNDS: usize = 5;
/// Duration of the measurement of one load, in s.
const LOAD_DURATION: f64 = 4.0;

/// Numbers of idle connections of which the memory is measured.
pub(crate) const IDLE_COUNTS: [usize; 5] = [0, 1_000, 3_000, 6_000, 9_000];
/// The protocols of these connections.
pub(crate) const IDLE_PROTOCOLS: [ClientProtocol; 3] = [Http1, Http1Tls, Http2Tls];

impl Run<'_> {
    /// The 99th percentile of the request duration at shares of each contestant's own saturation,
    /// in rounds of rotating order. Each round measures the saturation again, because the machine's
    /// speed varies.
    pub(crate) fn load(&mut self) -> Result<()> {
        let rounds = self.options.rounds.min(MAX_LOAD_ROUNDS);
        let duration = if self.options.quick { LOAD_DURATION / 4.0 } else { LOAD_DURATION };
        let steps = LoadSteps { saturating: self.options.requests, percents: &LOADS, duration };
        let scenario = Scenario::DEFAULT;
        for round in 0..rounds {
            for program in self.order(round) {
                let gateway = program.gateway;
                let Some(curve) = self.bench.load_curve(program, scenario, &steps)? else {
                    continue;
                };
                eprintln!(
                    "round {}/{rounds}, {gateway}: saturated at {:.0} requests/s, busy for {:.0}% of the time",
                    round + 1,
                    curve.saturation,
                    curve.busy_share * 100.0
                );
                self.figures.add(Metric::Saturation, scenario, gateway, round, curve.saturation);
                for point in curve.points {
                    eprintln!("{gateway} at {}%: p99 {:.2} ms", point.percent, point.p99);
                    let metric = Metric::Load { percent: point.percent };
                    self.figures.add(metric, scenario, gateway, round, point.p99);
                }
            }
        }
        Ok(())
    }

    /// Memory by number of idle connections.
    pub(super) fn growth(&mut self) -> Result<()> {
        for protocol in IDLE_PROTOCOLS {
            for program in self.gateways() {
                let sizes = self.bench.growth(program, protocol, &IDLE_COUNTS)?;
                for (connections, size) in IDLE_COUNTS.into_iter().zip(sizes) {
                    eprintln!("{connections} idle, {protocol}, {}: {size:.1} MiB", program.gateway);
                    let metric = Metric::Footprint { connections };
                    self.figures.add(metric, Scenario::over(protocol), program.gateway, 0, size);
                }
            }
        }
        Ok(())
    }
}
