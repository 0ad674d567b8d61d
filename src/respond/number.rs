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

thread_local! {
    /// The last large numbers of this worker: a quota and a reset-at come again and again.
    static RECENT: RefCell<[(u64, HeaderValue); 4]> =
        const { RefCell::new([const { (0, HeaderValue::from_static("0")) }; 4]) };
}

/// `number` in decimal digits.
pub(super) fn header_value(number: u64) -> HeaderValue {
    if number < 1000 {
        let place = 3 * number as usize;
        let leading = usize::from(number < 100) + usize::from(number < 10);
        // ASCII digits are text.
        let digits = std::str::from_utf8(&BELOW_1000[place + leading..place + 3]);
        return HeaderValue::from_static(digits.unwrap_or_default());
    }
    RECENT.with_borrow_mut(|recent| {
        let (kept, value) = &mut recent[(number % 4) as usize];
        if *kept != number {
            *kept = number;
            let mut digits = itoa::Buffer::new();
            *value = HeaderValue::from_str(digits.format(number))
                .unwrap_or_else(|_| HeaderValue::from(number));
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
        }
    }
}
