use std::io::Write;

use super::{Exit, written};
use crate::config;

/// Prints the configuration's JSON Schema.
pub(super) fn run(out: &mut dyn Write) -> Exit {
    written(writeln!(out, "{:#}", config::schema().as_value()), Exit::Ok)
}
