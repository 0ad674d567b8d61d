//! [`OwnUrlField`]: a field of a request that names the upstream's resources by the URLs of this
//! gateway.

use super::{HostRule, Target};

/// A field such as `Destination` of `WebDAV`, for servers that compare its URLs with what they know
/// of themselves.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnUrlField {
    /// The name.
    pub name: &'static str,
    /// The value.
    pub value: Vec<UrlPiece>,
}

/// A piece of a value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum UrlPiece {
    /// Bytes that every server gets.
    Text(Vec<u8>),
    /// The scheme and the authority of this gateway, which are replaced by those of the server.
    Origin(PublicOrigin),
}

/// The beginning of a URL of this gateway.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PublicOrigin {
    /// As the client wrote it: `https://dav.example.com`.
    pub text: Vec<u8>,
    /// Where the authority begins in `text`.
    pub authority: usize,
}

impl PublicOrigin {
    fn is_https(&self) -> bool {
        self.text.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"https:"))
    }

    /// Appends the origin by which `target` knows itself, when it gets its `Host` by `host`.
    fn write(&self, target: &Target, host: &HostRule, out: &mut Vec<u8>) {
        let scheme = target.scheme();
        let is_same_scheme = (scheme == "https") == self.is_https();
        if is_same_scheme && *host == HostRule::Preserve {
            return out.extend_from_slice(&self.text);
        }
        out.extend_from_slice(scheme.as_bytes());
        out.extend_from_slice(b"://");
        match host {
            HostRule::Upstream => out.extend_from_slice(target.host().as_bytes()),
            HostRule::Name(name) => out.extend_from_slice(name.as_bytes()),
            HostRule::Preserve => {
                let authority = &self.text[self.authority..];
                out.extend_from_slice(authority);
                // The port stays that of the client: servers that know the public URL by
                // `X-Forwarded-*` compare it.
                if !has_port(authority) {
                    out.extend_from_slice(if self.is_https() { b":443" } else { b":80" });
                }
            }
        }
    }
}

fn has_port(authority: &[u8]) -> bool {
    let after_address = authority.iter().rposition(|byte| *byte == b']').unwrap_or(0);
    authority[after_address..].contains(&b':')
}

impl OwnUrlField {
    /// Appends the value for `target`, which gets its `Host` by `host`.
    pub(super) fn write(&self, target: &Target, host: &HostRule, out: &mut Vec<u8>) {
        for piece in &self.value {
            match piece {
                UrlPiece::Text(text) => out.extend_from_slice(text),
                UrlPiece::Origin(origin) => origin.write(target, host, out),
            }
        }
    }
}
