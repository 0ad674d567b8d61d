//! [`QuotedLine`]: what a fault shows of a line of a file, and of the values in it.
//!
//! [`hidden_scalars`](super::hidden_scalars) finds what is hidden in the text as far as it is YAML.
//! A fault may be about text that is not, so the line is read by itself as well: its keys and
//! values, and the key that encloses it. [`sensitive`](tidegate_base::sensitive) decides which of
//! the values are hidden.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;
use std::ops::{Deref, Range};

use tidegate_base::escape::{escape, is_unprintable};
use tidegate_base::sensitive::{
    MASK, Role, Step, credential_forms, ends_within_pem, hides_member, is_secret_member,
    is_sensitive_name, mask_forms, sensitive_parameters, shows_field, shows_pattern, shows_scalar,
};

use super::hidden_scalars::{OwnedStep, RelatedScalar, Relation, ScalarIndex};
use super::line_values::{Enclosing, LineValue, enclosing, values, without_comment, writes_fields};
use super::location::Location;

/// Number of characters of a value that faults quote.
pub(super) const MAX_QUOTED_VALUE: usize = 60;
/// Maximum length of a text of a fault, in characters.
const MAX_TEXT: usize = 1_500;
/// Fewest characters of a hidden value that are also hidden outside of backticks.
const MIN_LENGTH: usize = 4;
/// Fewest characters of a hidden value that are also hidden in faults of other values.
const MIN_ELSEWHERE: usize = 6;

/// The variables of templates without a name of their own. Faults name them also where the text
/// around them is hidden.
const VARIABLES: [&str; 10] = [
    "client_ip",
    "consumer",
    "host",
    "method",
    "path",
    "plan",
    "query",
    "request_id",
    "route",
    "scheme",
];

/// A text without credentials. Only `QuotedLine` makes one, so no fault has another text.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Shown(String);

impl Shown {
    /// The text without the brackets around it.
    pub(super) fn without_brackets(&self) -> Self {
        let text = self.0.strip_prefix('[').unwrap_or(&self.0);
        Self(text.strip_suffix(']').unwrap_or(text).to_owned())
    }
}

impl Deref for Shown {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A line of a file, without its credentials.
pub(super) struct QuotedLine<'i> {
    /// The line. A star replaces each character of a credential: the columns stay the same.
    pub(super) shown: Shown,
    hidden: Vec<HiddenValue<'i>>,
}

/// A value that is hidden.
struct HiddenValue<'i> {
    relation: Relation,
    text: Cow<'i, str>,
}

impl<'i> QuotedLine<'i> {
    /// The line of `text` that a fault at `location` quotes. `index` has the text's hidden scalars.
    pub(super) fn new(text: &str, index: &'i ScalarIndex, location: Location) -> Self {
        let number = location.line;
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
        let related: Vec<RelatedScalar<'i>> = index.related_to(location).collect();
        let enclosing = enclosing(before, &line);
        let line = without_comment(&line, enclosing).to_owned();
        let own: Vec<LineValue<'_>> = values(&line, enclosing)
            .into_iter()
            .filter(|value| is_hidden(value) || is_hidden_in(value, index.stopped_in.as_deref()))
            .filter(|value| value.text.contains(char::is_alphanumeric))
            .collect();
        let mut ranges = credential_forms(&line);
        ranges.extend(own.iter().map(|own| own.start..own.start + own.text.len()));
        let is_in_pem = ends_within_pem(before);
        // The value of a key that stands above, after `?`.
        let is_explicit_value = line.trim_start().starts_with(':');
        if is_in_pem || is_explicit_value || is_rest_of_secret(&line, enclosing) {
            ranges.push(line.len() - line.trim_start().len()..line.len());
        }
        let byte = |column| line.char_indices().nth(column).map_or(line.len(), |(at, _)| at);
        let columns = related.iter().filter_map(|related| related.scalar.columns_in(number));
        ranges.extend(columns.map(|columns| byte(columns.start)..byte(columns.end)));
        let shown = Shown(with_stars(&line, ranges));
        let overlaps = |own: &LineValue<'_>| {
            let column = line[..own.start].chars().count();
            let length = own.text.chars().count();
            let start = location.column.saturating_sub(1);
            column < start.saturating_add(location.width.max(1)) && start <= column + length
        };
        let own = own.iter().filter(|own| overlaps(own));
        let own = own.map(|own| HiddenValue {
            relation: Relation::Same,
            text: Cow::Owned(own.text.to_owned()),
        });
        let scalars = related.iter().map(|related| HiddenValue {
            relation: related.relation,
            text: Cow::Borrowed(related.scalar.text.as_str()),
        });
        let part_of_pem = is_in_pem.then(|| HiddenValue {
            relation: Relation::Same,
            text: Cow::Owned(line.trim().to_owned()),
        });
        let mut hidden: Vec<HiddenValue<'i>> = own.chain(scalars).chain(part_of_pem).collect();
        // A line of a block is a part of its value, which is replaced as a whole.
        hidden.sort_by_key(|own| Reverse(own.text.len()));
        Self { shown, hidden }
    }

    /// The text of the fault without the values that are hidden, and with its unprintable
    /// characters escaped.
    pub(super) fn show(&self, text: &str) -> Shown {
        let mut shown = text.to_owned();
        for HiddenValue { relation, text } in &self.hidden {
            shown = match relation {
                Relation::Same => hide_value(shown, text),
                Relation::Inside => hide_whole(shown, text, MIN_LENGTH),
                // A word such as `premium` may also be a name.
                Relation::Elsewhere if is_word(text) => shown,
                Relation::Elsewhere => hide_whole(shown, text, MIN_ELSEWHERE),
            };
        }
        let parts = shown.split('`').enumerate().map(|(index, part)| match index % 2 {
            1 => with_stars(part, Vec::new()),
            _ => part.to_owned(),
        });
        let shown = parts.collect::<Vec<_>>().join("`");
        Shown(truncate(&escape(&mask_forms(&shown))))
    }
}

/// The line with a star for each character in `ranges`, and of whatever its form or its key
/// betrays.
fn with_stars(line: &str, ranges: Vec<Range<usize>>) -> String {
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
    shown
}

/// True if the value may be a credential, by the members around the place where the parser stopped.
/// The value may belong to the last of these members, or to a member beside or below it.
fn is_hidden_in(value: &LineValue<'_>, stopped_in: Option<&[OwnedStep]>) -> bool {
    let Some(around) = stopped_in else { return false };
    let around: Vec<Step<'_>> = around.iter().map(OwnedStep::borrow).collect();
    let beside = match around.split_last() {
        Some((Step::Member(_), beside)) => beside,
        _ => &around,
    };
    let parent: Vec<Step<'_>> = value.parent.map(Step::Member).into_iter().collect();
    let own = [value.key.map_or(Step::Item, Step::Member)];
    let paths = [
        around.clone(),
        [beside, &own].concat(),
        [beside, &parent, &own].concat(),
        [&around[..], &parent, &own].concat(),
    ];
    paths.iter().any(|path| !shows_scalar(path, Role::Value, value.text))
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// The text with [`MASK`] in place of the whole `value`: between backticks, and elsewhere if it has
/// `min` characters.
fn hide_whole(text: String, value: &str, min: usize) -> String {
    let beginning = match value.char_indices().nth(MAX_QUOTED_VALUE) {
        Some((end, _)) => &value[..end],
        None => value,
    };
    // A text has few of the hidden values of its file.
    if !text.contains(beginning) {
        return text;
    }
    let replaced = text.replace(&format!("`{value}`"), &format!("`{MASK}`"));
    if value.chars().count() < min {
        return replaced;
    }
    let replaced = replaced.replace(value, MASK);
    if beginning.len() < value.len() { replaced.replace(beginning, MASK) } else { replaced }
}

/// True if the value may be a credential, by the key at which it stands.
fn is_hidden(value: &LineValue<'_>) -> bool {
    match (value.parent, value.key) {
        (Some(parent), key) if writes_fields(parent) => {
            !shows_field(key.unwrap_or_default(), value.text)
        }
        // Of a header rule `replace`: the parent is the name of the field, or the key if the value
        // began above.
        (Some(field), Some("with")) => !shows_field(field, value.text),
        (Some(field), Some("pattern")) => !shows_pattern(field, value.text),
        (Some("with"), None) => !shows_field("", value.text),
        (Some("pattern"), None) => !shows_pattern("", value.text),
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

/// True for the name of a variable of templates, in braces.
fn is_variable(text: &str) -> bool {
    let Some(name) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
        return false;
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    match name.split_once('.') {
        Some((kind, name)) => {
            matches!(kind, "claim" | "header" | "path") && name.chars().all(is_plain)
        }
        None => VARIABLES.contains(&name),
    }
}

/// The text with [`MASK`] in place of `value`, of its beginning, and of its parts between
/// backticks.
fn hide_value(text: String, value: &str) -> String {
    let text = hide_whole(text, value, MIN_LENGTH);
    let parts = text.split('`').enumerate().map(|(index, part)| {
        let inner = part.strip_suffix("...").unwrap_or(part);
        let is_quoted = index % 2 == 1 && !inner.is_empty();
        // Stars stand for what is masked already.
        let is_part = inner.split('*').all(|piece| value.contains(piece));
        let is_syntax = !inner.contains(|c: char| c == '*' || c.is_alphanumeric());
        if is_quoted && is_part && !is_syntax && !is_variable(inner) { MASK } else { part }
    });
    parts.collect::<Vec<_>>().join("`")
}

/// Replaces everything after the first sensitive key with stars, unless its value is a reference
/// such as `env:NAME`. A credential with a quote or a comma may end later than YAML reads it.
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
        // The words after these values are others, but a comment is read by nothing else.
        let is_exact = key == "sha256" && !before.contains('#');
        is_key
            && !is_definition
            && !is_exact
            && (is_sensitive_name(key) || is_secret_member(key))
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

/// The number of braces and brackets at the end of the line that close ones opened before `start`.
/// They are not part of an unquoted value.
fn closing(text: &str, start: usize) -> usize {
    let is_opening = |c: char| matches!(c, '{' | '[');
    let is_closing = |c: char| matches!(c, '}' | ']');
    let (before, value) = text.split_at(start);
    let opened = before.matches(is_opening).count();
    let open = opened.saturating_sub(before.matches(is_closing).count());
    value.bytes().rev().take(open).take_while(|byte| is_closing(char::from(*byte))).count()
}

/// Replaces everything between the scheme of the first URL and the last `@` with stars. This may
/// hide more than the credentials, but never shows part of a password with a quote, a comma or a
/// space.
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

/// Truncates the text to [`MAX_TEXT`] characters.
fn truncate(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
