//! Fields of a request that name resources of the upstream by URLs of this gateway: `Destination`
//! and `If` of `WebDAV` (RFC 4918, 10.3 and 10.4). They are the request's counterpart of
//! `Location`.

use std::borrow::Cow;

use tidegate_http1::Fields;
use tidegate_route::normalize::{Slashes, normalize};
use tidegate_upstream::{OwnUrlField, PublicOrigin, UrlPiece};

use super::{
    forwarded_path,
    location::{split, without_default_port, without_scheme_port},
};
use crate::error::GatewayError;
use crate::snapshot::{Action, Route};

const DESTINATION: &str = "destination";
const IF: &str = "if";

/// How a client knows the resources of a route.
#[derive(Clone, Copy)]
pub(super) struct PublicNames<'r> {
    /// The fields of the request.
    pub(super) fields: &'r Fields,
    pub(super) route: &'r Route,
    pub(super) slashes: Slashes,
    /// True if the peer is a trusted proxy, whose `X-Forwarded-Host` is used.
    pub(super) from_trusted_proxy: bool,
}

/// A URL that names a resource of the upstream, or may do.
enum NamedUrl<'u> {
    /// A URL of this gateway, or a path.
    Own { origin: &'u [u8], target: Cow<'u, [u8]> },
    /// As `Own`, but the upstream has no such resource: the path lacks the prefix that is stripped.
    Outside,
    /// A URL of another server, or none.
    Foreign,
}

impl PublicNames<'_> {
    /// Checks that the upstream has the resource that `Destination` names.
    ///
    /// # Errors
    /// Its path lacks the prefix that the route strips: the upstream would take it for another
    /// resource.
    pub(super) fn check_destination(&self) -> Result<(), GatewayError> {
        let Some(prefix) = &self.route.strip_prefix else { return Ok(()) };
        let is_outside = |url: &[u8]| matches!(self.read(url), NamedUrl::Outside);
        if self.fields.get_all(DESTINATION).any(is_outside) {
            return Err(GatewayError::DestinationOutside(prefix.clone()));
        }
        Ok(())
    }

    /// The fields whose URLs change on the way to the upstream, each with all its values.
    pub(super) fn own_url_fields(&self) -> Vec<OwnUrlField> {
        if !matches!(self.route.action, Action::Upstream(_)) {
            return Vec::new();
        }
        let mut rewritten = Vec::new();
        for value in self.fields.get_all(DESTINATION) {
            let mut pieces = Pieces::default();
            self.push_url(value, &mut pieces);
            rewritten.push(OwnUrlField { name: DESTINATION, value: pieces.0 });
        }
        for value in self.fields.get_all(IF) {
            rewritten.push(OwnUrlField { name: IF, value: self.tagged(value).0 });
        }
        rewritten
    }

    /// The value of an `If`, whose URLs stand in `<` and `>` outside of its lists.
    fn tagged(&self, value: &[u8]) -> Pieces {
        let mut pieces = Pieces::default();
        let mut rest = value;
        let mut is_in_list = false;
        let mut is_quoted = false;
        while let Some((&byte, after)) = rest.split_first() {
            let end = memchr::memchr(b'>', after);
            match (byte, end) {
                (b'"', _) => is_quoted = !is_quoted,
                (b'(', _) if !is_quoted => is_in_list = true,
                (b')', _) if !is_quoted => is_in_list = false,
                (b'<', Some(end)) if !is_quoted && !is_in_list => {
                    pieces.push(b"<");
                    self.push_url(&after[..end], &mut pieces);
                    rest = &after[end..];
                    continue;
                }
                _ => {}
            }
            pieces.push(&[byte]);
            rest = after;
        }
        pieces
    }

    fn push_url(&self, url: &[u8], pieces: &mut Pieces) {
        match self.read(url) {
            NamedUrl::Own { origin, target } => {
                if let Some(authority) = url.get(..origin.len()).and_then(authority_start) {
                    let text = origin.to_vec();
                    pieces.0.push(UrlPiece::Origin(PublicOrigin { text, authority }));
                }
                pieces.push(&target);
            }
            NamedUrl::Outside | NamedUrl::Foreign => pieces.push(url),
        }
    }

    fn read<'u>(&self, url: &'u [u8]) -> NamedUrl<'u> {
        let (origin, target) = match split(url) {
            Some((authority, _)) if !self.is_own(without_scheme_port(authority, url)) => {
                return NamedUrl::Foreign;
            }
            Some((_, target)) => url.split_at(url.len() - target.len()),
            None if url.starts_with(b"/") && !url.starts_with(b"//") => (&url[..0], url),
            None => return NamedUrl::Foreign,
        };
        match self.without_prefix(target) {
            Some(target) => NamedUrl::Own { origin, target },
            None => NamedUrl::Outside,
        }
    }

    fn is_own(&self, authority: &[u8]) -> bool {
        let forwarded = self.fields.get("x-forwarded-host").filter(|_| self.from_trusted_proxy);
        let mut own = self.fields.host().into_iter().chain(forwarded);
        own.any(|own| without_default_port(own).eq_ignore_ascii_case(authority))
    }

    /// The path, query and fragment of a URL as the upstream knows them; `None` if they are outside
    /// of the prefix.
    fn without_prefix<'u>(&self, target: &'u [u8]) -> Option<Cow<'u, [u8]>> {
        let Some(prefix) = self.route.strip_prefix.as_deref() else { return Some(target.into()) };
        let end = target.iter().position(|byte| b"?#".contains(byte)).unwrap_or(target.len());
        let (path, after) = target.split_at(end);
        let path = std::str::from_utf8(path).ok()?;
        let normal = normalize(path, self.slashes).ok()?;
        let wanted = forwarded_path(&normal, Some(prefix));
        // As it was sent, unless it leaves the prefix on its way, as `/v1/../v1/a` does.
        let kept = forwarded_path(path, Some(prefix));
        let stays = normalize(kept, self.slashes).is_ok_and(|kept| *kept == *wanted);
        let path = if stays { kept } else { wanted };
        let is_stripped = wanted.len() < normal.len();
        is_stripped.then(|| [path.as_bytes(), after].concat().into())
    }
}

/// Where the authority of an absolute URL begins.
fn authority_start(origin: &[u8]) -> Option<usize> {
    memchr::memmem::find(origin, b"://").map(|at| at + 3)
}

/// A value in pieces, with as few texts as possible.
#[derive(Default)]
struct Pieces(Vec<UrlPiece>);

impl Pieces {
    fn push(&mut self, bytes: &[u8]) {
        match self.0.last_mut() {
            Some(UrlPiece::Text(text)) => text.extend_from_slice(bytes),
            _ if bytes.is_empty() => {}
            _ => self.0.push(UrlPiece::Text(bytes.to_vec())),
        }
    }
}
