//! Cross-check of two YAML parsers: a file is accepted only if both read the same configuration.
//!
//! Our reader reports every fault with its location; `serde_yaml` reads YAML as most tools do. Text on
//! which they disagree is ambiguous and is refused.

use serde_json::Value;

use super::fault::{Fault, Location, Mismatch};
use super::{Config, Source};

/// What to write instead of text that two YAML parsers read differently.
const EXPECTED: &str = "text that all YAML parsers read alike; quote the value";

/// Reads the text with `serde_yaml`; the result if it equals `ours`.
pub(super) fn verify(source: &Source, ours: &Config) -> Result<Config, Fault> {
    match serde_yaml::from_str::<Config>(&source.text) {
        Ok(theirs) if theirs == *ours => Ok(theirs),
        Ok(theirs) => Err(difference(source, ours, &theirs)),
        Err(error) => {
            let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
            let location = Location { line: line.max(1), column: column.max(1), width: 1 };
            // The error's message may quote a secret; only its location is used.
            let mismatch = Mismatch::new("refused by another YAML parser", EXPECTED);
            Err(Fault::new(&source.name, &source.text, location, mismatch))
        }
    }
}

/// A fault at the first value that differs.
fn difference(source: &Source, ours: &Config, theirs: &Config) -> Fault {
    let mut path = String::new();
    if let (Ok(ours), Ok(theirs)) = (serde_json::to_value(ours), serde_json::to_value(theirs)) {
        extend_to_difference(&ours, &theirs, &mut path);
    }
    source.fault(&path, "a value that another YAML parser reads differently", EXPECTED)
}

/// Extends `path` to the first value that differs.
fn extend_to_difference(ours: &Value, theirs: &Value, path: &mut String) {
    let next = match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => ours.iter().find_map(|(key, value)| {
            let other = theirs.get(key).unwrap_or(&Value::Null);
            let dot = if path.is_empty() { "" } else { "." };
            (value != other).then(|| (format!("{dot}{key}"), value, other))
        }),
        (Value::Array(ours), Value::Array(theirs)) => {
            let mut pairs = ours.iter().zip(theirs).enumerate();
            let differing = pairs.find(|(_, (value, other))| value != other);
            differing.map(|(index, (value, other))| (format!("[{index}]"), value, other))
        }
        _ => None,
    };
    if let Some((step, ours, theirs)) = next {
        path.push_str(&step);
        extend_to_difference(ours, theirs, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
upstreams:
  hello: {respond: {body: hi}}
routes:
  - name: all
    match: {path: /x}
    upstream: hello
";

    fn loaded(text: &str) -> super::super::LoadedConfig {
        super::super::parse("t.yaml", text).unwrap()
    }

    #[test]
    fn a_difference_is_reported_at_its_location() {
        let source = loaded(TEXT).source;
        let other = loaded(&TEXT.replace("/x", "/y")).config;
        let fault = verify(&source, &other).unwrap_err();
        assert_eq!((fault.location.line, fault.location.column), (5, 19), "{fault}");
    }

    #[test]
    fn an_error_of_the_other_parser_is_reported_at_its_location() {
        let mut source = loaded(TEXT).source;
        let config = loaded(TEXT).config;
        source.text = TEXT.replace("/x}", "[}").into();
        let fault = verify(&source, &config).unwrap_err();
        assert_eq!(fault.location.line, 5, "{fault}");
    }
}
