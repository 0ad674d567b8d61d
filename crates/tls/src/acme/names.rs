//! The names of certificates and accounts in the storage: readable, and different for different
//! certificates and accounts.

use aws_lc_rs::digest::{SHA256, digest};

/// The longest readable part of a name, in bytes.
const MAX_READABLE: usize = 100;

/// The file of the certificate for `domains`, sorted, from the directory at this URL.
pub(super) fn certificate_file(domains: &[Box<str>], directory: &str) -> String {
    let first = domains.first().map_or("", |first| first);
    let parts = domains.iter().map(|domain| &**domain).chain(["", directory]);
    format!("{}-{}.pem", readable(first), fingerprint(parts))
}

/// The file of the account that an authority knows by these parts: the directory's URL first.
pub(super) fn account_file(parts: &[&str]) -> String {
    let host = parts.first().and_then(|url| url.split('/').nth(2)).unwrap_or_default();
    format!("account-{}-{}.json", readable(host), fingerprint(parts.iter().copied()))
}

/// The beginning of `text`, with `_` in place of everything but letters, digits, `.` and `-`.
fn readable(text: &str) -> String {
    let is_kept = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '.' | '-');
    let kept = text.chars().take(MAX_READABLE);
    let kept: String = kept.map(|char| if is_kept(&char) { char } else { '_' }).collect();
    // No file of a name that begins with a dot: tools hide it.
    kept.trim_start_matches('.').to_owned()
}

/// 64 bits of a digest of `parts`, in hexadecimal.
fn fingerprint<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for part in parts {
        text.push_str(part);
        // No part contains a line break.
        text.push('\n');
    }
    let digest = digest(&SHA256, text.as_bytes());
    let (words, _) = digest.as_ref().as_chunks::<8>();
    format!("{:016x}", words.first().map_or(0, |word| u64::from_be_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_set_of_domains_and_each_authority_has_a_file() {
        let of = |domains: &[&str], directory: &str| {
            let domains: Vec<Box<str>> = domains.iter().map(|domain| (*domain).into()).collect();
            certificate_file(&domains, directory)
        };
        let names = [
            of(&["a.test"], "https://ca.test/dir"),
            of(&["a.test"], "https://staging.ca.test/dir"),
            of(&["a.test", "b.test"], "https://ca.test/dir"),
            of(&["a.test", "b.test", "c.test"], "https://ca.test/dir"),
        ];
        assert!(names.iter().all(|name| name.starts_with("a.test-")), "{names:?}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
        let account = account_file(&["https://ca.test:14000/dir", "", ""]);
        assert!(account.starts_with("account-ca.test_14000-"), "{account}");
        // Gateways of different versions find each other's files.
        assert_eq!(names[0], "a.test-25fb9720db429b0c.pem");
    }

    proptest! {
        #[test]
        fn a_name_is_one_visible_part_of_a_path(first in ".{0,300}", url in ".{0,300}") {
            for name in [certificate_file(&[first.clone().into()], &url), account_file(&[&url])] {
                prop_assert!(name.len() < 200 && !name.starts_with('.') && !name.contains('/'));
            }
        }
    }
}
