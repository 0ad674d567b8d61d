//! The heading of the table: the machine, the programs and the run.

use std::{fmt::Write as _, fs, thread};

use crate::contestant::Program;

/// Three lines: the machine, the versions, and `run`, the description of the run. Call it before
/// pinning, which changes the number of cores.
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

/// The average of the last minute.
pub(crate) fn load_average() -> String {
    line("/proc/loadavg").split(' ').next().unwrap_or("unknown").to_owned()
}

/// The name of the processor.
pub(crate) fn cpu_model() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(':'));
    model.map_or_else(|| "unknown CPU".to_owned(), |(_, name)| name.trim().to_owned())
}

/// The trimmed content of a file, which has one line.
pub(crate) fn line(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
