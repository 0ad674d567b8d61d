//! How a request that comes back to this process is known.

use crate::framing::Fields;

/// This process in `Via`: a name that no other gateway has, so that a request that comes back is known.
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
    /// Whether a request with these fields has passed here before.
    pub(super) fn is_in(&self, fields: &Fields) -> bool {
        fields.get_all("via").any(|line| {
            line.split(|byte| *byte == b',').any(|hop| hop.trim_ascii() == self.value.as_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passed_this_process_is_known() {
        let (own, other) = (Via::default(), Via::default());
        let fields = |value: &str| [("Via", value)].into_iter().collect::<Fields>();
        assert!(own.is_in(&fields(&format!("1.0 fred, {} , 1.1 p", own.value))));
        assert!(!own.is_in(&fields(&other.value)));
        assert!(!own.is_in(&fields("1.1 tidegate")));
        assert!(!own.is_in(&Fields::default()));
    }
}
