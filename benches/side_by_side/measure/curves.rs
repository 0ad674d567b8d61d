//! Curves: latency by load, and memory by number of connections. Each is measured with one process,
//! step by step.

use std::thread;

use anyhow::{Context as _, Result};

use super::{Bench, SETTLE_TIME, protocols::Idle};
use crate::{
    contestant::Program,
    scenario::{ClientProtocol, Scenario},
    undisturbed::undisturbed,
};

/// Most attempts of one point while other processes use the machine.
const MAX_ATTEMPTS: u32 = 5;

/// How latencies are measured by load.
pub(crate) struct LoadSteps {
    /// Requests of the closed loop that measures the saturation.
    pub(crate) saturating: u64,
    /// Percentages of the saturation.
    pub(crate) percents: &'static [u8],
    /// Duration of a step, in s.
    pub(crate) duration: f64,
}

/// Latency by load.
pub(crate) struct LoadCurve {
    /// Requests per second in a closed loop.
    pub(crate) saturation: f64,
    /// The share of its CPU that the contestant used meanwhile, from 0 to 1. Far below 1, something
    /// else was the bottleneck.
    pub(crate) busy_share: f64,
    /// The steps during which other processes did not use the machine.
    pub(crate) points: Vec<LoadPoint>,
}

/// One step of a [`LoadCurve`].
pub(crate) struct LoadPoint {
    pub(crate) percent: u8,
    /// The 99th percentile of the request duration, in ms.
    pub(crate) p99: f64,
}

impl Bench {
    /// Latency at percentages of the contestant's own saturation, which is measured first; `None`
    /// if other processes used the machine meanwhile.
    pub(crate) fn load_curve(
        &self,
        program: &Program,
        scenario: Scenario,
        steps: &LoadSteps,
    ) -> Result<Option<LoadCurve>> {
        let contestant = self.start_warm(program, scenario)?;
        let pids = contestant.pids()?;
        let saturate = || self.cpu_of(&contestant, scenario, steps.saturating);
        let Some(saturated) = undisturbed(&pids, MAX_ATTEMPTS, saturate)? else {
            return Ok(None);
        };
        let saturation = saturated.rate;
        let busy_share = saturated.rate * saturated.total / 1e6;
        let mut points = Vec::with_capacity(steps.percents.len());
        for &percent in steps.percents {
            let rate = saturation * f64::from(percent) / 100.0;
            let requests = (rate * steps.duration) as u64;
            let step = || self.p99_at(&contestant, rate, requests);
            if let Some(p99) = undisturbed(&pids, MAX_ATTEMPTS, step)? {
                points.push(LoadPoint { percent, p99 });
            }
        }
        Ok(Some(LoadCurve { saturation, busy_share, points }))
    }

    /// Memory in MiB with each number of idle connections, after one request on each; `counts`
    /// ascend. Before, a few connections were open.
    pub(crate) fn growth(
        &self,
        program: &Program,
        protocol: ClientProtocol,
        counts: &[usize],
    ) -> Result<Vec<f64>> {
        let scenario = Scenario::over(protocol);
        let contestant = self.start(program, scenario)?;
        let measured = || {
            drop(Idle::open(&contestant, scenario, self.connections)?);
            let mut idle = Vec::new();
            let mut sizes = Vec::with_capacity(counts.len());
            let mut opened = 0;
            for &count in counts {
                if count > opened {
                    idle.push(Idle::open(&contestant, scenario, count - opened)?);
                    opened = count;
                }
                contestant.wait_for_files(idle.iter().map(Idle::files).sum())?;
                thread::sleep(SETTLE_TIME);
                sizes.push(contestant.memory()? as f64 / 1024.0);
            }
            anyhow::Ok(sizes)
        };
        measured().with_context(|| format!("{scenario}{}", contestant.logs()))
    }
}
