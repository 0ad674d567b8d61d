//! Compiles header names and the parts of keys.

use super::fault_collector::FaultCollector;
use crate::config::KeyPart;
use crate::identity::Part;

/// The header named `name`; an invalid name is reported.
pub(super) fn header(
    collector: &mut FaultCollector<'_>,
    path: &str,
    name: &str,
) -> Option<http::HeaderName> {
    let header = name.parse().ok();
    collector.ensure(header.is_some(), path, &format!("`{name}`"), "a header name");
    header
}

/// A part of a key; an invalid header name is reported.
pub(super) fn part(collector: &mut FaultCollector<'_>, path: &str, part: &KeyPart) -> Option<Part> {
    Some(match part {
        KeyPart::ClientIp => Part::ClientIp,
        KeyPart::Token => Part::Token,
        KeyPart::Host => Part::Host,
        KeyPart::Method => Part::Method,
        KeyPart::Route => Part::Route,
        KeyPart::Path => Part::Path,
        KeyPart::PathParam(name) => Part::PathParam(name.clone()),
        KeyPart::Header(name) => Part::Header(header(collector, path, name)?),
        KeyPart::Cookie(name) => Part::Cookie(name.clone()),
        KeyPart::Query(name) => Part::Query(name.clone()),
    })
}
