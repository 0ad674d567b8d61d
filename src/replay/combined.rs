//! Parses the access log formats `common` and `combined` of nginx and Apache:
//! `CLIENT IDENT USER [TIME] "METHOD TARGET VERSION" STATUS BYTES ...`.

use std::{borrow::Cow, net::IpAddr};

use super::{
    line::{LineError, LogLine, excerpt},
    logged_costs::LoggedCosts,
};
use crate::{clock::StoreTime, identity::client::canonical_address};

/// Length of a time such as `10/Oct/2000:13:55:36 -0700`, in bytes.
const TIME_LENGTH: usize = 26;
/// An example of a time, for faults.
const TIME_EXAMPLE: &str = "[10/Oct/2000:13:55:36 -0700]";
const MONTHS: &[u8] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

/// Number of `[` in a line to try as the start of the time, because user names may contain
/// brackets.
const MAX_BRACKETS: usize = 8;

/// Parses one line. The fields after the status are ignored.
///
/// # Errors
///
/// A field is missing or malformed.
pub(super) fn parse(line: &[u8]) -> Result<LogLine<'_>, LineError> {
    let space = memchr::memchr(b' ', line).ok_or(LineError::Missing("client"))?;
    let (client, rest) = (parse_client(&line[..space])?, &line[space + 1..]);
    let (before_time, time, rest) = split_time(rest)?;
    let user = memchr::memchr(b' ', before_time).map(|space| before_time[space + 1..].trim_ascii());
    let user = user.filter(|user| !user.is_empty()).ok_or(LineError::Missing("user"))?;
    let (request, rest) = split_quoted(rest).ok_or(LineError::Missing("request in quotes"))?;
    let status = rest.strip_prefix(b" ").and_then(|rest| rest.split(|byte| *byte == b' ').next());
    let number = |text: &[u8]| match text {
        b"-" => Some(0),
        _ => parse_digits(text).filter(|_| text.len() == 3).map(|status| status as u16),
    };
    let status = status.and_then(number).ok_or(LineError::Missing("status"))?;
    let (method, target) = split_request(request);
    Ok(LogLine {
        time,
        client,
        consumer: Cow::Borrowed(""),
        token: if user == b"-" { Cow::Borrowed("") } else { String::from_utf8_lossy(user) },
        method,
        host: Cow::Borrowed(""),
        target,
        route: Cow::Borrowed(""),
        status,
        costs: LoggedCosts::default(),
        not_checked: false,
    })
}

fn parse_client(text: &[u8]) -> Result<IpAddr, LineError> {
    let address = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    address.map(canonical_address).ok_or_else(|| LineError::Client(excerpt(text)))
}

/// Splits `rest` at the time: the fields before it, the time, and the rest after it. User names may
/// contain spaces and brackets.
fn split_time(rest: &[u8]) -> Result<(&[u8], StoreTime, &[u8]), LineError> {
    let mut fault = LineError::Missing("time in brackets");
    for bracket in memchr::memchr_iter(b'[', rest).take(MAX_BRACKETS) {
        let text = &rest[bracket + 1..];
        let stamp = text.get(..TIME_LENGTH).filter(|_| text.get(TIME_LENGTH) == Some(&b']'));
        if let Some(time) = stamp.and_then(parse_time) {
            return Ok((rest[..bracket].trim_ascii(), time, &text[TIME_LENGTH + 1..]));
        }
        let end = memchr::memchr(b']', text).unwrap_or(text.len());
        fault = LineError::Time(excerpt(&text[..end]), TIME_EXAMPLE);
    }
    Err(fault)
}

/// Parses a time such as `10/Oct/2000:13:55:36 -0700` into ms since the epoch.
fn parse_time(text: &[u8]) -> Option<StoreTime> {
    let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if text.len() != TIME_LENGTH || separators.iter().any(|(at, byte)| text[*at] != *byte) {
        return None;
    }
    let name = &text[3..6];
    let month = MONTHS.chunks(3).position(|month| month.eq_ignore_ascii_case(name))? as u64 + 1;
    let (day, year) = (parse_digits(&text[..2])?, parse_digits(&text[7..11])?);
    let (hour, minute, second) =
        (parse_digits(&text[12..14])?, parse_digits(&text[15..17])?, parse_digits(&text[18..20])?);
    let (offset_hours, offset_minutes) =
        (parse_digits(&text[22..24])?, parse_digits(&text[24..26])?);
    let is_valid = (1..=days_in(month, year)).contains(&day)
        && year >= 1970
        && (hour < 24 && minute < 60 && second <= 60 && offset_hours < 24 && offset_minutes < 60);
    let local = days_before(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    let offset = offset_hours * 3_600 + offset_minutes * 60;
    let utc = match text[21] {
        b'+' => local.checked_sub(offset)?,
        b'-' => local + offset,
        _ => return None,
    };
    is_valid.then_some(StoreTime::from_unix_ms(utc * 1000))
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in(month: u64, year: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from the epoch to a date in 1970 or later; 0 for an invalid date.
fn days_before(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let leap_years_until = |last: u64| last / 4 - last / 100 + last / 400;
    let past = year.saturating_sub(1);
    let leaps = leap_years_until(past).saturating_sub(leap_years_until(1969));
    let leap_day = u64::from(month > 2 && is_leap(year));
    let month = usize::try_from(month - 1).unwrap_or(0).min(11);
    let days = year.saturating_sub(1970) * 365 + leaps + BEFORE_MONTH[month] + leap_day + day;
    days.saturating_sub(1)
}

/// The value of decimal digits.
fn parse_digits(text: &[u8]) -> Option<u64> {
    let is_decimal = text.iter().all(u8::is_ascii_digit);
    is_decimal.then(|| text.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// Reads a space and a quoted text from the front of `rest`. Returns the text with its escapes
/// decoded, and the remaining bytes.
fn split_quoted(rest: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let text = rest.strip_prefix(b" \"")?;
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', &text[at..])?;
        if text[at] == b'"' {
            break;
        }
        at = (at + 2).min(text.len());
    }
    let (inside, after) = (&text[..at], &text[at + 1..]);
    let is_plain = memchr::memchr(b'\\', inside).is_none();
    Some((if is_plain { Cow::Borrowed(inside) } else { Cow::Owned(unescape(inside)) }, after))
}

/// Decodes `\"`, `\\` and `\x1F`, which both servers write, and Apache's `\n`, `\r` and `\t`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, length) = match (first, after) {
            (b'\\', [b'x', high, low, ..]) => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, 4),
                _ => (b'\\', 1),
            },
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [quoted, ..]) => (*quoted, 2),
            _ => (first, 1),
        };
        out.push(byte);
        rest = &rest[length..];
    }
    out
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// The method and the target; both empty if the client did not send a valid request line.
fn split_request(request: Cow<'_, [u8]>) -> (Cow<'_, str>, Cow<'_, [u8]>) {
    let find_spaces = |request: &[u8]| {
        let first = memchr::memchr(b' ', request)?;
        let last = memchr::memrchr(b' ', request).filter(|last| *last > first)?;
        let is_valid = request[last + 1..].starts_with(b"HTTP/") && request[..first].is_ascii();
        is_valid.then_some((first, last))
    };
    let Some((first, last)) = find_spaces(&request) else {
        return (Cow::Borrowed(""), Cow::Borrowed(b""));
    };
    match request {
        Cow::Borrowed(request) => {
            (String::from_utf8_lossy(&request[..first]), Cow::Borrowed(&request[first + 1..last]))
        }
        Cow::Owned(request) => {
            let method = String::from_utf8_lossy(&request[..first]).into_owned();
            (Cow::Owned(method), Cow::Owned(request[first + 1..last].to_vec()))
        }
    }
}
