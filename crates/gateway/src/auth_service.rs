//! Asks the service of a `forward` method who sends a request.

use std::{
    borrow::Cow,
    cell::RefCell,
    sync::{Arc, OnceLock, Weak},
};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use reqwest::{Client, Response};
use tidegate_access::auth::{ForwardAuth, ProofCache, ProofDigest, prefixed_name};
use tidegate_http1::Fields;
use tidegate_rules::error::ServiceReply;
use tidegate_rules::plan::RoutedRequest;
use tidegate_system::client_usage::HeldReply;
use tidegate_system::clock::{Clock, CoarseTime};
use tidegate_tls::http_client::{causes, client_builder};
use tidegate_upstream::binds_connection;
use tidegate_upstream::warnings::Warnings;

/// Maximum length of an answer's body, in bytes.
const MAX_BODY: usize = 1 << 20;

/// Headers of an answer that belong to its connection, or that every response of the gateway gets.
const OWN_HEADERS: [HeaderName; 10] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("x-request-id"),
];

/// What a service admitted: the values that it adds to the request, and the names in its answer.
#[derive(Debug)]
pub(super) struct ServiceAdmission {
    /// The copied headers.
    pub(super) copied: Fields,
    pub(super) consumer: Option<Box<str>>,
    pub(super) plan: Option<Box<str>>,
}

/// The answer of a service.
#[derive(Debug)]
pub(super) enum ServiceAnswer {
    /// It admits the request.
    Admitted(Arc<ServiceAdmission>),
    /// It does not: the client gets this.
    Refused(ServiceReply),
}

/// Why a service gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServiceError {
    #[error("no answer in time")]
    Timeout,
    #[error("{0}")]
    Failed(String),
    #[error("an answer with a status of {}", .0.status)]
    ServerError(ServiceReply),
}

/// The admissions that are remembered, of all services.
#[derive(Default)]
pub struct KnownAdmissions(OnceLock<ProofCache<Arc<ServiceAdmission>>>);

impl KnownAdmissions {
    fn cache(&self) -> &ProofCache<Arc<ServiceAdmission>> {
        self.0.get_or_init(ProofCache::new)
    }

    /// The digest of what `service` knows of a request; `None` if its answers are not remembered,
    /// or if the request has no credentials that it reads: it decided by something else then, such
    /// as the address.
    pub(super) fn digest(&self, service: &ForwardAuth, headers: &Fields) -> Option<ProofDigest> {
        if service.cache_time.is_zero() || !service.has_credentials(headers) {
            return None;
        }
        let sent: Vec<_> = sent_values(service, headers).map(|(_, value)| value).collect();
        // A missing header is one part, another one two: no two requests with other headers are
        // alike.
        let values = sent.iter().flat_map(|value| match value {
            None => [Some(&b"-"[..]), None],
            Some(value) => [Some(&b"+"[..]), Some(&**value)],
        });
        let own = [service.url.as_bytes(), service.prefix.as_bytes()];
        let parts = own.into_iter().chain(values.flatten());
        Some(self.cache().digest(parts))
    }

    /// The admission under `digest`, if it is remembered.
    pub(super) fn recall(
        &self,
        digest: ProofDigest,
        clock: &Clock,
    ) -> Option<Arc<ServiceAdmission>> {
        self.cache().get(digest, clock.monotonic())
    }

    /// Remembers an admission by `service`.
    pub(super) fn remember(
        &self,
        digest: ProofDigest,
        service: &ForwardAuth,
        admission: &Arc<ServiceAdmission>,
        clock: &Clock,
    ) {
        let until = clock.monotonic() + service.cache_time;
        self.cache().insert(digest, until, Arc::clone(admission));
    }
}

/// Whether the connection of a question may serve further ones.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionSharing {
    Shared,
    /// A login of the question belongs to its connection.
    Private,
}

impl ConnectionSharing {
    /// What a question about a request with these `fields` allows.
    pub(super) fn of(fields: &Fields) -> Self {
        if binds_connection(fields) { Self::Private } else { Self::Shared }
    }
}

impl ServiceClient {
    fn of(&self, sharing: ConnectionSharing) -> Client {
        match sharing {
            ConnectionSharing::Shared => self.client.clone(),
            ConnectionSharing::Private => self.private.clone(),
        }
    }

    fn is_of(&self, service: &Arc<ForwardAuth>) -> bool {
        Weak::as_ptr(&self.service) == Arc::as_ptr(service)
    }
}

/// A worker's connections to the services.
#[derive(Default)]
pub(super) struct AuthServices {
    /// A client for each service.
    clients: RefCell<Vec<ServiceClient>>,
}

/// A worker's connections to one service.
struct ServiceClient {
    service: Weak<ForwardAuth>,
    client: Client,
    /// Keeps no connection, for logins that belong to one.
    private: Client,
    warnings: Warnings,
}

impl AuthServices {
    /// Asks `service` about a request with these `headers`. The body of a refusal is kept in
    /// `body`.
    pub(super) async fn ask(
        &self,
        service: &Arc<ForwardAuth>,
        headers: HeaderMap,
        sharing: ConnectionSharing,
        body: HeldReply,
        clock: &Clock,
    ) -> Result<ServiceAnswer, ServiceError> {
        let failed = |error: reqwest::Error| ServiceError::Failed(causes(&error));
        let client = self.client(service, sharing).map_err(failed)?;
        let exchange = async {
            let question = client.get(&*service.url).headers(headers);
            let again = question.try_clone();
            let response = match (question.send().await, again) {
                // The service may have closed an idle connection just now. The question is a GET:
                // it may be repeated.
                (Err(error), Some(again)) if !(error.is_connect() || error.is_builder()) => {
                    again.send().await
                }
                (response, _) => response,
            };
            let response = response.map_err(failed)?;
            if response.status().is_informational() {
                return Err(ServiceError::Failed("it switches protocols".to_owned()));
            }
            if response.status().as_u16() > 599 {
                let status = response.status().as_u16();
                return Err(ServiceError::Failed(format!("its status is {status}")));
            }
            let is_admitted = response.status().is_success();
            let admission = is_admitted.then(|| ServiceAdmission::read(service, &response));
            // Its body is read in any case: a broken answer is none.
            let kept = (!is_admitted).then_some(body);
            let reply = reply(response, kept).await?;
            if let Some(admission) = admission {
                return Ok(ServiceAnswer::Admitted(Arc::new(admission?)));
            }
            if reply.status.is_server_error() {
                return Err(ServiceError::ServerError(reply));
            }
            Ok(ServiceAnswer::Refused(reply))
        };
        clock.timeout(service.timeout, exchange).await.unwrap_or(Err(ServiceError::Timeout))
    }

    /// The client for a service. Those of services that are no longer configured are dropped.
    fn client(
        &self,
        service: &Arc<ForwardAuth>,
        sharing: ConnectionSharing,
    ) -> reqwest::Result<Client> {
        let mut clients = self.clients.borrow_mut();
        if let Some(found) = clients.iter().find(|known| known.is_of(service)) {
            return Ok(found.of(sharing));
        }
        clients.retain(|known| known.service.strong_count() > 0);
        let made = ServiceClient {
            service: Arc::downgrade(service),
            client: client_builder(&service.tls).build()?,
            private: client_builder(&service.tls).pool_max_idle_per_host(0).build()?,
            warnings: Warnings::default(),
        };
        let client = made.of(sharing);
        clients.push(made);
        Ok(client)
    }

    /// See [`Warnings::due`].
    pub(super) fn warning_due(
        &self,
        service: &Arc<ForwardAuth>,
        error: &ServiceError,
        now: CoarseTime,
    ) -> Option<u64> {
        let reason = match error {
            ServiceError::Timeout => "timeout",
            ServiceError::Failed(_) => "failed",
            ServiceError::ServerError(_) => "status",
        };
        let clients = self.clients.borrow();
        clients.iter().find(|known| known.is_of(service))?.warnings.due(reason, now)
    }
}

/// The headers that `service` reads, each with its value in a request if it has one. Several fields
/// `Cookie` are one value, and so are several of a list that proves nothing; another header has one
/// field, or the request was refused.
fn sent_values<'r>(
    service: &'r ForwardAuth,
    headers: &'r Fields,
) -> impl Iterator<Item = (&'r HeaderName, Option<Cow<'r, [u8]>>)> {
    service.request_headers.iter().map(|name| {
        let mut fields = headers.get_all(name);
        let first = fields.next().map(Cow::Borrowed);
        let separator = if name == header::COOKIE { b"; " } else { b", " };
        let value = fields.fold(first, |before, field| {
            before.map(|before| [&*before, field].join(&separator[..]).into())
        });
        (name, value)
    })
}

/// The headers of the question about a request.
pub(super) fn question(service: &ForwardAuth, request: &RoutedRequest<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in sent_values(service, &request.head.fields) {
        let value = value.and_then(|value| HeaderValue::from_bytes(&value).ok());
        if let Some(mut value) = value {
            value.set_sensitive(true);
            headers.append(name, value);
        }
    }
    let client = request.client_ip.to_string();
    // In normal form, as routes and the upstream read it: a service that decides by the path must
    // not read another one.
    let path = request.path;
    let target = request.head.query().map(|query| format!("{path}?{query}"));
    let target = target.as_deref().unwrap_or(path);
    let sent = [
        ("x-forwarded-method", request.head.method.as_str().as_bytes()),
        ("x-forwarded-proto", request.scheme().as_bytes()),
        ("x-forwarded-host", request.head.fields.host().unwrap_or_default()),
        ("x-forwarded-uri", target.as_bytes()),
        ("x-forwarded-for", client.as_bytes()),
    ];
    for (name, value) in sent {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers
}

impl ServiceAdmission {
    fn read(service: &ForwardAuth, response: &Response) -> Result<Self, ServiceError> {
        let answer = response.headers();
        let mut copied = Fields::new();
        for name in &service.copied_headers {
            for value in answer.get_all(name) {
                copied.push(name.as_str(), value.as_bytes());
            }
        }
        let text = |name: &Option<HeaderName>| {
            let Some(name) = name else { return Ok(None) };
            let mut values = answer.get_all(name).iter();
            let value = values.next().map(|value| std::str::from_utf8(value.as_bytes()));
            let value = value.transpose().map_err(|_| not_usable(name))?;
            if values.next().is_some() {
                return Err(not_usable(name));
            }
            Ok(value.map(str::trim).filter(|value| !value.is_empty()))
        };
        let consumer = text(&service.consumer)?;
        let consumer = consumer.map(|name| prefixed_name(&service.prefix, name).into());
        Ok(Self { copied, consumer, plan: text(&service.plan)?.map(Into::into) })
    }
}

fn not_usable(name: &HeaderName) -> ServiceError {
    ServiceError::Failed(format!("its answer has no single text in `{name}`"))
}

fn too_long() -> ServiceError {
    ServiceError::Failed(format!("its answer is longer than {MAX_BODY} bytes"))
}

/// An answer for the client. Its body is kept in `kept`; without that, it is only read to its end.
async fn reply(
    mut response: Response,
    mut kept: Option<HeldReply>,
) -> Result<ServiceReply, ServiceError> {
    let failed = |error: reqwest::Error| ServiceError::Failed(causes(&error));
    let status = StatusCode::from_u16(response.status().as_u16()).unwrap_or(StatusCode::FORBIDDEN);
    let mut fields = Fields::new();
    let listed = response.headers().get_all(header::CONNECTION).iter();
    let listed: Vec<&[u8]> = listed
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let is_listed = |name: &HeaderName| {
        listed.iter().any(|own| own.eq_ignore_ascii_case(name.as_str().as_bytes()))
    };
    for (name, value) in response.headers() {
        if !OWN_HEADERS.contains(name) && !is_listed(name) {
            fields.push(name.as_str(), value.as_bytes());
        }
    }
    // Counted before it is read: of many answers at once, each one that does not fit would need the
    // buffers of its connection.
    let announced =
        response.content_length().map_or(0, |length| usize::try_from(length).unwrap_or(usize::MAX));
    if announced > MAX_BODY {
        return Err(too_long());
    }
    if kept.as_mut().is_some_and(|body| !body.reserve(announced)) {
        return Ok(ServiceReply { status, fields, body: None, counted_by: None });
    }
    let mut length = 0;
    while let Some(chunk) = response.chunk().await.map_err(failed)? {
        length += chunk.len();
        if length > MAX_BODY {
            return Err(too_long());
        }
        if kept.as_mut().is_some_and(|body| !body.append(&chunk)) {
            // Dropping the rest frees the buffers of its connection.
            break;
        }
    }
    let body = kept.and_then(HeldReply::into_body);
    Ok(ServiceReply { status, fields, body, counted_by: None })
}
