//! When something ends: a time with its zone, or a date, as the files of consumers and overrides
//! have it.

use std::time::{Duration, UNIX_EPOCH};

use super::pattern::range_pattern;

/// The last year of a time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LastYear(u16);

impl LastYear {
    /// Expiries of keys are kept as seconds in 32 bits.
    pub const OF_KEYS: Self = Self(2105);
    /// Ends of overrides.
    pub const OF_OVERRIDES: Self = Self(2199);

    /// Parses a time such as `2027-01-01T00:00:00Z`, or a date, which is its first second. Returns
    /// the time since the epoch.
    pub fn parse(self, text: &str) -> Option<Duration> {
        // The library reads a fraction without digits, and one of any length.
        if text.strip_suffix('Z').is_some_and(|rest| rest.ends_with('.'))
            || text.len() > "2027-01-01T00:00:00.123456789Z".len()
        {
            return None;
        }
        let is_date = text.len() == 10;
        let time = if is_date { format!("{text}T00:00:00Z") } else { text.to_owned() };
        let time = humantime::parse_rfc3339(&time).ok()?;
        let year: u16 = text.get(..4)?.parse().ok()?;
        time.duration_since(UNIX_EPOCH).ok().filter(|_| year <= self.0)
    }

    /// The pattern of texts that [`Self::parse`] accepts.
    pub fn pattern(self) -> String {
        const FIRST: u16 = 1970;
        let years = range_pattern(FIRST.into(), self.0.into());
        let is_leap = |year: &u16| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        let leap_years: Vec<String> =
            (FIRST..=self.0).filter(is_leap).map(|year| year.to_string()).collect();
        let days = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])";
        let date = format!("(({years})-({days})|({})-02-29)", leap_years.join("|"));
        let time = "T([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)(\\.[0-9]{1,9})?Z";
        format!("^{date}({time})?$")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pattern_accepts_what_is_parsed() {
        let mut texts: Vec<String> = [
            "T10:00:00Z",
            "T23:59:59Z",
            "T23:59:60Z",
            "T23:59:61Z",
            "T24:00:00Z",
            "T10:60:00Z",
            "T10:00:00",
            "T10:00Z",
            "T10:00:00.5Z",
            "T10:00:00.123456789Z",
            "T10:00:00.1234567890Z",
            "T10:00:00.Z",
            "T10:00:00+01:00",
            "T10:00:00z",
            "t10:00:00Z",
            " 10:00:00Z",
            "T",
            "Z",
            " ",
            "T10:00:00.5",
            "T10:00:00.aZ",
        ]
        .map(|time| format!("2027-01-31{time}"))
        .into();
        texts.extend(
            ["", "soon", "2027", "2027-1-1", "27-01-01", "+027-01-01", "2027/01/01", "02027-01-01"]
                .map(str::to_owned),
        );
        for year in [
            1900, 1969, 1970, 1999, 2000, 2024, 2026, 2100, 2104, 2105, 2106, 2199, 2200, 2204,
            9999,
        ] {
            for day in [
                "00-01", "01-00", "01-31", "01-32", "02-28", "02-29", "02-30", "04-30", "04-31",
                "06-31", "09-31", "11-31", "12-31", "13-01", "10-10",
            ] {
                texts.push(format!("{year}-{day}"));
                texts.push(format!("{year}-{day}T23:59:59Z"));
            }
        }
        for last in [LastYear::OF_KEYS, LastYear::OF_OVERRIDES] {
            let schema = json!({"type": "string", "pattern": last.pattern()});
            let validator = jsonschema::validator_for(&schema).expect("a schema");
            for text in &texts {
                assert_eq!(validator.is_valid(&json!(text)), last.parse(text).is_some(), "{text}");
            }
        }
    }
}
