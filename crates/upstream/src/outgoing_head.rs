//! [`OutgoingHead`]: the head of a request to an upstream. Each attempt writes it once, as HTTP/1
//! or as HTTP/2.

use std::{borrow::Cow, net::IpAddr};

use http::{
    HeaderMap, HeaderValue, Method, header,
    uri::{self, Authority, PathAndQuery, Scheme},
};
use tidegate_http1::{FieldSink, Fields, FramingError, RequestHead, dashed_name, is_foldable};
use tidegate_identity::{Consumer, OwnedConsumer, RemovedCredentials};
use tidegate_template::HeaderRules;
use tidegate_trace::TraceHeader;

use super::{
    OwnUrlField, ServerAddress, Target,
    headers::{ClientFieldName, FORWARDED_PREFIX, FieldRule, ListedFields, ProtectedHeaders},
};

/// Maximum length of a target that [`http::Uri`] accepts, in bytes.
const MAX_URI: usize = 65_534;

/// The address of a client connection's peer as text, formatted once per connection.
#[derive(Clone, Debug)]
pub struct PeerAddress {
    address: Box<str>,
    is_v6: bool,
    /// `http` or `https`.
    scheme: &'static str,
}

impl PeerAddress {
    /// Formats `address`. `scheme` is `https` if the connection is encrypted, or else `http`.
    pub fn new(address: IpAddr, scheme: &'static str) -> Self {
        Self { address: address.to_string().into(), is_v6: address.is_ipv6(), scheme }
    }

    /// The connection's scheme: `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The element to add to `Forwarded` (RFC 7239, 4).
    fn forwarded_element(&self) -> String {
        let Self { address, is_v6, scheme } = self;
        if *is_v6 {
            format!("for=\"[{address}]\";proto={scheme}")
        } else {
            format!("for={address};proto={scheme}")
        }
    }
}

/// The value of `Host` in forwarded requests.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum HostRule {
    /// The client's value.
    #[default]
    Preserve,
    /// The chosen server's host and port.
    Upstream,
    /// A fixed host.
    Name(Box<str>),
}

/// The head of a request to an upstream: the client's head, and the gateway's changes to it.
#[derive(Clone, Debug)]
pub struct OutgoingHead<'r> {
    /// The client's head.
    pub client: &'r RequestHead,
    /// The path to forward; the query is the client's.
    pub path: Cow<'r, str>,
    /// The address of the connection's peer.
    pub peer: &'r PeerAddress,
    /// True if the peer is a trusted proxy, whose forwarding fields are kept.
    pub is_trusted: bool,
    /// The value of `X-Request-Id`.
    pub request_id: &'r [u8],
    /// The value of `Host` for an HTTP/1.0 request without one.
    pub fallback_host: &'r ServerAddress,
    /// The field that names the gateway.
    pub via: ViaField<'r>,
    /// The prefix that was stripped from the path, for `X-Forwarded-Prefix`.
    pub prefix: Option<&'r str>,
    /// The fields that name resources of the server by URLs of this gateway.
    pub own_urls: Vec<OwnUrlField>,
    /// The value of `Host`.
    pub host: &'r HostRule,
    /// The trace context; `None`: the client's.
    pub trace: Option<TraceHeader>,
    /// The route's changes.
    pub changes: Option<RequestHeaderChanges<'r>>,
    /// Who sends the request, for `X-Consumer-Name` and `X-Consumer-Plan`; `None` if that is not
    /// known.
    pub consumer: Option<&'r OwnedConsumer>,
    /// True if the response must not be compressed: `Accept-Encoding: identity` is sent.
    pub asks_for_identity: bool,
    /// The API keys to leave out; `None` on a route without authentication.
    pub removed_credentials: Option<&'r RemovedCredentials>,
    /// The fields that a client cannot remove.
    pub protected: &'r ProtectedHeaders,
}

/// The field that names the gateway, for requests that come back to it.
#[derive(Clone, Copy, Debug)]
pub struct ViaField<'r> {
    /// `via`, or another name for servers that must not get it.
    pub name: &'static str,
    /// `1.1 tidegate-0123456789abcdef`.
    pub entry: &'r str,
}

/// A route's changes to a request's fields.
#[derive(Clone, Debug)]
pub struct RequestHeaderChanges<'r> {
    /// The rules, which name the fields to remove.
    pub rules: &'r HeaderRules,
    /// The fields that the rules set and add, with the values of their variables.
    pub written: Fields,
}

/// An [`OutgoingHead`] that outlives its request.
#[derive(Debug)]
pub struct OwnedHead {
    client: RequestHead,
    path: Box<str>,
    peer: PeerAddress,
    is_trusted: bool,
    request_id: Box<[u8]>,
    fallback_host: ServerAddress,
    via: (&'static str, Box<str>),
    prefix: Option<Box<str>>,
    own_urls: Vec<OwnUrlField>,
    host: HostRule,
    trace: Option<TraceHeader>,
    changes: Option<(HeaderRules, Fields)>,
    consumer: Option<OwnedConsumer>,
    asks_for_identity: bool,
    removed_credentials: Option<RemovedCredentials>,
    protected: ProtectedHeaders,
}

impl OwnedHead {
    /// The head, borrowed.
    pub fn head(&self) -> OutgoingHead<'_> {
        let changes = self.changes.as_ref();
        OutgoingHead {
            client: &self.client,
            path: Cow::Borrowed(&self.path),
            peer: &self.peer,
            is_trusted: self.is_trusted,
            request_id: &self.request_id,
            fallback_host: &self.fallback_host,
            via: ViaField { name: self.via.0, entry: &self.via.1 },
            prefix: self.prefix.as_deref(),
            own_urls: self.own_urls.clone(),
            host: &self.host,
            trace: self.trace,
            changes: changes
                .map(|(rules, written)| RequestHeaderChanges { rules, written: written.clone() }),
            consumer: self.consumer.as_ref(),
            asks_for_identity: self.asks_for_identity,
            removed_credentials: self.removed_credentials.as_ref(),
            protected: &self.protected,
        }
    }
}

impl OutgoingHead<'_> {
    /// A copy that outlives the request.
    pub fn to_owned_head(&self) -> OwnedHead {
        let changes = self.changes.as_ref();
        OwnedHead {
            client: self.client.clone(),
            path: self.path.as_ref().into(),
            peer: self.peer.clone(),
            is_trusted: self.is_trusted,
            request_id: self.request_id.into(),
            fallback_host: self.fallback_host.clone(),
            via: (self.via.name, self.via.entry.into()),
            prefix: self.prefix.map(Into::into),
            own_urls: self.own_urls.clone(),
            host: self.host.clone(),
            trace: self.trace,
            changes: changes.map(|changes| (changes.rules.clone(), changes.written.clone())),
            consumer: self.consumer.cloned(),
            asks_for_identity: self.asks_for_identity,
            removed_credentials: self.removed_credentials.cloned(),
            protected: self.protected.clone(),
        }
    }

    /// True for a field of the client's trace context that the gateway replaces.
    fn replaces_context(&self, name: &[u8]) -> bool {
        let Some(trace) = &self.trace else { return false };
        match name.len() {
            10 => !trace.keeps_state && name.eq_ignore_ascii_case(b"tracestate"),
            11 => name.eq_ignore_ascii_case(b"traceparent"),
            _ => false,
        }
    }

    /// True if the route's changes leave this field out. Upstreams may read `x_user` as `x-user`,
    /// so aliases are also left out.
    fn drops(&self, name: &[u8]) -> bool {
        self.changes.as_ref().is_some_and(|RequestHeaderChanges { rules, .. }| {
            rules.drops(name) || is_foldable(name) && rules.drops(&dashed_name(name))
        })
    }

    /// Writes the client's fields to forward. Returns which of `X-Forwarded-Proto` and
    /// `X-Forwarded-Host` are among them.
    fn write_client_fields(&self, out: &mut impl FieldSink) -> ForwardedFields {
        let listed = ListedFields::of(&self.client.fields, self.client.connection);
        let mut forwarded = ForwardedFields { proto: false, host: false };
        let is_host_kept = *self.host == HostRule::Preserve;
        let mut is_forwarded = |name: &[u8]| {
            let field = ClientFieldName::of(name);
            if !is_host_kept && name.eq_ignore_ascii_case(b"host") {
                return false;
            }
            if self.prefix.is_some() && name.eq_ignore_ascii_case(FORWARDED_PREFIX.as_bytes()) {
                return false;
            }
            if self.replaces_context(name) || self.has_own_urls(name) {
                return false;
            }
            if self.asks_for_identity && name.eq_ignore_ascii_case(b"accept-encoding") {
                return false;
            }
            if self
                .removed_credentials
                .is_some_and(|keys| keys.drops_field(name, &self.client.fields))
            {
                return false;
            }
            let is_first =
                |has_one: &mut bool| std::mem::replace(has_one, self.is_trusted) != self.is_trusted;
            let is_kept = match FieldRule::of(field) {
                FieldRule::Forward => true,
                FieldRule::Drop => false,
                FieldRule::TrustedOnly => self.is_trusted,
                FieldRule::Proto => is_first(&mut forwarded.proto),
                FieldRule::Host => is_first(&mut forwarded.host),
            };
            let is_hop_by_hop =
                !listed.is_empty() && listed.contains(name) && !self.protected.contains(name);
            is_kept && !self.protected.has_alias(field) && !is_hop_by_hop && !self.drops(name)
        };
        let rules = self.changes.as_ref().map(|changes| changes.rules);
        match rules.and_then(|rules| Some((rules, rules.message_replacements()?))) {
            None => out.append(&self.client.fields, is_forwarded),
            Some((rules, mut replacements)) => {
                let mut sent = Fields::new();
                sent.append(&self.client.fields, |name| rules.replaces(name) && is_forwarded(name));
                out.append(&self.client.fields, |name| !rules.replaces(name) && is_forwarded(name));
                replacements.write(&sent, out, |_, value, out| out.extend_from_slice(value));
            }
        }
        if self.asks_for_identity && !self.drops(b"accept-encoding") {
            out.push_field(b"accept-encoding", b"identity");
        }
        self.write_other_cookies(out);
        forwarded
    }

    /// True for a field that [`AttemptHead::write_own_urls`] writes.
    fn has_own_urls(&self, name: &[u8]) -> bool {
        self.own_urls.iter().any(|field| name.eq_ignore_ascii_case(field.name.as_bytes()))
    }

    /// Writes the cookies beside a removed key.
    fn write_other_cookies(&self, out: &mut impl FieldSink) {
        let Some(keys) = self.removed_credentials.filter(|keys| keys.has_cookies()) else { return };
        if self.drops(b"cookie") {
            return;
        }
        for cookies in
            self.client.fields.get_all("cookie").filter_map(|line| keys.other_cookies(line))
        {
            out.push_field(b"cookie", &cookies);
        }
    }

    /// The query to forward: the client's, without a removed key.
    fn query(&self) -> Option<Cow<'_, str>> {
        let query = self.client.query()?;
        match self.removed_credentials {
            None => Some(Cow::Borrowed(query)),
            Some(keys) => keys.other_parameters(query),
        }
    }

    /// Writes who sends the request. The client's own fields of these names are never forwarded.
    fn write_consumer(&self, out: &mut impl FieldSink) {
        let consumer = self.consumer.map(OwnedConsumer::view);
        for (field, value) in consumer.into_iter().flat_map(Consumer::fields) {
            if !self.drops(field.as_bytes()) {
                out.push_field(field.as_bytes(), value.as_bytes());
            }
        }
    }

    /// Writes the `X-Forwarded-*` and `Forwarded` fields that carry the peer's address and scheme.
    fn write_peer(&self, out: &mut impl FieldSink, forwarded: &ForwardedFields) {
        let fields = &self.client.fields;
        if self.drops(b"x-forwarded-for") {
            // The route sets its own value, or removes the field.
        } else if self.is_trusted {
            push_list(out, fields, "x-forwarded-for", &self.peer.address);
        } else {
            out.push_field(b"x-forwarded-for", self.peer.address.as_bytes());
        }
        if self.is_trusted && fields.contains("forwarded") && !self.drops(b"forwarded") {
            push_list(out, fields, "forwarded", &self.peer.forwarded_element());
        }
        if !forwarded.proto && !self.drops(b"x-forwarded-proto") {
            out.push_field(b"x-forwarded-proto", self.peer.scheme.as_bytes());
        }
    }

    /// Writes `X-Forwarded-Prefix` if a prefix was stripped: a trusted peer's prefix, then the
    /// stripped one.
    fn write_prefix(&self, out: &mut impl FieldSink) {
        let Some(prefix) = self.prefix else { return };
        if self.drops(FORWARDED_PREFIX.as_bytes()) {
            return;
        }
        let outer = if self.is_trusted { self.client.fields.get(FORWARDED_PREFIX) } else { None };
        let outer = outer.filter(|outer| outer.starts_with(b"/")).unwrap_or_default();
        let outer = outer.strip_suffix(b"/").unwrap_or(outer);
        out.push_field(FORWARDED_PREFIX.as_bytes(), &[outer, prefix.as_bytes()].concat());
    }
}

/// The fields of a trusted peer that were forwarded.
struct ForwardedFields {
    /// `X-Forwarded-Proto`.
    proto: bool,
    /// `X-Forwarded-Host`.
    host: bool,
}

/// The head of one attempt.
#[derive(Clone, Copy)]
pub(super) struct AttemptHead<'a> {
    pub(super) head: &'a OutgoingHead<'a>,
    /// The attempt's server.
    pub(super) target: &'a Target,
    /// The attempt's span; `None` if the request is not sampled.
    pub(super) span_id: Option<u64>,
}

impl AttemptHead<'_> {
    /// Writes the HTTP/1 request line.
    pub(super) fn write_request_line(&self, out: &mut Vec<u8>) {
        let OutgoingHead { client, path, .. } = self.head;
        let query = self.head.query();
        for piece in [client.method.as_str(), " ", path] {
            out.extend_from_slice(piece.as_bytes());
        }
        if let Some(query) = query {
            out.push(b'?');
            out.extend_from_slice(query.as_bytes());
        }
        out.extend_from_slice(b" HTTP/1.1\r\n");
    }

    /// Writes the header fields that the server receives, except for body length and upgrade.
    ///
    /// Hop-by-hop fields (RFC 9110, 7.6.1) are dropped; so are fields that `Connection` lists,
    /// unless they are protected. The forwarding fields of a trusted peer are kept and extended.
    /// Those of any other peer are replaced, or dropped if the gateway does not write the field
    /// itself, such as `X-Real-IP`. `Forwarded` is only extended, never added, because it would
    /// repeat `X-Forwarded-For`. The route's changes come last.
    pub(super) fn write_fields(&self, out: &mut impl FieldSink) {
        let head = self.head;
        let forwarded = head.write_client_fields(out);
        self.write_own_urls(out);
        head.write_peer(out, &forwarded);
        self.write_trace(out);
        self.write_host(out, &forwarded);
        head.write_prefix(out);
        out.push_field(head.via.name.as_bytes(), head.via.entry.as_bytes());
        if !head.drops(b"x-request-id") {
            out.push_field(b"x-request-id", head.request_id);
        }
        head.write_consumer(out);
        if let Some(changes) = &head.changes {
            out.append(&changes.written, |_| true);
        }
    }

    /// Writes the fields whose URLs are the server's own, as it knows them.
    fn write_own_urls(&self, out: &mut impl FieldSink) {
        let head = self.head;
        if head.own_urls.is_empty() {
            return;
        }
        let listed = ListedFields::of(&head.client.fields, head.client.connection);
        for field in &head.own_urls {
            let name = field.name.as_bytes();
            let is_hop_by_hop = listed.contains(name) && !head.protected.contains(name);
            if is_hop_by_hop || head.drops(name) {
                continue;
            }
            out.push_if(name, |out| {
                field.write(self.target, head.host, out);
                true
            });
        }
    }

    /// Writes `traceparent`, with the id of the attempt's span if the request is sampled.
    fn write_trace(&self, out: &mut impl FieldSink) {
        let Some(TraceHeader { mut parent, .. }) = self.head.trace else { return };
        if self.head.drops(b"traceparent") {
            return;
        }
        if let Some(span_id) = self.span_id {
            parent.context.span_id = span_id;
        }
        out.push_field(b"traceparent", &parent.format());
    }

    /// Writes `X-Forwarded-Host` with the client's `Host`, unless a trusted peer's field was
    /// forwarded. Then writes `Host`, unless the client's was forwarded. An HTTP/1.0 request
    /// without `Host` gets the fallback, because the forwarded request is HTTP/1.1.
    fn write_host(&self, out: &mut impl FieldSink, forwarded: &ForwardedFields) {
        let head = self.head;
        let sent = head.client.fields.host();
        if let Some(host) = sent
            && !forwarded.host
            && !head.drops(b"x-forwarded-host")
        {
            out.push_field(b"x-forwarded-host", host);
        }
        match head.host {
            HostRule::Name(name) => out.push_field(b"host", name.as_bytes()),
            HostRule::Preserve if sent.is_some() => {}
            HostRule::Preserve => {
                out.push_field(b"host", head.fallback_host.authority().as_bytes());
            }
            HostRule::Upstream => out.push_field(b"host", self.target.host().as_bytes()),
        }
    }

    /// The head for HTTP/2 with these `headers`.
    ///
    /// # Errors
    /// The target is longer than the library accepts.
    pub(super) fn to_http2(
        self,
        mut headers: HeaderMap,
    ) -> Result<http::Request<()>, FramingError> {
        let client = self.head.client;
        if client.accepts_trailers() {
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        let uri = self.uri(&mut headers)?;
        let mut request = http::Request::new(());
        *request.method_mut() = client.method.clone();
        *request.uri_mut() = uri;
        *request.version_mut() = http::Version::HTTP_2;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// The target, whose authority is taken from `Host` in `headers`.
    fn uri(&self, headers: &mut HeaderMap) -> Result<http::Uri, FramingError> {
        let host = headers.remove(header::HOST);
        let host = host.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
        let target = match self.head.query() {
            None => Cow::Borrowed(&*self.head.path),
            Some(query) => Cow::Owned(format!("{}?{query}", self.head.path)),
        };
        let target = uri_target(&target);
        if target.len() > MAX_URI {
            return Err(FramingError::TargetTooLong(MAX_URI));
        }
        let mut parts = uri::Parts::default();
        parts.scheme = Scheme::try_from(self.target.scheme()).ok();
        parts.authority = Some(Authority::try_from(host).map_err(|_| FramingError::Target)?);
        parts.path_and_query =
            Some(PathAndQuery::try_from(&*target).map_err(|_| FramingError::Target)?);
        http::Uri::from_parts(parts).map_err(|_| FramingError::Target)
    }
}

/// Pushes one field with all values of the header `name`, followed by `last`.
fn push_list(out: &mut impl FieldSink, fields: &Fields, name: &str, last: &str) {
    out.push_if(name.as_bytes(), |out| {
        for value in fields.get_all(name) {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(last.as_bytes());
        true
    });
}

/// Percent-encodes the backtick, which a target may have and [`http::Uri`] refuses.
fn uri_target(target: &str) -> Cow<'_, str> {
    if target.contains('`') { Cow::Owned(target.replace('`', "%60")) } else { target.into() }
}

/// True if a request of this method declares a length of 0: RFC 9110, 8.6.
pub(super) fn declares_empty_body(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}

#[cfg(test)]
mod tests;
