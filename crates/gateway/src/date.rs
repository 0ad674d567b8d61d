//! [`DateCache`]: the `Date` field of responses (RFC 9110, 6.6.1).

use std::{
    cell::RefCell,
    time::{Duration, UNIX_EPOCH},
};

use tidegate_base::time::{StoreTime, UnixSeconds};

/// The value of `Date`, formatted once a second.
pub(super) struct DateCache(RefCell<Date>);

struct Date {
    second: UnixSeconds,
    text: String,
}

impl Date {
    fn at(second: UnixSeconds) -> Self {
        let time = UNIX_EPOCH + Duration::from_secs(second.as_secs());
        Self { second, text: httpdate::fmt_http_date(time) }
    }
}

impl DateCache {
    /// The date at `now`.
    pub(super) fn new(now: StoreTime) -> Self {
        Self(RefCell::new(Date::at(UnixSeconds::of(now))))
    }

    /// Sets the date to `now`, at a worker's tick.
    pub(super) fn set(&self, now: StoreTime) {
        let (mut date, second) = (self.0.borrow_mut(), UnixSeconds::of(now));
        if date.second != second {
            *date = Date::at(second);
        }
    }

    /// Moves the date forward to `arrival`, when a request arrived. It may be before the last tick.
    pub(super) fn advance(&self, arrival: StoreTime) {
        let (mut date, second) = (self.0.borrow_mut(), UnixSeconds::of(arrival));
        if second > date.second {
            *date = Date::at(second);
        }
    }

    /// Calls `write` with the date of the last update.
    pub(super) fn with(&self, write: impl FnOnce(&str)) {
        write(&self.0.borrow().text);
    }
}
