//! The second reading: a file means what two YAML readers agree on.
//!
//! Ours knows the place of every fault; `serde_yaml` is the reader that the world's tools take YAML
//! for. Where they disagree, the text has two meanings, and neither is used.

use serde_json::Value;

use super::fault::{Fault, Found, Location};
use super::{Config, Source};

const EXPECTED: &str = "a text that every YAML reader reads the same; quotes help";

/// The configuration as `serde_yaml` reads it, where it reads what `ours` says.
pub(super) fn agreed(source: &Source, ours: &Config) -> Result<Config, Fault> {
    match serde_yaml::from_str::<Config>(&source.text) {
        Ok(theirs) if theirs == *ours => Ok(theirs),
        Ok(theirs) => Err(differing(source, ours, &theirs)),
        Err(error) => {
            let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
            let location = Location { line: line.max(1), column: column.max(1), width: 1 };
            // The message may hold what the file keeps secret: it tells the place, no more.
            let found = Found::new("what another YAML reader refuses", EXPECTED);
            Err(Fault::new(&source.name, &source.text, location, found))
        }
    }
}

/// A fault at the first value that was read in two ways.
fn differing(source: &Source, ours: &Config, theirs: &Config) -> Fault {
    let mut path = String::new();
    if let (Ok(ours), Ok(theirs)) = (serde_json::to_value(ours), serde_json::to_value(theirs)) {
        find(&ours, &theirs, &mut path);
    }
    source.fault(&path, "a value that another YAML reader reads differently", EXPECTED)
}

/// Walks to the first difference; `path` is then where it is.
fn find(ours: &Value, theirs: &Value, path: &mut String) {
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
        find(ours, theirs, path);
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

    fn loaded(text: &str) -> super::super::Loaded {
        super::super::parse("t.yaml", text).unwrap()
    }

    #[test]
    fn what_differs_is_shown_where_it_is() {
        let source = loaded(TEXT).source;
        let other = loaded(&TEXT.replace("/x", "/y")).config;
        let fault = agreed(&source, &other).unwrap_err();
        assert_eq!((fault.location.line, fault.location.column), (5, 19), "{fault}");
    }

    #[test]
    fn what_the_other_reader_refuses_is_a_fault_at_its_place() {
        let mut source = loaded(TEXT).source;
        let config = loaded(TEXT).config;
        source.text = TEXT.replace("/x}", "[}").into();
        let fault = agreed(&source, &config).unwrap_err();
        assert_eq!(fault.location.line, 5, "{fault}");
    }
}
