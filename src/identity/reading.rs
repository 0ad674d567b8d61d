//! Reads the one value of a header, a cookie or a parameter out of a request.

use std::borrow::Cow;

use http::{HeaderName, header};

use super::spelling::{Name, compare_names, cookie_value, form_decoded, query_value, trim};
use crate::framing::Fields;

/// A part that the gateway and the upstream could read differently, though requests are counted by it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Ambiguous {
    /// It was sent twice with different values.
    #[error("{0} must be sent at most once: requests are counted by it")]
    Repeated(String),
    /// Its value has no one form.
    #[error(
        "{name} can be read in more than one way, and requests are counted by it; expected {expected}"
    )]
    Unclear {
        /// The part.
        name: String,
        /// What was expected.
        expected: &'static str,
    },
}

/// So many cookies or parameters are looked through; more than common upstreams take.
const MAX_PAIRS: usize = 4096;

/// Counts one more cookie or parameter of a request.
fn count(pairs: &mut usize, name: impl FnOnce() -> String) -> Result<(), Ambiguous> {
    *pairs += 1;
    if *pairs > MAX_PAIRS {
        return Err(Ambiguous::Unclear { name: name(), expected: "at most 4096 of its kind" });
    }
    Ok(())
}

/// The only value of a header, as it is sent. Sent twice, the gateway and the upstream could believe
/// different ones.
pub(super) fn single_header<'r>(
    headers: &'r Fields,
    name: &HeaderName,
) -> Result<Option<&'r [u8]>, Ambiguous> {
    let mut values = headers.get_all(name.as_str());
    let first = values.next();
    if values.next().is_some() {
        return Err(Ambiguous::Repeated(format!("header {name}")));
    }
    Ok(first)
}

/// The only value of a cookie, in its form.
pub(super) fn cookie<'r>(
    headers: &'r Fields,
    name: &str,
) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let (mut found, mut pairs) = (None, 0);
    for line in headers.get_all(header::COOKIE) {
        for pair in line.split(|byte| *byte == b';') {
            count(&mut pairs, || format!("cookie {name}"))?;
            let Some(equals) = memchr::memchr(b'=', pair) else { continue };
            match compare_names(trim(&pair[..equals]), name.as_bytes()) {
                Name::Same => {}
                Name::Twin => return Err(Ambiguous::Repeated(format!("cookie {name}"))),
                Name::Other => continue,
            }
            let value = cookie_value(&pair[equals + 1..]).ok_or_else(|| Ambiguous::Unclear {
                name: format!("cookie {name}"),
                expected: "a value without quotes and backslashes",
            })?;
            only(&mut found, value).ok_or_else(|| Ambiguous::Repeated(format!("cookie {name}")))?;
        }
    }
    Ok(found)
}

/// The only value of a query's parameter, in its form.
pub(super) fn query<'r>(query: &'r str, name: &str) -> Result<Option<Cow<'r, [u8]>>, Ambiguous> {
    let repeated = || Ambiguous::Repeated(format!("query parameter {name}"));
    let (mut found, mut pairs) = (None, 0);
    for pair in query.split('&') {
        // Some upstreams end a parameter at a `;`, too.
        let divided = memchr::memchr(b';', pair.as_bytes()).is_some();
        for piece in pair.split(';') {
            count(&mut pairs, || format!("query parameter {name}"))?;
            let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
            match compare_names(&form_decoded(key), name.as_bytes()) {
                Name::Same if divided => {
                    return Err(Ambiguous::Unclear {
                        name: format!("query parameter {name}"),
                        expected: "no `;` beside it",
                    });
                }
                Name::Same => only(&mut found, query_value(value)).ok_or_else(repeated)?,
                Name::Twin => return Err(repeated()),
                Name::Other => {}
            }
        }
    }
    Ok(found)
}

/// Notes a value; `None` where another one was found before.
fn only<'r>(found: &mut Option<Cow<'r, [u8]>>, value: Cow<'r, [u8]>) -> Option<()> {
    if let Some(other) = found {
        return (*other == value).then_some(());
    }
    *found = Some(value);
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_request_has_more_pairs_than_are_looked_through() {
        let (few, many) = ("q&".repeat(MAX_PAIRS - 1), "q&".repeat(MAX_PAIRS + 1));
        assert_eq!(query(&(few + "k=1"), "k").unwrap().as_deref(), Some(&b"1"[..]));
        assert!(query(&many, "k").is_err());
        let cookies = [("cookie", "a=1;".repeat(MAX_PAIRS + 1))].into_iter().collect();
        assert!(cookie(&cookies, "k").is_err());
    }

    #[test]
    fn a_parameter_is_sent_once_for_every_upstream() {
        for (text, wanted) in [
            ("k=%61b&x=1", Some(&b"ab"[..])),
            ("x&k", Some(b"")),
            ("%6b=a+b", Some(b"a b")),
            ("k=a&k=%61+", Some(b"a")),
            ("k=%zz", Some(b"%zz")),
            ("k=%3b", Some(b";")),
            ("x=1;y=2&z", None),
            ("K=1&kk=1", None),
        ] {
            assert_eq!(query(text, "k").unwrap().as_deref(), wanted, "{text}");
        }
        for text in ["k=1&k=2", "k=1;x", "x;k=1", "k;x=1", "k=1&k[]=2", "k[a]=1", "+k=1", "k%00=1"]
        {
            assert!(query(text, "k").is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_query_panics(text in "\\PC{0,40}") {
            let _ = query(&text, "k");
        }

        #[test]
        fn the_order_of_parameters_does_not_count(a in "[a-z+%;\\[=]{0,6}", b in "[a-z+%;\\[=]{0,6}") {
            let found = |text: String| query(&text, "k").map(|value| value.map(Cow::into_owned)).ok();
            prop_assert_eq!(found(format!("k={a}&x={b}")), found(format!("x={b}&k={a}")));
        }
    }
}
