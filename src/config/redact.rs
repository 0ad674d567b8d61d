//! [`QuotedLine`]: what a fault shows of a line of a file, and of the values in it.
//!
//! A fault may be about text that is not YAML, so a line is read by itself: its keys and values, and the key that
//! encloses it. [`sensitive`](crate::sensitive) decides which of the values are hidden.

use std::borrow::Cow;
use std::ops::Range;

use super::line_values::{Enclosing, LineValue, enclosing, values, writes_fields};
use crate::escape::is_unprintable;
use crate::sensitive::{
    MASK, credential_forms, hides_member, is_secret_member, is_sensitive_name, mask_forms,
    sensitive_parameters, shows_field,
};

/// Number of characters of a value that faults quote.
pub(super) const MAX_QUOTED_VALUE: usize = 60;
/// Fewest characters of a hidden value that are also hidden outside of backticks.
const MIN_LENGTH: usize = 4;

/// A line of a file, without its credentials.
pub(super) struct QuotedLine {
    /// The line. A star replaces each character of a credential: the columns stay the same.
    pub(super) shown: String,
    hidden: Vec<HiddenValue>,
}

/// A value that is hidden.
struct HiddenValue {
    /// The column of its first character, from 0.
    column: usize,
    text: String,
}

impl QuotedLine {
    /// Line `number` of `text`, from 1.
    pub(super) fn new(text: &str, number: usize) -> Self {
        let start = match number {
            0 | 1 => 0,
            _ => text.match_indices('\n').nth(number - 2).map_or(text.len(), |(at, _)| at + 1),
        };
        let (before, from) = text.split_at(start);
        let line = from.lines().next().unwrap_or_default();
        let line: String = line
            .chars()
            .map(|c| if is_unprintable(c) && c != '\t' { '\u{fffd}' } else { c })
            .collect();
        let enclosing = enclosing(before, &line);
        let hidden: Vec<LineValue<'_>> = values(&line, enclosing)
            .into_iter()
            .filter(is_hidden)
            .filter(|value| value.text.contains(char::is_alphanumeric))
            .collect();
        let mut ranges = credential_forms(&line);
        ranges.extend(hidden.iter().map(|own| own.start..own.start + own.text.len()));
        if is_rest_of_secret(&line, enclosing) {
            ranges.push(line.len() - line.trim_start().len()..line.len());
        }
        let mut stars = vec![false; line.len()];
        for range in ranges {
            stars[range].fill(true);
        }
        let shown: String = line
            .char_indices()
            .map(|(at, c)| if stars[at] && !c.is_whitespace() { '*' } else { c })
            .collect();
        let mut shown = redact_secret_values(&redact_url_credentials(&shown));
        for value in sensitive_parameters(&shown).into_iter().rev() {
            let stars = "*".repeat(shown[value.clone()].chars().count());
            shown.replace_range(value, &stars);
        }
        let hidden = hidden.into_iter().map(|own| HiddenValue {
            column: line[..own.start].chars().count(),
            text: own.text.to_owned(),
        });
        Self { shown, hidden: hidden.collect() }
    }

    /// The text of a fault at these columns of the line, from 0, without the values that the line hides there.
    pub(super) fn hide(&self, text: &str, columns: &Range<usize>) -> String {
        let mut shown = text.to_owned();
        for HiddenValue { column, text } in &self.hidden {
            let length = text.chars().count();
            if *column < columns.end && columns.start <= column + length {
                shown = hide_value(&shown, text);
            }
        }
        match mask_forms(&shown) {
            Cow::Owned(masked) => masked,
            Cow::Borrowed(_) => shown,
        }
    }
}

/// True if the value may be a credential, by the key at which it stands.
fn is_hidden(value: &LineValue<'_>) -> bool {
    match (value.parent, value.key) {
        (Some(parent), key) if writes_fields(parent) => {
            !shows_field(key.unwrap_or_default(), value.text)
        }
        (_, Some(key)) => hides_member(key, value.text),
        (Some(parent), None) => is_secret_member(parent) && hides_member(parent, value.text),
        (None, None) => false,
    }
}

/// True if the whole line is a part of a secret that began in a line above.
fn is_rest_of_secret(line: &str, enclosing: Enclosing<'_>) -> bool {
    let is_mapping = || line.contains(": ") || line.trim_end().ends_with([':', '{', '[', '}', ']']);
    enclosing.key.is_some_and(|key| {
        is_secret_member(key) && hides_member(key, line.trim_start_matches([' ', '-', '"', '\'']))
    }) && !line.trim_start().starts_with(['#', '{', '[', '}', ']'])
        && !is_mapping()
}

/// The text with [`MASK`] in place of `value`, of its beginning, and of its parts between backticks.
fn hide_value(text: &str, value: &str) -> String {
    let length = value.chars().count();
    let mut text = text.to_owned();
    if length >= MIN_LENGTH {
        text = text.replace(value, MASK);
    }
    if let Some((end, _)) = value.char_indices().nth(MAX_QUOTED_VALUE) {
        text = text.replace(&value[..end], MASK);
    }
    let parts = text.split('`').enumerate().map(|(index, part)| {
        let inner = part.strip_suffix("...").unwrap_or(part);
        let is_quoted = index % 2 == 1 && !inner.is_empty();
        // The name of a variable in the value is no part of a credential.
        let is_variable = inner.starts_with('{') && inner.ends_with('}');
        if is_quoted && !is_variable && value.contains(inner) { MASK } else { part }
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Replaces everything after the first sensitive key with stars, unless its value is a reference such as
/// `env:NAME`. A credential with a quote or a comma may end later than YAML reads it.
fn redact_secret_values(text: &str) -> String {
    let mut values = text.match_indices(':').map(|(colon, _)| text.split_at(colon + 1));
    let found = values.find(|(before, value)| {
        let before = &before[..before.len() - 1];
        let is_quoted = before.ends_with(['"', '\'']);
        let key = before.trim_end_matches([' ', '\t', '"', '\'']);
        let start = key.rfind(|c: char| !c.is_alphanumeric() && !"-_.".contains(c));
        let key =
            start.map_or(key, |at| key[at..].trim_start_matches(|c: char| !c.is_alphanumeric()));
        // `header:x-token` is one value.
        let is_key =
            is_quoted || value.is_empty() || value.starts_with([' ', '\t', '"', '\'', '[', '{']);
        let reference = value.trim_start_matches([' ', '\t', '"', '\'', '[']);
        let is_password = ["password", "secret"].iter().any(|word| key.contains(word));
        // The definition of a limit that is named like a credential, such as `per-token`.
        let is_definition = value.trim_start().starts_with(['{', '[']) && !is_password;
        // The words after these values are others.
        let is_exact = key == "sha256";
        is_key
            && !is_definition
            && !is_exact
            && is_sensitive_name(key)
            && hides_member(key, reference)
    });
    match found.map(|(before, _)| before.len()) {
        None => text.to_owned(),
        Some(start) => {
            let (value, closing) =
                text[start..].split_at(text.len() - start - closing(text, start));
            let stars = value.chars().map(|c| if c.is_whitespace() { c } else { '*' });
            text[..start].chars().chain(stars).chain(closing.chars()).collect()
        }
    }
}

/// The number of braces and brackets at the end of the line that close ones opened before `start`. They are
/// not part of an unquoted value.
fn closing(text: &str, start: usize) -> usize {
    let is_opening = |c: char| matches!(c, '{' | '[');
    let is_closing = |c: char| matches!(c, '}' | ']');
    let (before, value) = text.split_at(start);
    let opened = before.matches(is_opening).count();
    let open = opened.saturating_sub(before.matches(is_closing).count());
    value.bytes().rev().take(open).take_while(|byte| is_closing(char::from(*byte))).count()
}

/// Replaces everything between the scheme of the first URL and the last `@` with stars. This may hide more
/// than the credentials, but never shows part of a password with a quote, a comma or a space.
pub(super) fn redact_url_credentials(text: &str) -> Cow<'_, str> {
    let credentials = text.find("://").map(|scheme| scheme + 3).zip(text.rfind('@'));
    match credentials.filter(|(start, end)| start < end) {
        None => Cow::Borrowed(text),
        Some((start, end)) => {
            let stars = "*".repeat(text[start..end].chars().count());
            Cow::Owned([&text[..start], &stars, &text[end..]].concat())
        }
    }
}
