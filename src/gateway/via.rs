//! [`Via`]: detects requests that loop back to this process (RFC 9110, 7.6.3).

use crate::framing::Fields;

/// This process's `Via` entry, with a random name that distinguishes it from other gateways.
#[derive(Debug)]
pub struct Via {
    /// `1.1 tidegate-0123456789abcdef`.
    pub(super) value: Box<str>,
}

impl Default for Via {
    fn default() -> Self {
        let id = ahash::RandomState::new().hash_one(0);
        Self { value: format!("1.1 tidegate-{id:016x}").into() }
    }
}

impl Via {
    /// Whether `Via` in `fields` names this process.
    pub(super) fn is_listed_in(&self, fields: &Fields) -> bool {
        fields.get_all("via").any(|line| {
            line.split(|byte| *byte == b',').any(|hop| hop.trim_ascii() == self.value.as_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_process_is_detected() {
        let (own, other) = (Via::default(), Via::default());
        let fields = |value: &str| [("Via", value)].into_iter().collect::<Fields>();
        assert!(own.is_listed_in(&fields(&format!("1.0 fred, {} , 1.1 p", own.value))));
        assert!(!own.is_listed_in(&fields(&other.value)));
        assert!(!own.is_listed_in(&fields("1.1 tidegate")));
        assert!(!own.is_listed_in(&Fields::default()));
    }
}
