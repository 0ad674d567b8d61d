//! Patterns of schemas for numbers and amounts in a range. Pure.

/// The windows of a rate, in ms: 1 ms to 366 days.
pub(super) const RATE_WINDOWS: (u64, u64) = (1, 366 * 24 * 60 * 60 * 1_000);

/// A pattern for the amounts in a range, in each of the units.
pub(super) fn amounts_pattern((minimum, maximum): (u64, u64), units: &[(&str, u64)]) -> String {
    let in_unit = |(unit, factor): &(&str, u64)| {
        let (least, most) = (minimum.div_ceil(*factor), maximum / factor);
        (least <= most).then(|| format!("0*({}){unit}", range_pattern(least, most)))
    };
    units.iter().filter_map(in_unit).collect::<Vec<_>>().join("|")
}

/// A pattern for the whole numbers from `least` to `most`, without leading zeros.
pub(super) fn range_pattern(least: u64, most: u64) -> String {
    let mut parts = Vec::new();
    let mut from = least;
    loop {
        let digits = from.to_string();
        // The largest number with as many digits.
        let last = digits.bytes().fold(0_u64, |last, _| last.saturating_mul(10).saturating_add(9));
        let to = last.min(most);
        parts.push(digits_pattern(digits.as_bytes(), to.to_string().as_bytes()));
        if to == most {
            return parts.join("|");
        }
        from = to + 1;
    }
}

/// A pattern for the numbers from `least` to `most`, which have the same number of digits.
fn digits_pattern(least: &[u8], most: &[u8]) -> String {
    let (Some((low, low_rest)), Some((high, high_rest))) =
        (least.split_first(), most.split_first())
    else {
        return String::new();
    };
    let count = low_rest.len();
    if least.iter().all(|digit| *digit == b'0') && most.iter().all(|digit| *digit == b'9') {
        return format!("[0-9]{{{}}}", count + 1);
    }
    let digit = |digit: u8| char::from(digit);
    if low == high {
        return format!("{}{}", digit(*low), digits_pattern(low_rest, high_rest));
    }
    let mut parts = Vec::new();
    let (mut from, mut to) = (*low, *high);
    if low_rest.iter().any(|digit| *digit != b'0') {
        parts.push(format!("{}{}", digit(from), digits_pattern(low_rest, &vec![b'9'; count])));
        from += 1;
    }
    let is_whole = high_rest.iter().all(|digit| *digit == b'9');
    if !is_whole {
        to -= 1;
    }
    if from <= to {
        parts.push(format!("[{}-{}][0-9]{{{count}}}", digit(from), digit(to)));
    }
    if !is_whole {
        parts.push(format!("{}{}", digit(*high), digits_pattern(&vec![b'0'; count], high_rest)));
    }
    format!("({})", parts.join("|"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::units::DURATION_UNITS;

    fn validator(pattern: &str) -> jsonschema::Validator {
        let schema = json!({"type": "string", "pattern": format!("^({pattern})$")});
        jsonschema::validator_for(&schema).unwrap()
    }

    #[test]
    fn a_range_is_exactly_its_numbers() {
        for (least, most) in
            [(0, 0), (0, 9), (1, 366), (7, 1_024), (95, 105), (100, 999), (60, 601)]
        {
            let validator = validator(&range_pattern(least, most));
            for number in 0..2_000_u64 {
                let is_valid = validator.is_valid(&number.to_string().into());
                assert_eq!(
                    is_valid,
                    (least..=most).contains(&number),
                    "{number}: {least}..={most}"
                );
            }
        }
        let all = validator(&range_pattern(0, u64::MAX));
        assert!(all.is_valid(&u64::MAX.to_string().into()));
        assert!(!all.is_valid(&"18446744073709551616".into()));
    }

    #[test]
    fn amounts_have_the_range_in_each_unit() {
        let validator = validator(&amounts_pattern((100, 3_600_000), &DURATION_UNITS));
        for (text, is_valid) in [
            ("99ms", false),
            ("100ms", true),
            ("0100ms", true),
            ("0s", false),
            ("1s", true),
            ("3600s", true),
            ("3601s", false),
            ("60m", true),
            ("1h", true),
            ("2h", false),
            ("1d", false),
            ("5", false),
        ] {
            assert_eq!(validator.is_valid(&text.into()), is_valid, "{text}");
        }
    }
}
