//! [`Quantity`], and the reader of a JSON number that may arrive in pieces.

use tidegate_limit::MAX_UNITS;

/// Steps of a unit: a quantity has nine decimal places.
const STEPS: u128 = 1_000_000_000;
/// The decimal places of a quantity.
const PLACES: i64 = 9;
/// The most digits that are read exactly; further ones round up.
const MAX_DIGITS: u8 = 19;

/// A number from 0 to 2^53 - 1 with nine decimal places. Further ones are rounded up, a negative
/// number is 0, and a larger one is 2^53 - 1.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Quantity(u128);

impl Quantity {
    /// The largest quantity.
    pub const MAX: Self = Self(MAX_UNITS as u128 * STEPS);

    /// This many units, at most 2^53 - 1.
    pub fn units(units: u64) -> Self {
        Self(u128::from(units.min(MAX_UNITS)) * STEPS)
    }

    /// The number in billionths.
    pub fn billionths(self) -> u128 {
        self.0
    }

    /// The number in whole units, rounded up.
    pub fn ceil(self) -> u64 {
        u64::try_from(self.0.div_ceil(STEPS)).unwrap_or(MAX_UNITS)
    }

    /// `mantissa * 10^exponent`, rounded up. `is_more` if the number is a little more than that.
    fn scaled(mantissa: u64, exponent: i64, is_more: bool) -> Self {
        let mantissa = u128::from(mantissa);
        if mantissa == 0 && !is_more {
            return Self(0);
        }
        let shift = exponent.saturating_add(PLACES);
        let steps = match u32::try_from(shift.unsigned_abs()) {
            Ok(places) if places <= 38 => {
                let power = 10u128.pow(places);
                if shift >= 0 {
                    mantissa.saturating_mul(power).saturating_add(u128::from(is_more))
                } else {
                    let rounded = mantissa.div_ceil(power);
                    rounded + u128::from(is_more && mantissa.is_multiple_of(power))
                }
            }
            _ if shift > 0 => u128::MAX,
            _ => 1,
        };
        Self(steps.min(Self::MAX.0))
    }
}

/// What a byte means to a number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NumberStep {
    /// It is a part of it.
    Taken,
    /// The number ended before it.
    Ended,
    /// It makes the text no JSON.
    Invalid,
}

/// Reads a number (RFC 8259, 6), byte by byte.
#[derive(Clone, Debug, Default)]
pub(super) struct NumberReader {
    part: NumberPart,
    is_negative: bool,
    mantissa: u64,
    /// Digits of the mantissa.
    digits: u8,
    /// The exponent of the mantissa, without the written one.
    scale: i64,
    /// True if digits that are not zero were left out.
    is_more: bool,
    exponent: i64,
    is_exponent_negative: bool,
}

/// The part of a number that the last byte belongs to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum NumberPart {
    #[default]
    Start,
    Sign,
    Zero,
    Whole,
    Point,
    Fraction,
    Mark,
    ExponentSign,
    Exponent,
}

impl NumberReader {
    /// Reads the next byte.
    pub(super) fn push(&mut self, byte: u8) -> NumberStep {
        use NumberPart::{Exponent, ExponentSign, Fraction, Mark, Point, Sign, Start, Whole, Zero};

        self.part = match (self.part, byte) {
            (Start, b'-') => {
                self.is_negative = true;
                Sign
            }
            (Start | Sign, b'0') => Zero,
            (Start | Sign | Whole, b'0'..=b'9') => {
                self.add_digit(byte - b'0', 0);
                Whole
            }
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => {
                self.add_digit(byte - b'0', -1);
                Fraction
            }
            (Zero | Whole | Fraction, b'e' | b'E') => Mark,
            (Mark, b'+') => ExponentSign,
            (Mark, b'-') => {
                self.is_exponent_negative = true;
                ExponentSign
            }
            (Mark | ExponentSign | Exponent, b'0'..=b'9') => {
                let digit = i64::from(byte - b'0');
                self.exponent = self.exponent.saturating_mul(10).saturating_add(digit);
                Exponent
            }
            (Zero | Whole | Fraction | Exponent, b',' | b']' | b'}' | b' ' | b'\t'..=b'\r') => {
                return NumberStep::Ended;
            }
            _ => return NumberStep::Invalid,
        };
        NumberStep::Taken
    }

    fn add_digit(&mut self, digit: u8, place: i64) {
        if self.digits < MAX_DIGITS {
            self.mantissa = self.mantissa * 10 + u64::from(digit);
            self.digits += u8::from(self.mantissa > 0);
            self.scale += place;
        } else {
            self.is_more |= digit > 0;
            self.scale += place + 1;
        }
    }

    /// The number.
    pub(super) fn quantity(&self) -> Quantity {
        if self.is_negative {
            return Quantity(0);
        }
        let written = if self.is_exponent_negative { -self.exponent } else { self.exponent };
        Quantity::scaled(self.mantissa, written.saturating_add(self.scale), self.is_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Quantity> {
        let mut reader = NumberReader::default();
        for byte in text.bytes() {
            if reader.push(byte) != NumberStep::Taken {
                return None;
            }
        }
        (reader.push(b',') == NumberStep::Ended).then(|| reader.quantity())
    }

    #[test]
    fn numbers_are_rounded_up_and_clamped() {
        for (text, units, billionths) in [
            ("0", 0, 0),
            ("7", 7, 7_000_000_000),
            ("1.5", 2, 1_500_000_000),
            ("0.000123", 1, 123_000),
            ("0.0000000001", 1, 1),
            ("1e-400", 1, 1),
            ("0e999999999999999999999", 0, 0),
            ("1e-99999999999999999999999", 1, 1),
            ("2.5E3", 2_500, 2_500_000_000_000),
            ("25e-1", 3, 2_500_000_000),
            ("-5", 0, 0),
            ("-0.0", 0, 0),
            ("1e300", MAX_UNITS, Quantity::MAX.0),
            ("9007199254740992", MAX_UNITS, Quantity::MAX.0),
            ("9007199254740991", MAX_UNITS, Quantity::MAX.0),
            ("9007199254740990", MAX_UNITS - 1, Quantity::MAX.0 - STEPS),
            ("99999999999999999999999999", MAX_UNITS, Quantity::MAX.0),
            ("10000000000000000000000001e-25", 2, 1_000_000_001),
            ("1.00000000000000000000000000001", 2, 1_000_000_001),
            ("1.00000000000000000000000000000", 1, 1_000_000_000),
        ] {
            let read = read(text).unwrap();
            assert_eq!((read.ceil(), read.billionths()), (units, billionths), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_is_found() {
        for text in ["", "-", "01", "1.", ".5", "+1", "1e", "1e+", "--1", "1-2", "1x", "0x1"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
