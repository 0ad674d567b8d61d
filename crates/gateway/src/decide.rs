//! The decide action: answers another proxy, which asks before it forwards a request. Envoy may ask
//! over gRPC.

use std::sync::Arc;

use http::StatusCode;
use prost::Message;
use tidegate_envoy::ext_authz::{CheckDecision, CheckedRequest, messages::CheckRequest};
use tidegate_envoy::grpc::{self, GrpcError, GrpcStatus, frame_message};
use tidegate_http1::{DescriptionError, Fields, RequestDescription, Version};
use tidegate_identity::Consumer;
use tidegate_rules::error::GatewayError;
use tidegate_rules::plan::{
    AskedSource, DecisionInput, NextStep, QuestionForm, RefusedRoute, RequestRefusal, RequestView,
    decide,
};
use tidegate_rules::respond::{self, LocalReply};

use super::{
    Gateway, Peer,
    context::{AskedBy, RequestContext},
    rules::WorkerRoute,
};

/// The field with the status of a refusal that is sent with another one.
const OWN_STATUS: &str = "x-tidegate-status";

impl Gateway {
    /// Reads the check of Envoy, and decides the request that it asks about.
    pub(super) async fn read_check(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        door: usize,
    ) -> NextStep {
        let refuse = |error| {
            let (route, caller) = (RefusedRoute::Matched(door), None);
            NextStep::Refuse(RequestRefusal { error, route, caller })
        };
        if request.head.version != Version::Http2 {
            return refuse(GatewayError::Undescribed(DescriptionError::Missing));
        }
        let (method, form) = (request.head.method.clone(), QuestionForm::Check);
        request.question = Some(AskedBy { method, form });
        let timeout = request.rules().routes[door].settings.timeouts.request;
        request.client.state().set_request_timeout(timeout);
        let message = match grpc::read_message(&*request.client).await {
            Ok(message) => message,
            Err(error) => return refuse(GatewayError::UnreadableCheck(error)),
        };
        let check = match CheckRequest::decode(&message[..]) {
            Ok(check) => check,
            Err(error) => {
                let text = format!("the message is no CheckRequest: {error}");
                let error = GrpcError::new(GrpcStatus::InvalidArgument, text);
                return refuse(GatewayError::UnreadableCheck(error));
            }
        };
        let bounds = request.rules().snapshot.http.head;
        let checked = match CheckedRequest::read(&check, bounds) {
            Ok(checked) => checked,
            Err(error) => return refuse(GatewayError::Undescribed(error)),
        };
        let snapshot = Arc::clone(&request.rules().snapshot);
        let asked = AskedSource::Check(&checked);
        let input = DecisionInput { asked, ..self.decision_input(peer) };
        let mut decision = decide(&snapshot, &input, RequestView::of(&request.head));
        request.head.fields = checked.fields.clone();
        self.apply_decision(peer, request, &mut decision);
        decision.next
    }

    /// The answer for an admitted request. The fields that an upstream would get are in it, for the
    /// asking proxy.
    pub(super) fn admission(request: &RequestContext, route: &WorkerRoute) -> LocalReply {
        let mut fields = Fields::new();
        for name in route.settings.auth.iter().flat_map(|auth| auth.copied_headers()) {
            for value in request.head.fields.get_all(name) {
                fields.push(name.as_str(), value);
            }
        }
        for (name, value) in request.ledger.consumer().into_iter().flat_map(Consumer::fields) {
            fields.push(name, value);
        }
        let form = request.question.as_ref().map(|question| question.form);
        respond::decision_reply(form.unwrap_or_default(), fields)
    }
}

impl RequestContext {
    /// True for a check of Envoy, which is answered by a message.
    pub(super) fn is_check(&self) -> bool {
        self.question.as_ref().is_some_and(|question| question.form == QuestionForm::Check)
    }

    /// Makes the answer to a check of this decision: what Envoy does is in a message, and the call
    /// succeeds.
    pub(super) fn answer_check(
        &mut self,
        status: StatusCode,
        decided: &Fields,
        body: &[u8],
    ) -> LocalReply {
        self.held.trailers = Some(Box::new(grpc::trailers()));
        let auth = self.route().and_then(|route| route.settings.auth.as_ref());
        let copied = auth.into_iter().flat_map(|auth| auth.copied_headers());
        let copied: Vec<&str> = copied.map(http::HeaderName::as_str).collect();
        let decision = CheckDecision { status, fields: decided, body };
        let message = decision.response(&self.head.fields, &copied).encode_to_vec();
        let fields = Fields::from_iter([("content-type", grpc::MEDIA_TYPE)]);
        LocalReply { status: StatusCode::OK, fields, body: frame_message(&message).into() }
    }

    /// True if another proxy asks, also if the question was refused before its route was found.
    pub(super) fn is_question(&self) -> bool {
        if let Some(route) = self.route() {
            return route.settings.decide().is_some();
        }
        let doors = self.rules().snapshot.doors.as_ref().filter(|_| self.from_trusted_proxy);
        doors.is_some_and(|doors| {
            let is_described = !matches!(RequestDescription::find(&self.head.fields), Ok(None));
            is_described || doors.have_prefix_of(self.head.path())
        })
    }

    /// The status to send instead of `status`, which is then in a field of its own: asking proxies
    /// may accept few.
    pub(super) fn status_for_asker(&self, status: StatusCode, fields: &mut Fields) -> StatusCode {
        let rules = self.route().and_then(|route| route.settings.decide());
        let sent = rules.map_or(status, |rules| rules.sent_status(status));
        if sent != status {
            fields.push_number(OWN_STATUS, status.as_u16().into());
        }
        sent
    }
}
