//! Faults for text that is not YAML, with a guess at what was meant.

use saphyr_parser::ScanError;
use tidegate_base::sensitive::is_sensitive_name;

use super::super::fault::Mismatch;
use super::super::location::Location;
use super::{LocatedMismatch, location, too_deep_mismatch};

/// The first character that YAML does not allow. Parsers stop at it or skip it.
pub(crate) fn control_character(text: &str) -> Option<LocatedMismatch> {
    // `fold` instead of `any`: without an early exit the loop is vectorized.
    let is_plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\t' | b'\n' | b'\r');
    if text.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
        return None;
    }
    let is_allowed = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    let at = text.find(|c| !is_allowed(c))?;
    let (before, from) = text.split_at(at);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |start| start.chars().count()) + 1;
    let what = format!("the control character `{}`", from.chars().next()?);
    let expected = "text without control characters; in double quotes, write an escape such as \\e";
    Some((Location { line, column, width: 1 }, Mismatch::new(what, expected)))
}

pub(crate) fn syntax_fault(text: &str, error: &ScanError) -> LocatedMismatch {
    let location = location(*error.marker(), 1);
    if error.info().contains("recursion limit") {
        return (location, too_deep_mismatch());
    }
    if let Some(missing) = missing_colon(text, location.line, error.info()) {
        return missing;
    }
    let line = text.lines().nth(location.line - 1).unwrap_or_default();
    let has_braces = line.contains("{*") || line.contains("/{");
    let expected = if line.contains("${") {
        "a YAML document: within braces and brackets, a variable needs quotes, such as {address: \"127.0.0.1:${PORT}\"}"
    } else if has_braces {
        "a YAML document: a path with braces needs quotes, such as \"/{*rest}\""
    } else {
        "a YAML document"
    };
    (location, Mismatch::new(format!("not YAML ({})", error.info()), expected))
}

/// The key without a colon in the last line of code before line `at`, where the parser noticed it.
fn missing_colon(text: &str, at: usize, info: &str) -> Option<LocatedMismatch> {
    let is_about_keys = ["simple key", "mapping values are not allowed", "expected key"];
    if !is_about_keys.iter().any(|words| info.contains(words)) {
        return None;
    }
    let is_code = |line: &str| !matches!(line.trim_start().chars().next(), None | Some('#'));
    let (mut above, mut last) = ("", None);
    for (index, line) in text.lines().enumerate().take(at.saturating_sub(1)) {
        if is_code(line) {
            above = last.map_or("", |(_, line)| line);
            last = Some((index, line));
        }
    }
    let (index, line) = last?;
    let code = line.split(" #").next().unwrap_or_default().trim();
    let (code, is_item) =
        code.strip_prefix("- ").map_or((code, false), |item| (item.trim_start(), true));
    let (key, value) = code.split_once(' ').map_or((code, ""), |(key, value)| (key, value.trim()));
    let is_key = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    // A list item of one word is a value.
    let is_other = code.contains(": ") || code.ends_with(':') || is_item && value.is_empty();
    // A fault quotes the line, which may be the secret value of the key above it.
    let above =
        above.split(':').next().unwrap_or_default().trim_start_matches([' ', '-', '"', '\'']);
    if !is_key || is_other || is_sensitive_name(key) || is_sensitive_name(above) {
        return None;
    }
    let start = line.find(key).unwrap_or_default();
    let column = line[..start].chars().count() + 1;
    let location = Location { line: index + 1, column, width: key.chars().count() };
    let expected = format!("`{key}:`, with a space or a line break after the colon");
    Some((location, Mismatch::new(format!("`{key}` without a colon"), expected)))
}
