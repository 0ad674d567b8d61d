//! `${NAME}` and `${NAME:-default}` in values: references to environment variables.
//!
//! `$${` is a literal `${`; any other `$` stands for itself. As in a shell, the default applies if
//! the variable is unset or empty. References inside a variable's value are not replaced.

use super::fault::Mismatch;
use super::secret::EnvLookup;

const BEGIN: &str = "${";
const ESCAPE: &str = "$${";
/// The accepted syntax, for faults.
const SYNTAX: &str = "`${NAME}`, `${NAME:-default}`, or `$${` for a literal `${`";

/// A text whose references were replaced.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) text: String,
    /// Each reference as written, and its value; empty if the text has only escapes.
    pub(super) references: Vec<(String, String)>,
}

/// A reference that cannot be replaced.
#[derive(Debug)]
pub(super) struct ReferenceFault {
    /// The reference as written, or its beginning.
    pub(super) reference: String,
    pub(super) mismatch: Mismatch,
}

/// Replaces the references in `text`; `None` if it has none. Fails if the result exceeds about
/// `max` bytes.
pub(super) fn resolve(
    text: &str,
    max: usize,
    env: EnvLookup<'_>,
) -> Result<Option<Resolved>, Box<ReferenceFault>> {
    if !text.contains(BEGIN) {
        return Ok(None);
    }
    let mut resolved = Resolved { text: String::new(), references: Vec::new() };
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        resolved.text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix(ESCAPE) {
            resolved.text.push_str(BEGIN);
            rest = after;
        } else if rest.starts_with(BEGIN) {
            let reference = reference(rest)?;
            let value = value(reference, env)?;
            if resolved.text.len() + value.len() > max {
                let reference = reference.to_owned();
                return Err(Box::new(ReferenceFault { reference, mismatch: too_long() }));
            }
            resolved.text.push_str(&value);
            resolved.references.push((reference.to_owned(), value));
            rest = &rest[reference.len()..];
        } else {
            resolved.text.push('$');
            rest = &rest[1..];
        }
    }
    resolved.text.push_str(rest);
    Ok(Some(resolved))
}

/// Replaces each default in `text` with `...`, because a default may be a password.
pub(super) fn without_defaults(text: &str) -> String {
    let (mut shown, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$') {
        shown.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix(ESCAPE) {
            shown.push_str(ESCAPE);
            rest = after;
        } else if let Some(reference) =
            Some(rest).filter(|rest| rest.starts_with(BEGIN)).and_then(|rest| reference(rest).ok())
        {
            match parts(reference) {
                (name, Some(_)) => shown.extend([BEGIN, name, ":-...}"]),
                (_, None) => shown.push_str(reference),
            }
            rest = &rest[reference.len()..];
        } else {
            shown.push('$');
            rest = &rest[1..];
        }
    }
    shown + rest
}

fn too_long() -> Mismatch {
    Mismatch::new("more than 16 MiB with the values of environment variables", "at most 16 MiB")
}

/// The reference at the start of `text`.
fn reference(text: &str) -> Result<&str, Box<ReferenceFault>> {
    let fault = |reference: &str, what: String| {
        let mismatch = Mismatch::new(what, SYNTAX);
        Box::new(ReferenceFault { reference: reference.to_owned(), mismatch })
    };
    let Some(end) = text.find('}') else {
        return Err(fault(BEGIN, "`${` without a `}` after it".to_owned()));
    };
    let reference = &text[..=end];
    let (name, default) = parts(reference);
    let is_inner = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let is_name = name.bytes().all(is_inner) && !name.starts_with(|c: char| c.is_ascii_digit());
    if name.is_empty() || !is_name {
        return Err(fault(reference, format!("`{reference}` is not a variable")));
    }
    if default.is_some_and(|default| default.contains(BEGIN)) {
        return Err(fault(reference, "a reference in the default of another one".to_owned()));
    }
    Ok(reference)
}

/// The name and the default of a reference.
fn parts(reference: &str) -> (&str, Option<&str>) {
    let inner = reference.strip_prefix(BEGIN).and_then(|inner| inner.strip_suffix('}'));
    let inner = inner.unwrap_or_default();
    inner.split_once(":-").map_or((inner, None), |(name, default)| (name, Some(default)))
}

fn value(reference: &str, env: EnvLookup<'_>) -> Result<String, Box<ReferenceFault>> {
    let (name, default) = parts(reference);
    let fault = |what: String, expected: String| {
        let mismatch = Mismatch::new(what, expected);
        Box::new(ReferenceFault { reference: reference.to_owned(), mismatch })
    };
    let found = env(name).filter(|value| default.is_none() || !value.is_empty());
    match (found, default) {
        (Some(value), _) => value.into_string().map_err(|_| {
            fault(format!("the environment variable {name} is not UTF-8"), "UTF-8".to_owned())
        }),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(fault(
            format!("the environment variable {name} is not set"),
            format!("a value for it, or a default as in `${{{name}:-default}}`"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};

    use super::*;

    fn env(name: &str) -> Option<OsString> {
        match name {
            "PORT" => Some("8080".into()),
            "EMPTY" => Some("".into()),
            "NESTED" => Some("${PORT}".into()),
            "BYTES" => Some(OsString::from_vec(vec![0xff])),
            _ => None,
        }
    }

    #[test]
    fn defaults_are_not_shown() {
        for (text, shown) in [
            ("redis://:${PW:-hunter2}@${HOST}:6379", "redis://:${PW:-...}@${HOST}:6379"),
            ("$${A:-b} $5 ${C:-}", "$${A:-b} $5 ${C:-...}"),
            ("no variable, ${", "no variable, ${"),
        ] {
            assert_eq!(without_defaults(text), shown);
        }
    }

    #[test]
    fn references_are_replaced() {
        for (text, expected) in [
            ("${PORT}", "8080"),
            ("a${PORT}b${PORT}", "a8080b8080"),
            ("${GONE:-7}", "7"),
            ("${GONE:-}", ""),
            ("${EMPTY}", ""),
            ("${EMPTY:-7}", "7"),
            ("${PORT:-7}", "8080"),
            ("${GONE:-a:-b$c}", "a:-b$c"),
            ("${NESTED}", "${PORT}"),
            ("$${PORT}", "${PORT}"),
            ("$$${PORT}", "$${PORT}"),
            ("$$ ${PORT}$", "$$ 8080$"),
        ] {
            assert_eq!(resolve(text, 100, &env).unwrap().unwrap().text, expected, "{text}");
        }
        for text in ["", "$PORT", "{path}", "$", "$$"] {
            assert!(resolve(text, 100, &env).unwrap().is_none(), "{text}");
        }
    }

    #[test]
    fn a_faulty_reference_is_explained() {
        for (text, what) in [
            ("a ${PORT", "`${` without a `}`"),
            ("${}", "`${}` is not a variable"),
            ("${1A}", "`${1A}` is not a variable"),
            ("${A-B}", "`${A-B}` is not a variable"),
            ("${A:-${B}}", "a reference in the default"),
            ("${GONE}", "the environment variable GONE is not set"),
            ("${BYTES}", "the environment variable BYTES is not UTF-8"),
        ] {
            let fault = resolve(text, 100, &env).unwrap_err();
            assert!(fault.mismatch.what.starts_with(what), "{text}: {fault:?}");
            assert!(text.contains(&fault.reference), "{text}: {fault:?}");
        }
    }
}
