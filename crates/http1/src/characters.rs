//! The byte classes of a head's grammar. Pure.

#![expect(
    clippy::inline_always,
    reason = "the compiler ignores a hint, and then computes the letters of constants at run time"
)]

use smallvec::SmallVec;
use wide::u8x16;

use super::blocks::{Matches, at_most, equal, find, in_range};

/// The control characters of a block. Tabs are left out.
#[inline]
pub(super) fn controls(block: u8x16) -> Matches {
    at_most(block, 0x1f) & !equal(block, b'\t') | equal(block, 0x7f)
}

/// True if `bytes` has a control character other than a tab.
#[inline]
pub(super) fn has_control(bytes: &[u8]) -> bool {
    find(bytes, b' ', controls).is_some()
}

/// The bytes of a word, each repeated for a computation on all eight at once.
const ONES: u64 = u64::from_le_bytes([1; 8]);
/// The highest bit of each byte of a word.
const TOPS: u64 = ONES * 0x80;

/// The highest bit of each byte that is an ASCII letter.
fn letters(word: u64) -> u64 {
    // The highest bit of each byte is clear, so no sum carries into the next byte.
    let low = (word | (ONES * 0x20)) & !TOPS;
    let from_a = low + ONES * (0x80 - u64::from(b'a'));
    let beyond_z = low + ONES * (0x7f - u64::from(b'z'));
    from_a & !beyond_z & !word & TOPS
}

/// The letters, digits and dashes of a block.
#[inline]
pub(super) fn plain(block: u8x16) -> Matches {
    // Nothing but a letter becomes a letter by the bit of a letter's case.
    let letters = in_range(block | u8x16::splat(0x20), b'a', b'z');
    letters | in_range(block, b'0', b'9') | equal(block, b'-')
}

/// True if `name` is the field name `known`, apart from the case of letters.
// Inline, so that the compiler finds the letters of a constant `known`.
#[inline(always)]
pub fn is_same_name(name: &[u8], known: &[u8]) -> bool {
    if name.len() != known.len() {
        return false;
    }
    if let (Some(end), Some(known_end)) = (name.last_chunk(), known.last_chunk()) {
        let (words, known_words) = (name.as_chunks().0, known.as_chunks().0);
        // The last word may overlap the one before it.
        return is_same_word(*end, *known_end)
            && words.iter().zip(known_words).all(|(word, known)| is_same_word(*word, *known));
    }
    match (name.first_chunk(), name.last_chunk(), known.first_chunk(), known.last_chunk()) {
        (Some(begin), Some(end), Some(known_begin), Some(known_end)) => {
            is_same_word(joined(*begin, *end), joined(*known_begin, *known_end))
        }
        _ => name.eq_ignore_ascii_case(known),
    }
}

/// The first and the last four bytes of a name of four to seven bytes, where they overlap.
#[inline(always)]
fn joined(begin: [u8; 4], end: [u8; 4]) -> [u8; 8] {
    let mut word = [0; 8];
    word[..4].copy_from_slice(&begin);
    word[4..].copy_from_slice(&end);
    word
}

#[inline(always)]
fn is_same_word(word: [u8; 8], known: [u8; 8]) -> bool {
    let (word, known) = (u64::from_le_bytes(word), u64::from_le_bytes(known));
    // The bit of a letter's case, where the letter's own highest bit was.
    let case = letters(known) >> 2;
    (word ^ known) & !case == 0
}

/// True if `bytes` is a token: RFC 9110, 5.6.2.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && token_length(bytes) == bytes.len()
}

/// The length of the run of token bytes at the start of `bytes`.
pub(super) fn token_length(bytes: &[u8]) -> usize {
    let start = find(bytes, b'a', |block| !plain(block)).unwrap_or(bytes.len());
    let rest = &bytes[start..];
    start + rest.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(rest.len())
}

/// True if upstreams may read the field name `name` as another one: CGI-like ones map every
/// character that is neither a letter nor a digit to `_`, and some join several of them.
pub fn is_foldable(name: &[u8]) -> bool {
    let classes = name.iter().fold(0, |classes, byte| classes | CLASS[usize::from(*byte)]);
    classes & OTHER != 0 || classes & DASH != 0 && name.windows(2).any(|pair| pair == b"--")
}

/// `name` with one dash in place of each run of characters that are neither letters nor digits.
pub fn dashed_name(name: &[u8]) -> SmallVec<[u8; 64]> {
    let mut dashed = SmallVec::new();
    for byte in name {
        if byte.is_ascii_alphanumeric() {
            dashed.push(*byte);
        } else if dashed.last() != Some(&b'-') {
            dashed.push(b'-');
        }
    }
    dashed
}

pub(super) fn is_token_byte(byte: u8) -> bool {
    CLASS[usize::from(byte)] & NOT_TOKEN == 0
}

/// True if each of `bytes` is allowed in a request target: see [`is_target_byte`].
pub(super) fn are_target_bytes(bytes: &[u8]) -> bool {
    let odd = find(bytes, b'a', |block| {
        let marks =
            equal(block, b'#') | equal(block, b'<') | equal(block, b'>') | equal(block, b'\\');
        at_most(block, b' ') | in_range(block, 0x7f, 0xff) | marks
    });
    odd.is_none()
}

/// True if `byte` is allowed in a request target. Browsers send some characters that RFC 3986
/// excludes; those without a special meaning are allowed.
pub(super) fn is_target_byte(byte: u8) -> bool {
    !matches!(byte, 0..=b' ' | 0x7f.. | b'#' | b'<' | b'>' | b'\\')
}

/// The class of a dash.
const DASH: u8 = 1;
/// The class of other characters that are neither letters nor digits.
const OTHER: u8 = 2;
/// The class of characters that are not allowed in a token.
const NOT_TOKEN: u8 = 4;

/// For each byte, its classes; 0 for letters and digits.
static CLASS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => 0,
            b'-' => DASH,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'.' | b'^' | b'_' | b'`'
            | b'|' | b'~' => OTHER,
            _ => OTHER | NOT_TOKEN,
        };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn control_characters_are_noticed(
            mut bytes in prop::collection::vec(0x20..=0xff_u8, 0..60), at: prop::sample::Index, byte in 0..=0x7f_u8,
        ) {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
            prop_assert_eq!(has_control(&bytes), bytes.iter().any(is_control));
        }

        #[test]
        fn names_are_compared_without_case(
            name in "[!-~\\x80\\xff]{0,24}", other in "[!-~\\x80\\xff]{0,24}", at: prop::sample::Index, byte: u8,
            upper: bool,
        ) {
            let name = name.into_bytes();
            let mut changed = if upper { name.to_ascii_uppercase() } else { name.clone() };
            prop_assert!(is_same_name(&name, &changed));
            if !changed.is_empty() {
                let at = at.index(changed.len());
                changed[at] = byte;
            }
            for other in [&changed, other.as_bytes()] {
                prop_assert_eq!(is_same_name(&name, other), name.eq_ignore_ascii_case(other));
            }
        }

        #[test]
        fn bytes_of_targets_are_recognised(
            mut target in "[!-~]{0,40}".prop_map(String::into_bytes), at: prop::sample::Index, byte: u8,
        ) {
            target.retain(|byte| is_target_byte(*byte));
            prop_assert!(are_target_bytes(&target));
            if !target.is_empty() {
                let at = at.index(target.len());
                target[at] = byte;
                prop_assert_eq!(are_target_bytes(&target), is_target_byte(byte));
            }
        }

        #[test]
        fn tokens_end_at_the_first_other_byte(bytes in prop::collection::vec(prop_oneof![
            6 => prop_oneof![b'a'..=b'z', b'A'..=b'Z', b'0'..=b'9', Just(b'-')], 1 => any::<u8>(),
        ], 0..40)) {
            let token = bytes.iter().position(|byte| !is_token_byte(*byte)).unwrap_or(bytes.len());
            prop_assert_eq!(token_length(&bytes), token);
        }
    }
}
