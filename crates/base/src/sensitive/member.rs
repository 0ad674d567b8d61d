//! Members of files: which of their values may be shown.

use super::is_sensitive_name;

/// Keys that are named like credentials and have harmless values.
const HARMLESS_KEYS: [&str; 7] = [
    "auth_optional",
    "credentials",
    "forward_credentials",
    "hash_key",
    "key",
    "key_id",
    "max_keys",
];
/// Words in the names of keys whose values are secrets or their hashes.
const SECRET_WORDS: [&str; 6] = ["hmac", "passphrase", "passwd", "password", "secret", "sha256"];
/// Prefixes of values that only name where a credential is.
const REFERENCES: [&str; 6] = ["env:", "file:", "header:", "cookie:", "query:", "${"];
/// Longest value of a member such as `tokens` that is taken for a number with a unit.
const MAX_NUMBER: usize = 8;

/// True if the values at `key`, and the items of a list there, are secrets or their hashes.
pub fn is_secret_member(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    matches!(&*key, "keys" | "token")
        || SECRET_WORDS.iter().any(|word| key.contains(word))
        || SECRET_WORDS.iter().chain(&["token"]).any(|word| is_misspelt(&key, word))
}

/// True if one character was added, left out or replaced, or two were swapped.
fn is_misspelt(written: &str, word: &str) -> bool {
    let (written, word) = (written.as_bytes(), word.as_bytes());
    let is_same = |(own, other): &(&u8, &u8)| own == other;
    let start = written.iter().zip(word).take_while(is_same).count();
    let (written, word) = (&written[start..], &word[start..]);
    let end = written.iter().rev().zip(word.iter().rev()).take_while(is_same).count();
    match (&written[..written.len() - end], &word[..word.len() - end]) {
        ([], []) => false,
        ([first, second], expected @ [_, _]) => expected == [*second, *first],
        (written, word) => written.len() <= 1 && word.len() <= 1,
    }
}

/// True if the scalar `value` at `key` may be a credential, and must not be shown. The value may
/// have more text behind it.
pub fn hides_member(key: &str, value: &str) -> bool {
    let is_secret = is_secret_member(key);
    (is_secret || is_sensitive_name(key))
        && !HARMLESS_KEYS.contains(&key)
        && !is_reference(value)
        && (is_secret || !is_like_rate(value))
        && !(key.ends_with("tokens") && is_like_number(value))
}

/// True if `text` is a secret behind its name, such as `password:hunter2` or `token=hunter2`: a
/// member without a space, which YAML reads as one scalar.
pub(super) fn is_joined_secret(text: &str) -> bool {
    let Some((name, value)) = text.split_once([':', '=']) else { return false };
    is_secret_member(name) && !value.is_empty() && !is_reference(value)
}

/// True if the value names where a credential is. A default in a reference to a variable may be
/// one.
pub(super) fn is_reference(value: &str) -> bool {
    let is_variable = value.starts_with("${");
    // A secret behind `env:` is no name.
    let is_name = |name: &str| {
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !name.starts_with(|first: char| first.is_ascii_digit())
    };
    if let Some(name) = value.strip_prefix("env:") {
        return is_name(word(name)) && word(name).len() == name.trim_end().len();
    }
    REFERENCES.iter().any(|start| value.starts_with(start))
        && !(is_variable && value.contains(":-"))
        && (!is_variable || value.ends_with('}'))
}

/// Rates of other gateways count as well, such as `100r/s`: limits may be named like credentials,
/// such as `per-token`.
fn is_like_rate(value: &str) -> bool {
    let after_digits = word(value).trim_start_matches(|c: char| c.is_ascii_digit());
    let Some((unit, time)) = after_digits.split_once('/') else { return false };
    let is_unit = |unit: &str| unit.len() <= 8 && unit.bytes().all(|b| b.is_ascii_alphabetic());
    let is_time = time.len() <= 8 && time.bytes().all(|b| b.is_ascii_alphanumeric());
    after_digits.len() < word(value).len() && is_unit(unit) && is_time
}

fn is_like_number(value: &str) -> bool {
    let word = word(value);
    word.len() <= MAX_NUMBER
        && word.starts_with(|c: char| c.is_ascii_digit())
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
}

/// The value without the text behind it.
fn word(value: &str) -> &str {
    let end = |c: char| c.is_whitespace() || ",}]#".contains(c);
    value.split(end).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_credentials_are_hidden() {
        for (key, value) in [
            ("password", "hunter2"),
            ("sha256", "hunter2"),
            ("keys", "hunter2"),
            ("secret", "100r/s"),
            ("token", "${X:-hunter2}"),
            ("tokens", "hunter2"),
            ("api_key", "12"),
            ("my_sha256", "12"),
            ("passwd", "12"),
            ("pasword", "12"),
            ("tokem", "12"),
            ("tokne", "12"),
            ("secrt", "12"),
            ("hmac", "12"),
        ] {
            assert!(hides_member(key, value), "{key}: {value}");
        }
        for (key, value) in [
            ("secret", "env:X"),
            ("token", "${X}"),
            ("key", "token"),
            ("per-token", "100r/s}"),
            ("max_tokens", "12x"),
            ("tokens", "12x}"),
            ("name", "hunter2"),
            ("take", "hunter2"),
        ] {
            assert!(!hides_member(key, value), "{key}: {value}");
        }
    }
}
