//! Decides requests that another proxy asks about, on `decide` routes.
//!
//! The *question* is the proxy's own request, whose host and path find the route. Everything else
//! is that of the *asked* request: the conditions of the route, who sends it, and the keys of its
//! limits. Only trusted proxies may ask, because a question says who its client is.

use std::{borrow::Cow, cell::OnceCell};

use http::Method;
use tidegate_envoy::ext_authz::{CHECK, CheckedRequest};
use tidegate_envoy::grpc;
use tidegate_http1::{
    BodyLength, DescribedRequest, DescriptionError, Fields, RareFields, RequestDescription,
};
use tidegate_route::{ConditionResult, ConditionalRoute, Params};

use super::{
    DecisionInput, MatchedRoute, NextStep, PendingDecision, RefusedRoute, RequestAttributes,
    RequestDecision, RequestRefusal, RequestSource, RequestView, check_access, normal_host,
};
use crate::error::GatewayError;
use crate::snapshot::{DecideRules, Doors, Snapshot};

/// Where the request is that a proxy asks about.
#[derive(Clone, Copy, Debug)]
pub enum AskedSource<'a> {
    /// The fields or the path of the question describe it, or its body, which is then read first:
    /// [`NextStep::ReadCheck`].
    Question,
    /// The body of the question, which was read.
    Check(&'a CheckedRequest),
    /// The request itself was asked about, on the `decide` route with this index: a line of a log.
    Logged(usize),
}

/// A request that a proxy asks about.
#[derive(Debug)]
pub struct AskedRequest {
    /// The request.
    pub described: DescribedRequest,
    /// How the proxy has asked.
    pub form: QuestionForm,
}

/// How a question describes the asked request.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum QuestionForm {
    /// In header fields.
    #[default]
    Fields,
    /// By its own path, as Envoy does, which takes no other status than 200 for an admission.
    Path,
    /// In a gRPC message, which is answered by another one.
    Check,
}

/// The name of a question's path, for errors.
const PATH: &str = "the path";

/// Decides the request that `question` asks about; `None` if its path is served by another route
/// than those with `decide`. `sent` is the path of the question as it was sent.
#[inline(never)]
pub(super) fn decide_asked(
    snapshot: &Snapshot,
    doors: &Doors,
    input: &DecisionInput<'_>,
    question: &RequestAttributes<'_>,
    sent: &str,
) -> Option<RequestDecision> {
    if let AskedSource::Logged(index) = input.asked {
        return Some(decide_on(snapshot, input, question, index));
    }
    if input.certificate.is_some_and(|name| !name.serves(&question.host)) {
        return None;
    }
    let left = doors.left_prefix(sent, &question.path).filter(|_| question.is_from_trusted_proxy);
    if let Some(prefix) = left {
        let outside = DescriptionError::Outside(prefix.into());
        let error = GatewayError::Undescribed(outside);
        return Some(refused(question, refuse_unrouted(snapshot, &question.host, sent, error)));
    }
    let question = Question { snapshot, input, attributes: question };
    let door = question.find_door(doors)?;
    Some(match question.find_asked() {
        Ok(AskedIn::Head(AskedOn { index, asked, fields })) => {
            let decision = decide_described(&question, &asked.described, fields, index);
            RequestDecision { asked: Some(Box::new(asked)), ..decision }
        }
        Ok(AskedIn::Body) => decided(question.attributes, NextStep::ReadCheck(door)),
        Err(mut refusal) => {
            refusal.route = RefusedRoute::Matched(door);
            refused(question.attributes, refusal)
        }
    })
}

/// The refusal of a request whose route was not looked for: if the host and the path, as they were
/// sent, lead to a `decide` route, on that one, which knows the statuses that the asking proxy
/// accepts.
pub(super) fn refuse_unrouted(
    snapshot: &Snapshot,
    host: &str,
    sent: &str,
    error: GatewayError,
) -> RequestRefusal {
    let doors = snapshot.doors.as_ref();
    let found = doors.and_then(|doors| {
        doors.find(host, sent, &Method::GET, |_: &ConditionalRoute| ConditionResult::Met)
    });
    let door = found.filter(|index| snapshot.routes[*index].decide().is_some());
    let route = door.map_or(RefusedRoute::None, RefusedRoute::Matched);
    RequestRefusal { error, route, caller: None }
}

/// The request that a question asks about, and the route that decides it.
struct AskedOn<'q> {
    index: usize,
    asked: AskedRequest,
    /// The fields of the asked request.
    fields: &'q Fields,
}

/// Where a question has the asked request.
enum AskedIn<'q> {
    Head(AskedOn<'q>),
    /// In a message that is still to be read.
    Body,
}

/// A request that may be a proxy's question.
struct Question<'q, 'r> {
    snapshot: &'q Snapshot,
    input: &'q DecisionInput<'q>,
    attributes: &'q RequestAttributes<'r>,
}

impl<'q> Question<'q, '_> {
    /// The index of a `decide` route for its host and path; the conditions of the route may demand
    /// another one. `None` if another route serves it.
    fn find_door(&self, doors: &Doors) -> Option<usize> {
        let RequestSource::Request { caller, .. } = self.input.source else { return None };
        let (attributes, query) = (self.attributes, OnceCell::new());
        let decide =
            |route: &ConditionalRoute| match attributes.meets(self.snapshot, route, caller, &query)
            {
                Ok(true) => ConditionResult::Met,
                Ok(false) => ConditionResult::Unmet,
                Err(_) => ConditionResult::Unknown,
            };
        let index =
            doors.find(&attributes.host, attributes.routed_path(), attributes.method, decide)?;
        self.is_door(index).then_some(index)
    }

    fn is_door(&self, index: usize) -> bool {
        self.snapshot.routes[index].decide().is_some()
    }

    /// Finds the request that is asked about, and the route for it.
    fn find_asked(&self) -> Result<AskedIn<'q>, RequestRefusal> {
        let Self { snapshot, input, attributes } = *self;
        if !attributes.is_from_trusted_proxy {
            return Err(GatewayError::UntrustedAsker.into());
        }
        if let AskedSource::Check(CheckedRequest { described, fields }) = input.asked {
            let index = self.find_route(Some(described), fields)?;
            let asked = AskedRequest { described: described.clone(), form: QuestionForm::Check };
            return Ok(AskedIn::Head(AskedOn { index, asked, fields }));
        }
        let is_check = attributes.path == CHECK
            && *attributes.method == Method::POST
            && grpc::is_grpc(attributes.headers);
        if is_check {
            return Ok(AskedIn::Body);
        }
        let family = RequestDescription::find(attributes.headers).map_err(undescribed)?;
        let described = family.map(|family| family.read(attributes.headers)).transpose();
        let described = described.map_err(undescribed)?;
        let index = self.find_route(described.as_ref(), attributes.headers)?;
        let rules = snapshot.routes[index].decide();
        let below = rules.and_then(|rules| self.described_by_path(rules)).transpose();
        let below = below.map_err(undescribed)?;
        let (described, form) = match (described, below) {
            (Some(described), None) => (described, QuestionForm::Fields),
            (None, Some(described)) => (described, QuestionForm::Path),
            (None, None) => return Err(undescribed(DescriptionError::Missing)),
            (Some(_), Some(_)) => {
                let name = family.map_or("", |family| family.name());
                return Err(undescribed(DescriptionError::Several(name, PATH)));
            }
        };
        let (asked, fields) = (AskedRequest { described, form }, attributes.headers);
        Ok(AskedIn::Head(AskedOn { index, asked, fields }))
    }

    /// The index of the `decide` route whose conditions the described request meets, or that of the
    /// question if its path describes it.
    fn find_route(
        &self,
        described: Option<&DescribedRequest>,
        headers: &Fields,
    ) -> Result<usize, RequestRefusal> {
        let Self { snapshot, input, attributes } = *self;
        let found = match described {
            None => attributes.find_route(snapshot, &input.source)?.index,
            Some(described) => {
                let (method, query) = (described.method(), described.query());
                let asked = RequestAttributes { method, query, headers, ..attributes.clone() };
                asked.find_route(snapshot, &input.source)?.index
            }
        };
        if self.is_door(found) { Ok(found) } else { Err(GatewayError::NoRoute.into()) }
    }

    /// The request that the path of the question names, with its method, query and host.
    fn described_by_path(
        &self,
        rules: &DecideRules,
    ) -> Option<Result<DescribedRequest, DescriptionError>> {
        let RequestAttributes { method, query, headers, path, .. } = self.attributes;
        let path = rules.asked_path(path)?;
        let target = query.map(|query| format!("{path}?{query}"));
        let target = target.as_deref().unwrap_or(path);
        let host = headers.get("host").unwrap_or_default();
        let described = DescribedRequest::new(method.as_str().as_bytes(), target.as_bytes(), host);
        Some(described.map_err(|error| DescriptionError::Malformed(PATH, error)))
    }
}

fn undescribed(error: DescriptionError) -> RequestRefusal {
    GatewayError::Undescribed(error).into()
}

/// Decides the described request on the route with this index.
fn decide_described(
    question: &Question<'_, '_>,
    described: &DescribedRequest,
    fields: &Fields,
    index: usize,
) -> RequestDecision {
    let Question { snapshot, input, attributes } = *question;
    let view = RequestView {
        method: described.method(),
        host: normal_host(described.host()),
        path: described.path(),
        query: described.query(),
        headers: fields,
        rare: RareFields::default(),
        is_asterisk_form: false,
        length: BodyLength::Known(0),
    };
    let checked = view.check_method_and_expect();
    match checked.and_then(|()| RequestAttributes::read(snapshot, &input.source, view)) {
        Ok(asked) => decide_on(snapshot, input, &asked, index),
        Err(error) => {
            let refusal = RequestRefusal::at(RefusedRoute::Matched(index))(error);
            RequestDecision { path: None, ..refused(attributes, refusal) }
        }
    }
}

/// Decides an asked request on the `decide` route with this index.
fn decide_on(
    snapshot: &Snapshot,
    input: &DecisionInput<'_>,
    asked: &RequestAttributes<'_>,
    index: usize,
) -> RequestDecision {
    let next = plan_on(snapshot, input, asked, index).unwrap_or_else(NextStep::Refuse);
    decided(asked, next)
}

fn plan_on(
    snapshot: &Snapshot,
    input: &DecisionInput<'_>,
    asked: &RequestAttributes<'_>,
    index: usize,
) -> Result<NextStep, RequestRefusal> {
    let (route, refused) = (&*snapshot.routes[index], RefusedRoute::Matched(index));
    check_access(route, asked.client).map_err(RequestRefusal::at(refused))?;
    let (params, ipv6_prefix) = (Params::default(), snapshot.identity.ipv6_prefix);
    let matched = MatchedRoute { index, route, request: asked, params, ipv6_prefix };
    // The body, if there is one, is not that of the asked request.
    PendingDecision::read(&matched, input, BodyLength::Known(0)).map(NextStep::Proceed)
}

fn refused(request: &RequestAttributes<'_>, refusal: RequestRefusal) -> RequestDecision {
    decided(request, NextStep::Refuse(refusal))
}

/// The decision on the request with these attributes.
fn decided(request: &RequestAttributes<'_>, next: NextStep) -> RequestDecision {
    RequestDecision {
        client: Some(request.client),
        path: request.owned_path(),
        token_hash: request.token_hash.get(),
        next,
        asked: None,
    }
}

impl RequestAttributes<'_> {
    /// The path, if it differs from the path that was sent.
    fn owned_path(&self) -> Option<Box<str>> {
        match &self.path {
            Cow::Borrowed(_) => None,
            Cow::Owned(path) => Some(path.as_str().into()),
        }
    }
}
