//! `tidegate schema`.

use std::io::Write;

use super::{Exit, exit_after_write};
use crate::config;

/// Prints the configuration's JSON Schema.
pub(super) fn run(out: &mut dyn Write) -> Exit {
    exit_after_write(out.write_all(config::editor_schema().as_bytes()), Exit::Ok)
}
