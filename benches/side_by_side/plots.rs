//! Draws plots of the figures, as SVG: `cpu.svg`, `latency.svg` and `memory.svg`, each if its
//! figures were measured. `svg` has the elements of an image, `axis` the places of values, `panel`
//! curves and their axes.

mod axis;
mod cpu;
mod curves;
mod panel;
mod svg;

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

use self::svg::{Look, Marker, Place, Point, Size, Svg};
use crate::{contestant::Gateway, report::Figures};

/// Width of every image, in pixels: a page of the book shows it in full.
const WIDTH: f64 = 720.0;
/// Height of the legend.
const LEGEND_HEIGHT: f64 = 26.0;
/// Distance from one line of the caption to the next.
const CAPTION_STEP: f64 = 14.0;
/// Most characters of a line of the caption.
const CAPTION_WIDTH: usize = 104;

/// A plot without its legend and its caption.
struct Drawing {
    /// The name of the file, without its extension.
    name: &'static str,
    /// What it shows.
    label: &'static str,
    /// How it was measured: a sentence for the caption.
    method: &'static str,
    /// The legend: each gateway, and what stands behind its name.
    gateways: Vec<(Gateway, String)>,
    picture: Box<dyn Picture>,
}

/// What is between the legend and the caption.
trait Picture {
    /// Height in pixels.
    fn height(&self) -> f64;

    /// Draws it below `top`.
    fn draw(&self, svg: &mut Svg, top: f64);
}

/// Writes the plots of all figures to `directory`, which is made if it is missing. The caption says
/// when, where and with which programs they were measured.
///
/// # Errors
///
/// A file cannot be written.
pub(crate) fn write(directory: &Path, figures: &Figures, caption: &str) -> Result<()> {
    fs::create_dir_all(directory)?;
    let drawings = [cpu::draw(figures), curves::latency(figures), curves::memory(figures)];
    for drawing in drawings.into_iter().flatten() {
        let path = directory.join(drawing.name).with_extension("svg");
        fs::write(&path, drawing.finish(caption)).with_context(|| path.display().to_string())?;
        eprintln!("drawn: {}", path.display());
    }
    Ok(())
}

impl Drawing {
    /// The image with legend and caption.
    fn finish(&self, caption: &str) -> String {
        let caption = lines(&format!("{caption} {}", self.method));
        let caption_top = LEGEND_HEIGHT + self.picture.height();
        let height = caption_top + (caption.len() as f64 + 0.5) * CAPTION_STEP;
        let mut svg = Svg::new(WIDTH, height, self.label);
        self.legend(&mut svg);
        self.picture.draw(&mut svg, LEGEND_HEIGHT);
        for (index, line) in caption.iter().enumerate() {
            let y = caption_top + (index as f64 + 0.8) * CAPTION_STEP;
            svg.text(Place::From(Point { x: 8.0, y }), Size::Normal, line);
        }
        svg.finish()
    }

    fn legend(&self, svg: &mut Svg) {
        let step = (WIDTH - 8.0) / self.gateways.len() as f64;
        for (index, (gateway, note)) in self.gateways.iter().enumerate() {
            let x = 14.0 + index as f64 * step;
            svg.marker(Point { x, y: 13.0 }, look(*gateway));
            let place = Place::From(Point { x: x + 10.0, y: 17.0 });
            svg.text(place, Size::Normal, &format!("{gateway}{note}"));
        }
    }
}

/// How a gateway is drawn, in every plot.
fn look(gateway: Gateway) -> Look {
    let (colour, marker, line_width) = match gateway {
        Gateway::Floor => ("#8f8f8f", Marker::Cross, 1.5),
        Gateway::Nginx => ("#3f83d6", Marker::Square, 1.5),
        Gateway::Haproxy => ("#c9742b", Marker::Diamond, 1.5),
        Gateway::Envoy => ("#a763b5", Marker::Triangle, 1.5),
        Gateway::Tidegate => ("#1f9d46", Marker::Circle, 2.5),
    };
    Look { colour, marker, line_width }
}

/// The text in lines of at most [`CAPTION_WIDTH`] characters.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < CAPTION_WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
