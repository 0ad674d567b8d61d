//! [`DateCache`]: the `Date` field of responses (RFC 9110, 6.6.1).

use std::{
    cell::{Cell, RefCell},
    time::{Duration, UNIX_EPOCH},
};

/// The value of `Date`, formatted once a second.
#[derive(Default)]
pub(super) struct DateCache {
    second: Cell<u64>,
    text: RefCell<String>,
}

impl DateCache {
    /// Calls `write` with the date at `now`, in ms since the epoch.
    pub(super) fn with(&self, now: u64, write: impl FnOnce(&str)) {
        let second = now / 1000;
        let mut text = self.text.borrow_mut();
        if text.is_empty() || self.second.replace(second) != second {
            let time = UNIX_EPOCH + Duration::from_secs(second);
            *text = httpdate::fmt_http_date(time);
        }
        write(&text);
    }
}
