//! The caption of plots.

use std::{thread, time::SystemTime};

use crate::{
    contestant::{Gateway, Program},
    machine::{cpu_model, line, load_average},
};

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
