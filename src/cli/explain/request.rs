//! The request that `explain` makes from its arguments.

use std::{net::IpAddr, sync::Arc};

use crate::error::GatewayError;
use crate::http1::{Fields, HeadBounds, RequestHead};
use crate::snapshot::{Inspection, ListenerRules, Route, Snapshot};
use crate::usage::{RequestMembers, RequestScanner, UnreadableBody};

/// A request as a client would send it.
pub(super) struct Request {
    /// The address of the connection.
    pub(super) peer: IpAddr,
    /// The URL's scheme and port; `None` for a path alone.
    origin: Option<UrlOrigin>,
    head: Vec<u8>,
    /// Its body.
    body: Vec<u8>,
}

/// The scheme and port of a URL.
#[derive(Clone, Copy)]
struct UrlOrigin {
    is_https: bool,
    port: u16,
}

/// An invalid URL.
#[derive(Debug, thiserror::Error)]
pub(super) enum UrlError {
    #[error(
        "`{0}`, expected a URL such as http://api.example.com/items/7?x=1, or a path such as /items/7"
    )]
    Malformed(String),
    #[error("the URL contains a user name, expected a header instead: -H 'Authorization: ...'")]
    UserInfo,
}

impl Request {
    /// The head of a request for `url`. `headers` are lines without line breaks; a `Host` among
    /// them replaces the URL's host.
    ///
    /// # Errors
    ///
    /// The URL is not an absolute URL or path, or contains a user name.
    pub(super) fn new(
        method: &str,
        url: &str,
        headers: &[String],
        peer: IpAddr,
    ) -> Result<Self, UrlError> {
        let (scheme, authority, target) = split(url)?;
        let origin = scheme.map(|scheme| {
            let is_https = scheme.starts_with("https");
            let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            UrlOrigin { is_https, port: port.unwrap_or(if is_https { 443 } else { 80 }) }
        });
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        let is_host = |line: &String| {
            line.split_once(':').is_some_and(|(name, _)| name.eq_ignore_ascii_case("host"))
        };
        if !headers.iter().any(is_host) {
            head.extend(["Host: ", authority, "\r\n"]);
        }
        for line in headers {
            head.push_str(line);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        Ok(Self { peer, origin, head: head.into_bytes(), body: Vec::new() })
    }

    /// The request with this body, and its length if no header says how it is delimited.
    pub(super) fn with_body(mut self, body: Option<&str>) -> Self {
        let Some(body) = body else { return self };
        let is_delimited = self.head.split(|byte| *byte == b'\n').any(|line| {
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            name.eq_ignore_ascii_case(b"content-length")
                || name.eq_ignore_ascii_case(b"transfer-encoding")
        });
        if !is_delimited {
            self.head.truncate(self.head.len() - b"\r\n".len());
            let length = format!("Content-Length: {}\r\n\r\n", body.len());
            self.head.extend_from_slice(length.as_bytes());
        }
        Self { body: body.into(), ..self }
    }

    /// The members of the body that `route` reads of this request with `fields`.
    ///
    /// # Errors
    ///
    /// The body is no JSON, by its type or its text; it is ambiguous; or a member is too late.
    pub(super) fn members(
        &self,
        route: &Route,
        fields: &Fields,
    ) -> Result<RequestMembers, UnreadableBody> {
        match &route.inspection {
            Some(inspection) if !self.body.is_empty() => {
                inspection.or_none(self.read_members(inspection, fields))
            }
            _ => Ok(RequestMembers::default()),
        }
    }

    fn read_members(
        &self,
        inspection: &Inspection,
        fields: &Fields,
    ) -> Result<RequestMembers, UnreadableBody> {
        Inspection::check_type(fields)?;
        let is_complete = self.body.len() <= inspection.max;
        let (first, rest) = self.body.split_at(inspection.max.min(self.body.len()));
        let mut scanner = RequestScanner::new(Arc::clone(&inspection.paths));
        scanner.push(first);
        let members = inspection.members(&scanner, first, is_complete)?;
        let decided = scanner.found();
        if !is_complete && decided != 0 {
            scanner.push(rest);
            Inspection::check_rest(&scanner, decided, inspection.estimates)?;
            scanner.check_end()?;
        }
        Ok(members)
    }

    /// The listener with the URL's scheme and port, if there is one.
    pub(super) fn listener<'s>(&self, snapshot: &'s Snapshot) -> Option<&'s ListenerRules> {
        let origin = self.origin?;
        let is_reached = |listener: &&ListenerRules| {
            let port = listener.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
            port == Some(origin.port) && listener.tls.is_some() == origin.is_https
        };
        snapshot.listeners.iter().map(AsRef::as_ref).find(is_reached)
    }

    /// The URL's scheme: `http` or `https`.
    pub(super) fn scheme(&self) -> &'static str {
        if self.origin.is_some_and(|origin| origin.is_https) { "https" } else { "http" }
    }

    /// Parses the head as a connection does.
    ///
    /// # Errors
    ///
    /// The head is malformed, or exceeds `bounds`.
    pub(super) fn read(&self, bounds: HeadBounds) -> Result<RequestHead, GatewayError> {
        let read = RequestHead::read(&self.head, bounds).map_err(GatewayError::Framing)?;
        // The head ends with an empty line, so it is complete.
        read.map(|(head, _)| head).ok_or(GatewayError::MalformedTarget)
    }
}

/// Splits a URL into its scheme, its authority and the request target, all taken literally. A path
/// has no scheme.
fn split(url: &str) -> Result<(Option<&'static str>, &str, String), UrlError> {
    // A client does not send the fragment.
    let sent = url.split('#').next().unwrap_or_default();
    if sent.starts_with('/') {
        return Ok((None, "localhost", sent.to_owned()));
    }
    let split = ["http://", "https://"].into_iter().find_map(|scheme| {
        let (prefix, rest) = sent.split_at_checked(scheme.len())?;
        prefix.eq_ignore_ascii_case(scheme).then_some((scheme, rest))
    });
    let (scheme, rest) = split.ok_or_else(|| UrlError::Malformed(url.to_owned()))?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    if authority.is_empty() {
        return Err(UrlError::Malformed(url.to_owned()));
    }
    if authority.contains('@') {
        return Err(UrlError::UserInfo);
    }
    let root = if target.starts_with('/') { "" } else { "/" };
    Ok((Some(scheme), authority, format!("{root}{target}")))
}
