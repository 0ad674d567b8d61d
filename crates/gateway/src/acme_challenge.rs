//! Responses to an authority that checks a domain by `http-01` (RFC 8555, 8.3). They come before
//! all routes, and before the redirect to https.

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};
use tidegate_http1::RequestHead;
use tidegate_rules::respond;
use tidegate_transport::ClientStream;
use tidegate_upstream::FixedResponse;

use super::{Gateway, Peer, Response, charged_limit::ChargedLimits, draft_response::DraftResponse};

impl Gateway {
    /// The body of the response, if the request is in clear and has a token of a current order.
    #[inline]
    pub(super) fn challenge_response(&self, peer: &Peer, head: &RequestHead) -> Option<Bytes> {
        if peer.certificate.is_some() || !matches!(head.method, Method::GET | Method::HEAD) {
            return None;
        }
        self.shared.acme.challenges.http_response(head.path_bytes())
    }

    /// Answers with `body`. Nothing is charged.
    #[cold]
    pub(super) fn respond_to_challenge(
        &self,
        peer: &Peer,
        head: Box<RequestHead>,
        client: Rc<dyn ClientStream>,
        body: Bytes,
    ) -> Response {
        let request = self.begin(self.rules(), peer, head, client);
        let content_type = HeaderValue::from_static("application/octet-stream");
        let reply =
            respond::fixed_reply(&FixedResponse { status: StatusCode::OK, body, content_type });
        self.finish(request, &ChargedLimits::new(), DraftResponse::Local(reply))
    }
}
