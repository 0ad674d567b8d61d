//! The byte classes of a head's grammar. Pure.

/// The offset of the first control character in `bytes` at or after `from`; tabs are not searched. The length of
/// `bytes` if there is none. Tests eight bytes at a time.
pub(super) fn find_control(bytes: &[u8], from: usize) -> usize {
    let (words, rest) = bytes[from..].as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let found = controls(u64::from_le_bytes(*word));
        if found != 0 {
            return from + 8 * index + found.trailing_zeros() as usize / 8;
        }
    }
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    rest.iter().position(is_control).map_or(bytes.len(), |at| bytes.len() - rest.len() + at)
}

/// The highest bit of each byte that is a control character other than a tab.
fn controls(word: u64) -> u64 {
    // No sum carries into the next byte, because the highest bit of each byte is clear.
    let low = word & !TOPS;
    let printable = low + ONES * 0x60;
    let delete = low + ONES;
    let not_tab = (low ^ (ONES * u64::from(b'\t'))) + ONES * 0x7f;
    (!printable | delete) & not_tab & !word & TOPS
}

/// The bytes of a word, each repeated for a computation on all eight at once.
const ONES: u64 = u64::from_le_bytes([1; 8]);
/// The highest bit of each byte of a word.
const TOPS: u64 = ONES * 0x80;

/// The highest bit of each byte of `low` in `first..=last`. The highest bit of each byte of `low` is clear, so no sum
/// carries into the next byte.
const fn in_range(low: u64, first: u8, last: u8) -> u64 {
    let not_below = low + ONES * (0x80 - first as u64);
    let above = low + ONES * (0x7f - last as u64);
    not_below & !above & TOPS
}

/// The highest bit of each byte that is an ASCII letter.
fn letters(word: u64) -> u64 {
    in_range((word | (ONES * 0x20)) & !TOPS, b'a', b'z') & !word
}

/// The length of the run of letters, digits and dashes at the start of `bytes`, as far as whole words of eight bytes
/// show it. The bytes after it may continue the run.
#[inline]
fn plain_run(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let low = word & !TOPS;
        let others = in_range(low, b'0', b'9') | in_range(low, b'-', b'-');
        let end = !(letters(word) | others & !word) & TOPS;
        if end != 0 {
            return 8 * index + end.trailing_zeros() as usize / 8;
        }
    }
    bytes.len() - rest.len()
}

/// True if `bytes` has an ASCII letter in upper case.
#[inline]
pub fn has_upper_case(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let upper = words.iter().fold(0, |upper, word| {
        let word = u64::from_le_bytes(*word);
        upper | in_range(word & !TOPS, b'A', b'Z') & !word
    });
    upper != 0 || rest.iter().any(u8::is_ascii_uppercase)
}

/// True if the field names `a` and `b` are the same: they differ at most in the case of their letters.
#[inline]
pub fn is_same_name(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && has_same_letters(a, b)
}

/// As [`is_same_name`], of names of the same length.
fn has_same_letters(a: &[u8], b: &[u8]) -> bool {
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    a_words.iter().zip(b_words).all(|(a, b)| is_same_word(*a, *b))
        && match (a_rest.as_chunks::<4>(), b_rest.as_chunks::<4>()) {
            (([a], a_rest), ([b], b_rest)) => {
                is_same_word(widened(*a), widened(*b)) && a_rest.eq_ignore_ascii_case(b_rest)
            }
            _ => a_rest.eq_ignore_ascii_case(b_rest),
        }
}

fn widened([a, b, c, d]: [u8; 4]) -> [u8; 8] {
    [a, b, c, d, 0, 0, 0, 0]
}

fn is_same_word(a: [u8; 8], b: [u8; 8]) -> bool {
    let (a, b) = (u64::from_le_bytes(a), u64::from_le_bytes(b));
    // The bit of a letter's case, where the letter's own highest bit was.
    let case = letters(a) >> 2;
    (a ^ b) & !case == 0
}

/// True if `bytes` is a token: RFC 9110, 5.6.2.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && token_length(bytes) == bytes.len()
}

/// The length of the run of token bytes at the start of `bytes`.
pub(super) fn token_length(bytes: &[u8]) -> usize {
    let start = plain_run(bytes);
    let rest = &bytes[start..];
    start + rest.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(rest.len())
}

/// True if upstreams may read the field name `name` as another one: CGI-like ones map every character that is
/// neither a letter nor a digit to `_`, and some join several of them.
pub fn is_foldable(name: &[u8]) -> bool {
    let classes = name.iter().fold(0, |classes, byte| classes | CLASS[usize::from(*byte)]);
    classes & OTHER != 0 || classes & DASH != 0 && name.windows(2).any(|pair| pair == b"--")
}

pub(super) fn is_token_byte(byte: u8) -> bool {
    CLASS[usize::from(byte)] & NOT_TOKEN == 0
}

/// True if `byte` is allowed in a request target. Browsers send some characters that RFC 3986 excludes;
/// those without a special meaning are allowed.
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
        fn the_first_control_character_is_found(
            mut line in prop::collection::vec(0x20..=0xff_u8, 1..60),
            controls in prop::collection::vec((any::<prop::sample::Index>(), 0..=0x7f_u8), 0..4),
            from: prop::sample::Index,
        ) {
            for (at, byte) in controls {
                let at = at.index(line.len());
                line[at] = byte;
            }
            let from = from.index(line.len());
            let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
            let wanted = line[from..].iter().position(is_control).map_or(line.len(), |at| from + at);
            prop_assert_eq!(find_control(&line, from), wanted);
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
        fn upper_case_is_found(bytes: Vec<u8>, name in "[a-z0-9.-]{0,20}") {
            prop_assert_eq!(has_upper_case(&bytes), bytes.iter().any(u8::is_ascii_uppercase));
            prop_assert!(!has_upper_case(name.as_bytes()));
        }

        #[test]
        fn tokens_end_at_the_first_other_byte(bytes in prop::collection::vec(prop_oneof![
            6 => prop_oneof![b'a'..=b'z', b'A'..=b'Z', b'0'..=b'9', Just(b'-')], 1 => any::<u8>(),
        ], 0..40)) {
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
            let run = bytes.iter().position(|byte| !plain(byte)).unwrap_or(bytes.len());
            prop_assert!(plain_run(&bytes) == run || plain_run(&bytes) == run / 8 * 8);
            let token = bytes.iter().position(|byte| !is_token_byte(*byte)).unwrap_or(bytes.len());
            prop_assert_eq!(token_length(&bytes), token);
        }
    }
}
