use std::net::IpAddr;

use crate::error::GatewayError;
use crate::framing::{HeadBounds, RequestHead};

/// A request as a client would send it.
pub(super) struct Request {
    /// The address that it comes from.
    pub(super) peer: IpAddr,
    head: Vec<u8>,
}

/// A URL that no request can be made from.
#[derive(Debug, thiserror::Error)]
pub(super) enum UrlFault {
    #[error(
        "`{0}`, expected a URL such as http://api.example.com/items/7?x=1, or a path such as /items/7"
    )]
    Form(String),
    #[error("the URL has a user's name in it, expected it as a header: -H 'Authorization: ...'")]
    User,
}

impl Request {
    /// The head of a request for `url`. `headers` are whole lines without their ends; a `Host` among
    /// them stands in place of the URL's.
    pub(super) fn new(
        method: &str,
        url: &str,
        headers: &[String],
        peer: IpAddr,
    ) -> Result<Self, UrlFault> {
        let (authority, target) = split(url)?;
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        let names_host = |line: &String| {
            line.split_once(':').is_some_and(|(name, _)| name.eq_ignore_ascii_case("host"))
        };
        if !headers.iter().any(names_host) {
            head.extend(["Host: ", authority, "\r\n"]);
        }
        for line in headers {
            head.push_str(line);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        Ok(Self { peer, head: head.into_bytes() })
    }

    /// Reads the head as a connection does.
    pub(super) fn read(&self, bounds: HeadBounds) -> Result<RequestHead, GatewayError> {
        let read = RequestHead::read(&self.head, bounds).map_err(GatewayError::Framing)?;
        // The head ends in an empty line, so it is whole.
        read.map(|(head, _)| head).ok_or(GatewayError::Target)
    }
}

/// The authority of a URL and the target that a client sends for it, both as they are spelt.
fn split(url: &str) -> Result<(&str, String), UrlFault> {
    // What follows a `#` never leaves the client.
    let sent = url.split('#').next().unwrap_or_default();
    if sent.starts_with('/') {
        return Ok(("localhost", sent.to_owned()));
    }
    let rest = ["http://", "https://"].iter().find_map(|scheme| {
        let (begin, rest) = sent.split_at_checked(scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    });
    let rest = rest.ok_or_else(|| UrlFault::Form(url.to_owned()))?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    if authority.is_empty() {
        return Err(UrlFault::Form(url.to_owned()));
    }
    if authority.contains('@') {
        return Err(UrlFault::User);
    }
    let root = if target.starts_with('/') { "" } else { "/" };
    Ok((authority, format!("{root}{target}")))
}
