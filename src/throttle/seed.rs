//! The secret that tokens are hashed under, shared by all gateways through Redis.

use std::fmt::{self, Write};

use siphasher::sip::SipHasher13;

/// 48 random bytes: 16 for the keyed hash of the token itself, which never leaves the request, and 32
/// for the `bloomfilter` crate's positions.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Seed {
    /// The secret of the token's own hash.
    pub secret: (u64, u64),
    /// The crate's seed; it stands in each payload's header.
    pub positions: [u8; 32],
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(..)")
    }
}

impl Seed {
    /// A new one, from the operating system.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut positions = [0; 32];
        getrandom::fill(&mut positions)?;
        Ok(Self { secret: (getrandom::u64()?, getrandom::u64()?), positions })
    }

    /// The two keyed hashes that positions are made from.
    pub fn sips(&self) -> [SipHasher13; 2] {
        let (halves, _) = self.positions.as_chunks::<16>();
        std::array::from_fn(|i| SipHasher13::new_with_key(&halves[i]))
    }

    /// 96 hexadecimal digits, as Redis keeps it.
    pub fn to_text(self) -> String {
        let (k0, k1) = self.secret;
        let mut text = format!("{k0:016x}{k1:016x}");
        for byte in self.positions {
            // Nothing fails that is written to memory.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Reads what [`Self::to_text`] wrote; `None` for anything else.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        let (digits, rest) = text.as_chunks::<16>();
        if digits.len() != 6 || !rest.is_empty() {
            return None;
        }
        let mut words = [0; 6];
        for (word, digits) in words.iter_mut().zip(digits) {
            let digits = str::from_utf8(digits).ok()?;
            // A sign would pass the conversion.
            let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            *word = u64::from_str_radix(digits, 16).ok().filter(|_| plain)?;
        }
        let mut positions = [0; 32];
        for (bytes, word) in positions.as_chunks_mut::<8>().0.iter_mut().zip(&words[2..]) {
            *bytes = word.to_be_bytes();
        }
        Some(Self { secret: (words[0], words[1]), positions })
    }
}

#[cfg(test)]
mod tests;
