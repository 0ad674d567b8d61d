//! The heading of the table and the caption of plots: the machine, the programs and the run.

use std::{fmt::Write as _, fs, thread, time::SystemTime};

use crate::contestant::{Gateway, Program};

/// Three lines: the machine, the versions, and `run`, the description of the run. Call it before pinning,
/// which changes the number of cores.
pub(crate) fn describe(programs: &[Program], run: &str) -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!(
        "Machine: {}, {cores} cores, Linux {}, load average {} at the start.  ",
        cpu_model(),
        line("/proc/sys/kernel/osrelease"),
        load_average(),
    );
    text.push_str("\nVersions: ");
    for (index, program) in programs.iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{}: {}", program.gateway, program.version);
    }
    text.extend([".  \n", run]);
    text
}

/// The date, the versions of the programs, and the machine. Call it before pinning.
pub(crate) fn caption(programs: &[Program]) -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let date = now.split('T').next().unwrap_or_default();
    let gateways = programs.iter().filter(|program| program.gateway != Gateway::Floor);
    let versions =
        gateways.map(|program| format!("{} {}", program.gateway, number(&program.version)));
    let versions = versions.collect::<Vec<_>>().join(", ");
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let kernel = line("/proc/sys/kernel/osrelease");
    let kernel = kernel.split('-').next().unwrap_or_default();
    let load = load_average();
    format!(
        "{date}: {versions}; {}, {cores} cores, Linux {kernel}, load average {load} at the start.",
        cpu_model()
    )
}

/// The part of a version text that is the number, such as `2.6.12-1`.
fn number(version: &str) -> &str {
    let is_number =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    version.split([' ', '/']).find(is_number).unwrap_or(version)
}

/// The average of the last minute.
fn load_average() -> String {
    line("/proc/loadavg").split(' ').next().unwrap_or("unknown").to_owned()
}

fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(':'));
    model.map_or_else(|| "unknown CPU".to_owned(), |(_, name)| name.trim().to_owned())
}

/// The trimmed content of a file, which has one line.
fn line(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
