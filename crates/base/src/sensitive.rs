//! What may be shown of a text that an operator wrote: faults, notes, `explain` and the admin API
//! ask here.
//!
//! | file | content |
//! |---|---|
//! | `form` | texts that are credentials by their form, wherever they stand |
//! | `member` | members of files whose values are hidden |
//! | `field` | header fields that the configuration writes, and whose values may be shown |
//! | `place` | places of scalars in a file, by which a value or a key is hidden |

mod field;
mod form;
mod member;
mod place;

use std::{borrow::Cow, ops::Range};

pub use self::field::{shows_field, shows_pattern};
pub use self::form::{credential_forms, ends_within_pem, holds_key_or_token, mask_forms};
pub use self::member::{hides_member, is_secret_member};
pub use self::place::{Role, Step, shows_scalar, step_to};

/// The text shown in place of a credential.
pub const MASK: &str = "***";

/// Parts of the names of header fields, cookies, parameters and keys whose values may be
/// credentials.
const PARTS: [&str; 10] = [
    "auth",
    "cookie",
    "credential",
    "key",
    "pass",
    "pwd",
    "secret",
    "session",
    "signature",
    "token",
];
/// Complete names whose values may be credentials.
const NAMES: [&str; 6] = ["code", "otp", "pin", "pw", "sid", "sig"];
/// The schemes of credentials, with the space after them.
const SCHEMES: [&str; 2] = ["basic ", "bearer "];

/// What precedes a number of tokens or keys in its name, such as `max_tokens` and
/// `promptTokenCount`.
const QUANTITIES: [&str; 9] = [
    "cached",
    "candidates",
    "completion",
    "input",
    "max",
    "output",
    "prompt",
    "remaining",
    "total",
];
/// What a number of tokens or keys is called at its end.
const COUNTED: [&str; 5] = ["tokens", "keys", "tokencount", "token_count", "token-count"];

/// True if a value with this `name` may be a credential.
pub fn is_sensitive_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !is_count(&name) && (has_part(&name) || NAMES.contains(&&*name))
}

fn has_part(name: &str) -> bool {
    PARTS.iter().any(|part| name.contains(part))
}

/// True if the name says a number, such as `max_tokens`.
fn is_count(name: &str) -> bool {
    let Some(start) = COUNTED.iter().find_map(|counted| name.strip_suffix(counted)) else {
        return false;
    };
    let mut words = start.split(|c: char| !c.is_alphanumeric());
    let is_quantity = words.any(|word| QUANTITIES.contains(&word))
        || QUANTITIES.iter().any(|quantity| start.starts_with(quantity));
    is_quantity && !has_part(start)
}

/// True if `value` begins with the scheme of a credential.
pub fn is_sensitive_value(value: &str) -> bool {
    let has = |scheme: &&str| {
        value.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    SCHEMES.iter().any(has)
}

/// The URL in `text` with [`MASK`] for user, password, and parameters that may be credentials.
pub fn mask_url(text: &str) -> Cow<'_, str> {
    let mut masked = Cow::Borrowed(text);
    let start = text.find("://").map_or(text.len(), |index| index + 3);
    let end = text[start..].find(['/', '?', '#']).map_or(text.len(), |length| start + length);
    if let Some(length) = text[start..end].rfind('@') {
        masked.to_mut().replace_range(start..start + length, MASK);
    }
    let values = sensitive_parameters(&masked);
    for value in values.into_iter().rev() {
        masked.to_mut().replace_range(value, MASK);
    }
    masked
}

/// The URL in `text` with [`MASK`] for all before its last `@`: a password may have any character,
/// and the URL need not be valid.
pub fn mask_login(text: &str) -> Cow<'_, str> {
    let login = text.find("://").map(|scheme| scheme + 3).zip(text.rfind('@'));
    match login.filter(|(start, end)| start < end) {
        None => Cow::Borrowed(text),
        Some((start, end)) => Cow::Owned([&text[..start], MASK, &text[end..]].concat()),
    }
}

/// The ranges of values in `text` that may be credentials: each follows a sensitive name and `=`, as
/// in a query, a fragment, or the field of a header. None overlaps another.
pub fn sensitive_parameters(text: &str) -> Vec<Range<usize>> {
    let mut values: Vec<Range<usize>> = Vec::new();
    for (equals, _) in text.match_indices('=') {
        // A value may have a parameter in it.
        if values.last().is_some_and(|last| equals < last.end) {
            continue;
        }
        let name =
            text[..equals].rsplit(|c: char| !c.is_alphanumeric() && !"-_.".contains(c)).next();
        let name = name.unwrap_or_default();
        if !is_sensitive_name(name) {
            continue;
        }
        let is_end = |c: char| c.is_whitespace() || "&#;\"'`,{}[]".contains(c);
        let length = text[equals + 1..].find(is_end).unwrap_or(text.len() - equals - 1);
        if length > 0 {
            values.push(equals + 1..equals + 1 + length);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_of_credentials_are_found() {
        for name in ["Authorization", "x-api-key", "X-Backend-Pass", "pwd", "sig", "CODE", "sid"] {
            assert!(is_sensitive_name(name), "{name}");
        }
        for name in ["access_tokens", "tokens", "admin_tokens", "api-keys", "max_session_tokens"] {
            assert!(is_sensitive_name(name), "{name}");
        }
        for name in ["max_tokens", "usage.total_tokens", "promptTokenCount", "x-max-keys"] {
            assert!(!is_sensitive_name(name), "{name}");
        }
        for name in ["x-plan", "design", "x-code-name", "side", "accept", "lang", ""] {
            assert!(!is_sensitive_name(name), "{name}");
        }
        for (url, masked) in [
            ("https://me:pw@a.test/b@c?x=1&token=2#d", "https://***@a.test/b@c?x=1&token=***#d"),
            (
                "/a?sig=1&key={query.key}#access_token=3",
                "/a?sig=***&key={query.key}#access_token=***",
            ),
            ("/a?x=1", "/a?x=1"),
            ("https://{host}{path}?{query}", "https://{host}{path}?{query}"),
            ("a@b", "a@b"),
            ("/?token=?token=abcdef&token=b", "/?token=***&token=***"),
        ] {
            assert_eq!(mask_url(url), masked);
        }
        assert_eq!(mask_login("http://u:p/w@x@h"), "http://***@h");
        assert_eq!(mask_login("a@b"), "a@b");
        assert!(is_sensitive_value("bearer abc") && is_sensitive_value("Basic YTpi"));
        assert!(
            !is_sensitive_value("basic") && !is_sensitive_value("é") && !is_sensitive_value("")
        );
    }
}
