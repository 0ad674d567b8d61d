//! The plots with curves: latency by load, and memory by number of connections.

use super::{
    Drawing, Picture, WIDTH,
    axis::{Axis, number},
    panel::{Panel, Series},
    svg::{Area, Svg},
};
use crate::{
    contestant::Gateway,
    measure::Metric,
    parts::{IDLE_COUNTS, IDLE_PROTOCOLS, LOADS},
    report::Figures,
    scenario::Scenario,
};

/// Above a panel: its heading. Below: the ticks and the title of the axis. At its left: those of
/// the other axis.
const PANEL_TOP: f64 = 28.0;
const PANEL_BOTTOM: f64 = 50.0;
const PANEL_LEFT: f64 = 58.0;
/// At the right of a panel: the half of its last tick.
const PANEL_RIGHT: f64 = 18.0;

/// Panels side by side.
struct Row {
    panels: Vec<Panel>,
    /// Of the area with the curves.
    height: f64,
}

/// The plot of latency by load; `None` without figures.
pub(super) fn latency(figures: &Figures) -> Option<Drawing> {
    let scenario = Scenario::DEFAULT;
    let value = |gateway, percent| {
        let p99 = figures.median(Metric::Load { percent }, scenario, gateway)?;
        Some([f64::from(percent), p99])
    };
    let series = series(|gateway| LOADS.iter().filter_map(|&load| value(gateway, load)).collect())?;
    let gateways = series.iter().map(|series| {
        let rate = figures.median(Metric::Saturation, scenario, series.gateway);
        let rate = rate.map_or(String::new(), |rate| format!(" ({}/s)", thousands(rate)));
        (series.gateway, rate)
    });
    let gateways = gateways.collect();
    let panel = Panel {
        heading: String::new(),
        horizontal: Axis::linear(f64::from(LOADS[0]), 100.0),
        vertical: Axis::logarithmic(values(&series)),
        horizontal_title: "load, in % of the program's own saturation",
        vertical_title: "99th percentile of the latency, in ms",
        horizontal_ticks: LOADS.map(f64::from).into(),
        series,
    };
    let row = Row { panels: vec![panel], height: 330.0 };
    Some(Drawing {
        name: "latency",
        label: "Latency of each program by load",
        method: "HTTP/1.1 in clear, limit and log; one worker on one core, load and server on the other. Requests \
                 are sent at a constant rate; a latency counts from the time at which its request was due. \
                 In parentheses: the saturation in requests a second. Medians of the rounds.",
        gateways,
        picture: Box::new(row),
    })
}

/// The plot of memory by number of connections; `None` without figures.
pub(super) fn memory(figures: &Figures) -> Option<Drawing> {
    let mut panels = Vec::new();
    for protocol in IDLE_PROTOCOLS {
        let value = |gateway, connections| {
            let metric = Metric::Footprint { connections };
            let size = figures.median(metric, Scenario::over(protocol), gateway)?;
            Some([connections as f64 / 1e3, size])
        };
        let series =
            series(|gateway| IDLE_COUNTS.iter().filter_map(|&idle| value(gateway, idle)).collect());
        let Some(series) = series else { continue };
        panels.push(Panel {
            heading: protocol.to_string(),
            horizontal: Axis::linear(0.0, IDLE_COUNTS[IDLE_COUNTS.len() - 1] as f64 / 1e3),
            vertical: Axis::from_zero(values(&series)),
            horizontal_title: "idle connections, in thousands",
            vertical_title: if panels.is_empty() { "memory, in MiB" } else { "" },
            horizontal_ticks: IDLE_COUNTS.map(|idle| idle as f64 / 1e3).into(),
            series,
        });
    }
    let gateways = panels.first()?.series.iter();
    let gateways = gateways.map(|series| (series.gateway, String::new())).collect();
    let row = Row { panels, height: 260.0 };
    Some(Drawing {
        name: "memory",
        label: "Memory of each program by number of idle connections",
        method: "One worker, limit and log. Each connection has sent one request, one after the other. Memory is \
                 the proportional set size of all processes, without the kernel's buffers.",
        gateways,
        picture: Box::new(row),
    })
}

/// The curves with values; `None` if there are none.
fn series(values: impl Fn(Gateway) -> Vec<[f64; 2]>) -> Option<Vec<Series>> {
    let all = Gateway::ALL.map(|gateway| Series { gateway, values: values(gateway) });
    let measured: Vec<_> = all.into_iter().filter(|series| !series.values.is_empty()).collect();
    (!measured.is_empty()).then_some(measured)
}

/// The vertical coordinates of all curves.
fn values(series: &[Series]) -> impl Iterator<Item = f64> + Clone {
    series.iter().flat_map(|series| series.values.iter().map(|[_, value]| *value))
}

impl Picture for Row {
    fn height(&self) -> f64 {
        PANEL_TOP + self.height + PANEL_BOTTOM
    }

    fn draw(&self, svg: &mut Svg, top: f64) {
        let step = WIDTH / self.panels.len() as f64;
        for (index, panel) in self.panels.iter().enumerate() {
            let left = index as f64 * step + PANEL_LEFT;
            let width = step - PANEL_LEFT - PANEL_RIGHT;
            let area = Area { left, top: top + PANEL_TOP, width, height: self.height };
            panel.draw(svg, area);
        }
    }
}

/// Rounded to thousands, such as `41k`; below, to hundreds.
fn thousands(value: f64) -> String {
    if value < 1e4 { number((value / 1e2).round() * 1e2) } else { format!("{:.0}k", value / 1e3) }
}
