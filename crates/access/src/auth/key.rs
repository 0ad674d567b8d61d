//! API keys: their form, their hash, and how they are made.
//!
//! A generated key is `tg_`, 32 random base-62 characters (190 bits) and a checksum of six, so that
//! scanners for leaked secrets can find it, and a mistyped one is recognised without the consumers.
//! Keys that another program made are accepted in any form: the gateway knows only the SHA-256 of
//! each.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};

/// What every generated key begins with.
const PREFIX: &str = "tg_";
/// Number of random characters of a generated key.
const RANDOM: usize = 32;
/// Number of characters of its checksum.
const CHECKSUM: usize = 6;
/// The characters of both, in the order of their values.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A generated key. It has no `Debug` output, because it is a secret.
#[derive(Clone, Eq, PartialEq)]
pub struct ApiKey(String);

/// The SHA-256 of a key, by which its consumer is found.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct KeyHash(pub [u8; 32]);

/// Why a text is not a generated key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeyFormError {
    /// It does not begin as generated keys do.
    #[error("the key does not begin with `{PREFIX}`")]
    Prefix,
    /// It has another length.
    #[error("the key has {0} characters, expected {expected}", expected = PREFIX.len() + RANDOM + CHECKSUM)]
    Length(usize),
    /// It has a character that generated keys do not have.
    #[error("the key has a character other than letters and digits after `{PREFIX}`")]
    Character,
    /// Its checksum is another one: a character is wrong.
    #[error("the key's checksum is wrong: a character was changed")]
    Checksum,
}

impl ApiKey {
    /// Makes a key from the system's random numbers.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut key = String::with_capacity(PREFIX.len() + RANDOM + CHECKSUM);
        key.push_str(PREFIX);
        let mut bytes = [0; RANDOM];
        while key.len() < PREFIX.len() + RANDOM {
            getrandom::fill(&mut bytes)?;
            // Larger bytes are left out: with them, some digits would be more likely than others.
            let fair = bytes.iter().filter(|byte| **byte < 248);
            let left = PREFIX.len() + RANDOM - key.len();
            key.extend(fair.take(left).map(|byte| digit(u32::from(*byte))));
        }
        let checksum = checksum(&key);
        key.push_str(&checksum);
        Ok(Self(key))
    }

    /// The key as a client sends it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its hash.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(self.0.as_bytes())
    }
}

/// Checks that `text` has the form of a generated key.
///
/// # Errors
///
/// It has another form, or its checksum is wrong.
pub fn check_form(text: &str) -> Result<(), KeyFormError> {
    let rest = text.strip_prefix(PREFIX).ok_or(KeyFormError::Prefix)?;
    let length = text.chars().count();
    if length != PREFIX.len() + RANDOM + CHECKSUM {
        return Err(KeyFormError::Length(length));
    }
    if !rest.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(KeyFormError::Character);
    }
    let (start, sum) = text.split_at(text.len() - CHECKSUM);
    if checksum(start) == sum { Ok(()) } else { Err(KeyFormError::Checksum) }
}

/// The last characters of the key that begins with `start`.
fn checksum(start: &str) -> String {
    let mut rest = crc32(start.as_bytes());
    let mut digits = [0; CHECKSUM];
    for place in digits.iter_mut().rev() {
        *place = DIGITS[(rest % 62) as usize];
        rest /= 62;
    }
    digits.into_iter().map(char::from).collect()
}

fn digit(number: u32) -> char {
    char::from(DIGITS[(number % 62) as usize])
}

/// The CRC-32 of IEEE 802.3, which zip and Ethernet use.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
    let add = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), step);
    !bytes.iter().fold(u32::MAX, add)
}

impl KeyHash {
    /// The hash of `key`.
    #[inline]
    pub fn of(key: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, key).as_ref());
        Self(hash)
    }

    /// Reads 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return None;
        }
        let (mut hash, mut all) = ([0; 32], 0);
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            let (high, low) = (HEX_VALUES[usize::from(*high)], HEX_VALUES[usize::from(*low)]);
            (*byte, all) = (high << 4 | low, all | high | low);
        }
        (all < 16).then_some(Self(hash))
    }
}

/// The value of each hexadecimal digit; 16 for other bytes. A table, because digits and letters
/// alternate at random: a file of a million keys has 64 million of them.
const HEX_VALUES: [u8; 256] = {
    let (mut values, mut value) = ([16; 256], 0);
    while value < 16 {
        let digit = b"0123456789abcdef"[value as usize];
        values[digit as usize] = value;
        values[digit.to_ascii_uppercase() as usize] = value;
        value += 1;
    }
    values
};

/// In hexadecimal digits.
impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_generated_key_has_its_form() {
        let key = ApiKey::generate().unwrap();
        let text = key.as_str();
        assert_eq!((text.len(), &text[..3]), (41, "tg_"));
        assert_eq!(check_form(text), Ok(()));
        assert!(key != ApiKey::generate().unwrap());
        assert_eq!(key.hash(), KeyHash::of(text.as_bytes()));
    }

    #[test]
    fn another_form_is_named() {
        let good = format!("tg_{}", "a".repeat(32));
        let good = format!("{good}{}", checksum(&good));
        assert_eq!(check_form(&good), Ok(()));
        for (text, error) in [
            ("", KeyFormError::Prefix),
            ("gh_abc", KeyFormError::Prefix),
            ("tg_abc", KeyFormError::Length(6)),
            (&good[..40], KeyFormError::Length(40)),
            (&good.replace("aaa", "a-a"), KeyFormError::Character),
            (&good.replacen('a', "b", 1), KeyFormError::Checksum),
        ] {
            assert_eq!(check_form(text), Err(error), "{text}");
        }
        let multibyte = format!("tg_{}", "\u{e9}".repeat(38));
        assert_eq!(check_form(&multibyte), Err(KeyFormError::Character));
    }

    #[test]
    fn the_checksum_is_that_of_other_programs() {
        // The check value of the CRC catalogue.
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(checksum("123456789"), "3jZRME");
    }

    #[test]
    fn the_hash_is_sha_256() {
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyHash::of(b"abc").to_string(), hash);
        assert_eq!(KeyHash::from_hex(hash), Some(KeyHash::of(b"abc")));
        assert_eq!(KeyHash::from_hex(&hash.to_uppercase()), Some(KeyHash::of(b"abc")));
        for wrong in ["", &hash[1..], &format!("{hash}0"), &hash.replace('b', "g")] {
            assert_eq!(KeyHash::from_hex(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn one_changed_character_is_found(at in 3_usize..41, other in "[0-9A-Za-z]") {
            let start = "tg_0123456789ABCDEFGHIJabcdefghij01";
            let good = format!("{start}{}", checksum(start));
            let mut changed = good.clone();
            changed.replace_range(at..=at, &other);
            prop_assert_eq!(check_form(&changed).is_ok(), changed == good);
        }

        #[test]
        fn any_text_is_checked_without_a_panic(text in "\\PC{0,50}") {
            let _ = check_form(&text);
        }
    }
}
