//! `Expect`: RFC 9110, 10.1.1. Pure.

use super::fields::Fields;

/// What a request's `Expect` fields ask for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Expectation {
    /// Nothing: there is no field, or no member in any.
    None,
    /// `100-continue`, once or several times.
    Continue,
    /// Also something else, which is not known.
    Unknown,
}

impl Expectation {
    /// The expectation of a message with these `fields`. They are one list, whose empty members
    /// count as absent (RFC 9110, 5.6.1).
    pub fn of(fields: &Fields) -> Self {
        let mut expectation = Self::None;
        for value in fields.get_all("expect") {
            for member in value.split(|byte| *byte == b',') {
                match member.trim_ascii() {
                    b"" => {}
                    member if member.eq_ignore_ascii_case(b"100-continue") => {
                        expectation = Self::Continue;
                    }
                    _ => return Self::Unknown,
                }
            }
        }
        expectation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Expectation {
        let mut fields = Fields::new();
        for value in values {
            fields.push("Expect", value.as_bytes());
        }
        Expectation::of(&fields)
    }

    #[test]
    fn empty_members_are_absent_and_repetitions_change_nothing() {
        for values in [&[][..], &[""], &[","], &[" , ,"], &["", ""]] {
            assert_eq!(of(values), Expectation::None, "{values:?}");
        }
        for values in [
            &["100-continue"][..],
            &["100-Continue, 100-continue"],
            &["100-continue,"],
            &[", \t100-continue"],
            &["", "100-continue"],
        ] {
            assert_eq!(of(values), Expectation::Continue, "{values:?}");
        }
        for values in [
            &["x"][..],
            &["100-continue, x"],
            &["100-continue;q=1"],
            &["100-continue 100-continue"],
            &["100-continue", "x"],
        ] {
            assert_eq!(of(values), Expectation::Unknown, "{values:?}");
        }
    }
}
