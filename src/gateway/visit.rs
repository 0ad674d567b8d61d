//! One request on its way through the gateway.

use std::cell::Cell;

use http::{HeaderName, HeaderValue, Request, header, request::Parts};
use http_body::Body;
use hyper::body::Incoming;
use smallvec::SmallVec;

use super::{Peer, account::Account};
use crate::{
    error::GatewayError,
    identity::{Part, TokenSource},
    limit::{Key, Verdict},
    snapshot::Route,
    upstream::{Outgoing, RequestBody, Target, headers::X_REQUEST_ID},
};

/// The longest id that is taken over from a trusted proxy, in bytes.
const MAX_ID: usize = 128;

/// What was found out about a request before anything was charged.
pub(super) struct Plan {
    /// The route's place in the snapshot.
    pub(super) route: usize,
    /// The key of each of the route's limits.
    pub(super) keys: SmallVec<[Key; 4]>,
    /// The target to forward, where it is not the one that came.
    pub(super) target: Option<http::Uri>,
}

/// One request on its way through the gateway.
pub(super) struct Visit {
    pub(super) parts: Parts,
    /// Taken by whoever reads it.
    pub(super) body: Option<Incoming>,
    pub(super) account: Account,
    pub(super) route: Option<usize>,
    pub(super) verdict: Option<Verdict>,
    pub(super) request_id: HeaderValue,
    /// Whether the peer's own word about the client is believed.
    pub(super) trusted: bool,
    /// Whether a browser asks for another site.
    pub(super) cross_origin: bool,
    /// Whether the client waits for a word before it sends the body.
    pub(super) expects: bool,
}

impl Visit {
    pub(super) fn new(
        request: Request<Incoming>,
        trusted: bool,
        ids: &RequestIds,
        account: Account,
    ) -> Self {
        let (parts, body) = request.into_parts();
        let request_id = request_id(&parts, trusted).unwrap_or_else(|| ids.next());
        Self {
            cross_origin: parts.headers.contains_key(header::ORIGIN),
            expects: parts.headers.contains_key(header::EXPECT),
            trusted,
            parts,
            body: Some(body),
            account,
            route: None,
            verdict: None,
            request_id,
        }
    }

    /// The request's id as text.
    pub(super) fn id(&self) -> &str {
        self.request_id.to_str().unwrap_or_default()
    }

    /// Refuses a body that says it is longer than `route` allows.
    pub(super) fn check_length(&self, route: &Route) -> Result<(), GatewayError> {
        let length = self.body.as_ref().map_or(0, |body| body.size_hint().lower());
        if length > route.max_body { Err(GatewayError::BodyTooLong) } else { Ok(()) }
    }

    /// The request as the upstream gets it. Its body goes with it.
    pub(super) fn outgoing(
        &mut self,
        peer: &Peer,
        route: &Route,
        tokens: &[TokenSource],
        target: &Target,
    ) -> Outgoing {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        let body = body.map(|body| RequestBody::new(body, route.max_body, peer.wire.clone()));
        let protected = |name: &HeaderName| counts_by(route, tokens, name);
        let (from, id) = (&peer.forwarding, &self.request_id);
        Outgoing::new(&self.parts, body, from, self.trusted, id, target, protected)
    }
}

/// Whether a limit of `route` counts by the header `name`, or tokens stand in it.
fn counts_by(route: &Route, tokens: &[TokenSource], name: &HeaderName) -> bool {
    let mut parts = route.limits.iter().flat_map(|used| &used.key.0);
    parts.any(|part| matches!(part, Part::Header(header) if header == name))
        || tokens.iter().any(|from| matches!(from, TokenSource::Header(header) if header == name))
}

/// The id that a trusted proxy gave, where it is short and plain.
fn request_id(parts: &Parts, trusted: bool) -> Option<HeaderValue> {
    if !trusted {
        return None;
    }
    let given = parts.headers.get(X_REQUEST_ID)?;
    let plain = given.len() <= MAX_ID && given.as_bytes().iter().all(u8::is_ascii_graphic);
    (plain && !given.is_empty()).then(|| given.clone())
}

/// Gives each request of one worker a name that no other has: 32 hexadecimal digits, half of them
/// random for the worker, half counted up from a random start.
pub(super) struct RequestIds {
    worker: u64,
    next: Cell<u64>,
}

impl RequestIds {
    pub(super) fn new() -> Self {
        let random = ahash::RandomState::new();
        Self { worker: random.hash_one(0), next: Cell::new(random.hash_one(1)) }
    }

    fn next(&self) -> HeaderValue {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let mut text = [0; 32];
        for (index, digit) in text.iter_mut().enumerate() {
            let half = if index < 16 { self.worker } else { number };
            let nibble = (half >> (60 - 4 * (index % 16))) & 0xf;
            *digit = b"0123456789abcdef"[nibble as usize];
        }
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("0"))
    }
}
