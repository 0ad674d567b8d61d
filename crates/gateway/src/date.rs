//! [`DateCache`]: the `Date` field of responses (RFC 9110, 6.6.1).

use std::{
    cell::RefCell,
    time::{Duration, UNIX_EPOCH},
};

/// The value of `Date`, formatted once a second.
pub(super) struct DateCache(RefCell<Date>);

struct Date {
    /// Seconds since the epoch.
    second: u64,
    text: String,
}

impl Date {
    fn at(second: u64) -> Self {
        Self { second, text: httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second)) }
    }
}

impl DateCache {
    /// The date at `now`, in ms since the epoch.
    pub(super) fn new(now: u64) -> Self {
        Self(RefCell::new(Date::at(now / 1000)))
    }

    /// Sets the date to `now`, in ms since the epoch, at a worker's tick.
    pub(super) fn set(&self, now: u64) {
        let mut date = self.0.borrow_mut();
        if date.second != now / 1000 {
            *date = Date::at(now / 1000);
        }
    }

    /// Moves the date forward to `arrival`, when a request arrived, in ms since the epoch. It may
    /// be before the last tick.
    pub(super) fn advance(&self, arrival: u64) {
        let mut date = self.0.borrow_mut();
        if arrival / 1000 > date.second {
            *date = Date::at(arrival / 1000);
        }
    }

    /// Calls `write` with the date of the last update.
    pub(super) fn with(&self, write: impl FnOnce(&str)) {
        write(&self.0.borrow().text);
    }
}
