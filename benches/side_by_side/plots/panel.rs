//! A panel with curves: a grid, two axes with their titles, and one curve for each gateway.

use super::{
    axis::{Axis, number},
    look,
    svg::{Area, Place, Point, Size, Svg},
};
use crate::contestant::Gateway;

/// The values of one gateway: pairs of coordinates, by the first.
pub(super) struct Series {
    pub(super) gateway: Gateway,
    pub(super) values: Vec<[f64; 2]>,
}

/// What a panel shows.
pub(super) struct Panel {
    /// Above the panel; may be empty.
    pub(super) heading: String,
    pub(super) horizontal: Axis,
    pub(super) vertical: Axis,
    /// With the units.
    pub(super) horizontal_title: &'static str,
    pub(super) vertical_title: &'static str,
    /// The values with a tick on the horizontal axis.
    pub(super) horizontal_ticks: Vec<f64>,
    pub(super) series: Vec<Series>,
}

impl Panel {
    /// Draws it; the titles and ticks are left of `area` and below it, the heading above it.
    pub(super) fn draw(&self, svg: &mut Svg, area: Area) {
        let Area { left, top, width, .. } = area;
        let horizontal = self.horizontal.between(left, area.right());
        let vertical = self.vertical.between(area.bottom(), top);
        let middle = left + width / 2.0;
        svg.text(Place::Around(Point { x: middle, y: top - 10.0 }), Size::Heading, &self.heading);
        for value in self.vertical.ticks() {
            let y = vertical.place(value);
            svg.grid_line(Point { x: left, y }, Point { x: area.right(), y });
            let place = Place::To(Point { x: left - 6.0, y: y + 4.0 });
            svg.text(place, Size::Normal, &number(value));
        }
        for &value in &self.horizontal_ticks {
            let x = horizontal.place(value);
            svg.grid_line(Point { x, y: top }, Point { x, y: area.bottom() });
            let place = Place::Around(Point { x, y: area.bottom() + 15.0 });
            svg.text(place, Size::Normal, &number(value));
        }
        let corner = Point { x: left, y: area.bottom() };
        svg.axis_line(corner, Point { x: area.right(), y: area.bottom() });
        svg.axis_line(corner, Point { x: left, y: top });
        let below = Place::Around(Point { x: middle, y: area.bottom() + 33.0 });
        svg.text(below, Size::Normal, self.horizontal_title);
        let beside = Point { x: left - 44.0, y: top + area.height / 2.0 };
        svg.text(Place::Upwards(beside), Size::Normal, self.vertical_title);
        for series in &self.series {
            let place =
                |[x, y]: &[f64; 2]| Point { x: horizontal.place(*x), y: vertical.place(*y) };
            let points: Vec<_> = series.values.iter().map(place).collect();
            svg.curve(&points, look(series.gateway));
        }
    }
}
