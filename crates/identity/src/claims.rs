//! [`TokenClaims`]: claims of a verified token.

/// The claims of a verified token that the configuration uses, as texts by name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TokenClaims(Box<[(Box<str>, Box<str>)]>);

impl TokenClaims {
    /// The claim called `name`; `None` if the token does not have it.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(own, _)| **own == *name);
        found.map(|(_, value)| &**value)
    }

    /// The bytes that names and values take.
    pub fn memory(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl FromIterator<(Box<str>, Box<str>)> for TokenClaims {
    fn from_iter<I: IntoIterator<Item = (Box<str>, Box<str>)>>(claims: I) -> Self {
        Self(claims.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_found_by_its_whole_name() {
        let claims: TokenClaims = [(Box::from("a.b"), Box::from("1"))].into_iter().collect();
        assert_eq!((claims.get("a.b"), claims.get("a"), claims.memory()), (Some("1"), None, 4));
    }
}
