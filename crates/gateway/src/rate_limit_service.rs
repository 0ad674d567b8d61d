//! Calls to the rate limit service: from a request's head to its response.
//!
//! A call takes none of the steps of a request that has a route: it is read, planned by its domain,
//! charged and answered. What happens to it is in the same ledger: access log, metrics and traces
//! show it under the label of its domain.

use std::rc::Rc;

use http::{Method, StatusCode};
use prost::Message;
use smallvec::SmallVec;
use tidegate_access::auth::ConsumerQuery;
use tidegate_envoy::grpc::{
    self, GrpcError, GrpcStatus,
    descriptors::FileTable,
    frame_message,
    health::{self, HealthCheckRequest, HealthCheckResponse, ServingStatus},
    reflection,
};
use tidegate_envoy::rate_limit_service::{
    FILES, MAX_DESCRIPTORS, SHOULD_RATE_LIMIT, blocked_status, header_values, limited_status,
    messages::{DescriptorStatus, RateLimitRequest, RateLimitResponse, ResponseCode},
    metadata, unlimited_status,
};
use tidegate_http1::{Fields, RequestHead, Version};
use tidegate_identity::{Consumer, OwnedConsumer};
use tidegate_rules::plan::Admission;
use tidegate_rules::respond::{self, HeaderReader, LocalReply};
use tidegate_rules::snapshot::{ChargeContext, DescriptorRule, agreed_name};
use tidegate_store::StoreError;
use tidegate_transport::ClientStream;
use tidegate_upstream::{OwnBody, ResponseBody};

use super::{
    Gateway, Peer,
    call_charges::CallCharges,
    charged_limit::ChargedLimits,
    consumer_records::RecordsLookup,
    context::RequestContext,
    draft_response::DraftResponse,
    grpc_streams::{HealthWatch, ReflectionStream, status_now},
    response::Response,
    rules::WorkerRules,
};

/// What reflection reports: the services of this listener, and what they import.
static SERVED: [FileTable; 8] = {
    let [a, b, c, d, e, f, g] = FILES;
    [a, b, c, d, e, f, g, health::FILE]
};

/// The response of a call that has succeeded.
enum CallReply {
    /// One message.
    Message(Vec<u8>),
    /// Several, which are made while they are sent.
    Stream(Box<dyn OwnBody>),
}

/// Why a request is answered without a gRPC status.
enum NotACall {
    /// It is HTTP/1.
    Version,
    /// Its method is not POST.
    Method,
    /// Its content is not gRPC.
    MediaType,
}

impl Gateway {
    /// Answers one call. Every failure becomes a response.
    pub(super) async fn answer_call(
        &self,
        peer: &Peer,
        head: Box<RequestHead>,
        client: Rc<dyn ClientStream>,
    ) -> Response {
        let mut request = self.begin(self.rules(), peer, head, client);
        if let Some(reply) = refuse_other(&request.head) {
            return self.finish(request, &[], DraftResponse::Local(reply));
        }
        let mut limits = ChargedLimits::new();
        let draft = match self.serve_call(&mut request, &mut limits).await {
            Ok(reply) => {
                request.held.trailers = Some(Box::new(grpc::trailers()));
                let fields = Fields::from_iter([("content-type", grpc::MEDIA_TYPE)]);
                match reply {
                    CallReply::Message(message) => {
                        let body = frame_message(&message).into();
                        DraftResponse::Local(LocalReply { status: StatusCode::OK, fields, body })
                    }
                    CallReply::Stream(body) => {
                        DraftResponse::Streamed(fields, ResponseBody::own(body))
                    }
                }
            }
            Err(error) => DraftResponse::GrpcRefusal(respond::grpc_failure(&error)),
        };
        self.finish(request, &limits, draft)
    }

    /// Executes the method that a call names. `limits` receives what it was charged to.
    async fn serve_call(
        &self,
        request: &mut RequestContext,
        limits: &mut ChargedLimits,
    ) -> Result<CallReply, GrpcError> {
        let client = Rc::clone(&request.client);
        match request.head.path() {
            SHOULD_RATE_LIMIT => {
                let call = read::<RateLimitRequest>(&*client).await?;
                let response = self.should_rate_limit(request, &call, limits).await?;
                Ok(CallReply::Message(response.encode_to_vec()))
            }
            health::CHECK => {
                let asked = read::<HealthCheckRequest>(&*client).await?;
                let status = health_of(&asked.service).ok_or_else(|| {
                    GrpcError::new(GrpcStatus::NotFound, format!("no service {}", asked.service))
                })?;
                let response =
                    HealthCheckResponse::new(status_now(&*client, &self.shared.leaving, status));
                Ok(CallReply::Message(response.encode_to_vec()))
            }
            health::WATCH => {
                let asked = read::<HealthCheckRequest>(&*client).await?;
                let status = health_of(&asked.service).unwrap_or(ServingStatus::ServiceUnknown);
                let watch = HealthWatch::new(client, &self.shared.leaving, status);
                Ok(CallReply::Stream(Box::new(watch)))
            }
            path if reflection::PATHS.contains(&path) => {
                Ok(CallReply::Stream(Box::new(ReflectionStream::new(client, &SERVED))))
            }
            path => {
                let text = format!("no method {path}; expected {SHOULD_RATE_LIMIT}");
                Err(GrpcError::new(GrpcStatus::Unimplemented, text))
            }
        }
    }

    async fn should_rate_limit(
        &self,
        request: &mut RequestContext,
        call: &RateLimitRequest,
        limits: &mut ChargedLimits,
    ) -> Result<RateLimitResponse, GrpcError> {
        check_call(call)?;
        let Some(domain) = request.rules().domain(&call.domain) else {
            request.ledger.admission = Admission::Unlimited;
            let statuses = call.descriptors.iter().map(|_| unlimited_status()).collect();
            let overall_code = ResponseCode::Ok.into();
            return Ok(RateLimitResponse {
                overall_code,
                statuses,
                ..RateLimitResponse::default()
            });
        };
        request.ledger.domain = Some(Rc::clone(&domain));
        let names = domain.settings.consumers_of(call);
        let consumers = self.named_consumers(request.rules(), &names).await?;
        // A call about several consumers is logged as one of none.
        let logged = agreed_name(&names).and_then(|_| consumers.first().cloned());
        request.ledger.consumer = logged.flatten();
        let overrides = self.overrides();
        let context = ChargeContext::new(self.shared.store.key_secret(), overrides.as_ref());
        let planned = domain.settings.plan(call, &consumers, context);
        let planned = planned
            .map_err(|error| GrpcError::new(GrpcStatus::InvalidArgument, error.to_string()))?;
        let mut charges = CallCharges::new(&domain, planned);
        let made = self.charger.charge_call(request, &mut charges).await;
        limits.extend(charges.limits().cloned());
        made.map_err(|error| {
            let StoreError::Unavailable { limit: index } = error;
            let closed = charges.limits().find(|own| own.limit().index == index);
            let name = closed.map_or("a limit", |own| own.limit().name());
            let text = format!("the store gave no answer, and `{name}` has `on_failure: closed`");
            GrpcError::new(GrpcStatus::Unavailable, text)
        })?;
        Ok(response(request, call, &charges))
    }

    /// The consumers with these names, each looked up once.
    async fn named_consumers(
        &self,
        rules: &WorkerRules,
        names: &[Option<&str>],
    ) -> Result<SmallVec<[Option<OwnedConsumer>; 4]>, GrpcError> {
        let mut consumers = SmallVec::<[Option<OwnedConsumer>; 4]>::new();
        for (index, name) in names.iter().enumerate() {
            let consumer = match (name, names[..index].iter().position(|earlier| earlier == name)) {
                (_, Some(earlier)) => consumers[earlier].clone(),
                (None, None) => None,
                (Some(name), None) => Some(self.named_consumer(rules, name).await?),
            };
            consumers.push(consumer);
        }
        Ok(consumers)
    }

    /// The consumer called `name`, with the plan and the billing day of its record. One without a
    /// record has neither.
    async fn named_consumer(
        &self,
        rules: &WorkerRules,
        name: &str,
    ) -> Result<OwnedConsumer, GrpcError> {
        let unavailable =
            |_| GrpcError::new(GrpcStatus::Unavailable, "the consumers cannot be read");
        let records = match self
            .authenticator
            .records_of(rules, ConsumerQuery::Name(name))
            .map_err(unavailable)?
        {
            RecordsLookup::Known(records) => records,
            RecordsLookup::Pending(pending) => {
                self.authenticator.wait_for_records(pending).await.map_err(unavailable)?
            }
        };
        let found = records.consumer(rules, name, None);
        Ok(found.unwrap_or_else(|| Consumer::new(name, None).into()))
    }
}

/// Reads the message of a unary call.
async fn read<M: Message + Default>(client: &dyn ClientStream) -> Result<M, GrpcError> {
    let message = grpc::read_message(client).await?;
    M::decode(&message[..]).map_err(|error| {
        let text = format!("the message cannot be read: {error}");
        GrpcError::new(GrpcStatus::InvalidArgument, text)
    })
}

/// The status of a service while the gateway runs; `None` if there is no such service.
fn health_of(service: &str) -> Option<ServingStatus> {
    let is_served = |name: String| name == service;
    let mut names = SERVED.iter().flat_map(reflection::services);
    (service.is_empty() || names.any(is_served)).then_some(ServingStatus::Serving)
}

/// The response to a request that is no gRPC call; `None` for a call.
fn refuse_other(head: &RequestHead) -> Option<LocalReply> {
    let reason = if head.version != Version::Http2 {
        NotACall::Version
    } else if head.method != Method::POST {
        NotACall::Method
    } else if !grpc::is_grpc(&head.fields) {
        NotACall::MediaType
    } else {
        return None;
    };
    let (status, text) = match reason {
        NotACall::Version => (
            StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            "this listener serves gRPC: use HTTP/2, in clear with prior knowledge\n",
        ),
        NotACall::Method => {
            (StatusCode::METHOD_NOT_ALLOWED, "this listener serves gRPC: use POST\n")
        }
        NotACall::MediaType => (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "this listener serves gRPC: use content-type: application/grpc\n",
        ),
    };
    let mut fields = Fields::from_iter([("content-type", "text/plain")]);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        fields.push("allow", "POST");
    }
    Some(LocalReply { status, fields, body: text.into() })
}

/// Checks what no domain needs to know. The first two errors are those of envoyproxy/ratelimit.
fn check_call(call: &RateLimitRequest) -> Result<(), GrpcError> {
    if call.domain.is_empty() {
        return Err(GrpcError::new(GrpcStatus::Unknown, "rate limit domain must not be empty"));
    }
    if call.descriptors.is_empty() {
        let text = "rate limit descriptor list must not be empty";
        return Err(GrpcError::new(GrpcStatus::Unknown, text));
    }
    let count = call.descriptors.len();
    if count > MAX_DESCRIPTORS {
        let text = format!("{count} descriptors; expected at most {MAX_DESCRIPTORS}");
        return Err(GrpcError::new(GrpcStatus::InvalidArgument, text));
    }
    Ok(())
}

/// The response to a call whose charges are decided.
fn response(
    request: &RequestContext,
    call: &RateLimitRequest,
    charges: &CallCharges,
) -> RateLimitResponse {
    let statuses: Vec<DescriptorStatus> = (0..call.descriptors.len())
        .map(|index| match charges.rule(index) {
            Some(DescriptorRule::Blocked(limit)) => blocked_status(limit),
            _ => limited_status(charges.outcomes(index)),
        })
        .collect();
    let is_refused = charges.decide().is_refused();
    let code = if is_refused { ResponseCode::OverLimit } else { ResponseCode::Ok };
    let mut fields = Fields::new();
    let families = request.rules().snapshot.headers;
    respond::write_rate_headers(&mut fields, charges.reports(), families, HeaderReader::Any);
    let refused_by = request.ledger.refused_by.last().filter(|_| is_refused);
    if is_refused
        && charges.blocked_by().is_none()
        && let Some(seconds) = respond::retry_after(charges.reports())
    {
        fields.push_number("retry-after", seconds);
    }
    let reports = |index: &usize| charges.outcomes(*index).any(|outcome| outcome.reports());
    let reported: Vec<usize> = (0..call.descriptors.len()).filter(reports).collect();
    RateLimitResponse {
        overall_code: code.into(),
        statuses,
        response_headers_to_add: header_values(&fields),
        dynamic_metadata: metadata(
            refused_by.map(|limit| limit.name()),
            &reported,
            charges.permits(),
        ),
    }
}
