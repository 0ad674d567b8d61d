//! [`Utf8Check`]: checks that a text that arrives in pieces is UTF-8.

/// Longest character, in bytes.
const MAX_CHARACTER: usize = 4;

/// The check of a text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Utf8Check {
    /// The first bytes of a character that has not arrived in full.
    kept: [u8; MAX_CHARACTER],
    length: usize,
}

impl Utf8Check {
    /// Checks the next bytes; false if they are not UTF-8.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> bool {
        while self.length > 0 {
            let Some((first, rest)) = bytes.split_first() else { return true };
            self.kept[self.length] = *first;
            self.length += 1;
            bytes = rest;
            match std::str::from_utf8(&self.kept[..self.length]) {
                Ok(_) => self.length = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        let Err(error) = std::str::from_utf8(bytes) else { return true };
        let rest = &bytes[error.valid_up_to()..];
        if error.error_len().is_none() {
            self.length = rest.len();
            self.kept[..rest.len()].copy_from_slice(rest);
        }
        error.error_len().is_none()
    }

    /// True if the last character has arrived in full.
    pub(super) fn is_complete(self) -> bool {
        self.length == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_are_checked_as_a_whole(
            text in "[a-zé€😀]{0,12}", wrong in prop::option::of(any::<(prop::sample::Index, u8)>()), step in 1_usize..6,
        ) {
            let mut bytes = text.into_bytes();
            if let Some((at, byte)) = wrong {
                bytes.insert(at.index(bytes.len() + 1), byte);
            }
            let mut check = Utf8Check::default();
            let is_valid = bytes.chunks(step).all(|piece| check.push(piece)) && check.is_complete();
            prop_assert_eq!(is_valid, std::str::from_utf8(&bytes).is_ok());
        }
    }
}
