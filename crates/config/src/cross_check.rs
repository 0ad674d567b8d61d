//! Cross-check of two YAML parsers: a file is accepted only if both read the same values.
//!
//! Our reader reports every fault with its location; `serde_yaml` reads YAML as most tools do. A
//! text that they read differently is ambiguous and is refused.

use serde::de::IgnoredAny;
use serde_yaml::Value;

use super::ConfigSource;
use super::fault::{Fault, Mismatch};
use super::located::{self, LocatedNode, NodeKind, ScalarForm};
use super::location::Location;

/// Why the text is refused: the other parser refuses it, or reads it differently.
pub(super) struct Disagreement {
    pub(super) fault: Fault,
    /// True if the other parser reports a syntax error.
    pub(super) is_syntax: bool,
}

/// Reads the text again with `serde_yaml`, and compares the values.
///
/// # Errors
/// The other parser refuses the text, or reads a value differently.
pub(super) fn verify(source: &ConfigSource) -> Result<(), Box<Disagreement>> {
    let theirs = serde_yaml::from_str::<Value>(source.text());
    let theirs = theirs.map_err(|error| Box::new(refusal(source, &error)))?;
    // The references to environment variables are compared as they are written.
    let written = source.text().contains('$').then(|| located::read(source.text(), None).ok());
    let ours = written.flatten().map_or_else(|| source.root.clone(), |tree| tree.root);
    let Some(location) = find_difference(&ours, &theirs) else { return Ok(()) };
    let mismatch = Mismatch::new(AMBIGUOUS, QUOTED);
    let fault = Fault::new(&source.file, location, &mismatch);
    Err(Box::new(Disagreement { fault, is_syntax: false }))
}

/// The fault of a text that the other parser refuses with `error`.
fn refusal(source: &ConfigSource, error: &serde_yaml::Error) -> Disagreement {
    // Only the message of a syntax error is shown: other messages may quote secret values.
    let syntax = serde_yaml::from_str::<IgnoredAny>(source.text()).err();
    let (what, expected) = match &syntax {
        Some(error) => {
            let message = error.to_string();
            let reason = message.split(" at line").next().unwrap_or_default();
            let expected = "YAML that is valid in versions 1.1 and 1.2: quote the value, with a space after `:`";
            (format!("not YAML 1.1 ({reason})"), expected)
        }
        None => (AMBIGUOUS.to_owned(), QUOTED),
    };
    let place = syntax.as_ref().unwrap_or(error).location();
    let (line, column) = place.map_or((1, 1), |at| (at.line(), at.column()));
    let location = Location { line: line.max(1), column: column.max(1), width: 1 };
    let fault = Fault::new(&source.file, location, &Mismatch::new(what, expected));
    Disagreement { fault, is_syntax: syntax.is_some() }
}

const AMBIGUOUS: &str = "a value that YAML 1.1 and YAML 1.2 read differently";
const QUOTED: &str = "text in quotes, or a number without a leading zero";

/// The location of the first value that differs; `None` if both trees are the same.
fn find_difference(ours: &LocatedNode, theirs: &Value) -> Option<Location> {
    match (&ours.kind, theirs) {
        (NodeKind::List(items), Value::Sequence(others)) if items.len() == others.len() => {
            let mut pairs = items.iter().zip(others);
            pairs.find_map(|(item, other)| find_difference(item, other))
        }
        (NodeKind::Map(entries), Value::Mapping(others)) if entries.len() == others.len() => {
            let mut pairs = entries.iter().zip(others);
            pairs.find_map(|(entry, (key, value))| {
                find_difference(&entry.key, key).or_else(|| find_difference(&entry.value, value))
            })
        }
        (NodeKind::Scalar { text, form, .. }, _) if is_same_scalar(text, *form, theirs) => None,
        _ => Some(ours.location),
    }
}

/// True if a scalar that we read as `text` is `theirs`. Plain text that looks like a number is the
/// same only if both take it for this number.
fn is_same_scalar(text: &str, form: ScalarForm, theirs: &Value) -> bool {
    let is_plain = form == ScalarForm::Plain;
    let float = text.parse::<f64>().ok().filter(|float| is_plain && float.is_finite());
    match theirs {
        Value::String(theirs) => theirs == text && float.is_none(),
        Value::Number(theirs) => match (text.parse::<u64>(), theirs.as_u64()) {
            (Ok(ours), Some(theirs)) => is_plain && ours == theirs,
            _ => float.is_some() && float == theirs.as_f64(),
        },
        Value::Bool(theirs) => is_plain && text.eq_ignore_ascii_case(&theirs.to_string()),
        Value::Null => is_plain && matches!(text, "" | "~" | "null" | "Null" | "NULL"),
        Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::file_text::FileText;
    use super::*;

    const TEXT: &str = "\
upstreams:
  hello: {respond: {body: hi}}
routes:
  - name: all
    match: {path: /x}
    upstream: hello
";

    fn parsed(text: &str) -> super::super::LoadedConfig {
        super::super::parse("t.yaml", text).unwrap()
    }

    #[test]
    fn a_difference_is_reported_at_its_location() {
        let mut source = parsed(TEXT).source;
        source.file = Arc::new(FileText::new("t.yaml", TEXT.replace("/x", "/y")));
        let fault = verify(&source).map_err(|other| other.fault).unwrap_err();
        assert_eq!((fault.location.line, fault.location.column), (5, 19), "{fault}");
    }

    #[test]
    fn an_error_of_the_other_parser_is_reported_at_its_location() {
        let mut source = parsed(TEXT).source;
        source.file = Arc::new(FileText::new("t.yaml", TEXT.replace("/x}", "[}")));
        let fault = verify(&source).map_err(|other| other.fault).unwrap_err();
        assert_eq!(fault.location.line, 5, "{fault}");
    }

    #[test]
    fn values_are_the_same_only_if_no_parser_takes_them_for_another_kind() {
        for (text, is_same) in [
            ("hi", true),
            ("'007'", true),
            ("\"0x1f\"", true),
            ("12", true),
            ("-3", true),
            ("1.5", true),
            ("18446744073709551615", true),
            ("True", true),
            ("~", true),
            ("inf", true),
            ("yes", true),
            ("1_000", true),
            ("007", false),
            ("0x1f", false),
            ("0o7", false),
            (".inf", false),
        ] {
            let root = located::read(text, None).map_err(drop).unwrap().root;
            let theirs: Value = serde_yaml::from_str(text).unwrap();
            assert_eq!(find_difference(&root, &theirs).is_none(), is_same, "{text}: {theirs:?}");
        }
    }
}
