//! The page that a browser shows for a refused or failed request. It has no script, no style and no
//! reference to another resource, so it works under any `Content-Security-Policy`.

use std::fmt::Write;

use bytes::Bytes;
use tidegate_http1::Fields;
use tidegate_throttle::waiting_room::{WaitBasis, WaitingPlace};

use super::{
    LimitReport, LocalReply,
    problem::{RefusedBy, allow, push_challenges, push_priority, refused_retry_after},
};
use crate::error::GatewayError;
use crate::snapshot::escape_markup;

const HTML: &str = "text/html; charset=utf-8";
/// Initial capacity of a page, in bytes: one allocation is enough for most.
const CAPACITY: usize = 512;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// The longest wait that is shown in minutes, in seconds.
const LONGEST_OF_MINUTES: u64 = 90 * MINUTE;

/// The page for a refused or failed request. `limits` are the limits of the request.
pub(super) fn page<'a>(
    error: &GatewayError,
    limits: impl Iterator<Item = LimitReport<'a>> + Clone,
    request_id: &str,
) -> LocalReply {
    let (mut fields, status) = (Fields::new(), error.status());
    let retry_after = refused_retry_after(error, limits.clone());
    let is_waiting = matches!(error, GatewayError::Throttled(denied) if denied.waiting.is_some());
    let title = match error {
        GatewayError::Throttled(_) if is_waiting => "Waiting room",
        GatewayError::Throttled(_) => "Too many visitors",
        _ => status.canonical_reason().unwrap_or("Error"),
    };
    let mut html = String::with_capacity(CAPACITY);
    html.push_str("<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width\">\n");
    html.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    // Writing to a string cannot fail.
    let _ = write!(html, "<title>{title}</title>\n<h1>{title}</h1>\n<p>");
    match error {
        GatewayError::LimitExceeded => {
            html.push_str("You have sent more requests than this service allows.");
            if let RefusedBy::Block = RefusedBy::of(limits) {
                html.push_str(" Because this happened too often, you are blocked for some time.");
            }
            if retry_after.is_none() {
                html.push_str(" This one is larger than the limit: trying again will not help.");
            }
        }
        GatewayError::Throttled(denied) => match &denied.waiting {
            Some(waiting) => push_place(&mut html, waiting),
            None => html.push_str(
                "More people are using this service than it can serve. Those who are already here come first.",
            ),
        },
        _ => {
            html.push_str(&escape_markup(&error.detail()));
            html.push('.');
        }
    }
    if let Some(seconds) = retry_after {
        if !is_waiting {
            let _ = write!(html, " Please try again in {}.", wait(seconds));
        }
        fields.push_number("retry-after", seconds);
    }
    let _ = write!(html, "</p>\n<p><small>Status {}, request ", status.as_u16());
    html.push_str(&escape_markup(request_id));
    html.push_str("</small></p>\n</html>\n");
    if let Some(allow) = allow(error) {
        fields.push("allow", allow);
    }
    push_challenges(error, &mut fields);
    push_priority(error, &mut fields);
    fields.push("content-type", HTML);
    // The page needs no resources, so it may load none.
    fields.push("content-security-policy", "default-src 'none'");
    LocalReply { status, fields, body: Bytes::from(html) }
}

/// Says where a caller is in the waiting room.
fn push_place(html: &mut String, waiting: &WaitingPlace) {
    // Writing to a string cannot fail.
    let _ = write!(
        html,
        "More people are using this service than it can serve. You are number <b>{}</b> in the queue, and \
         it is your turn in {}<b>{}</b>. Keep this page open: it reloads by itself.",
        waiting.place,
        if is_vague(waiting) { "" } else { "about " },
        expected_wait(waiting)
    );
}

/// The expected wait in words.
pub(super) fn expected_wait(waiting: &WaitingPlace) -> String {
    if is_vague(waiting) {
        "some minutes".to_owned()
    } else {
        wait(waiting.expected_wait.as_whole_secs())
    }
}

/// True if a number of minutes would say more than is known.
fn is_vague(waiting: &WaitingPlace) -> bool {
    waiting.basis == WaitBasis::Memory
        && waiting.expected_wait.as_whole_secs() <= LONGEST_OF_MINUTES
}

/// A wait in words, rounded up to a whole number of its unit.
pub(super) fn wait(seconds: u64) -> String {
    let (unit, length) = match seconds {
        0..=90 => ("second", 1),
        91..=LONGEST_OF_MINUTES => ("minute", MINUTE),
        5_401..=129_600 => ("hour", HOUR),
        _ => ("day", DAY),
    };
    let count = seconds.div_ceil(length);
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_wait_is_in_words_and_rounded_up() {
        for (seconds, expected) in [
            (1, "1 second"),
            (90, "90 seconds"),
            (91, "2 minutes"),
            (120, "2 minutes"),
            (121, "3 minutes"),
            (5_400, "90 minutes"),
            (5_401, "2 hours"),
            (129_600, "36 hours"),
            (129_601, "2 days"),
            (u64::MAX, "213503982334602 days"),
        ] {
            assert_eq!(wait(seconds), expected, "{seconds}");
        }
    }

    proptest! {
        /// A trusted proxy may set the request id: any visible characters.
        #[test]
        fn a_page_has_no_markup_of_a_request(id in "[!-~]{0,40}") {
            let empty = page(&GatewayError::NoRoute, std::iter::empty(), "");
            let reply = page(&GatewayError::NoRoute, std::iter::empty(), &id);
            let tags = |reply: &LocalReply| {
                let text = String::from_utf8(reply.body.to_vec()).unwrap();
                text.matches(['<', '>', '"']).count()
            };
            prop_assert_eq!(tags(&reply), tags(&empty));
        }
    }
}
