//! One request on its way through the gateway: what was found out about it, and what is written down
//! of it when it is over, however it ends.

use std::{
    cell::Cell,
    net::IpAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use http::StatusCode;
use smallvec::SmallVec;

use super::{
    Peer,
    activity::ActivityGuard,
    charged_limit::ChargedLimit,
    leases::ConcurrencyPermit,
    request_id::{RequestId, RequestIds},
    rules::Rules,
};
use crate::{
    clock,
    framing::{ClientStream, RequestHead, state::Ending},
    identity::{Caller, Secret, token_hash},
    limit::Admission,
    metrics::RouteCounters,
    plan,
    respond::LimitReport,
    telemetry::{AccessLine, AccessWriter, Cut},
    upstream::Attempts,
};

/// The status that stands in logs where the client was gone before an answer.
const CLIENT_GONE: u16 = 499;

/// What a request's access line is written with.
pub(super) struct LineWriter {
    pub(super) writer: Rc<AccessWriter>,
    /// The secret of the hash that stands for a token.
    pub(super) secret: Secret,
}

/// One request on its way through the gateway. It is closed, counted and logged when it is dropped.
pub struct RequestContext {
    pub(super) rules: Rc<Rules>,
    /// None where the request could not be read.
    pub(super) head: Option<Box<RequestHead>>,
    pub(super) client: Rc<dyn ClientStream>,
    pub(super) route: Option<usize>,
    /// The client's address, behind trusted proxies.
    pub(super) address: IpAddr,
    /// The path in normal form, where that is not how it came.
    pub(super) path: Option<Box<str>>,
    /// The limits that it is charged by.
    pub(super) limits: SmallVec<[ChargedLimit; 2]>,
    /// Who asks, where the throttle wants to know.
    pub(super) caller: Option<Caller>,
    pub(super) request_id: RequestId,
    /// Whether the peer's own word about the client is believed.
    pub(super) trusted: bool,
    pub(super) counters: Arc<CachePadded<RouteCounters>>,
    /// The answer's status, once there is one.
    status: Option<u16>,
    /// How it fared with its limits.
    pub(super) admission: Admission,
    /// How long it was held back.
    pub(super) delay: Cell<Duration>,
    pub(super) attempts: Attempts,
    /// From the request handed to the upstream to the answer's head.
    pub(super) upstream_time: Option<Duration>,
    /// Keeps the caller known to the throttle; held for its drop.
    pub(super) activity: Option<ActivityGuard>,
    /// Slots that it holds while it is in flight; held for their drop.
    pub(super) permit: Option<ConcurrencyPermit>,
    pub(super) line: Option<LineWriter>,
    /// When it began, in ms since the epoch.
    pub(super) time: u64,
    started: Instant,
    bytes: u64,
    complete: bool,
    cut: Option<Cut>,
}

impl RequestContext {
    pub(super) fn new(
        rules: Rc<Rules>,
        peer: &Peer,
        head: Option<Box<RequestHead>>,
        client: Rc<dyn ClientStream>,
        counters: Arc<CachePadded<RouteCounters>>,
        ids: &RequestIds,
    ) -> Self {
        let trusted = rules.snapshot.identity.trusted_proxies.contains(peer.address);
        let given = head.as_ref().filter(|_| trusted).and_then(|head| RequestId::given(head));
        Self {
            rules,
            client,
            route: None,
            address: peer.address,
            path: None,
            limits: SmallVec::new(),
            caller: None,
            request_id: given.unwrap_or_else(|| ids.next()),
            trusted,
            counters,
            status: None,
            admission: Admission::Unasked,
            delay: Cell::default(),
            attempts: Attempts::default(),
            upstream_time: None,
            activity: None,
            permit: None,
            line: None,
            time: 0,
            started: clock::instant(),
            bytes: 0,
            complete: false,
            cut: None,
            head,
        }
    }

    /// The request's head; none where it could not be read.
    pub fn head(&self) -> Option<&RequestHead> {
        self.head.as_deref()
    }

    /// Whether the client may send another request behind this one.
    pub fn is_persistent(&self) -> bool {
        self.head().is_some_and(RequestHead::is_persistent)
    }

    /// What an answer tells of the limits.
    pub(super) fn reports(&self) -> impl Iterator<Item = LimitReport<'_>> + Clone {
        self.limits.iter().map(ChargedLimit::report)
    }

    /// The path in normal form.
    pub(super) fn path(&self) -> &str {
        match (&self.path, &self.head) {
            (Some(path), _) => path,
            (None, Some(head)) => head.path(),
            (None, None) => "",
        }
    }

    /// Notes that there is an answer, and counts it: before the client can have read it.
    pub(super) fn answered(&mut self, status: StatusCode) {
        self.status = Some(status.as_u16());
        self.count(status.as_u16());
    }

    fn count(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.counters.answers[class].add(1);
    }

    /// Notes so many more bytes of the answer's body.
    pub fn sent(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Notes that the answer was written to its end.
    pub fn complete(&mut self) {
        self.complete = true;
    }

    /// Notes why the answer was not.
    pub fn cut(&mut self, cut: Cut) {
        self.cut = Some(cut);
    }

    /// Notes that the upstream broke its answer off.
    #[cold]
    pub fn break_off(&mut self, error: &std::io::Error) {
        self.cut = Some(Cut::UpstreamBroken);
        if let Some(route) = self.route {
            if let Some(counters) = &self.rules.routes[route].upstream {
                counters.broken.add(1);
            }
            let server = self.attempts.server.as_ref().map_or("", |server| server.authority());
            tracing::debug!(server, %error, "the upstream broke its answer off");
        }
    }

    fn write_line(&self, line: &LineWriter, took: Duration) {
        let route = self.route.map(|route| &*self.rules.snapshot.routes[route].name);
        let sources = &self.rules.snapshot.identity.token;
        let head = self.head.as_ref();
        let host = head.map(|head| plan::host(&head.fields)).unwrap_or_default();
        let gone = if self.client.state().ending() == Ending::Now {
            Cut::DrainTimeout
        } else {
            Cut::ClientClosed
        };
        line.writer.write(&AccessLine {
            time: self.time,
            client: self.address,
            token: head.and_then(|head| token_hash(sources, &head.fields, line.secret)),
            method: head.map_or("", |head| head.method.as_str()).as_bytes(),
            host: host.as_bytes(),
            path: self.path().as_bytes(),
            route: route.unwrap_or_default(),
            status: self.status.unwrap_or(CLIENT_GONE),
            bytes: self.bytes,
            took,
            delay: self.delay.get(),
            limit: self.admission.label(),
            upstream: self.attempts.server.as_ref().map_or("", |server| server.authority()),
            upstream_time: self.upstream_time,
            attempts: self.attempts.count,
            cut: if self.complete { None } else { Some(self.cut.unwrap_or(gone)) },
            complete: self.complete,
            request_id: self.request_id.as_bytes(),
        });
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        let took = clock::instant().saturating_duration_since(self.started);
        if self.status.is_none() {
            self.count(CLIENT_GONE);
        }
        self.counters.latency.observe(took);
        if let Some(line) = &self.line {
            self.write_line(line, took);
        }
    }
}
