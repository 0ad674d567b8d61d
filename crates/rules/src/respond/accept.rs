//! The form of an error's body, chosen by the request's `Accept` (RFC 9110, 12.5.1).

use tidegate_http1::Fields;

/// A quality value in thousandths: 0 to 1000.
type Quality = u16;

/// The form of an error's body.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ErrorForm {
    /// A problem document, for programs.
    #[default]
    Problem,
    /// A page, for people: the client names `text/html` in `Accept`, and prefers it to JSON.
    Page,
}

impl ErrorForm {
    /// The form for a request with these fields. A client that accepts anything counts as a
    /// program.
    pub fn of(fields: &Fields) -> Self {
        let (mut html, mut problem, mut json, mut application, mut any) =
            (None, None, None, None, None);
        let members = fields.get_all("accept").flat_map(|value| value.split(|byte| *byte == b','));
        for (range, quality) in members.filter_map(parse_member) {
            let named = |expected: &str| range.eq_ignore_ascii_case(expected.as_bytes());
            let place = match () {
                () if named("text/html") || named("application/xhtml+xml") => &mut html,
                () if named("application/problem+json") => &mut problem,
                () if named("application/json") => &mut json,
                () if named("application/*") => &mut application,
                () if range == b"*/*" => &mut any,
                () => continue,
            };
            // Among several members for one type, the highest quality counts.
            *place = (*place).max(Some(quality));
        }
        let json = problem.max(json).or(application).or(any).unwrap_or(0);
        if html.is_some_and(|html: Quality| html > json) { Self::Page } else { Self::Problem }
    }
}

/// A member's media range and quality; `None` if its quality is malformed.
fn parse_member(member: &[u8]) -> Option<(&[u8], Quality)> {
    let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let range = parts.next()?;
    let weight =
        parts.find_map(|part| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")));
    Some((range, weight.map_or(Some(1000), parse_quality)?))
}

/// A quality such as `0.5`: at most three decimals, and not above 1.
fn parse_quality(number: &[u8]) -> Option<Quality> {
    let text = std::str::from_utf8(number).ok()?;
    let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let quality: f64 = text.parse().ok().filter(|_| is_decimal && text.len() <= 5)?;
    (quality <= 1.0).then_some((quality * 1000.0).round() as Quality)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form(values: &[&str]) -> ErrorForm {
        let mut fields = Fields::new();
        for value in values {
            fields.push("accept", value);
        }
        ErrorForm::of(&fields)
    }

    #[test]
    fn browsers_get_a_page_and_programs_a_problem_document() {
        let chromium = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,\
                        image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7";
        for accept in [
            &[chromium][..],
            &["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"],
            &["text/html"],
            &["TEXT/HTML;charset=utf-8;q=0.9, */*; q=0.8"],
            &["text/html", "application/json;q=0.9"],
            &["application/json;q=0.5, text/html;q=0.6"],
            &["application/json;q=0, text/html;q=0.001"],
        ] {
            assert_eq!(form(accept), ErrorForm::Page, "{accept:?}");
        }
        for accept in [
            &[][..],
            &[""],
            &["*/*"],
            &["application/json"],
            &["application/json, text/plain, */*"],
            &["application/json, text/html"],
            &["text/html, application/problem+json"],
            &["text/html;q=0.5, application/*"],
            &["text/html;q=0.8, */*"],
            &["text/html;q=0"],
            &["text/html;q=2"],
            &["text/html;q=nan"],
            &["text/*"],
            &["text/htmlx"],
            &["image/avif,image/webp,*/*;q=0.8"],
        ] {
            assert_eq!(form(accept), ErrorForm::Problem, "{accept:?}");
        }
    }

    proptest! {
        #[test]
        fn any_accept_has_a_form(value in "[ -~]{0,60}", html in 0..=1000_u16, json in 0..=1000_u16) {
            let _ = form(&[&value]);
            let weight = |quality: u16| format!("{}.{:03}", quality / 1000, quality % 1000);
            let accept = format!("text/html;q={}, application/json;q={}", weight(html), weight(json));
            prop_assert_eq!(form(&[&accept]) == ErrorForm::Page, html > json);
        }
    }
}
