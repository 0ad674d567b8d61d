//! The state of a request until its response ends: [`RequestContext`] if it is valid, else
//! [`MalformedRequest`].

use std::rc::Rc;

use http::Method;
use tidegate_base::priority::Priority;
use tidegate_http1::{FieldSink, Fields, RequestHead};
use tidegate_rules::plan::{AskedRequest, QuestionForm, RoutedRequest};
use tidegate_rules::respond::HeaderReader;
use tidegate_rules::snapshot::{CorsPolicy, RouteTimeouts};
use tidegate_system::client_usage::{ClientHandle, RequestInFlight};
use tidegate_throttle::waiting_room::EnteringUser;
use tidegate_transport::ClientStream;
use tidegate_upstream::AttemptLog;

use super::{
    activity::ActivityGuard,
    concurrency_lease::ConcurrencyPermits,
    ledger::{Ledger, RequestEndFacts},
    request_trace::RequestTracing,
    response_header::ResponseHeader,
    rules::{WorkerRoute, WorkerRules},
    settlement::Settlement,
};

/// A valid request. Dropping it releases what it holds, counts it and logs it, even if the client
/// goes away early.
pub struct RequestContext {
    /// Its head; on a `decide` route, that of the request that is asked about, with the version and
    /// the connection of the question.
    pub(super) head: Box<RequestHead>,
    /// The question of the proxy that asks about it, on a `decide` route.
    pub(super) question: Option<AskedBy>,
    /// The normalized path, if it differs from the path in the head.
    pub(super) path: Option<Box<str>>,
    /// The `id` of the JSON-RPC call in its body, as JSON, once it was read.
    pub(super) call_id: Option<Box<str>>,
    pub(super) client: Rc<dyn ClientStream>,
    /// The process's resources that the client's address uses.
    pub(super) usage: ClientHandle,
    /// The scheme of the connection: `http` or `https`.
    pub(super) connection_scheme: &'static str,
    /// True if the peer is a trusted proxy: its `X-Forwarded-*` are used.
    pub(super) from_trusted_proxy: bool,
    pub(super) held: Held,
    /// The header fields of the response, once there is one.
    pub(super) response: ResponseHeader,
    pub(super) ledger: Ledger,
}

/// The question of a proxy that asks about a request.
pub(super) struct AskedBy {
    /// Its method.
    pub(super) method: Method,
    pub(super) form: QuestionForm,
}

/// What a request holds until its response ends.
#[derive(Default)]
pub(super) struct Held {
    /// Counts the request as in flight for its client's address.
    pub(super) in_flight: Option<RequestInFlight>,
    /// Records the caller as active again for the throttle when the response ends.
    pub(super) activity: Option<ActivityGuard>,
    /// Keeps the place that the caller has taken in the waiting room, until its response begins.
    pub(super) entering: Option<EnteringUser>,
    pub(super) permits: Option<ConcurrencyPermits>,
    /// Settles the costs that are known when the response ends.
    pub(super) settlement: Option<Box<Settlement>>,
    /// The trailers of the gateway's own response: the status of a gRPC call.
    pub(super) trailers: Option<Box<Fields>>,
}

/// Bytes that are not a valid request, or a head that did not arrive in time. Dropping it counts
/// and logs it.
pub struct MalformedRequest {
    pub(super) client: Rc<dyn ClientStream>,
    /// The scheme of the connection: `http` or `https`.
    pub(super) connection_scheme: &'static str,
    /// The header fields of the response.
    pub(super) response: ResponseHeader,
    pub(super) ledger: Ledger,
}

/// The request that a response answers.
pub enum AnsweredRequest {
    /// A valid one.
    Valid(Box<RequestContext>),
    /// One that could not be read.
    Malformed(Box<MalformedRequest>),
}

/// The parts of a request that forwarding reads, and those in which it records its attempts.
pub(super) struct Forwarding<'c> {
    pub(super) routed: RoutedRequest<'c>,
    pub(super) attempts: &'c mut AttemptLog,
    pub(super) tracing: &'c mut RequestTracing,
}

impl RequestContext {
    /// Makes this request the one that it asks about.
    pub(super) fn ask_about(&mut self, asked: AskedRequest) {
        let AskedRequest { described, form } = asked;
        if form == QuestionForm::Check {
            // The method of the question is known already.
            self.head.retarget(described);
            return;
        }
        self.question = Some(AskedBy { method: self.head.retarget(described), form });
    }

    /// The method of the request that the response answers.
    pub(super) fn answered_method(&self) -> &Method {
        self.question.as_ref().map_or(&self.head.method, |question| &question.method)
    }

    pub(super) fn rules(&self) -> &WorkerRules {
        &self.ledger.rules
    }

    /// The route; `None` if none was found.
    pub(super) fn route(&self) -> Option<&Rc<WorkerRoute>> {
        self.ledger.route.as_ref()
    }

    /// The `cors` of the route, if it has one.
    pub(super) fn cors(&self) -> Option<&CorsPolicy> {
        self.route()?.settings.cors.as_ref()
    }

    /// The kind of client that reads the rate-limit headers: any, or a page of another origin.
    pub(super) fn rate_header_reader(&self) -> HeaderReader {
        HeaderReader::of(&self.head.fields, self.cors())
    }

    /// The normalized path.
    pub(super) fn path(&self) -> &str {
        self.path.as_deref().unwrap_or_else(|| self.head.path())
    }

    /// How important the request is on `route`.
    pub(super) fn priority(&self, route: &WorkerRoute) -> Priority {
        let plan = self.ledger.consumer().and_then(|consumer| consumer.plan);
        self.rules().snapshot.priority(&route.settings, plan)
    }

    /// The request on `route`.
    pub(super) fn routed<'r>(&'r self, route: &'r WorkerRoute) -> RoutedRequest<'r> {
        RoutedRequest {
            route: &route.settings,
            head: &self.head,
            path: self.path(),
            client_ip: self.ledger.client_ip,
            request_id: self.ledger.request_id.as_bytes(),
            consumer: self.ledger.consumer.as_ref(),
            connection_scheme: self.connection_scheme,
            from_trusted_proxy: self.from_trusted_proxy,
            slashes: self.ledger.rules.snapshot.http.slashes,
        }
    }

    /// What forwarding on `route` reads and records.
    pub(super) fn forwarding<'r>(&'r mut self, route: &'r WorkerRoute) -> Forwarding<'r> {
        let Self { head, path, ledger, .. } = self;
        let Ledger { rules, request_id, consumer, attempts, tracing, .. } = ledger;
        let routed = RoutedRequest {
            route: &route.settings,
            head,
            path: path.as_deref().unwrap_or_else(|| head.path()),
            client_ip: ledger.client_ip,
            request_id: request_id.as_bytes(),
            consumer: consumer.as_ref(),
            connection_scheme: self.connection_scheme,
            from_trusted_proxy: self.from_trusted_proxy,
            slashes: rules.snapshot.http.slashes,
        };
        Forwarding { routed, attempts, tracing }
    }

    /// True if a rule of the route removes or replaces this field of the upstream's response.
    pub(super) fn drops_response_field(&self, name: &[u8]) -> bool {
        let rules = self.route().and_then(|route| route.settings.edits.response_headers.as_ref());
        rules.is_some_and(|rules| rules.drops(name))
    }

    pub(super) fn facts(&self) -> RequestEndFacts<'_> {
        RequestEndFacts {
            head: Some(&self.head),
            path: path_bytes(self.path.as_deref(), &self.head),
            connection_scheme: self.connection_scheme,
            close_mode: self.client.state().close_mode(),
        }
    }
}

impl MalformedRequest {
    pub(super) fn facts(&self) -> RequestEndFacts<'static> {
        RequestEndFacts {
            head: None,
            path: b"",
            connection_scheme: self.connection_scheme,
            close_mode: self.client.state().close_mode(),
        }
    }
}

impl AnsweredRequest {
    /// What happened to the request.
    pub fn ledger_mut(&mut self) -> &mut Ledger {
        match self {
            Self::Valid(request) => &mut request.ledger,
            Self::Malformed(request) => &mut request.ledger,
        }
    }

    /// The timeouts of its route; none without a route.
    pub fn timeouts(&self) -> RouteTimeouts {
        let route = self.valid().and_then(RequestContext::route);
        route.map(|route| route.settings.timeouts).unwrap_or_default()
    }

    /// The header fields of its response.
    pub(super) fn header(&self) -> &ResponseHeader {
        match self {
            Self::Valid(request) => &request.response,
            Self::Malformed(request) => &request.response,
        }
    }

    pub(super) fn header_mut(&mut self) -> &mut ResponseHeader {
        match self {
            Self::Valid(request) => &mut request.response,
            Self::Malformed(request) => &mut request.response,
        }
    }

    /// The gateway's trailers for a response whose last byte was read: the status of a gRPC call,
    /// or the state of its limits after their costs are settled. `None` if the response has none.
    pub fn settled_trailers(&mut self) -> Option<Fields> {
        let Self::Valid(request) = self else { return None };
        if let Some(own) = request.held.trailers.take() {
            return Some(*own);
        }
        let settlement = request.held.settlement.as_mut()?;
        let all = settlement.trailers(request.ledger.totals())?;
        let mut kept = Fields::new();
        kept.append(&all, |name| !request.drops_response_field(name));
        Some(kept).filter(|kept| !kept.is_empty())
    }

    /// The request, if it is valid.
    pub(super) fn valid(&self) -> Option<&RequestContext> {
        match self {
            Self::Valid(request) => Some(request),
            Self::Malformed(_) => None,
        }
    }

    /// True if the client may send another request on the connection.
    pub fn is_persistent(&self) -> bool {
        self.valid().is_some_and(|request| request.head.is_persistent())
    }
}

/// The normalized path, or else the path in the head.
fn path_bytes<'r>(path: Option<&'r str>, head: &'r RequestHead) -> &'r [u8] {
    path.map_or_else(|| head.path_bytes(), str::as_bytes)
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        if let Some(settlement) = self.held.settlement.take() {
            self.ledger.settle(&settlement);
        }
        let facts = RequestEndFacts {
            head: Some(&self.head),
            path: path_bytes(self.path.as_deref(), &self.head),
            connection_scheme: self.connection_scheme,
            close_mode: self.client.state().close_mode(),
        };
        self.ledger.close(&facts);
    }
}

impl Drop for MalformedRequest {
    fn drop(&mut self) {
        let facts = self.facts();
        self.ledger.close(&facts);
    }
}
