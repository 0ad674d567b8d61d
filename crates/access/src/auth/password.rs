//! Passwords: the credentials of RFC 7617 (`Basic`), and their hashes.

use argon2::{Argon2, Params, PasswordHasher as _, PasswordVerifier as _, password_hash::phc};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use tidegate_identity::after_scheme;

/// Maximum memory of one verification, in KiB.
const MAX_MEMORY: u32 = 256 << 10;
/// Maximum number of passes over the memory.
const MAX_PASSES: u32 = 32;
/// Maximum number of lanes.
const MAX_LANES: u32 = 16;
/// Maximum cost of a bcrypt hash: about a second.
const MAX_COST: u32 = 14;
/// The smallest cost of bcrypt that its library verifies.
const MIN_COST: u32 = 4;

/// What a hash of a password must be.
const EXPECTED: &str = "a hash as `argon2` or `htpasswd -B` prints it: `$argon2id$…` or `$2y$…`";

/// A value after `Basic` that is no name and password.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MalformedCredentials;

/// The credentials of a request after `Basic`.
#[derive(Clone, Eq, PartialEq)]
pub struct BasicCredentials {
    /// The account, and after the first colon its password.
    text: Vec<u8>,
    colon: usize,
}

impl BasicCredentials {
    /// Reads a value of `Authorization`; `None` under another scheme.
    ///
    /// # Errors
    ///
    /// The value is malformed.
    pub fn read(authorization: &[u8]) -> Option<Result<Self, MalformedCredentials>> {
        let text = STANDARD.decode(after_scheme(authorization, b"basic")?).ok();
        let is_text = |text: &Vec<u8>| !text.iter().any(u8::is_ascii_control);
        let read = text.filter(is_text).and_then(|text| {
            let colon = memchr::memchr(b':', &text)?;
            Some(Self { text, colon })
        });
        Some(read.ok_or(MalformedCredentials))
    }

    /// The account; `None` if it is not UTF-8, and so the name of no consumer.
    pub fn account(&self) -> Option<&str> {
        std::str::from_utf8(&self.text[..self.colon]).ok()
    }

    /// The password.
    pub fn password(&self) -> &[u8] {
        &self.text[self.colon + 1..]
    }
}

/// Nothing of the content.
impl std::fmt::Debug for BasicCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BasicCredentials(..)")
    }
}

/// Checks that passwords can be verified against `hash`: argon2 (RFC 9106) in the PHC string
/// format, or bcrypt, at a bounded cost.
///
/// # Errors
///
/// What was expected instead.
pub fn check_password_hash(hash: &str) -> Result<(), String> {
    if hash.starts_with("$argon2") {
        let parsed = phc::PasswordHash::new(hash).map_err(|_| EXPECTED.to_owned())?;
        let parameters = Params::try_from(&parsed).map_err(|_| EXPECTED.to_owned())?;
        let is_known = argon2::Algorithm::new(parsed.algorithm).is_ok();
        if !is_known || parsed.salt.is_none() || parsed.hash.is_none() {
            return Err(EXPECTED.to_owned());
        }
        let is_bounded = parameters.m_cost() <= MAX_MEMORY
            && parameters.t_cost() <= MAX_PASSES
            && parameters.p_cost() <= MAX_LANES;
        let bound = || format!("at most m={MAX_MEMORY}, t={MAX_PASSES}, p={MAX_LANES}");
        return if is_bounded { Ok(()) } else { Err(bound()) };
    }
    let parts: bcrypt::HashParts = hash.parse().map_err(|_| EXPECTED.to_owned())?;
    let is_bounded = (MIN_COST..=MAX_COST).contains(&parts.get_cost());
    if is_bounded { Ok(()) } else { Err(format!("a cost of {MIN_COST} to {MAX_COST}")) }
}

/// A new hash of `password`: argon2id, at the cost that the library recommends (19 MiB, two
/// passes).
///
/// # Errors
///
/// The system has no random numbers or no memory.
pub fn hash_password(password: &[u8]) -> Result<String, argon2::password_hash::Error> {
    let mut salt = [0; 16];
    getrandom::fill(&mut salt).map_err(|_| argon2::password_hash::Error::Crypto)?;
    let hash: phc::PasswordHash = Argon2::default().hash_password_with_salt(password, &salt)?;
    Ok(hash.to_string())
}

/// True if `hash` is a hash of `password`. Takes milliseconds to a second, by the hash's own cost.
pub fn is_password_of(hash: &str, password: &[u8]) -> bool {
    if hash.starts_with("$argon2") {
        return Argon2::default().verify_password(password, hash).is_ok();
    }
    bcrypt::verify(password, hash).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<Result<(String, String), MalformedCredentials>> {
        let read = BasicCredentials::read(text.as_bytes())?;
        let own = |own: BasicCredentials| {
            let password = String::from_utf8_lossy(own.password()).into_owned();
            (own.account().unwrap_or("?").to_owned(), password)
        };
        Some(read.map(own))
    }

    #[test]
    fn credentials_follow_their_scheme() {
        let found = |name: &str, password: &str| Some(Ok((name.to_owned(), password.to_owned())));
        // The examples of RFC 7617.
        let aladdin = "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==";
        assert_eq!(read(aladdin), found("Aladdin", "open sesame"));
        assert_eq!(read("bAsIc   dGVzdDoxMjPCow=="), found("test", "123\u{a3}"));
        assert_eq!(read("Basic YTpiOmM="), found("a", "b:c"));
        assert_eq!(read("Basic Og=="), found("", ""));
        assert_eq!(read("Basic /zph"), found("?", "a"));
        for malformed in
            ["Basic", "Basic ", "Basic YWJj", "Basic YTpi!", "Basic YQA6Yg==", "Basic YTpiCg=="]
        {
            assert_eq!(read(malformed), Some(Err(MalformedCredentials)), "{malformed}");
        }
        for other in ["", "Bearer YTpi", "Basics YTpi", "YTpi"] {
            assert_eq!(read(other), None, "{other}");
        }
        let shown = format!("{:?}", BasicCredentials::read(aladdin.as_bytes()));
        assert!(!shown.contains("sesame"), "{shown}");
    }

    // Made by `argon2 saltsalt -id -t 1 -k 64 -p 1` and `htpasswd -nbB -C 4`.
    const ARGON2: &str =
        "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$ixpwwKn9ahZABsFdSCp89Bjv1gR+y5qCxswm94TuOzs";
    const BCRYPT: &str = "$2y$04$ZTWSX.0UDtfHZJGRcCTlB.dkC9j.jI8zkjfa/2ndeFU.GgjBofqQG";

    #[test]
    fn hashes_of_other_programs_are_read() {
        for hash in [ARGON2, BCRYPT] {
            assert_eq!(check_password_hash(hash), Ok(()), "{hash}");
            assert!(is_password_of(hash, b"open sesame"), "{hash}");
            for wrong in [&b"open"[..], b"", b"open sesame ", b"\0"] {
                assert!(!is_password_of(hash, wrong), "{hash}");
            }
        }
    }

    #[test]
    fn a_new_hash_is_one_of_its_password() {
        let hash = hash_password(b"open sesame").unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert_eq!(check_password_hash(&hash), Ok(()));
        assert!(is_password_of(&hash, b"open sesame") && !is_password_of(&hash, b"open"));
        assert_ne!(hash_password(b"open sesame").unwrap(), hash, "each has a salt of its own");
    }

    #[test]
    fn hashes_that_cannot_be_verified_are_refused() {
        for (hash, expected) in [
            ("secret", EXPECTED),
            ("", EXPECTED),
            ("$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ", EXPECTED),
            ("$argon2xx$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNo", EXPECTED),
            ("$2b$04$short", EXPECTED),
            ("$1$salt$hash", EXPECTED),
            (&ARGON2.replace("m=64", "m=4000000"), "at most m=262144, t=32, p=16"),
            (&ARGON2.replace("t=1", "t=1000"), "at most m=262144, t=32, p=16"),
            (&BCRYPT.replace("$04$", "$20$"), "a cost of 4 to 14"),
            (&BCRYPT.replace("$04$", "$03$"), "a cost of 4 to 14"),
        ] {
            assert_eq!(check_password_hash(hash), Err(expected.to_owned()), "{hash}");
        }
    }

    proptest! {
        #[test]
        fn any_value_is_read_without_a_panic(value: Vec<u8>, text in "[Bb]asic [A-Za-z0-9+/=]{0,12}") {
            let _ = BasicCredentials::read(&value);
            let _ = BasicCredentials::read(text.as_bytes());
        }

        #[test]
        fn any_hash_is_checked_without_a_panic(
            text in "[$]?(argon2id|2b)?[$](v=19[$])?(m=[0-9]{1,3},t=[0-9],p=[0-9])?[$a-zA-Z0-9/+.]{0,60}"
        ) {
            // Only a hash that passes is ever verified.
            if check_password_hash(&text).is_ok() {
                let _ = is_password_of(&text, b"a");
            }
        }
    }
}
