//! An SVG image: text, rectangles, lines and markers. Its colours can be read on white and on
//! black, because an image in a page does not know the page's theme; its background is transparent.

use std::fmt::{Display, Write as _};

/// The colour of text and axes.
pub(super) const TEXT: &str = "#7d7d7d";
/// The colour of the lines of a grid.
const GRID: &str = "#7d7d7d4d";

/// A place in pixels from the top left corner.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// A place with a size, in pixels.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Where a text stands.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// It begins at the point.
    From(Point),
    /// Its middle is at the point.
    Around(Point),
    /// It ends at the point.
    To(Point),
    /// Its middle is at the point; it reads upwards.
    Upwards(Point),
}

/// How large a text is.
#[derive(Clone, Copy)]
pub(super) enum Size {
    /// The heading of a panel.
    Heading,
    /// All other text.
    Normal,
}

/// What distinguishes a series besides its colour, for readers who cannot tell the colours apart.
#[derive(Clone, Copy)]
pub(super) enum Marker {
    Circle,
    Square,
    Diamond,
    Triangle,
    Cross,
}

/// How a series is drawn.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) colour: &'static str,
    pub(super) marker: Marker,
    /// In pixels.
    pub(super) line_width: f64,
}

/// An image that is drawn.
pub(super) struct Svg(String);

impl Area {
    pub(super) fn right(self) -> f64 {
        self.left + self.width
    }

    pub(super) fn bottom(self) -> f64 {
        self.top + self.height
    }
}

impl Svg {
    /// An empty image; `label` is read to those who do not see it.
    pub(super) fn new(width: f64, height: f64, label: &str) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" role=\"img\" aria-label=\"{}\" font-family=\"sans-serif\" fill=\"{TEXT}\">\n",
            escaped(label)
        ))
    }

    /// The finished image.
    pub(super) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }

    pub(super) fn text(&mut self, place: Place, size: Size, text: &str) {
        let (Point { x, y }, anchor, turn) = match place {
            Place::From(point) => (point, "", String::new()),
            Place::Around(point) => (point, " text-anchor=\"middle\"", String::new()),
            Place::To(point) => (point, " text-anchor=\"end\"", String::new()),
            Place::Upwards(point) => (
                point,
                " text-anchor=\"middle\"",
                format!(" transform=\"rotate(-90 {:.1} {:.1})\"", point.x, point.y),
            ),
        };
        let size = match size {
            Size::Heading => "font-size=\"13\" font-weight=\"bold\"",
            Size::Normal => "font-size=\"12\"",
        };
        let text = escaped(text);
        self.element(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" {size}{anchor}{turn}>{text}</text>"
        ));
    }

    pub(super) fn bar(&mut self, area: Area, look: Look) {
        let Area { left, top, width, height } = area;
        let colour = look.colour;
        self.element(format_args!(
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" \
             fill=\"{colour}\"/>"
        ));
    }

    /// A line of the grid.
    pub(super) fn grid_line(&mut self, from: Point, to: Point) {
        self.segment(from, to, GRID);
    }

    /// The line of an axis.
    pub(super) fn axis_line(&mut self, from: Point, to: Point) {
        self.segment(from, to, TEXT);
    }

    fn segment(&mut self, from: Point, to: Point, colour: &str) {
        self.element(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
            from.x, from.y, to.x, to.y
        ));
    }

    /// A line through these points, with a marker at each.
    pub(super) fn curve(&mut self, points: &[Point], look: Look) {
        let list: Vec<_> =
            points.iter().map(|point| format!("{:.1},{:.1}", point.x, point.y)).collect();
        self.element(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"/>",
            list.join(" "),
            look.colour,
            look.line_width
        ));
        for point in points {
            self.marker(*point, look);
        }
    }

    pub(super) fn marker(&mut self, at: Point, look: Look) {
        let (Point { x, y }, colour) = (at, look.colour);
        let shape = match look.marker {
            Marker::Circle => {
                let circle =
                    format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
                return self.element(circle);
            }
            Marker::Square => "m-3.5,-3.5h7v7h-7z",
            Marker::Diamond => "m0,-5l5,5l-5,5l-5,-5z",
            Marker::Triangle => "m0,-5l5,9h-10z",
            Marker::Cross => "m-4,-5l4,4l4,-4l1,1l-4,4l4,4l-1,1l-4,-4l-4,4l-1,-1l4,-4l-4,-4z",
        };
        self.element(format_args!("<path d=\"M{x:.1},{y:.1}{shape}\" fill=\"{colour}\"/>"));
    }

    fn element(&mut self, element: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{element}");
    }
}

/// The text with the characters that have a meaning in XML replaced.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
