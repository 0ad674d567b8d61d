//! [`RecordNames`]: the keys of records in Redis.

use crate::auth::KeyHash;

/// Number of hash tags, over which the records are spread.
pub(super) const TAGS: usize = 16;

/// A hash tag, which determines the server of its records: the first hexadecimal digit of a
/// SHA-256.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RecordTag(u8);

/// Where a record is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct RecordAddress {
    pub(super) tag: RecordTag,
    pub(super) key: String,
}

/// Makes the keys of records: `NAMESPACE:{consumers-X}:key:SHA256` and
/// `NAMESPACE:{consumers-Y}:name:NAME`. The name comes last, and the first braces are the hash tag,
/// so no character of a name has a meaning.
pub(super) struct RecordNames {
    pub(super) namespace: Box<str>,
}

impl RecordTag {
    /// All tags.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..TAGS as u8).map(Self)
    }

    fn of(hash: &KeyHash) -> Self {
        Self(hash.0[0] >> 4)
    }

    /// The tag of the record of the key with this hash.
    pub(super) fn of_key(hash: &KeyHash) -> Self {
        Self::of(hash)
    }

    /// The tag of the record of the consumer called `name`.
    pub(super) fn of_name(name: &str) -> Self {
        Self::of(&KeyHash::of(name.as_bytes()))
    }

    /// Below [`TAGS`].
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The text between the braces.
    pub(super) fn text(self) -> String {
        format!("consumers-{:x}", self.0)
    }
}

impl RecordNames {
    /// The record of the key with this hash: the name of its consumer.
    pub(super) fn of_key(&self, hash: &KeyHash) -> RecordAddress {
        let tag = RecordTag::of_key(hash);
        let key = format!("{}:{{{}}}:key:{hash}", self.namespace, tag.text());
        RecordAddress { tag, key }
    }

    /// The record of the consumer called `name`.
    pub(super) fn of_name(&self, name: &str) -> RecordAddress {
        let tag = RecordTag::of_name(name);
        let key = format!("{}:{{{}}}:name:{name}", self.namespace, tag.text());
        RecordAddress { tag, key }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> RecordNames {
        RecordNames { namespace: "tidegate".into() }
    }

    #[test]
    fn keys_of_records_never_change() {
        let hash = KeyHash::of(b"abc");
        let own = names().of_key(&hash);
        assert_eq!(own.key, format!("tidegate:{{consumers-b}}:key:{hash}"));
        assert_eq!(own.tag.index(), 0xb);
        // echo -n acme | sha256sum
        assert_eq!(names().of_name("acme").key, "tidegate:{consumers-8}:name:acme");
        let tags: Vec<usize> = RecordTag::all().map(RecordTag::index).collect();
        assert_eq!(tags, (0..TAGS).collect::<Vec<_>>());
    }

    proptest! {
        #[test]
        fn a_name_stays_within_its_key(name in "\\PC{1,128}", other in "\\PC{1,128}") {
            let own = names().of_name(&name);
            // What Redis takes as the hash tag.
            let tag = own.key.split_once('{').unwrap().1.split_once('}').unwrap().0;
            prop_assert_eq!(tag, own.tag.text());
            prop_assert_eq!(own.key.split_once("}:name:").unwrap().1, &name);
            prop_assert_eq!(own == names().of_name(&other), name == other);
        }
    }
}
