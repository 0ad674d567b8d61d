//! From figures to the table: medians over the rounds, and medians of the rounds' own ratios.

use std::fmt::Write as _;

use crate::{contestant::Gateway, measure::Metric, work::Scenario};

/// One measured value.
struct Figure {
    metric: Metric,
    scenario: Scenario,
    gateway: Gateway,
    round: usize,
    value: f64,
}

/// Everything measured, in the order in which it was first measured.
#[derive(Default)]
pub(crate) struct Figures {
    all: Vec<Figure>,
}

/// What Tidegate's figure or ratio shall be, from the design's table of targets.
const TARGETS: [(Metric, Scenario, &str); 3] = [
    (Metric::Cpu, Scenario::Limited, "/nginx <= 1.10, then 0.85"),
    (Metric::Syscalls { connections: 16 }, Scenario::Limited, "<= 4.3, then 4.2"),
    (Metric::Instructions, Scenario::Limited, "<= 26k, then 10k"),
];
/// The same for the cost of a refusal against the own proxied request.
const REFUSAL_TARGET: &str = "<= 0.50, then 0.45";

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
            "| a request | nginx | HAProxy | Tidegate | Tidegate/nginx | Tidegate/HAProxy | target |\n\
             |---|---:|---:|---:|---:|---:|---|\n",
        );
        for (metric, scenario) in self.rows() {
            let target = TARGETS.iter().find(|(m, s, _)| (*m, *s) == (metric, scenario));
            let target = target.map_or("", |(_, _, target)| target);
            let cells = Gateway::ALL.map(|gateway| {
                let values = self.rounds(metric, scenario, gateway);
                median(values.iter().map(|&(_, value)| value)).map(|m| shown(metric, m))
            });
            let ratio = |peer| self.ratio(metric, scenario, peer);
            row(
                &mut text,
                &title(metric, scenario),
                cells,
                [ratio(Gateway::Nginx), ratio(Gateway::Haproxy)],
                target,
            );
        }
        for metric in [Metric::Cpu, Metric::Instructions] {
            let cells = Gateway::ALL.map(|gateway| self.refusal(metric, gateway));
            if cells.iter().any(Option::is_some) {
                let what = if metric == Metric::Cpu { "CPU" } else { "instructions" };
                let title = format!("{what} of a 429 / of the own proxied, limiter on");
                let target = if metric == Metric::Cpu { REFUSAL_TARGET } else { "" };
                row(&mut text, &title, cells, [None, None], target);
            }
        }
        text
    }

    /// The kinds of figures there are: by metric, then scenario.
    fn rows(&self) -> Vec<(Metric, Scenario)> {
        let mut metrics = Vec::new();
        for figure in &self.all {
            if !metrics.contains(&figure.metric) {
                metrics.push(figure.metric);
            }
        }
        let measured = |metric: Metric, scenario: Scenario| {
            self.all.iter().any(|f| f.metric == metric && f.scenario == scenario)
        };
        metrics
            .iter()
            .flat_map(|&metric| Scenario::ALL.map(|scenario| (metric, scenario)))
            .filter(|&(metric, scenario)| measured(metric, scenario))
            .collect()
    }

    /// The values of one gateway, each with its round.
    fn rounds(&self, metric: Metric, scenario: Scenario, gateway: Gateway) -> Vec<(usize, f64)> {
        self.all
            .iter()
            .filter(|f| f.metric == metric && f.scenario == scenario && f.gateway == gateway)
            .map(|f| (f.round, f.value))
            .collect()
    }

    /// Tidegate against a peer: the median of the rounds' ratios, and the least and the greatest.
    fn ratio(&self, metric: Metric, scenario: Scenario, peer: Gateway) -> Option<String> {
        spread(&quotients(
            &self.rounds(metric, scenario, Gateway::Tidegate),
            &self.rounds(metric, scenario, peer),
        ))
    }

    /// What a refusal costs against a proxied request of the same gateway.
    fn refusal(&self, metric: Metric, gateway: Gateway) -> Option<String> {
        spread(&quotients(
            &self.rounds(metric, Scenario::Refused, gateway),
            &self.rounds(metric, Scenario::Limited, gateway),
        ))
    }
}

/// The quotients of the values of the same round.
fn quotients(above: &[(usize, f64)], below: &[(usize, f64)]) -> Vec<f64> {
    let same = |round| below.iter().find(move |(other, _)| *other == round);
    above.iter().filter_map(|&(round, value)| same(round).map(|(_, by)| value / by)).collect()
}

/// Median and, of several, the extremes.
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
        Metric::User => format!("of it user, {scenario}"),
        Metric::Rate => format!("requests a second (information), {scenario}"),
        Metric::Syscalls { connections } => {
            format!("system calls, {scenario}, {connections} connections")
        }
        Metric::Instructions => format!("user instructions, {scenario}"),
    }
}

fn shown(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Cpu | Metric::User => format!("{value:.2} us"),
        Metric::Rate | Metric::Instructions => format!("{:.1}k", value / 1e3),
        Metric::Syscalls { .. } => format!("{value:.2}"),
    }
}

/// Appends a row; what was not measured is a dash.
fn row(
    text: &mut String,
    title: &str,
    cells: [Option<String>; 3],
    ratios: [Option<String>; 2],
    target: &str,
) {
    // Writing to a string does not fail.
    let _ = write!(text, "| {title} |");
    for cell in cells.into_iter().chain(ratios) {
        let _ = write!(text, " {} |", cell.as_deref().unwrap_or("-"));
    }
    let _ = writeln!(text, " {target} |");
}
