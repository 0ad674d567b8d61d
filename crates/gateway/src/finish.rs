//! The end of a request's path: turns an outcome into a response with the fields that every
//! response has.

use std::rc::Rc;

use tidegate_envoy::grpc;
use tidegate_http1::{FieldSink, Fields, FramingError, RequestHead, ResponseHead, Version};
use tidegate_rules::error::GatewayError;
use tidegate_rules::respond::{self, ApiError, ErrorForm, ErrorStyle, LocalReply, TicketDelivery};
use tidegate_rules::snapshot::ErrorBody;
use tidegate_system::client_usage::HeldReply;
use tidegate_trace::ReceivedContext;
use tidegate_transport::ClientStream;
use tidegate_upstream::UpstreamContent;

use super::{
    Gateway, Peer,
    charged_limit::{ChargedLimit, reports},
    compress::ResponseCompression,
    context::{AnsweredRequest, MalformedRequest, RequestContext},
    cors,
    decision_log::log_decisions,
    draft_response::{DraftResponse, is_extended_connect},
    ledger::{Ledger, OpenTunnel},
    response::{Content, Response},
    response_header::ResponseHeader,
};

impl Gateway {
    /// Answers bytes that are not a valid request, or a head that did not arrive in time.
    pub fn refuse_malformed(
        &self,
        peer: &Peer,
        error: FramingError,
        client: Rc<dyn ClientStream>,
    ) -> Response {
        self.metrics.malformed.add(1);
        let mut ledger = self.ledger(self.rules(), peer, self.ids.next());
        ledger.tracing = self.begin_trace(&ledger.rules, ReceivedContext::default);
        let id = ledger.request_id.as_str();
        let error = GatewayError::Framing(error);
        let reply = respond::error_reply(&error, std::iter::empty(), id, ErrorStyle::default());
        let LocalReply { status, mut fields, body } = reply;
        self.write_own_fields(&mut fields, &ledger, None);
        ledger.record_status(status);
        let connection_scheme = peer.forwarding.scheme();
        let response = ResponseHeader { own: fields, ..ResponseHeader::default() };
        let request = MalformedRequest { client, connection_scheme, response, ledger };
        log_decisions(&request.ledger, &request.facts(), &[]);
        let request = AnsweredRequest::Malformed(Box::new(request));
        Response { status, content: Content::Whole(body), request }
    }

    /// Adds the fields that every response has, and the rate-limit headers.
    pub(super) fn finish(
        &self,
        mut request: Box<RequestContext>,
        limits: &[ChargedLimit],
        draft: DraftResponse,
    ) -> Response {
        let (status, mut sent_status) = (draft.status(), draft.sent_status());
        let answers_check = request.is_check() && !matches!(draft, DraftResponse::GrpcRefusal(_));
        let mut suppressed = respond::SuppressedHeaders::default();
        let (mut upstream, mut fields, mut content) = match draft {
            DraftResponse::Local(reply) | DraftResponse::GrpcRefusal(reply) => {
                (None, reply.fields, Content::Whole(reply.body))
            }
            DraftResponse::Streamed(fields, body) => (None, fields, Content::Stream(body)),
            DraftResponse::Upstream(head, UpstreamContent::Body(stream)) => {
                (Some(head), Fields::new(), Content::Stream(stream))
            }
            DraftResponse::Upstream(head, UpstreamContent::Tunnel(tunnel)) => {
                request.ledger.tunnel = Some(OpenTunnel::new(&self.metrics));
                (Some(head), Fields::new(), Content::Tunnel(tunnel))
            }
        };
        let families = request.rules().snapshot.headers;
        let families = families.beside(upstream.as_ref().map(|head| &head.fields));
        if let Some(route) = request.route() {
            if request.ledger.admission.is_decided() {
                let reader = request.rate_header_reader();
                suppressed =
                    respond::write_rate_headers(&mut fields, reports(limits), families, reader);
            }
            if let (Some(rules), Some(head), Content::Stream(body)) =
                (&route.settings.compress, &mut upstream, &mut content)
            {
                let budget = &self.shared.compression;
                ResponseCompression { budget, rules }.apply(&request, head, body, &mut fields);
            }
        }
        if families.x_ratelimit
            && takes_trailers(&request.head, &content)
            && let Some(settlement) = &mut request.held.settlement
        {
            settlement.report_in_trailers(limits);
        }
        sent_status = request.status_for_asker(sent_status, &mut fields);
        if let Content::Whole(body) = &content
            && answers_check
        {
            let reply = request.answer_check(sent_status, &fields, body);
            (sent_status, fields) = (reply.status, reply.fields);
            content = Content::Whole(reply.body);
        }
        if let Some(policy) = request.cors() {
            // The upstream's own CORS fields are removed.
            suppressed.cors = true;
            cors::write_fields(&mut fields, policy, &request, upstream.as_ref());
        }
        self.write_own_fields(&mut fields, &request.ledger, upstream.as_ref());
        request.ledger.record_status(status);
        log_decisions(&request.ledger, &request.facts(), limits);
        request.response = ResponseHeader { upstream, own: fields, suppressed };
        Response { status: sent_status, content, request: AnsweredRequest::Valid(request) }
    }

    /// Writes the request's id, and a date unless the upstream's response has one.
    fn write_own_fields(
        &self,
        fields: &mut Fields,
        ledger: &Ledger,
        upstream: Option<&ResponseHead>,
    ) {
        fields.push("x-request-id", ledger.request_id.as_bytes());
        if !upstream.is_some_and(|head| head.fields.contains("date")) {
            self.dates.advance(ledger.arrival.at);
            self.dates.with(|date| fields.push("date", date));
        }
    }
}

/// True if a response with `content` can carry trailers that its client reads.
fn takes_trailers(head: &RequestHead, content: &Content) -> bool {
    match (head.version, content) {
        (Version::Http2, Content::Whole(_) | Content::Stream(_)) => true,
        // A body with a length has no trailers in HTTP/1.
        (Version::Http11, Content::Stream(body)) => {
            body.declared_length().is_none() && head.accepts_trailers()
        }
        _ => false,
    }
}

/// The operator's page for a caller that waits in the waiting room, if there is one.
fn waiting_page<'r>(request: &'r RequestContext, error: &GatewayError) -> Option<&'r ErrorBody> {
    let GatewayError::Throttled(denied) = error else { return None };
    let rules = request.rules().snapshot.waiting_room.as_ref();
    rules.filter(|_| denied.waiting.is_some())?.page.as_ref()
}

/// True for a header field that describes the body it came with.
fn describes_body(name: &[u8]) -> bool {
    const OTHERS: [&[u8]; 5] =
        [b"etag", b"last-modified", b"accept-ranges", b"digest", b"repr-digest"];
    let prefix = name.get(..8).unwrap_or_default();
    prefix.eq_ignore_ascii_case(b"content-")
        || OTHERS.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// The response to a request that was refused or failed.
pub(super) fn refusal(
    request: &RequestContext,
    limits: &[ChargedLimit],
    mut error: GatewayError,
) -> DraftResponse {
    let head = &*request.head;
    // Not for an extended CONNECT: a gRPC refusal has status 200, which would open the tunnel.
    // Nor for a proxy that asks about a gRPC call: it would take the status for an admission.
    let is_grpc = head.version == Version::Http2
        && grpc::is_grpc(&head.fields)
        && !request.is_question()
        && !is_extended_connect(head);
    if let GatewayError::UnreadableCheck(error) = &error {
        return DraftResponse::GrpcRefusal(respond::grpc_failure(error));
    }
    let form = if is_grpc { ErrorForm::Problem } else { ErrorForm::of(&head.fields) };
    let mut reply = if is_grpc {
        respond::grpc_refusal(&error, reports(limits))
    } else if let GatewayError::RefusedByService(answer) = &mut error
        && let Some(body) = answer.body.take()
    {
        let fields = std::mem::take(&mut answer.fields);
        return DraftResponse::Local(LocalReply { status: answer.status, fields, body });
    } else {
        let bodies = request.route().and_then(|route| route.settings.error_bodies.as_ref());
        let body = bodies.and_then(|bodies| bodies.get(error.status()));
        let body =
            body.or_else(|| waiting_page(request, &error).filter(|_| form == ErrorForm::Page));
        let id = request.ledger.request_id.as_str();
        let format = request.route().map(|route| route.settings.error_format).unwrap_or_default();
        let api = ApiError { format, call_id: request.call_id.as_deref() };
        let style = ErrorStyle { form, api, own: body };
        let mut reply = respond::error_reply(&error, reports(limits), id, style);
        // A rendered page is a copy for this client.
        if body.is_some_and(ErrorBody::has_variables) {
            if let Some(held) = HeldReply::whole(&request.usage, std::mem::take(&mut reply.body)) {
                reply.body = held;
            } else {
                let style = ErrorStyle { own: None, ..style };
                reply = respond::error_reply(&error, reports(limits), id, style);
            }
        }
        reply
    };
    if let GatewayError::RefusedByService(answer) = &error
        && !is_grpc
    {
        // The answer without its body, which was too long for what may be held.
        reply.fields.append(&answer.fields, |name| !describes_body(name));
    }
    if let GatewayError::Throttled(denied) = error {
        if let (Some(waiting), Some(rules)) =
            (&denied.waiting, &request.rules().snapshot.waiting_room)
        {
            let is_secure = request.connection_scheme == "https";
            let delivery = TicketDelivery { form, is_secure };
            respond::write_ticket(&mut reply.fields, waiting, rules, delivery);
        }
        let reader = request.rate_header_reader();
        let families = request.rules().snapshot.headers;
        respond::write_throttle_headers(&mut reply.fields, &denied, families, reader);
    }
    if is_grpc { DraftResponse::GrpcRefusal(reply) } else { DraftResponse::Local(reply) }
}
