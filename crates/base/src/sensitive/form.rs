//! Texts with the form of a credential, wherever they stand: API keys, hashes, signed tokens,
//! keys of certificates (PEM), base64, passwords and parameters of URLs.

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
/// What a signed token begins with: JSON in base64.
const TOKEN_START: &str = "eyJ";
/// Fewest characters of a signed token.
const MIN_TOKEN: usize = 20;
/// Fewest characters of a password of a URL that has no host.
const MIN_PASSWORD: usize = 8;
/// Most characters of a password of a URL.
const MAX_PASSWORD: usize = 1024;
/// Of a hundred neighbours in base64, at least this many are of different kinds: 64 are expected in
/// random bytes, and some 20 in the path of a file.
const MIN_CHANGES: usize = 40;
/// What the text of a key or a certificate begins with.
const PEM_START: &str = "-----BEGIN ";
const PEM_END: &str = "-----END ";

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
        let (before, rest) = text.split_at(at);
        // A run is read once, at its beginning, so that a long line takes linear time.
        let is_inner = before.ends_with(|c: char| c.is_ascii_alphanumeric());
        let is_in_base64 = before.bytes().next_back().is_some_and(is_base64);
        let length = [
            key_length(rest),
            hash_length(rest),
            if is_inner { 0 } else { random_length(rest).max(token_length(rest)) },
            if is_in_base64 { 0 } else { base64_length(rest) },
            if is_inner { 0 } else { scheme_length(rest) },
            if before.ends_with(':') { password_length(before, rest) } else { 0 },
            pem_length(rest),
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

/// True if `text` has an API key or a signed token in it: a credential that was written where a
/// name is expected.
pub fn holds_key_or_token(text: &str) -> bool {
    let starts = |start: &str, length: fn(&str) -> usize| {
        text.match_indices(start).any(|(at, _)| length(&text[at..]) > 0)
    };
    starts(KEY_PREFIX, key_length) || starts(TOKEN_START, token_length)
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

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/=_".contains(&byte)
}

/// Base64 of random bytes. The path of a file has the same characters, but is made of words.
fn base64_length(text: &str) -> usize {
    let length = run(text, is_base64);
    let found = &text.as_bytes()[..length];
    let has = |kind: fn(&u8) -> bool| found.iter().any(kind);
    let is_mixed =
        has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase) && has(u8::is_ascii_digit);
    if length < MIN_RANDOM || !is_mixed {
        return 0;
    }
    let kind = |byte: u8| match byte {
        b'a'..=b'z' => 0,
        b'A'..=b'Z' => 1,
        b'0'..=b'9' => 2,
        _ => 3,
    };
    let changes = found.windows(2).filter(|pair| kind(pair[0]) != kind(pair[1])).count();
    if changes * 100 >= (length - 1) * MIN_CHANGES { length } else { 0 }
}

/// A key or a certificate, from its first line to its last one. If the last line is missing, to
/// the end of the quoted text.
fn pem_length(text: &str) -> usize {
    if !text.starts_with(PEM_START) {
        return 0;
    }
    let Some(end) = text.find(PEM_END).map(|at| at + PEM_END.len()) else {
        return text.find('`').unwrap_or(text.len());
    };
    text[end..].find("-----").map_or(text.len(), |at| end + at + "-----".len())
}

/// True if `text` ends within a key or a certificate: its last line has not come yet.
pub fn ends_within_pem(text: &str) -> bool {
    text.rfind(PEM_START).is_some_and(|start| !text[start..].contains(PEM_END))
}

/// The password of `user:password@host`, also where the scheme of the URL was forgotten; and of
/// `scheme://user:password`, whose host was forgotten or is in the next line.
fn password_length(before: &str, text: &str) -> usize {
    // The length is bounded, because the text behind each of many colons is read.
    let longest = text.len().min(MAX_PASSWORD);
    let length = text.as_bytes()[..longest]
        .iter()
        .take_while(|byte| !byte.is_ascii_whitespace() && !b"@/\"'`,;{}[]()<>".contains(byte))
        .count();
    let password = &text.as_bytes()[..length];
    let host = text.as_bytes()[length..].strip_prefix(b"@").unwrap_or_default();
    // Messages show the form of a URL with this word.
    let is_placeholder = password == b"password";
    let has_host = host.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'[');
    let user = before[..before.len() - 1].trim_end_matches(|c: char| c.is_ascii_alphanumeric());
    let follows_user = user.ends_with("://");
    let is_port = password.iter().all(u8::is_ascii_digit);
    let is_alone = follows_user && length >= MIN_PASSWORD && !is_port && host.is_empty();
    // At the bound, the text may end within a character.
    if !is_placeholder && (has_host || is_alone) && text.is_char_boundary(length) {
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

/// A JSON Web Token.
fn token_length(text: &str) -> usize {
    if !text.starts_with(TOKEN_START) {
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
    use crate::mix::SplitMix;

    const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    #[test]
    fn random_base64_is_found() {
        let mut random = SplitMix::new(7);
        for length in [44, 64, 76, 400] {
            let character = |random: &mut SplitMix| char::from(BASE64[random.below(64) as usize]);
            let texts =
                (0..1_000).map(|_| (0..length).map(|_| character(&mut random)).collect::<String>());
            let missed = texts.filter(|text| mask_forms(text) != MASK).count();
            assert!(missed <= 2, "{missed} of {length} characters");
        }
    }

    #[test]
    fn keys_and_tokens_are_found_in_names() {
        for (name, holds) in [
            ("tg_0123456789ABCDEFGHIJ", true),
            ("acme tg_0123456789ABCDEFGHIJ", true),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.x", true),
            ("tg_limits", false),
            ("eyJ", false),
            ("3f786850e387550fdab836ed7e6dc881de23001b3f786850e387550fdab836ed", false),
        ] {
            assert_eq!(holds_key_or_token(name), holds, "{name}");
        }
    }

    #[test]
    fn credentials_are_found_by_their_form() {
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let key = "tg_0123456789ABCDEFGHIJabcdefghij01234567";
        let pem = "-----BEGIN PRIVATE KEY-----\\nMC4CAQAwBQYDK2Vw/b/HO4m\\nAZ+==\n-----END PRIVATE KEY-----";
        for (text, expected) in [
            (format!("`{key}`, expected a list"), "`***`, expected a list"),
            (format!("{{\"{key}\": 1}}"), "{\"***\": 1}"),
            (format!("xx{key}"), "xx***"),
            (format!("`{pem}`, a path"), "`***`, a path"),
            (format!("`{}`, a path", &pem[..50]), "`***`, a path"),
            (format!("{pem}, {pem}"), "***, ***"),
            ("    b2a8Df/x9QzL+0vYtR4wq7Ek/M3nGpB5".to_owned(), "    ***"),
            (
                "/srv/Releases/2024/certificates/gateway/B1".to_owned(),
                "/srv/Releases/2024/certificates/gateway/B1",
            ),
            (
                "a7f3c1d2-0b9e-4f6a-8c5d-1e2f3a4b5c6d".to_owned(),
                "a7f3c1d2-0b9e-4f6a-8c5d-1e2f3a4b5c6d",
            ),
            ("`redis://user:hunter2hunter2`".to_owned(), "`redis://user:***`"),
            ("redis://user:hunter2hunter2\n".to_owned(), "redis://user:***\n"),
            ("https://127.0.0.1:000008443".to_owned(), "https://127.0.0.1:000008443"),
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
