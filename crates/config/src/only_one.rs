//! Keys of which a section has exactly one.

/// Why a section has not exactly one of some keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotOne {
    /// It has none of them.
    Missing,
    /// It has at least these two.
    Several {
        /// The first one, in the order of the reference.
        first: &'static str,
        /// The second one.
        second: &'static str,
    },
}

/// The only value that is there. Each stands beside its key.
pub(crate) fn only_one<T, const N: usize>(
    values: [(&'static str, Option<T>); N],
) -> Result<T, NotOne> {
    let mut present = values.into_iter().filter_map(|(key, value)| Some((key, value?)));
    let (first, value) = present.next().ok_or(NotOne::Missing)?;
    match present.next() {
        None => Ok(value),
        Some((second, _)) => Err(NotOne::Several { first, second }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_values_are_named_by_their_keys() {
        assert_eq!(only_one([("a", None), ("b", Some(2))]), Ok(2));
        assert_eq!(only_one::<u8, 2>([("a", None), ("b", None)]), Err(NotOne::Missing));
        let several = NotOne::Several { first: "a", second: "c" };
        assert_eq!(only_one([("a", Some(1)), ("b", None), ("c", Some(3))]), Err(several));
    }
}
