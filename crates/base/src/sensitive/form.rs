//! Texts with the form of a credential, wherever they stand: API keys, hashes, signed tokens,
//! passwords and parameters of URLs.

use std::{borrow::Cow, ops::Range};

use super::{MASK, SCHEMES, sensitive_parameters};

/// What generated API keys begin with.
const KEY_PREFIX: &str = "tg_";
/// Fewest characters after it that are taken for a key: also a mistyped or truncated one is hidden.
const MIN_KEY: usize = 12;
/// Fewest letters and digits in a row that are taken for random ones, if both occur. A SHA-256 has
/// 64.
const MIN_RANDOM: usize = 32;
/// Fewest characters of a hash of a password after the name of its algorithm.
const MIN_HASH: usize = 8;
/// Fewest characters of a signed token.
const MIN_TOKEN: usize = 20;

/// The ranges of `text` with the form of a credential, in their order; none overlaps another.
pub fn credential_forms(text: &str) -> Vec<Range<usize>> {
    let mut found = forms_at_words(text);
    let overlaps = |found: &[Range<usize>], range: &Range<usize>| {
        found.iter().any(|other| other.start < range.end && range.start < other.end)
    };
    for range in sensitive_parameters(text) {
        if !overlaps(&found, &range) {
            found.push(range);
        }
    }
    found.sort_unstable_by_key(|range| range.start);
    found
}

fn forms_at_words(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        let is_inner = text[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        let length = [
            key_length(rest),
            hash_length(rest),
            if is_inner { 0 } else { random_length(rest).max(token_length(rest)) },
            if is_inner { 0 } else { scheme_length(rest) },
            if text[..at].ends_with(':') { password_length(rest) } else { 0 },
        ];
        let length = length.into_iter().max().unwrap_or_default();
        if length > 0 {
            found.push(at..at + length);
            at += length;
        } else {
            at += next.len_utf8();
        }
    }
    found
}

/// The text with [`MASK`] in place of each credential that its form betrays.
pub fn mask_forms(text: &str) -> Cow<'_, str> {
    let found = credential_forms(text);
    if found.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut masked = text.to_owned();
    for range in found.into_iter().rev() {
        masked.replace_range(range, MASK);
    }
    Cow::Owned(masked)
}

/// The number of bytes at the start of `text` that pass.
fn run(text: &str, passes: impl Fn(u8) -> bool) -> usize {
    text.bytes().take_while(|byte| passes(*byte)).count()
}

fn key_length(text: &str) -> usize {
    let rest = text.strip_prefix(KEY_PREFIX).map(|rest| run(rest, |b| b.is_ascii_alphanumeric()));
    rest.filter(|length| *length >= MIN_KEY).map_or(0, |length| KEY_PREFIX.len() + length)
}

fn random_length(text: &str) -> usize {
    let length = run(text, |byte| byte.is_ascii_alphanumeric());
    let found = &text.as_bytes()[..length];
    let is_mixed =
        found.iter().any(u8::is_ascii_digit) && found.iter().any(u8::is_ascii_alphabetic);
    if length >= MIN_RANDOM && is_mixed { length } else { 0 }
}

/// The password of `user:password@host`, also where the scheme of the URL was forgotten.
fn password_length(text: &str) -> usize {
    let length =
        run(text, |byte| !byte.is_ascii_whitespace() && !b"@/\"'`,;{}[]()<>".contains(&byte));
    let host = text[length..].strip_prefix('@').unwrap_or_default();
    // Messages show the form of a URL with this word.
    let is_placeholder = &text[..length] == "password";
    if !is_placeholder && host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[') {
        length
    } else {
        0
    }
}

/// A hash such as `$argon2id$v=19$...` or `$2y$05$...`.
fn hash_length(text: &str) -> usize {
    let Some(rest) = text.strip_prefix('$') else { return 0 };
    let name = run(rest, |byte| byte.is_ascii_alphanumeric());
    let Some(hash) = rest[name..].strip_prefix('$').filter(|_| (1..=12).contains(&name)) else {
        return 0;
    };
    let length = run(hash, |byte| byte.is_ascii_alphanumeric() || b"$,=+./-".contains(&byte));
    if length >= MIN_HASH { 1 + name + 1 + length } else { 0 }
}

/// A JSON Web Token: JSON in base64 begins so.
fn token_length(text: &str) -> usize {
    if !text.starts_with("eyJ") {
        return 0;
    }
    let length = run(text, |byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if length >= MIN_TOKEN { length } else { 0 }
}

/// A scheme such as `Bearer`, and a credential that is no word.
fn scheme_length(text: &str) -> usize {
    let has = |scheme: &&&str| {
        text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    let Some(scheme) = SCHEMES.iter().find(has) else { return 0 };
    let rest = &text[scheme.len()..];
    let length = run(rest, |byte| byte.is_ascii_alphanumeric() || b"-._~+/=:".contains(&byte));
    let is_word = rest[..length].bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'.');
    if is_word { 0 } else { scheme.len() + length }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_by_their_form() {
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let key = "tg_0123456789ABCDEFGHIJabcdefghij01234567";
        for (text, expected) in [
            (format!("`{key}`, expected a list"), "`***`, expected a list"),
            (format!("{{\"{key}\": 1}}"), "{\"***\": 1}"),
            (format!("xx{key}"), "xx***"),
            (key[..20].to_owned(), "***"),
            (format!("\u{e9}{hex}\u{e9}"), "\u{e9}***\u{e9}"),
            ("a $2y$05$abcdefghijk./x b".to_owned(), "a *** b"),
            ("'$argon2id$v=19$m=1,t=2$abc$def'".to_owned(), "'***'"),
            ("is Bearer hunter2, not".to_owned(), "is ***, not"),
            ("basic authentication".to_owned(), "basic authentication"),
            ("eyJhbGciOi.eyJzdWIiOiI.x-y_z!".to_owned(), "***!"),
            ("${NAME} and $$ tg_limits".to_owned(), "${NAME} and $$ tg_limits"),
            ("user:hunter2@127.0.0.1:6379/0".to_owned(), "user:***@127.0.0.1:6379/0"),
            ("redis//bob:pw@[::1], expected".to_owned(), "redis//bob:***@[::1], expected"),
            ("a: b@ c:d, e:@f".to_owned(), "a: b@ c:d, e:@f"),
            ("`http://h/?token=ZQx&a=b`, a URL".to_owned(), "`http://h/?token=***&a=b`, a URL"),
            ("x".repeat(200), &"x".repeat(200)),
            ("1".repeat(309), &"1".repeat(309)),
        ] {
            assert_eq!(mask_forms(&text), expected);
        }
    }
}
