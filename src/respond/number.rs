//! Numbers as header values, without an allocation where they are small or repeat.

use std::cell::RefCell;

use http::HeaderValue;

/// `000001002`...`999`: every number below 1000 is a piece of it.
static BELOW_1000: [u8; 3000] = {
    let mut text = [0; 3000];
    let mut number = 0;
    while number < 1000 {
        text[3 * number] = b'0' + (number / 100) as u8;
        text[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
        text[3 * number + 2] = b'0' + (number % 10) as u8;
        number += 1;
    }
    text
};

/// `number` in decimal digits.
pub(super) fn header_value(number: u64) -> HeaderValue {
    if number < 1000 {
        let place = 3 * number as usize;
        let leading = usize::from(number < 100) + usize::from(number < 10);
        // ASCII digits are text.
        let digits = std::str::from_utf8(&BELOW_1000[place + leading..place + 3]);
        return HeaderValue::from_static(digits.unwrap_or_default());
    }
    let mut digits = itoa::Buffer::new();
    HeaderValue::from_str(digits.format(number)).unwrap_or_else(|_| HeaderValue::from(number))
}

/// The same, for a number that comes again and again, as a quota or a reset-at does: the last few are
/// kept, each worker its own.
pub(super) fn repeated(number: u64) -> HeaderValue {
    thread_local! {
        static RECENT: RefCell<[(u64, HeaderValue); 16]> =
            const { RefCell::new([const { (0, HeaderValue::from_static("0")) }; 16]) };
    }
    RECENT.with_borrow_mut(|recent| {
        let (kept, value) = &mut recent[(number % 16) as usize];
        if *kept != number {
            (*kept, *value) = (number, header_value(number));
        }
        value.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_itself() {
        for number in (0..2100).chain([u64::MAX, 1_700_000_060, 1_700_000_060, 4_000_000_000]) {
            assert_eq!(header_value(number), number.to_string());
            assert_eq!(repeated(number), number.to_string());
        }
    }
}
