//! Signed tokens, which have one spelling.
//!
//! Common base64 decoders ignore padding and the unused bits of the last character, and some skip
//! every character outside of the alphabet. So a valid token can be respelled without its key, and
//! each spelling would be a new caller. A token in a format below is counted in its canonical form
//! and rejected in any other. Every other value is counted as sent: an opaque key has no redundant
//! character.
//!
//! | format | recognised by |
//! |---|---|
//! | JWT (JWS and JWE), itsdangerous and Flask | base64 of a JSON object, list or string, then a dot |
//! | itsdangerous with a number, `true`, `false` or `null` | its base64, a dot, and a signature |
//! | itsdangerous and Flask, compressed | a dot, base64 of zlib data, and a dot |
//! | itsdangerous with a time | a dot, a time in 6 characters, a dot, and a signature |
//! | PASETO | `v1.` to `v4.`, then `local.` or `public.` |
//! | Fernet | base64 of its version and a time |
//!
//! The gateway recognises every spelling of a token: it looks for text that the signature covers,
//! or reads the token as leniently as decoders do.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

/// The expected form in the error for a respelled signed token.
pub(super) const EXPECTED: &str = "a signed token as it was issued: base64url, with no padding, no other characters and no unused bit set";

/// The fewest characters of a signature: SHA-1 with 20 bytes.
const MIN_SIGNATURE: usize = 27;

/// A token of a known format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SignedToken<'v> {
    format: TokenFormat,
    /// The token, without a scheme before it.
    pub(super) text: &'v [u8],
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum TokenFormat {
    /// JSON before the first dot.
    Json,
    /// The text before the last dot is signed.
    Itsdangerous,
    Paseto,
    /// Without dots.
    Fernet,
}

/// `value` in its canonical form; `None` for a respelled signed token.
pub(super) fn canonical(value: Cow<'_, [u8]>) -> Option<Cow<'_, [u8]>> {
    let Some(token) = SignedToken::find(&value) else { return Some(value) };
    let length = value.len() - (token.text.len() - token.canonical()?.len());
    Some(match value {
        Cow::Borrowed(value) => Cow::Borrowed(&value[..length]),
        Cow::Owned(mut value) => {
            value.truncate(length);
            Cow::Owned(value)
        }
    })
}

impl<'v> SignedToken<'v> {
    /// The signed token in `value`: all of it, or the text after a scheme such as `Bearer`.
    pub(super) fn find(value: &'v [u8]) -> Option<Self> {
        let read = |text| TokenFormat::of(text).map(|format| Self { format, text });
        let rest = without_scheme(value);
        read(value).or_else(|| if rest.len() < value.len() { read(rest) } else { None })
    }

    /// The token without the padding at its end; `None` if it is not in its canonical form.
    pub(super) fn canonical(self) -> Option<&'v [u8]> {
        let start = match self.format {
            TokenFormat::Fernet => 0,
            _ => memchr::memrchr(b'.', self.text)? + 1,
        };
        let (signed, last) = self.text.split_at(start);
        let signature = without_padding(last).filter(|last| is_base64url(last))?;
        let mut segments = signed.split(|byte| *byte == b'.');
        let is_canonical = match self.format {
            TokenFormat::Json => match memchr::memchr_iter(b'.', signed).count() {
                1 | 2 => segments.all(is_base64),
                // JWE: each segment is decoded.
                4 => segments.all(is_base64url) && signature.len() == last.len(),
                _ => false,
            },
            TokenFormat::Paseto => {
                segments.skip(2).all(is_base64url) && signature.len() == last.len()
            }
            TokenFormat::Itsdangerous | TokenFormat::Fernet => true,
        };
        is_canonical.then(|| &self.text[..start + signature.len()])
    }
}

impl TokenFormat {
    fn of(text: &[u8]) -> Option<Self> {
        if is_fernet(text) {
            return Some(Self::Fernet);
        }
        let first_dot = memchr::memchr(b'.', text)?;
        let last_dot = memchr::memrchr(b'.', text)?;
        if is_json(&text[..first_dot]) {
            return Some(Self::Json);
        }
        if is_paseto(text) {
            return Some(Self::Paseto);
        }
        if first_dot == last_dot && is_json_scalar(&text[..first_dot]) {
            return has_signature(&text[last_dot + 1..]).then_some(Self::Itsdangerous);
        }
        let is_compressed = first_dot == 0 && last_dot > 0 && is_zlib(&text[1..last_dot]);
        let is_timed = || is_time(&text[..last_dot]) && has_signature(&text[last_dot + 1..]);
        (is_compressed || is_timed()).then_some(Self::Itsdangerous)
    }
}

/// `value` without a word of letters at its start and the white space after it.
fn without_scheme(value: &[u8]) -> &[u8] {
    match memchr::memchr2(b' ', b'\t', value) {
        Some(end) if end > 0 && value[..end].iter().all(u8::is_ascii_alphabetic) => {
            value[end..].trim_ascii_start()
        }
        _ => value,
    }
}

fn is_paseto(text: &[u8]) -> bool {
    let Some([b'v', b'1'..=b'4', b'.', rest @ ..]) = Some(text) else { return false };
    rest.starts_with(b"local.") || rest.starts_with(b"public.")
}

/// True if a lenient decoder finds the version 0x80 and a time before 2106 in `text`.
fn is_fernet(text: &[u8]) -> bool {
    let digits = text.iter().copied().filter(|byte| digit(*byte).is_some());
    digits.take(6).eq(*b"gAAAAA")
}

/// True if `segment` begins with the header of zlib data.
fn is_zlib(segment: &[u8]) -> bool {
    matches!(segment, [b'e', b'A' | b'F' | b'J' | b'N', ..])
}

/// True if `signed` ends in a dot and a time of itsdangerous from 2011 to 2038.
fn is_time(signed: &[u8]) -> bool {
    let Some(dot) = memchr::memrchr(b'.', signed) else { return false };
    let time = &signed[dot + 1..];
    time.len() == 6 && matches!(time[0], b'T'..=b'Z' | b'a'..=b'f') && is_base64url(time)
}

/// True if a lenient decoder may find a signature in `text`.
fn has_signature(text: &[u8]) -> bool {
    text.iter().filter(|byte| digit(**byte).is_some()).count() >= MIN_SIGNATURE
}

/// True if `segment` is the base64 of a JSON object, list or string.
fn is_json(segment: &[u8]) -> bool {
    // Bytes searched for control characters: random bytes pass with a probability of 2^-25.
    const SEARCHED: usize = 48;
    let end = segment.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let digits = &segment[..end];
    let decoded_byte = |index: usize| {
        let (first, shift) = (index * 8 / 6, index * 8 % 6);
        let value =
            |index: usize| u16::from(digits.get(index).and_then(|byte| digit(*byte)).unwrap_or(0));
        ((value(first) << 6 | value(first + 1)) >> (4 - shift)) as u8
    };
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    let length = digits.len() * 6 / 8;
    let mut bytes = (0..length).map(decoded_byte).filter(|byte| !is_space(*byte));
    let is_enclosed = matches!(
        (bytes.next(), bytes.next_back()),
        (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')) | (Some(b'"'), Some(b'"'))
    );
    is_enclosed
        && (0..length.min(SEARCHED)).map(decoded_byte).all(|byte| byte >= b' ' || is_space(byte))
        && digits.iter().all(|byte| digit(*byte).is_some())
}

/// True if `segment` is the base64 of a number, `true`, `false` or `null`. It is signed as text, so
/// it has one spelling.
fn is_json_scalar(segment: &[u8]) -> bool {
    const MAX_LENGTH: usize = 32;
    if segment.is_empty() || segment.len() > MAX_LENGTH {
        return false;
    }
    let Ok(decoded) = URL_SAFE_NO_PAD.decode(segment) else { return false };
    let is_number = |text: &[u8]| {
        text.iter().any(u8::is_ascii_digit)
            && text.iter().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(byte))
            && serde_json::from_slice::<f64>(text).is_ok()
    };
    matches!(&*decoded, b"true" | b"false" | b"null") || is_number(&decoded)
}

/// The value of a base64 or base64url character.
fn digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' | b'+' => 62,
        b'_' | b'/' => 63,
        _ => return None,
    })
}

/// `text` without its padding; `None` if the padding is incomplete or too long.
fn without_padding(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    (end == text.len() || text.len() - end <= 2 && text.len().is_multiple_of(4))
        .then(|| &text[..end])
}

/// True if `text` is base64url as encoders write it, without padding.
fn is_base64url(text: &[u8]) -> bool {
    is_encoded(text, *b"-_")
}

/// True if `text` is base64 or base64url as encoders write it, with padding or without.
fn is_base64(text: &[u8]) -> bool {
    without_padding(text).is_some_and(|text| is_encoded(text, *b"-_") || is_encoded(text, *b"+/"))
}

/// True if `text` has only letters, digits and the last two characters of its alphabet, and no
/// unused bit is set.
fn is_encoded(text: &[u8], last_two: [u8; 2]) -> bool {
    let unused = match text.len() % 4 {
        1 => return false,
        2 => 0b1111,
        3 => 0b11,
        _ => 0,
    };
    let is_digit = |byte: &&u8| byte.is_ascii_alphanumeric() || last_two.contains(byte);
    let last = text.last().and_then(|byte| digit(*byte)).unwrap_or(0);
    // `count` has no early exit, so the loop is vectorized.
    last & unused == 0 && text.iter().filter(is_digit).count() == text.len()
}

#[cfg(test)]
mod tests;
