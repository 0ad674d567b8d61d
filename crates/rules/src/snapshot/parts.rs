//! Compiles header names.

use super::section::Section;

/// The header named `name`; an invalid name is reported.
pub(super) fn header(section: &Section<'_>, name: &str) -> Option<http::HeaderName> {
    let header = name.parse().ok();
    section.ensure(header.is_some(), &format!("`{name}`"), "a header name");
    header
}
