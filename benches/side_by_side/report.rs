//! Computes the table from the figures: medians over the rounds, and medians of the rounds' ratios.

use std::fmt::Write as _;

use crate::{
    contestant::Gateway,
    measure::{History, Metric},
    scenario::{ClientProtocol, Scenario, Work},
};

/// The index of Tidegate in [`Gateway::ALL`].
const TIDEGATE: usize = 4;

/// One measured value.
struct Figure {
    metric: Metric,
    scenario: Scenario,
    gateway: Gateway,
    round: usize,
    value: f64,
}

/// All figures, in the order of measurement.
#[derive(Default)]
pub(crate) struct Figures {
    all: Vec<Figure>,
}

/// The quantity that a target bounds.
#[derive(Clone, Copy)]
enum TargetOf {
    /// Tidegate's own figure.
    Own,
    /// Its ratio to nginx' figure.
    ToNginx,
    /// Its ratio to the smallest figure of the peers.
    ToBetterPeer,
}

/// Upper bounds of Tidegate's figures.
const TARGETS: [(Metric, Scenario, TargetOf, f64); 13] = [
    (Metric::Cpu, Scenario::DEFAULT, TargetOf::ToNginx, 0.90),
    (Metric::Cpu, Scenario::UNLIMITED_UNLOGGED, TargetOf::ToNginx, 0.85),
    (Metric::Cpu, Scenario::over(ClientProtocol::Http1Tls), TargetOf::ToBetterPeer, 1.10),
    (Metric::Cpu, Scenario::over(ClientProtocol::Http2), TargetOf::ToBetterPeer, 1.10),
    (Metric::Cpu, Scenario::over(ClientProtocol::Http2Tls), TargetOf::ToBetterPeer, 1.10),
    (
        Metric::Cpu,
        Scenario::working_unlogged(Work::FullHandshake, ClientProtocol::Http1Tls),
        TargetOf::ToBetterPeer,
        1.0,
    ),
    (Metric::Syscalls { connections: 16 }, Scenario::DEFAULT, TargetOf::Own, 4.3),
    (Metric::Instructions, Scenario::UNLOGGED, TargetOf::Own, 16e3),
    (Metric::Allocations, Scenario::DEFAULT, TargetOf::Own, 4.0),
    (Metric::Memory(History::Silent), Scenario::DEFAULT, TargetOf::Own, 4.0),
    (Metric::Memory(History::OneRequest), Scenario::DEFAULT, TargetOf::Own, 4.0),
    (Metric::Tail { percent: 50 }, Scenario::DEFAULT, TargetOf::ToNginx, 1.0),
    (Metric::Tail { percent: 80 }, Scenario::DEFAULT, TargetOf::ToNginx, 1.0),
];

/// Rows with the ratio of two scenarios, the first to the second, of each contestant; and
/// Tidegate's target.
const SCENARIO_RATIOS: [(&str, Metric, Scenario, Scenario, Option<f64>); 6] = [
    (
        "CPU, a 429 / proxied, both limit and log",
        Metric::Cpu,
        Scenario::REFUSED,
        Scenario::DEFAULT,
        Some(0.45),
    ),
    (
        "CPU, a 429 / proxied, limit, no log",
        Metric::Cpu,
        Scenario::REFUSED_UNLOGGED,
        Scenario::UNLOGGED,
        None,
    ),
    (
        "CPU, 2 workers / 1, one key",
        Metric::Cpu,
        Scenario::on_workers(2),
        Scenario::on_workers(1),
        Some(1.05),
    ),
    (
        "user instructions, a 429 / proxied, both limit and log",
        Metric::Instructions,
        Scenario::REFUSED,
        Scenario::DEFAULT,
        None,
    ),
    (
        "user instructions, 1,000 routes / 10",
        Metric::Instructions,
        Scenario::with_routes(1_000),
        Scenario::with_routes(10),
        Some(1.10),
    ),
    (
        "user instructions, 10,000 routes / 10",
        Metric::Instructions,
        Scenario::with_routes(10_000),
        Scenario::with_routes(10),
        Some(1.10),
    ),
];

/// Upper bound of the user instructions per access line.
const ACCESS_LINE_TARGET: f64 = 1_500.0;

impl Figures {
    /// Adds a value of one round.
    pub(crate) fn add(
        &mut self,
        metric: Metric,
        scenario: Scenario,
        gateway: Gateway,
        round: usize,
        value: f64,
    ) {
        self.all.push(Figure { metric, scenario, gateway, round, value });
    }

    /// The markdown table.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from(
            "| per request | floor | nginx | HAProxy | Envoy | Tidegate | /nginx | /HAProxy | /Envoy | target |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
        );
        for (metric, scenario) in self.rows() {
            self.measured_row(&mut text, metric, scenario);
        }
        for (title, metric, above, below, target) in SCENARIO_RATIOS {
            let ratios = Gateway::ALL.map(|gateway| {
                ratios_by_round(
                    &self.rounds(metric, above, gateway),
                    &self.rounds(metric, below, gateway),
                )
            });
            let cells = ratios.each_ref().map(|ratios| spread(ratios));
            if cells.iter().any(Option::is_some) {
                let own = median(ratios[TIDEGATE].iter().copied());
                let target = target.map_or(String::new(), |target| target_text("", own, target));
                row(&mut text, title, cells, [const { None }; 3], &target);
            }
        }
        let line = Gateway::ALL.map(|gateway| {
            let count = |scenario| self.median(Metric::Instructions, scenario, gateway);
            Some(count(Scenario::DEFAULT)? - count(Scenario::UNLOGGED)?)
        });
        if line.iter().any(Option::is_some) {
            let target = target_text("", line[TIDEGATE], ACCESS_LINE_TARGET);
            let cells =
                line.map(|count| count.map(|count| format_value(Metric::Instructions, count)));
            row(
                &mut text,
                "user instructions, the access line alone",
                cells,
                [const { None }; 3],
                &target,
            );
        }
        text
    }

    fn measured_row(&self, text: &mut String, metric: Metric, scenario: Scenario) {
        let medians = Gateway::ALL.map(|gateway| self.median(metric, scenario, gateway));
        let ratios = Gateway::PEERS.map(|peer| {
            ratios_by_round(
                &self.rounds(metric, scenario, Gateway::Tidegate),
                &self.rounds(metric, scenario, peer),
            )
        });
        let target = TARGETS.iter().find(|target| (target.0, target.1) == (metric, scenario));
        let target = target.map_or(String::new(), |(_, _, of, at_most)| match of {
            TargetOf::Own => target_text("", medians[TIDEGATE], *at_most),
            TargetOf::ToNginx => {
                target_text("/nginx ", median(ratios[0].iter().copied()), *at_most)
            }
            TargetOf::ToBetterPeer => {
                let medians = ratios.iter().filter_map(|ratios| median(ratios.iter().copied()));
                target_text("/better ", medians.reduce(f64::max), *at_most)
            }
        });
        let cells = medians.map(|value| value.map(|value| format_value(metric, value)));
        row(text, &title(metric, scenario), cells, ratios.map(|ratios| spread(&ratios)), &target);
    }

    /// The median over the rounds.
    pub(crate) fn median(
        &self,
        metric: Metric,
        scenario: Scenario,
        gateway: Gateway,
    ) -> Option<f64> {
        median(self.rounds(metric, scenario, gateway).iter().map(|&(_, value)| value))
    }

    /// The rows of the table: by metric, then by scenario, both in the order of measurement.
    fn rows(&self) -> Vec<(Metric, Scenario)> {
        let mut metrics = Vec::new();
        let mut rows = Vec::new();
        for figure in &self.all {
            if !metrics.contains(&figure.metric) {
                metrics.push(figure.metric);
            }
            if !rows.contains(&(figure.metric, figure.scenario)) {
                rows.push((figure.metric, figure.scenario));
            }
        }
        rows.sort_by_key(|(metric, _)| metrics.iter().position(|other| other == metric));
        rows
    }

    /// The values of one gateway, each with its round.
    fn rounds(&self, metric: Metric, scenario: Scenario, gateway: Gateway) -> Vec<(usize, f64)> {
        self.all
            .iter()
            .filter(|f| f.metric == metric && f.scenario == scenario && f.gateway == gateway)
            .map(|f| (f.round, f.value))
            .collect()
    }
}

/// The ratios of values of the same round.
fn ratios_by_round(above: &[(usize, f64)], below: &[(usize, f64)]) -> Vec<f64> {
    let same = |round| below.iter().find(move |(other, by)| *other == round && *by > 0.0);
    above.iter().filter_map(|&(round, value)| same(round).map(|(_, by)| value / by)).collect()
}

/// The median and, if there are several ratios, their minimum and maximum.
fn spread(ratios: &[f64]) -> Option<String> {
    let middle = median(ratios.iter().copied())?;
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some(if ratios.len() == 1 {
        format!("{middle:.2}")
    } else {
        format!("**{middle:.2}** ({least:.2}-{greatest:.2})")
    })
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<_> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}

fn title(metric: Metric, scenario: Scenario) -> String {
    match metric {
        Metric::Cpu => format!("CPU, {scenario}"),
        Metric::User => format!("user CPU, {scenario}"),
        Metric::Rate => format!("per second (informative), {scenario}"),
        Metric::Throughput => format!("MiB per second (informative), {scenario}"),
        Metric::Syscalls { connections } => {
            format!("system calls, {scenario}, {connections} connections")
        }
        Metric::Writes => format!("system calls that send, {scenario}"),
        Metric::Instructions => format!("user instructions, {scenario}"),
        Metric::Allocations => format!("heap allocations, {scenario}"),
        Metric::Memory(History::OneRequest) if scenario.protocol != ClientProtocol::Http1 => {
            format!("memory of an idle connection, after one request, {}", scenario.protocol)
        }
        Metric::Memory(History::Tunnel) => {
            format!("memory of an idle tunnel, {}", scenario.protocol)
        }
        Metric::Memory(History::Silent) => "memory of an idle connection, silent".to_owned(),
        Metric::Memory(History::OneRequest) => {
            "memory of an idle connection, after one request".to_owned()
        }
        Metric::Memory(History::Burst(concurrency)) => {
            format!("memory of an idle connection, after one request, {concurrency} at a time")
        }
        Metric::Tail { percent } => format!("p99 at {percent}% of nginx' saturation, {scenario}"),
        Metric::Saturation => format!("per second at saturation, {scenario}"),
        Metric::Load { percent } => format!("p99 at {percent}% of its own saturation, {scenario}"),
        Metric::Footprint { connections } => {
            format!("memory with {connections} idle connections, {}", scenario.protocol)
        }
    }
}

fn format_value(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Cpu | Metric::User => format!("{value:.2} us"),
        Metric::Rate | Metric::Saturation | Metric::Instructions => format!("{:.1}k", value / 1e3),
        Metric::Throughput => format!("{value:.0}"),
        Metric::Syscalls { .. } | Metric::Writes | Metric::Allocations => format!("{value:.2}"),
        Metric::Memory(_) => format!("{value:.1} KiB"),
        Metric::Tail { .. } | Metric::Load { .. } => format!("{value:.2} ms"),
        Metric::Footprint { .. } => format!("{value:.1} MiB"),
    }
}

/// The text of a target, and whether `value` meets it.
fn target_text(of: &str, value: Option<f64>, at_most: f64) -> String {
    let bound =
        if at_most < 1e3 { format!("{at_most:.2}") } else { format!("{:.1}k", at_most / 1e3) };
    match value {
        Some(value) if value <= at_most => format!("{of}<= {bound}: met"),
        Some(_) => format!("{of}<= {bound}: **missed**"),
        None => format!("{of}<= {bound}"),
    }
}

/// Appends a row; a dash marks a value that was not measured.
fn row(
    text: &mut String,
    title: &str,
    cells: [Option<String>; 5],
    ratios: [Option<String>; 3],
    target: &str,
) {
    // Writing to a string does not fail.
    let _ = write!(text, "| {title} |");
    for cell in cells.into_iter().chain(ratios) {
        let _ = write!(text, " {} |", cell.as_deref().unwrap_or("-"));
    }
    let _ = writeln!(text, " {target} |");
}
