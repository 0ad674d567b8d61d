//! The part of what a route does to messages: header rules and compression.

use anyhow::Result;

use super::Run;
use crate::{
    Part, h2load,
    scenario::{ClientProtocol, Scenario, Work},
};

/// Work with short responses, which the load generator of this program drives.
const SHORT: [Work; 2] = [Work::Get, Work::HeaderRules];
/// Work with a response of 16 KiB, which `h2load` drives.
const PAGES: [Work; 3] = [Work::Page, Work::Gzip, Work::Zstd];
/// The share of the requests of a run for a response of 16 KiB.
const PAGE_SHARE: u64 = 4;

impl Run<'_> {
    /// CPU time of header rules and of compression, in rounds of rotating order; user instructions
    /// of header rules once.
    pub(crate) fn policies(&mut self) -> Result<()> {
        let pages: &[Work] = if h2load::is_installed() { &PAGES } else { &[] };
        if pages.is_empty() {
            eprintln!("skipped: compression is measured with h2load, which is not installed");
        }
        let scenario = |work| Scenario::working(work, ClientProtocol::Http1);
        // A run of all parts has measured the first one already.
        let short = if self.options.runs(Part::Cpu) { &SHORT[1..] } else { &SHORT[..] };
        let short: Vec<Scenario> = short.iter().map(|work| scenario(*work)).collect();
        for round in 0..self.options.rounds {
            for scenario in &short {
                for program in self.order(round).filter(|program| program.can_do(*scenario)) {
                    self.measure_cpu(program, *scenario, round)?;
                }
            }
            for scenario in pages.iter().map(|work| scenario(*work)) {
                for program in self.order(round).filter(|program| program.can_do(scenario)) {
                    let requests = self.options.requests / PAGE_SHARE;
                    let cpu_time = self.bench.cpu_of_protocol(program, scenario, requests)?;
                    self.add_cpu(program, scenario, round, &cpu_time);
                }
            }
        }
        for scenario in &short {
            for program in self.gateways().filter(|program| program.can_do(*scenario)) {
                self.measure_counts(program, *scenario)?;
            }
        }
        Ok(())
    }
}
