//! Compiles header names and the parts of keys.

use super::section::Section;
use crate::config::KeyPart;
use crate::identity::Part;

/// The header named `name`; an invalid name is reported.
pub(super) fn header(section: &Section<'_>, name: &str) -> Option<http::HeaderName> {
    let header = name.parse().ok();
    section.ensure(header.is_some(), &format!("`{name}`"), "a header name");
    header
}

/// A part of a key; an invalid header name is reported.
pub(super) fn part(section: &Section<'_>, part: &KeyPart) -> Option<Part> {
    if let KeyPart::Header(name) = part {
        header(section, name)?;
    }
    part_of(part)
}

/// A part of a key; `None` if its header name is invalid.
pub(super) fn part_of(part: &KeyPart) -> Option<Part> {
    Some(match part {
        KeyPart::ClientIp => Part::ClientIp,
        KeyPart::Token => Part::Token,
        KeyPart::Host => Part::Host,
        KeyPart::Method => Part::Method,
        KeyPart::Route => Part::Route,
        KeyPart::Path => Part::Path,
        KeyPart::PathParam(name) => Part::PathParam(name.clone()),
        KeyPart::Header(name) => Part::Header(name.parse().ok()?),
        KeyPart::Cookie(name) => Part::Cookie(name.clone()),
        KeyPart::Query(name) => Part::Query(name.clone()),
    })
}
