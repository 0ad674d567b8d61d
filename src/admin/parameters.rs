//! Values of parameters that several requests have.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The largest number of items in a list, and the number without `count`.
pub(super) const MAX_LISTED: usize = 1_000;

/// Parses a number as it is usually written: without a sign, and without leading zeros.
pub(super) fn parse_number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number: &usize| number.to_string() == text)
}

/// Parses the number of items to list.
pub(super) fn parse_count(text: &str) -> Result<usize, String> {
    let count = parse_number(text).filter(|count| (1..=MAX_LISTED).contains(count));
    count.ok_or_else(|| format!("`count` is malformed; expected 1 to {MAX_LISTED}"))
}

/// The decoded parameters of a query, or the detail of the error. A malformed escape is an error:
/// read literally or replaced, it would name another caller.
pub(super) fn parse_query(query: &str) -> Result<Vec<(String, String)>, String> {
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    let decoded = parameters.map(|parameter| {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        Ok((decode(name)?, decode(value)?))
    });
    decoded.collect()
}

/// A name or value without its escapes. `+` is a space, as in a form.
fn decode(text: &str) -> Result<String, String> {
    let is_escape = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !text.split('%').skip(1).all(is_escape) {
        let detail = "a parameter has a malformed escape; expected `%` and two hexadecimal digits, and `%25` \
                      for a literal `%`";
        return Err(detail.to_owned());
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8();
    decoded.map(Cow::into_owned).map_err(|_| "a parameter is not UTF-8; expected UTF-8".to_owned())
}

/// The parameters of a query, each of which may occur once.
pub(super) fn parse_distinct(query: &str) -> Result<Vec<(String, String)>, String> {
    let parameters = parse_query(query)?;
    for (index, (name, _)) in parameters.iter().enumerate() {
        if parameters[..index].iter().any(|(before, _)| before == name) {
            return Err("a parameter is given more than once; expected it once".to_owned());
        }
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_written_in_one_way() {
        assert_eq!(["1", "999", "1000"].map(parse_count), [Ok(1), Ok(999), Ok(1000)]);
        for text in ["", "0", "01", "+1", "-1", "1001", "1.0", " 1", "1e3", "99999999999999999999"]
        {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }
}
