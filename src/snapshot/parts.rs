//! Headers and parts of keys, as a configuration names them.

use super::check::Check;
use crate::config::KeyPart;
use crate::identity::Part;

/// The header named `name`; notes one that no request could have.
pub(super) fn header(check: &mut Check<'_>, path: &str, name: &str) -> Option<http::HeaderName> {
    let header = name.parse().ok();
    check.ensure(header.is_some(), path, &format!("`{name}`"), "the name of a header");
    header
}

/// A part of a key; notes a header that no request could have.
pub(super) fn part(check: &mut Check<'_>, path: &str, part: &KeyPart) -> Option<Part> {
    Some(match part {
        KeyPart::ClientIp => Part::ClientIp,
        KeyPart::Token => Part::Token,
        KeyPart::Host => Part::Host,
        KeyPart::Method => Part::Method,
        KeyPart::Route => Part::Route,
        KeyPart::Path => Part::Path,
        KeyPart::PathParam(name) => Part::PathParam(name.clone()),
        KeyPart::Header(name) => Part::Header(header(check, path, name)?),
        KeyPart::Cookie(name) => Part::Cookie(name.clone()),
        KeyPart::Query(name) => Part::Query(name.clone()),
    })
}
