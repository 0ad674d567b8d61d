//! A request's upgrade to another protocol, towards an HTTP/1 or HTTP/2 upstream.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::{Engine, prelude::BASE64_STANDARD};
use http::Method;
use tidegate_http1::{
    BodyLength, FieldSink, FramingError, RequestHead, ResponseHead, Version, upgrade::is_websocket,
    upgrade::requested_protocol,
};

const ACCEPT: &str = "sec-websocket-accept";

/// What a WebSocket server appends to the client's key: RFC 6455, 1.3.
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// An upgrade that a request asks for.
#[derive(Clone, Debug)]
pub(super) struct UpgradeRequest {
    protocol: Box<str>,
    key: WebSocketKey,
    /// True for a GET without a body. Only then can HTTP/2 carry the upgrade.
    is_plain_get: bool,
    /// True if the client speaks HTTP/2.
    is_from_http2: bool,
}

/// The value of `Sec-WebSocket-Key`. RFC 8441 does not use it, but a proxy between HTTP/1 and
/// HTTP/2, such as Envoy, may forward the client's key and expect the server's
/// `Sec-WebSocket-Accept`.
#[derive(Clone, Debug)]
enum WebSocketKey {
    /// Another protocol, or an HTTP/1 client that sent no key.
    None,
    /// The client sent it and checks the response.
    Client(Box<[u8]>),
    /// Made for the upstream, because an HTTP/2 client sent none.
    Made(Box<str>),
}

impl WebSocketKey {
    /// The `Sec-WebSocket-Accept` for the key.
    fn accept(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Client(key) => Some(websocket_accept(key)),
            Self::Made(key) => Some(websocket_accept(key.as_bytes())),
        }
    }
}

/// The value of `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key`: RFC 6455, 4.2.2.
pub fn websocket_accept(key: &[u8]) -> String {
    let text = [key, WEBSOCKET_GUID].concat();
    BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &text))
}

impl UpgradeRequest {
    /// The upgrade that `head` asks for.
    pub(super) fn of(head: &RequestHead) -> Option<Box<Self>> {
        let protocol = requested_protocol(head)?;
        let is_from_http2 = head.version == Version::Http2;
        let key = match head.fields.get("sec-websocket-key") {
            _ if !is_websocket(protocol) => WebSocketKey::None,
            Some(key) => WebSocketKey::Client(key.into()),
            None if is_from_http2 => WebSocketKey::Made(random_key()),
            None => WebSocketKey::None,
        };
        let is_plain_get = head.method == Method::GET && head.length == BodyLength::Known(0);
        Some(Box::new(Self { protocol: protocol.into(), key, is_plain_get, is_from_http2 }))
    }

    /// The protocol, as the client sent it.
    pub(super) fn protocol(&self) -> &str {
        &self.protocol
    }

    /// True if an extended CONNECT can request the upgrade. It carries neither a method of its own
    /// nor a body.
    pub(super) fn fits_http2(&self) -> bool {
        self.is_plain_get
    }

    /// Writes the key if it was made for the upstream.
    pub(super) fn write_key(&self, out: &mut impl FieldSink) {
        if let WebSocketKey::Made(key) = &self.key {
            out.push_field(b"sec-websocket-key", key.as_bytes());
        }
    }

    /// Checks an HTTP/1 101, and makes it the response for the client.
    ///
    /// # Errors
    /// It names another protocol, or does not answer the key.
    pub(super) fn accept_http1(&self, head: &mut ResponseHead) -> Result<(), FramingError> {
        let mut answered = head.fields.get_all("upgrade");
        let is_asked_for = answered
            .next()
            .is_some_and(|value| value.eq_ignore_ascii_case(self.protocol.as_bytes()));
        let mut is_accepted = is_asked_for && answered.next().is_none();
        drop(answered);
        if let Some(expected) = self.key.accept() {
            is_accepted &= head.fields.get(ACCEPT) == Some(expected.as_bytes());
            self.set_accept(head, expected);
        }
        // A 101 has no body, so these fields say nothing.
        for name in ["content-length", "transfer-encoding"] {
            head.fields.remove(name);
        }
        self.set_status(head);
        if is_accepted { Ok(()) } else { Err(FramingError::UnexpectedUpgrade) }
    }

    /// Checks a server's 2xx to an extended CONNECT, and makes it the response for the client.
    ///
    /// # Errors
    /// It answers another key. Most servers do not answer the key at all (RFC 8441, 5).
    pub(super) fn accept_http2(&self, head: &mut ResponseHead) -> Result<(), FramingError> {
        head.length = None;
        let expected = self.key.accept().unwrap_or_default();
        let is_accepted = head.fields.get_all(ACCEPT).all(|accept| accept == expected.as_bytes());
        self.set_accept(head, expected);
        self.set_status(head);
        if is_accepted { Ok(()) } else { Err(FramingError::UnexpectedUpgrade) }
    }

    /// Gives `accept` only to a client that has sent a key.
    fn set_accept(&self, head: &mut ResponseHead, accept: String) {
        head.fields.remove(ACCEPT);
        if matches!(self.key, WebSocketKey::Client(_)) {
            head.fields.push(ACCEPT, accept);
        }
    }

    /// The status of success is 101 in HTTP/1, and 200 in HTTP/2.
    fn set_status(&self, head: &mut ResponseHead) {
        head.status = if self.is_from_http2 { 200 } else { 101 };
    }
}

/// A key of 16 random bytes: RFC 6455, 4.1.
fn random_key() -> Box<str> {
    let mut key = [0; 16];
    // The key is not secret: it only shows that the server understands WebSocket.
    let _ = getrandom::fill(&mut key);
    BASE64_STANDARD.encode(key).into()
}
