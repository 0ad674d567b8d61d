//! Prints a replay's report as tables.

mod waiting;

use std::io::{self, Write};
use std::iter;

use crate::replay::report::{ConfigResult, Difference, Report, ReportRow};

/// Prints a report as text.
pub(super) fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    for file in &report.files {
        match (file.format, file.lines) {
            (None, 0) => writeln!(out, "{}: empty", file.name),
            (format, lines) => {
                let format = format.unwrap_or("unknown format");
                writeln!(out, "{}: {format}, {}", file.name, count(lines, "line"))
            }
        }?;
        if let Some(broken) = &file.broken {
            writeln!(out, "  reading failed after that: {broken}")?;
        }
    }
    write!(out, "{}", count(report.requests, "request"))?;
    if let (Some(from), Some(to)) = (&report.from, &report.to) {
        write!(out, " from {from} to {to}")?;
    }
    write!(out, "; {}", count(report.malformed, "malformed line"))?;
    if report.process_lines > 0 {
        write!(out, "; {} of the process log", count(report.process_lines, "line"))?;
    }
    writeln!(out)?;
    for malformed in &report.first_malformed {
        writeln!(out, "  {}: {}", malformed.at, malformed.fault)?;
    }
    for result in &report.results {
        config_result(result, out)?;
    }
    if let Some(difference) = &report.difference {
        self::difference(difference, out)?;
    }
    if !report.notes.is_empty() {
        writeln!(out)?;
    }
    for note in &report.notes {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

fn config_result(result: &ConfigResult, out: &mut dyn Write) -> io::Result<()> {
    let ConfigResult { config, matched, admitted, refused, unlimited, denied, .. } = result;
    let [admitted, refused, unlimited] = [admitted, refused, unlimited].map(|n| grouped(*n));
    write!(
        out,
        "\n{config}: {} with a route: {admitted} admitted, {refused} refused, {unlimited} without a \
         limit",
        count(*matched, "request")
    )?;
    for (route, count) in denied {
        write!(out, "; {} denied by route {route}", grouped(*count))?;
    }
    for (status, count) in &result.unmatched {
        write!(out, "; {} answered with {status}", grouped(*count))?;
    }
    if result.undecided > 0 {
        write!(out, "; {} whose route is undecided", grouped(result.undecided))?;
    }
    writeln!(out)?;
    rows("limit", &result.limits, out)?;
    rows("route", &result.routes, out)?;
    let callers = result.callers.iter().map(|row| {
        let key = if row.key.is_empty() { "no key".to_owned() } else { row.key.join(" + ") };
        let by =
            row.limit.as_ref().map_or_else(|| "-".to_owned(), |limit| format!("{limit} ({key})"));
        vec![row.caller.clone(), grouped(row.requests), grouped(row.refused), by]
    });
    table(&["caller", "requests", "refused", "by"], &[1, 2], callers, out)?;
    result.waiting_room.as_ref().map_or(Ok(()), |room| waiting::print(room, out))
}

fn rows(what: &str, rows: &[ReportRow], out: &mut dyn Write) -> io::Result<()> {
    let none = || "-".to_owned();
    let cells = rows.iter().map(|row| {
        let first = row.first_refusal.as_ref();
        let worst = row.worst_minute.as_ref();
        vec![
            row.name.clone(),
            grouped(row.requests),
            grouped(row.admitted),
            grouped(row.refused),
            first.map_or_else(none, |place| format!("{} ({})", place.time, place.at)),
            worst.map_or_else(none, |minute| format!("{} ({})", minute.time, minute.refused)),
        ]
    });
    let header = [what, "requests", "admitted", "refused", "first refusal", "worst minute"];
    table(&header, &[1, 2, 3], cells, out)
}

fn difference(difference: &Difference, out: &mut dyn Write) -> io::Result<()> {
    let Difference { newly_refused, newly_admitted, limits, callers } = difference;
    let [refused, admitted] = [newly_refused, newly_admitted].map(|count| grouped(*count));
    writeln!(out, "\ndifference: {refused} newly refused, {admitted} newly admitted")?;
    let limits = limits.iter().map(|limit| {
        vec![limit.name.clone(), grouped(limit.newly_refused), grouped(limit.newly_admitted)]
    });
    table(&["limit", "newly refused", "newly admitted"], &[1, 2], limits, out)?;
    let callers = callers.iter().map(|row| {
        let counts = [row.requests, row.newly_refused, row.newly_admitted].map(grouped);
        iter::once(row.caller.clone()).chain(counts).collect()
    });
    table(&["caller", "requests", "newly refused", "newly admitted"], &[1, 2, 3], callers, out)
}

/// Prints a Markdown table, with the columns `numbers` aligned to the right; nothing without rows.
fn table(
    header: &[&str],
    numbers: &[usize],
    rows: impl Iterator<Item = Vec<String>>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    let header: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    let mut widths = vec![0; header.len()];
    for row in iter::once(&header).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    writeln!(out)?;
    print_row(&header, &widths, numbers, out)?;
    for width in &widths {
        write!(out, "|{}", "-".repeat(width + 2))?;
    }
    writeln!(out, "|")?;
    rows.iter().try_for_each(|row| print_row(row, &widths, numbers, out))
}

fn print_row(
    row: &[String],
    widths: &[usize],
    numbers: &[usize],
    out: &mut dyn Write,
) -> io::Result<()> {
    for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
        if numbers.contains(&column) {
            write!(out, "| {cell:>width$} ")?;
        } else {
            write!(out, "| {cell:<width$} ")?;
        }
    }
    writeln!(out, "|")
}

fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// A number with separators between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}
