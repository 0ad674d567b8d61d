//! One request on its way through the gateway.

use std::cell::Cell;

use http::{HeaderName, HeaderValue, Request, header, request::Parts};
use http_body::Body;
use hyper::body::Incoming;
use smallvec::SmallVec;

use super::{Peer, account::Account};
use crate::{
    error::GatewayError,
    identity::{Caller, Part, TokenSource},
    limit::Verdict,
    snapshot::{Ask, Cost, Route, Whose},
    upstream::{Outgoing, RequestBody, Target, headers::X_REQUEST_ID},
};

/// The longest id that is taken over from a trusted proxy, in bytes.
const MAX_ID: usize = 128;

/// What was found out about a request before anything was charged.
pub(super) struct Plan {
    /// The route's place in the snapshot.
    pub(super) route: usize,
    /// What is asked of each of the route's limits.
    pub(super) asks: SmallVec<[Ask; 4]>,
    /// What would be asked of each of the limits that the route tells of.
    pub(super) looks: Vec<Ask>,
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
    /// What is asked of the route's limits, in their order.
    pub(super) asks: SmallVec<[Ask; 4]>,
    pub(super) verdict: Option<Verdict>,
    /// Who asks, where the throttle wants to know.
    pub(super) caller: Option<Caller>,
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
            asks: SmallVec::new(),
            verdict: None,
            caller: None,
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

/// Whether a limit of `route` counts by the header `name`, or takes a cost or a tier from it, or
/// tokens stand in it.
fn counts_by(route: &Route, tokens: &[TokenSource], name: &HeaderName) -> bool {
    let is_it = |part: &Part| matches!(part, Part::Header(header) if header == name);
    let mut limits = route.limits.iter();
    limits.any(|used| {
        let whose = used.policy.tiers.iter().map(|tier| &tier.whose);
        used.policy.key.0.iter().any(is_it)
            || matches!(&used.policy.cost, Cost::Header { name: header, .. } if header == name)
            || whose.into_iter().any(|whose| matches!(whose, Whose::Part(part, _) if is_it(part)))
    }) || tokens.iter().any(|from| matches!(from, TokenSource::Header(header) if header == name))
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
    /// The worker's half.
    worker: [u8; 16],
    next: Cell<u64>,
}

impl RequestIds {
    pub(super) fn new() -> Self {
        let random = ahash::RandomState::new();
        Self { worker: hexadecimal(random.hash_one(0)), next: Cell::new(random.hash_one(1)) }
    }

    fn next(&self) -> HeaderValue {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let mut text = [0; 32];
        text[..16].copy_from_slice(&self.worker);
        text[16..].copy_from_slice(&hexadecimal(number));
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("0"))
    }
}

/// The digits of `number`, the highest first. Eight at a time, as the bytes of one word: each byte is
/// its digit's value, then `0` or `a` less 10 is added to it.
fn hexadecimal(number: u64) -> [u8; 16] {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let digits = |half: u64| {
        let pairs = (half << 16 | half) & 0x0000_ffff_0000_ffff;
        let bytes = (pairs << 8 | pairs) & 0x00ff_00ff_00ff_00ff;
        let values = (bytes << 4 | bytes) & (ONES * 0x0f);
        let letters = ((values + ONES * 6) >> 4) & ONES;
        values + ONES * u64::from(b'0') + letters * u64::from(b'a' - b'0' - 10)
    };
    let mut text = [0; 16];
    text[..8].copy_from_slice(&digits(number >> 32).to_be_bytes());
    text[8..].copy_from_slice(&digits(number & 0xffff_ffff).to_be_bytes());
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_two_requests_share_an_id() {
        let (one, other) = (RequestIds::new(), RequestIds::new());
        let mut ids: Vec<_> = (0..1000)
            .flat_map(|_| [one.next(), other.next()])
            .map(|id| id.to_str().unwrap().to_owned())
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 2000);
        assert!(ids.iter().all(|id| id.len() == 32));
    }

    proptest! {
        #[test]
        fn digits_are_the_numbers(number: u64) {
            let digits = hexadecimal(number).map(char::from).into_iter().collect::<String>();
            prop_assert_eq!(digits, format!("{number:016x}"));
        }
    }
}
