//! The byte classes of a head's grammar. Pure.

/// True if `line` contains a control character other than a tab. Tests eight bytes at a time; the last
/// word may overlap the one before it.
pub(super) fn has_control(line: &[u8]) -> bool {
    let (words, rest) = line.as_chunks::<8>();
    let last = line.last_chunk::<8>().filter(|_| !rest.is_empty());
    let suspect = match last {
        None if words.is_empty() => true,
        _ => words.iter().chain(last).any(|word| word_may_have_control(u64::from_le_bytes(*word))),
    };
    suspect && line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t')
}

/// True if one of the eight bytes may be below 0x20 or equal to 0x7f. A borrow between bytes can cause a
/// false positive, never a false negative.
fn word_may_have_control(word: u64) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const TOPS: u64 = ONES * 0x80;
    let below = word.wrapping_sub(ONES * 0x20) & !word;
    let delete = word ^ (ONES * 0x7f);
    let is_delete = delete.wrapping_sub(ONES) & !delete;
    (below | is_delete) & TOPS != 0
}

/// True if `bytes` is a token: RFC 9110, 5.6.2.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && token_length(bytes) == bytes.len()
}

/// The length of the run of token bytes at the start of `bytes`.
pub(super) fn token_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(bytes.len())
}

pub(super) fn is_token_byte(byte: u8) -> bool {
    IS_TOKEN_BYTE[usize::from(byte)]
}

/// True if `byte` is allowed in a request target. Browsers send some characters that RFC 3986 excludes;
/// those without a special meaning are allowed.
pub(super) fn is_target_byte(byte: u8) -> bool {
    !matches!(byte, 0..=b' ' | 0x7f.. | b'#' | b'<' | b'>' | b'\\')
}

/// For each byte, whether it is allowed in a token.
static IS_TOKEN_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric()
            || matches!(
                b,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            );
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
        fn control_characters_are_found_at_any_position(
            mut line in prop::collection::vec(b' '..=b'~', 1..40), at: prop::sample::Index, byte: u8,
        ) {
            let at = at.index(line.len());
            line[at] = byte;
            prop_assert_eq!(has_control(&line), byte.is_ascii_control() && byte != b'\t');
        }
    }
}
