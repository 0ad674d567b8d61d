//! The plot of CPU time a request: a group of bars for each kind of request.

use super::{
    Drawing, Picture, WIDTH,
    axis::{Axis, number},
    look,
    svg::{Area, Place, Point, Size, Svg},
};
use crate::{
    contestant::Gateway,
    measure::Metric,
    report::Figures,
    scenario::{
        ClientProtocol::{Http1, Http1Tls, Http2, Http2Tls},
        Scenario, Work,
    },
};

/// The groups of short requests, each with its name.
const SHORT: [(&str, Scenario); 9] = [
    ("HTTP/1.1, limit and log", Scenario::DEFAULT),
    ("HTTP/1.1, neither", Scenario::UNLIMITED_UNLOGGED),
    ("HTTP/1.1, 429 and log", Scenario::REFUSED),
    ("HTTP/1.1 over TLS", Scenario::over(Http1Tls)),
    ("HTTP/2", Scenario::over(Http2)),
    ("HTTP/2 over TLS", Scenario::over(Http2Tls)),
    ("HTTP/2, also upstream", Scenario::working(Work::Http2Upstream, Http2)),
    ("gRPC, unary call", Scenario::working(Work::Grpc, Http2)),
    ("tunnel, 128 bytes", Scenario::working(Work::Message(128), Http1)),
];
/// The groups of handshakes and long bodies.
const LONG: [(&str, Scenario); 6] = [
    ("full handshake", Scenario::working_unlogged(Work::FullHandshake, Http1Tls)),
    ("resumed handshake", Scenario::working_unlogged(Work::ResumedHandshake, Http1Tls)),
    ("tunnel, 64 KiB", Scenario::working(Work::Message(64 << 10), Http1)),
    ("HTTP/2, 1 MiB down", Scenario::working(Work::Download, Http2)),
    ("HTTP/2, TLS, 1 MiB down", Scenario::working(Work::Download, Http2Tls)),
    ("HTTP/2, TLS, 1 MiB up", Scenario::working(Work::Upload, Http2Tls)),
];

/// The start of the bars; names are left of it.
const BARS_LEFT: f64 = 172.0;
/// Room for the value behind the longest bar.
const VALUE_WIDTH: f64 = 56.0;
/// Distance from one bar to the next.
const BAR_STEP: f64 = 12.0;
const BAR_HEIGHT: f64 = 10.0;
/// Distance between the groups.
const GROUP_GAP: f64 = 9.0;
/// Above the bars of a panel: its heading. Below: the ticks and the title of the axis.
const PANEL_TOP: f64 = 26.0;
const PANEL_BOTTOM: f64 = 52.0;

/// The measured values of one kind of request.
struct Group {
    name: &'static str,
    values: Vec<(Gateway, f64)>,
}

/// Groups with one axis.
struct Bars {
    heading: &'static str,
    title: &'static str,
    groups: Vec<Group>,
}

/// Panels one below the other.
struct Panels(Vec<Bars>);

/// The plot; `None` without figures.
pub(super) fn draw(figures: &Figures) -> Option<Drawing> {
    let panels = [
        Bars {
            heading: "Requests, responses and messages of about 100 bytes",
            title: "CPU time a request, in µs",
            groups: groups(figures, &SHORT),
        },
        Bars {
            heading: "Handshakes and long bodies",
            title: "CPU time a handshake, body or message and its echo, in µs",
            groups: groups(figures, &LONG),
        },
    ];
    let panels: Vec<_> = panels.into_iter().filter(|panel| !panel.groups.is_empty()).collect();
    if panels.is_empty() {
        return None;
    }
    Some(Drawing {
        name: "cpu",
        label: "CPU time a request of each program",
        method: "One worker on one core, load and server on the other; limit and log, except for \
                 handshakes and where the name says otherwise; medians of the rounds.",
        gateways: Gateway::ALL.map(|gateway| (gateway, String::new())).into(),
        picture: Box::new(Panels(panels)),
    })
}

/// The groups that were measured.
fn groups(figures: &Figures, rows: &[(&'static str, Scenario)]) -> Vec<Group> {
    let groups = rows.iter().map(|&(name, scenario)| {
        let value = |gateway| Some((gateway, figures.median(Metric::Cpu, scenario, gateway)?));
        Group { name, values: Gateway::ALL.into_iter().filter_map(value).collect() }
    });
    groups.filter(|group| !group.values.is_empty()).collect()
}

impl Group {
    fn height(&self) -> f64 {
        self.values.len() as f64 * BAR_STEP + GROUP_GAP
    }
}

impl Picture for Panels {
    fn height(&self) -> f64 {
        self.0.iter().map(Bars::height).sum()
    }

    fn draw(&self, svg: &mut Svg, top: f64) {
        let mut top = top;
        for panel in &self.0 {
            panel.draw(svg, top);
            top += panel.height();
        }
    }
}

impl Bars {
    fn height(&self) -> f64 {
        PANEL_TOP + self.groups.iter().map(Group::height).sum::<f64>() + PANEL_BOTTOM
    }

    fn draw(&self, svg: &mut Svg, top: f64) {
        let values = self.groups.iter().flat_map(|group| &group.values);
        let axis = Axis::from_zero(values.map(|&(_, value)| value));
        let axis = axis.between(BARS_LEFT, WIDTH - VALUE_WIDTH);
        let (first, last) = (top + PANEL_TOP, top + self.height() - PANEL_BOTTOM);
        let middle = f64::midpoint(BARS_LEFT, WIDTH - VALUE_WIDTH);
        svg.text(Place::Around(Point { x: middle, y: top + 14.0 }), Size::Heading, self.heading);
        for value in axis.ticks() {
            let x = axis.place(value);
            svg.grid_line(Point { x, y: first }, Point { x, y: last });
            svg.text(Place::Around(Point { x, y: last + 14.0 }), Size::Normal, &number(value));
        }
        let title = Place::Around(Point { x: middle, y: last + 31.0 });
        svg.text(title, Size::Normal, self.title);
        let mut y = first + GROUP_GAP / 2.0;
        for group in &self.groups {
            group.draw(svg, axis, y);
            y += group.height();
        }
    }
}

impl Group {
    /// Draws the name and the bars, each with its value.
    fn draw(&self, svg: &mut Svg, axis: Axis, top: f64) {
        let middle = top + (self.height() - GROUP_GAP) / 2.0;
        let name = Place::To(Point { x: BARS_LEFT - 8.0, y: middle + 4.0 });
        svg.text(name, Size::Normal, self.name);
        for (index, &(gateway, value)) in self.values.iter().enumerate() {
            let top = top + index as f64 * BAR_STEP;
            let end = axis.place(value);
            let area = Area { left: BARS_LEFT, top, width: end - BARS_LEFT, height: BAR_HEIGHT };
            svg.bar(area, look(gateway));
            let text = if value < 100.0 { format!("{value:.1}") } else { number(value) };
            let beside = Place::From(Point { x: end + 4.0, y: top + 9.0 });
            svg.text(beside, Size::Normal, &text);
        }
    }
}
