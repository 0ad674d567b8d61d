//! [`Via`]: detects requests that loop back to this process (RFC 9110, 7.6.3).

use tidegate_http1::{Fields, Version};

/// The field that carries the entry of `Via` to servers that must not get `Via`. The parser of heads
/// notes a name of this length with this end (`RareFields::via`).
pub const QUIET_VIA: &str = "tidegate-via";

/// This process's `Via` entries, with a random name that distinguishes it from other gateways.
#[derive(Debug)]
pub struct Via {
    /// `tidegate-0123456789abcdef`.
    name: Box<str>,
    /// The entries by the version of the received message, such as `1.1 tidegate-0123456789abcdef`.
    entries: [Box<str>; Version::ALL.len()],
}

impl Default for Via {
    fn default() -> Self {
        let id = ahash::RandomState::new().hash_one(0);
        let name = format!("tidegate-{id:016x}");
        let entries = Version::ALL.map(|version| format!("{} {name}", version.as_str()).into());
        Self { name: name.into(), entries }
    }
}

impl Via {
    /// The entry for a message that was received in `version`.
    pub fn entry(&self, version: Version) -> &str {
        &self.entries[version as usize]
    }

    /// True if `Via` or [`QUIET_VIA`] in `fields` names this process.
    pub fn is_listed_in(&self, fields: &Fields) -> bool {
        let is_own = |hop: &[u8]| {
            let mut words = hop.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            // The first word is the protocol.
            words.nth(1) == Some(self.name.as_bytes())
        };
        let lists =
            |name| fields.get_all(name).any(|line| line.split(|byte| *byte == b',').any(is_own));
        lists("via") || lists(QUIET_VIA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_process_is_detected() {
        let (own, other) = (Via::default(), Via::default());
        let fields = |value: &str| [("Via", value)].into_iter().collect::<Fields>();
        for version in Version::ALL {
            let entry = own.entry(version);
            assert!(own.is_listed_in(&fields(&format!("1.0 fred, {entry} , 1.1 p"))));
            assert!(own.is_listed_in(&fields(&format!("{entry} (comment)"))));
            assert!(own.is_listed_in(&[(QUIET_VIA, entry)].into_iter().collect()));
            assert!(!own.is_listed_in(&fields(other.entry(version))));
        }
        assert!(!own.is_listed_in(&fields("1.1 tidegate")));
        assert!(!own.is_listed_in(&fields(&own.name)), "no protocol");
        assert!(!own.is_listed_in(&Fields::default()));
    }

    #[test]
    fn an_entry_begins_with_the_version_that_was_received() {
        let via = Via::default();
        for (version, start) in [
            (Version::Http10, "1.0 tidegate-"),
            (Version::Http11, "1.1 tidegate-"),
            (Version::Http2, "2 tidegate-"),
        ] {
            assert!(via.entry(version).starts_with(start));
        }
    }
}
