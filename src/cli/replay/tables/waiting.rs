//! Prints who would have waited in the waiting room.

use std::io::{self, Write};
use std::iter;
use std::time::Duration;

use super::{count, grouped, table};
use crate::replay::report::WaitingReport;

pub(super) fn print(room: &WaitingReport, out: &mut dyn Write) -> io::Result<()> {
    let throttled = duration(room.throttled_seconds);
    write!(
        out,
        "\nwaiting room: {} waited; only active users admitted for {throttled}; at most {} active",
        count(room.waited, "user"),
        grouped(room.most_active)
    )?;
    if room.without_place > 0 {
        write!(out, "; {} refused without a place", count(room.without_place, "request"))?;
    }
    writeln!(out)?;
    if room.waited == 0 {
        return Ok(());
    }
    let wait = |seconds: Option<u64>| seconds.map_or_else(|| "-".to_owned(), duration);
    let queue = room.longest_queue.as_ref();
    let row = vec![
        grouped(room.admitted),
        grouped(room.gave_up),
        grouped(room.still_waiting),
        wait(room.wait_p50),
        wait(room.wait_p90),
        wait(room.wait_p99),
        wait(room.wait_max),
        queue.map_or_else(
            || "-".to_owned(),
            |queue| format!("{} ({})", grouped(queue.users), queue.time),
        ),
    ];
    let header = [
        "admitted",
        "gave up",
        "still waiting",
        "wait p50",
        "p90",
        "p99",
        "longest",
        "longest queue",
    ];
    table(&header, &[0, 1, 2], iter::once(row), out)?;
    let rows = room.longest_waits.iter().map(|row| {
        let end = row.end.replace('_', " ");
        vec![row.caller.clone(), row.since.clone(), duration(row.waited), end]
    });
    table(&["caller", "waiting since", "waited", "then"], &[], rows, out)
}

fn duration(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}
