//! [`Response`]: the gateway's result for a request, before a connection writes it.

use bytes::Bytes;
use http::{Method, StatusCode};
use tidegate_envoy::grpc;
use tidegate_http1::{FieldSink, Fields, ResponseHead, Version, is_same_name};
use tidegate_rules::plan::{PublicUrl, RoutedRequest};
use tidegate_rules::respond;
use tidegate_template::{HeaderRules, MessageReplacements};
use tidegate_upstream::{HostRule, ResponseBody, UpstreamTunnel, write_response_fields};

use super::{
    context::{AnsweredRequest, RequestContext},
    response_header::ResponseHeader,
};

/// The response to a request, independent of the protocol version.
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The body.
    pub content: Content,
    /// The request, with the response's header fields; it is logged when this is dropped.
    pub request: AnsweredRequest,
}

/// The content (RFC 9110, 6.4) of a response.
pub enum Content {
    /// The complete body, made by the gateway.
    Whole(Bytes),
    /// The upstream's body, streamed.
    Stream(ResponseBody),
    /// The bytes of another protocol, which begins after the head.
    Tunnel(Box<UpstreamTunnel>),
}

impl Response {
    /// Writes the header fields to `out`, except the fields that delimit the body or concern the
    /// connection: `Content-Length`, `Transfer-Encoding`, `Connection`.
    pub fn write_fields(&self, out: &mut impl FieldSink) {
        let request = self.request.valid();
        let route = request.and_then(RequestContext::route);
        let routed = || request.zip(route).map(|(request, route)| request.routed(route));
        let rules = route.and_then(|route| route.settings.edits.response_headers.as_ref());
        let drops = |name: &[u8]| rules.is_some_and(|rules| rules.drops(name));
        let changes = |name: &[u8]| rules.is_some_and(|rules| rules.replaces(name));
        let mut replacements = rules.and_then(HeaderRules::message_replacements);
        let header = self.request.header();
        if let Some(head) = &header.upstream {
            let is_rewritten = route.is_some_and(|route| route.settings.restores_location());
            let rewritten = if is_rewritten { routed() } else { None };
            let upstream_host = rewritten.map(|_| self.upstream_host());
            let public_url = rewritten.zip(upstream_host.as_deref());
            let public_url = public_url.map(|(request, host)| public_url_of(request, host));
            let is_restored = |name: &[u8]| public_url.is_some() && PublicUrl::concerns(name);
            let is_sent = |name: &[u8]| {
                let is_id = is_same_name(name, b"x-request-id");
                !(is_id || header.suppressed.contains(name) || drops(name))
            };
            write_response_fields(head, out, |name| {
                is_sent(name) && !is_restored(name) && !changes(name)
            });
            if let Some(url) = &public_url {
                write_restored(head, url, |name| drops(name) || changes(name), out);
            }
            if let Some(replacements) = &mut replacements {
                let mut sent = Fields::new();
                write_response_fields(head, &mut sent, |name| is_sent(name) && changes(name));
                replacements.write(&sent, out, |name, value, out| match &public_url {
                    Some(url) if PublicUrl::concerns(name) => url.write_field(name, value, out),
                    _ => out.extend_from_slice(value),
                });
            }
            if head.status == 426
                && request.is_some_and(|request| request.head.version == Version::Http11)
            {
                write_upgrade_offer(head, out);
            }
        }
        let Some(rules) = rules else { return out.append(&header.own, |_| true) };
        write_own(&header.own, rules, replacements, out);
        if let Some(request) = routed() {
            request.with_values(|values| rules.write(values, out));
        }
    }

    /// The value of `Trailer`: the names of the gateway's own trailers. `None` if it sends none.
    pub fn trailer_names(&self) -> Option<String> {
        let request = self.request.valid()?;
        request.held.settlement.as_ref().filter(|settlement| settlement.has_report())?;
        let names = respond::RATE_TRAILERS.into_iter();
        let sent = names.filter(|name| !request.drops_response_field(name.as_bytes()));
        let names = sent.collect::<Vec<_>>().join(", ");
        Some(names).filter(|names| !names.is_empty())
    }

    /// The host of the server that answered.
    fn upstream_host(&self) -> String {
        let server =
            self.request.valid().and_then(|request| request.ledger.attempts.server.as_ref());
        server.map(|server| server.target().host()).unwrap_or_default()
    }

    /// True if the head is a trailers-only gRPC response, whose fields a client reads as metadata.
    pub fn is_trailers_only(&self) -> bool {
        let header = self.request.header();
        let fields = header.upstream.as_ref().map_or(&header.own, |head| &head.fields);
        fields.contains("grpc-status")
    }

    /// The content and the request. Drops the header fields, which are written: the content may
    /// take long.
    pub fn into_content(mut self) -> (Content, AnsweredRequest) {
        *self.request.header_mut() = ResponseHeader::default();
        (self.content, self.request)
    }

    /// True if the request is a gRPC call.
    pub fn answers_grpc(&self) -> bool {
        self.request.valid().is_some_and(|request| grpc::is_grpc(&request.head.fields))
    }

    /// The request's method and version; `GET` and HTTP/1.1 if it was malformed.
    pub fn method_and_version(&self) -> (Method, Version) {
        let request = self.request.valid();
        request.map_or((Method::GET, Version::Http11), |request| {
            (request.answered_method().clone(), request.head.version)
        })
    }
}

/// The URL that clients see for an upstream that receives a different path or host.
fn public_url_of<'r>(request: RoutedRequest<'r>, upstream_host: &'r str) -> PublicUrl<'r> {
    let client_host = request.head.fields.host().unwrap_or_default();
    let sent_host = match &request.route.edits.host {
        HostRule::Preserve => client_host,
        HostRule::Upstream => upstream_host.as_bytes(),
        HostRule::Name(name) => name.as_bytes(),
    };
    PublicUrl {
        scheme: request.scheme(),
        host: client_host,
        prefix: request.stripped_prefix().unwrap_or_default(),
        sent_host,
        upstream_host: upstream_host.as_bytes(),
    }
}

/// Writes the gateway's own fields, with a route's changes. The gateway's own `Vary` is always
/// kept: the response varies whatever the rules say.
fn write_own(
    own: &Fields,
    rules: &HeaderRules,
    replacements: Option<MessageReplacements<'_>>,
    out: &mut impl FieldSink,
) {
    let changes = |name: &[u8]| rules.replaces(name) && name != b"vary";
    let is_kept = |name: &[u8]| !rules.drops(name) || name == b"vary";
    out.append(own, |name| is_kept(name) && !changes(name));
    if let Some(mut replacements) = replacements {
        let mut changed = Fields::new();
        changed.append(own, |name| is_kept(name) && changes(name));
        replacements.write(&changed, out, |_, value, out| out.extend_from_slice(value));
    }
}

/// Writes the fields that name the upstream's URL, host or paths.
fn write_restored(
    head: &ResponseHead,
    url: &PublicUrl<'_>,
    drops: impl Fn(&[u8]) -> bool,
    out: &mut impl FieldSink,
) {
    for (name, value) in head.fields.iter().filter(|(name, _)| PublicUrl::concerns(name)) {
        if drops(name) {
            continue;
        }
        out.push_if(name, |out| {
            url.write_field(name, value, out);
            true
        });
    }
}

/// Writes which protocols the server of a 426 demands (RFC 9110, 15.5.22).
#[cold]
fn write_upgrade_offer(head: &ResponseHead, out: &mut impl FieldSink) {
    for (index, protocols) in head.fields.get_all("upgrade").enumerate() {
        if index == 0 {
            out.push_field(b"connection", b"upgrade");
        }
        out.push_field(b"upgrade", protocols);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_http1::RequestHead;

    use super::*;

    /// These types are moved many times: when they had 2112, 464 and 376 bytes, copying took 40% of
    /// the user instructions of a proxied request.
    #[test]
    fn types_moved_per_request_are_small() {
        assert!(size_of::<Response>() <= 144, "{}", size_of::<Response>());
        assert!(size_of::<RequestHead>() <= 192, "{}", size_of::<RequestHead>());
        assert!(size_of::<ResponseHead>() <= 128, "{}", size_of::<ResponseHead>());
    }
}
