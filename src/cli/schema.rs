//! `tidegate schema`.

use std::io::Write;

use super::{Exit, exit_after_write};
use crate::config;

/// Prints the configuration's JSON Schema.
pub(super) fn run(out: &mut dyn Write) -> Exit {
    exit_after_write(out.write_all(text().as_bytes()), Exit::Ok)
}

/// The JSON Schema, with a line break at its end.
pub(super) fn text() -> String {
    format!("{:#}\n", config::editor_schema())
}
