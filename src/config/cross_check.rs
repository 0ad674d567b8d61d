//! Cross-check of two YAML parsers: a file is accepted only if both read the same configuration.
//!
//! Our reader reports every fault with its location; `serde_yaml` reads YAML as most tools do. A text that
//! they read differently is ambiguous and is refused.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::fault::{Fault, Location, Mismatch};
use super::resolving::Resolving;
use super::{Config, ConfigSource, EnvLookup, LoadedConfig};

/// Why the text is refused: the other parser refuses it, or reads it differently.
pub(super) struct Disagreement {
    pub(super) fault: Fault,
    /// True if the other parser reports a syntax error.
    pub(super) is_syntax: bool,
}

/// Reads the text again with `serde_yaml`. Returns the result if it equals ours.
pub(super) fn verify(
    loaded: &LoadedConfig,
    env: EnvLookup<'_>,
) -> Result<Config, Box<Disagreement>> {
    let LoadedConfig { config: ours, source } = loaded;
    let theirs = if source.text.contains("${") {
        let deserializer = serde_yaml::Deserializer::from_str(&source.text);
        Config::deserialize(Resolving::new(deserializer, env))
    } else {
        serde_yaml::from_str::<Config>(&source.text)
    };
    match theirs {
        Ok(theirs) if theirs == *ours => Ok(theirs),
        Ok(theirs) => Err(Box::new(Disagreement {
            fault: difference(source, ours, &theirs),
            is_syntax: false,
        })),
        Err(error) => Err(Box::new(refusal(source, &error))),
    }
}

/// The fault of a text that the other parser refuses with `error`.
fn refusal(source: &ConfigSource, error: &serde_yaml::Error) -> Disagreement {
    // Only the message of a syntax error is shown: other messages may quote secret values.
    let syntax = serde_yaml::from_str::<IgnoredAny>(&source.text).err();
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
    let fault = Fault::new(&source.name, &source.text, location, &Mismatch::new(what, expected));
    Disagreement { fault, is_syntax: syntax.is_some() }
}

const AMBIGUOUS: &str = "a value that YAML 1.1 and YAML 1.2 read differently";
const QUOTED: &str = "text in quotes, or a number without a leading zero";

/// A fault at the first value that differs.
fn difference(source: &ConfigSource, ours: &Config, theirs: &Config) -> Fault {
    let mut path = String::new();
    if let (Ok(ours), Ok(theirs)) = (serde_json::to_value(ours), serde_json::to_value(theirs)) {
        extend_to_difference(&ours, &theirs, &mut path);
    }
    source.fault(&path, AMBIGUOUS, QUOTED)
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

    fn parsed(text: &str) -> super::super::LoadedConfig {
        super::super::parse("t.yaml", text).unwrap()
    }

    #[test]
    fn a_difference_is_reported_at_its_location() {
        let mut loaded = parsed(TEXT);
        loaded.config = parsed(&TEXT.replace("/x", "/y")).config;
        let fault = verify(&loaded, &|_| None).map_err(|other| other.fault).unwrap_err();
        assert_eq!((fault.location.line, fault.location.column), (5, 19), "{fault}");
    }

    #[test]
    fn an_error_of_the_other_parser_is_reported_at_its_location() {
        let mut loaded = parsed(TEXT);
        loaded.source.text = TEXT.replace("/x}", "[}").into();
        let fault = verify(&loaded, &|_| None).map_err(|other| other.fault).unwrap_err();
        assert_eq!(fault.location.line, 5, "{fault}");
    }
}
