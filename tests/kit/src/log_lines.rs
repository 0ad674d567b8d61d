//! The lines of an access log.

use std::{fs, path::Path};

use crate::wait::eventually;

/// The access log at `file`, once it has `count` lines: a worker writes lines when they are one
/// second old. Only lines of one worker are in order of completion.
pub fn read_lines(file: &Path, count: usize) -> String {
    let mut text = String::new();
    eventually("every line of the access log", || {
        text = fs::read_to_string(file).expect("a log");
        text.ends_with('\n') && text.lines().count() >= count
    });
    text
}
