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
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const TOPS: u64 = ONES * 0x80;
    // No sum carries into the next byte, because the highest bit of each byte is clear.
    let low = word & !TOPS;
    let printable = low + ONES * 0x60;
    let delete = low + ONES;
    let not_tab = (low ^ (ONES * u64::from(b'\t'))) + ONES * 0x7f;
    (!printable | delete) & not_tab & !word & TOPS
}

/// True if `bytes` is a token: RFC 9110, 5.6.2.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && token_length(bytes) == bytes.len()
}

/// The length of the run of token bytes at the start of `bytes`.
pub(super) fn token_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| !is_token_byte(byte)).unwrap_or(bytes.len())
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
    }
}
