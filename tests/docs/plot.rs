//! The plot of requests a second, drawn from the table beside it.

use std::{fmt::Write, fs};

use crate::{is_updating, page::Page, root};

const PAGE: &str = "docs/src/performance/README.md";
const IMAGE: &str = "docs/src/images/requests-a-second.svg";

/// Colours that can be read on white and on black.
const TEXT: &str = "#7d7d7d";
const OWN: &str = "#1f883d";
const PEER: &str = "#6f8fb0";

/// The name and the microseconds of each row of the table.
fn rows(text: &str) -> Vec<(&str, f64)> {
    let table = text.split("\n| one worker |").nth(1).expect("the table");
    let lines = table.lines().take_while(|line| line.contains('|'));
    let rows = lines.filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (name, cpu) = (cells.next()?, cells.next()?.strip_suffix(" us")?);
        Some((name, cpu.parse().ok()?))
    });
    rows.collect()
}

/// A second divided by the CPU time of a request, rounded to hundreds, such as `56,800`.
fn rate(cpu: f64) -> (f64, String) {
    let rate = (1e4 / cpu).round() * 100.0;
    (rate, format!("{:.0},{:03.0}", (rate / 1000.0).floor(), rate % 1000.0))
}

fn draw(rows: &[(&str, f64)]) -> String {
    let height = 32 * rows.len();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 560 {height}\" width=\"560\" height=\"{height}\" \
         role=\"img\" aria-label=\"Requests per second of one core\" font-family=\"sans-serif\" font-size=\"13\" \
         fill=\"{TEXT}\">\n"
    );
    for (index, (name, cpu)) in rows.iter().enumerate() {
        let (rate, label) = rate(*cpu);
        let (top, text, width) = (6 + 32 * index, 21 + 32 * index, rate / 150.0);
        let colour = if *name == "Tidegate" { OWN } else { PEER };
        let end = 108.0 + width;
        writeln!(
            svg,
            "<text x=\"92\" y=\"{text}\" text-anchor=\"end\">{name}</text>\
             <rect x=\"100\" y=\"{top}\" width=\"{width:.0}\" height=\"20\" rx=\"3\" fill=\"{colour}\"/>\
             <text x=\"{end:.0}\" y=\"{text}\">{label}</text>"
        )
        .expect("a string");
    }
    svg + "</svg>\n"
}

#[test]
fn the_plot_shows_the_table() {
    let page = Page::read(PAGE);
    let rows = rows(&page.text);
    assert_eq!(rows.len(), 4, "{rows:?}");
    let (path, svg) = (root().join(IMAGE), draw(&rows));
    if is_updating() {
        fs::write(&path, &svg).expect("an image");
    }
    let hint = "to draw it again: UPDATE_DOCS=1 cargo test --test docs plot";
    assert_eq!(fs::read_to_string(&path).expect("an image"), svg, "{hint}");
    for page in [&page, &Page::read("README.md")] {
        for (name, cpu) in &rows {
            let name = name.split(' ').next().expect("a word");
            let shown = format!("{name} {}", rate(*cpu).1);
            assert!(
                page.text.contains(&shown),
                "{}: the text of the image lacks {shown}",
                page.path
            );
        }
    }
}
