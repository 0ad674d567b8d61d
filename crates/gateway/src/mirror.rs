//! Copies of requests for another upstream, whose responses are discarded.
//!
//! A copy never delays its original: the body is copied while it is forwarded, the copy is sent by
//! a task of its own once the body is complete, and nothing waits for that task, not even the
//! worker's end. The copies of each worker are bounded: at most [`MAX_IN_FLIGHT`] are sent at a
//! time, each with at most [`MAX_BODY`] bytes and for at most [`TIMEOUT`]; copies whose bodies are
//! incomplete hold at most [`MAX_INCOMPLETE`] bytes in total. One client address may hold at most
//! an eighth of that total, so its slow uploads do not keep out the copies of other clients.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    net::IpAddr,
    pin::pin,
    rc::{Rc, Weak},
    sync::Arc,
    task::{Context, Poll, ready},
};

use ahash::RandomState;
use crossbeam_utils::CachePadded;
use tidegate_balance::TargetKey;
use tidegate_base::mix::SplitMix;
use tidegate_base::time::Millis;
use tidegate_envoy::grpc;
use tidegate_http1::{BodyEncoder, BodyLength, Fields};
use tidegate_rules::error::GatewayError;
use tidegate_rules::snapshot::Mirror;
use tidegate_system::client_usage::ClientHandle;
use tidegate_system::clock::CoarseClock;
use tidegate_transport::connection_state::{ClientTimeouts, StateCell};
use tidegate_transport::{BodyError, ClientStream, ClientStreamLayer};
use tidegate_upstream::{
    AttemptLog, ForwardInput, LoadBalancer, OutgoingRequest, OwnedHead, ProxiedClient,
    ResponseBody, UpstreamContent, UpstreamKind,
};

use super::{Gateway, Peer, checks::AdmittedRequest, context::RequestContext, rules::WorkerRoute};
use crate::metrics::{MirrorOutcome, RouteCounters};

/// Maximum number of copies that a worker sends at a time.
const MAX_IN_FLIGHT: usize = 64;
/// Longest body that is copied, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// Maximum number of bytes of a worker's incomplete copies.
const MAX_INCOMPLETE: usize = MAX_IN_FLIGHT * MAX_BODY;
/// Maximum number of these bytes for one client address, over all workers.
const MAX_INCOMPLETE_OF_CLIENT: u64 = MAX_INCOMPLETE as u64 / 8;
/// Approximate size of an incomplete copy without its body and the client's header fields, in
/// bytes.
const COPY_OVERHEAD: usize = 1024;
/// Number of bytes of a response beyond which its connection is closed.
const MAX_RESPONSE: usize = 1024 * 1024;
/// Maximum time for a copy, from the end of its body to the end of its response.
const TIMEOUT: Millis = Millis::from_secs(30);
/// A copy has no client, so no client timeouts apply.
const NO_CLIENT: ClientTimeouts = ClientTimeouts { head: None, idle: None, body: None };

/// The copies of one worker: the ones in flight, and the bytes of incomplete ones.
pub(super) struct Mirrors {
    /// The copies that are being sent.
    copies: RefCell<Vec<Weak<CopiedBody>>>,
    /// Bytes of copies whose bodies are not complete.
    incomplete: Cell<usize>,
    coarse_clock: CoarseClock,
    random: Cell<SplitMix>,
}

impl Mirrors {
    pub(super) fn new(coarse_clock: CoarseClock) -> Self {
        let random = Cell::new(SplitMix::new(RandomState::new().hash_one(0)));
        Self { copies: RefCell::default(), incomplete: Cell::new(0), coarse_clock, random }
    }

    /// Expires the deadlines that have passed.
    pub(super) fn sweep(&self) {
        let now = self.coarse_clock.now();
        let is_in_flight = |copy: &Weak<CopiedBody>| {
            let Some(copy) = copy.upgrade() else { return false };
            copy.state.sweep(now, &NO_CLIENT);
            true
        };
        self.copies.borrow_mut().retain(is_in_flight);
    }

    /// True if no further copy can be sent now.
    fn is_full(&self) -> bool {
        let mut copies = self.copies.borrow_mut();
        if copies.len() >= MAX_IN_FLIGHT {
            copies.retain(|copy| copy.strong_count() > 0);
        }
        copies.len() >= MAX_IN_FLIGHT
    }

    /// Sends a copy whose body is complete, if there is room.
    fn send(&self, mut copy: RequestCopy) {
        if self.is_full() {
            copy.outcome.set(MirrorOutcome::Dropped);
            return;
        }
        self.copies.borrow_mut().push(Rc::downgrade(&copy.copied));
        copy.send();
    }

    fn draw(&self, bound: u64) -> u64 {
        let mut random = self.random.get();
        let drawn = random.below(bound);
        self.random.set(random);
        drawn
    }
}

impl Gateway {
    /// Decides if the request is copied. If it has a body to copy, returns the stream from which to
    /// forward the request; a copy without a body is sent at once.
    ///
    /// # Errors
    ///
    /// The request cannot be forwarded at all.
    pub(super) fn mirror(
        &self,
        peer: &Peer,
        request: &RequestContext,
        admitted: &AdmittedRequest<'_>,
        mirror: &Mirror,
    ) -> Result<Option<Rc<dyn ClientStream>>, GatewayError> {
        let UpstreamKind::Servers(servers) = &mirror.upstream.kind else { return Ok(None) };
        let AdmittedRequest { route, decision, .. } = admitted;
        let (head, Some(balancer)) = (&request.head, &route.mirror) else { return Ok(None) };
        if self.mirrors.draw(100) >= u64::from(mirror.share) || grpc::is_grpc(&head.fields) {
            return Ok(None);
        }
        let mut outcome = CountedOutcome::new(route);
        let length = request.client.length();
        if matches!(length, BodyLength::Known(length) if length > MAX_BODY as u64) {
            outcome.set(MirrorOutcome::TooLong);
            return Ok(None);
        }
        // The last connections of the budget are reserved for original requests.
        let is_scarce = self.shared.upstreams.connection_budget.is_scarce();
        if is_scarce || length == BodyLength::Known(0) && self.mirrors.is_full() {
            outcome.set(MirrorOutcome::Dropped);
            return Ok(None);
        }
        let state = StateCell::new(self.mirrors.coarse_clock.clone());
        let copied = Rc::new(CopiedBody { state, length, body: RefCell::default() });
        let client: Rc<dyn ClientStream> = Rc::<CopiedBody>::clone(&copied);
        let routed = request.routed(route);
        let protected = &route.protected_headers;
        let trace = request.ledger.tracing.header();
        let outgoing_head = self.outgoing_head(routed, servers, protected, peer, trace)?;
        let outgoing = OutgoingRequest::new(&outgoing_head, &client);
        if outgoing.is_upgrade() {
            outcome.forget();
            return Ok(None);
        }
        let mut copy = RequestCopy {
            balancer: Rc::clone(balancer),
            head: outgoing_head.to_owned_head(),
            outgoing,
            client_address: request.usage.address(),
            proxied: peer.proxied,
            target_key: TargetKey(
                decision.target_key.unwrap_or_else(|| self.mirrors.draw(u64::MAX)),
            ),
            copied,
            outcome,
        };
        if length == BodyLength::Known(0) {
            self.mirrors.send(copy);
            return Ok(None);
        }
        let mirrors = Rc::clone(&self.mirrors);
        let mut held = IncompleteCopy { mirrors, client: request.usage.clone(), bytes: 0 };
        if !held.grow(COPY_OVERHEAD + head.fields.bytes().len()) {
            copy.outcome.set(MirrorOutcome::Dropped);
            return Ok(None);
        }
        let client = Rc::clone(&request.client);
        Ok(Some(Rc::new(CopyingStream { client, copy: RefCell::new(Some((copy, held))) })))
    }
}

/// Counts the bytes of an incomplete copy until it is dropped.
struct IncompleteCopy {
    mirrors: Rc<Mirrors>,
    client: ClientHandle,
    bytes: usize,
}

impl IncompleteCopy {
    /// Counts `more` bytes. Returns false, and counts nothing, if the client or the worker would
    /// then hold too many.
    fn grow(&mut self, more: usize) -> bool {
        let all = self.mirrors.incomplete.get() + more;
        let is_counted = all <= MAX_INCOMPLETE
            && self.client.copied_bytes.try_add(more as u64, MAX_INCOMPLETE_OF_CLIENT);
        if is_counted {
            self.mirrors.incomplete.set(all);
            self.bytes += more;
        }
        is_counted
    }
}

impl Drop for IncompleteCopy {
    fn drop(&mut self) {
        self.mirrors.incomplete.set(self.mirrors.incomplete.get() - self.bytes);
        self.client.copied_bytes.subtract(self.bytes as u64);
    }
}

/// A copy of a request, and what its exchange needs.
struct RequestCopy {
    balancer: Rc<LoadBalancer>,
    head: OwnedHead,
    outgoing: OutgoingRequest,
    /// The masked address of the client whose request was copied.
    client_address: IpAddr,
    proxied: ProxiedClient,
    target_key: TargetKey,
    copied: Rc<CopiedBody>,
    outcome: CountedOutcome,
}

impl RequestCopy {
    /// Sends the copy in a task of its own.
    fn send(mut self) {
        self.outcome.set(MirrorOutcome::Failed);
        tokio::task::spawn_local(async move {
            let copied = Rc::clone(&self.copied);
            let mut exchange = pin!(self.exchange());
            poll_fn(|cx| {
                copied.state.register(cx.waker());
                exchange.as_mut().poll(cx)
            })
            .await;
        });
    }

    async fn exchange(self) {
        let Self { balancer, outgoing, copied, mut outcome, .. } = self;
        let head = self.head.head();
        let (state, started) = (&copied.state, copied.state.now());
        state.begin_request();
        state.set_request_timeout(Some(TIMEOUT));
        let mut attempts = AttemptLog::default();
        let input = ForwardInput {
            head: &head,
            client: &*copied,
            client_address: self.client_address,
            proxied: self.proxied,
            target_key: Some(self.target_key),
            trace: None,
            holder: None,
        };
        let responded = balancer.forward(outgoing, input, &mut attempts).await;
        let Ok((_, UpstreamContent::Body(mut body))) = responded else { return };
        let waited = state.now().since(started);
        state.begin_response(None, Some(TIMEOUT.saturating_sub(waited)));
        if discard(&mut body, state, &balancer, &attempts).await {
            outcome.set(MirrorOutcome::Answered);
        }
    }
}

/// Reads a response's body to its end, or to [`MAX_RESPONSE`]. Returns false if it fails or times
/// out first.
async fn discard(
    body: &mut ResponseBody,
    state: &StateCell,
    balancer: &LoadBalancer,
    attempts: &AttemptLog,
) -> bool {
    let (mut bytes, mut length) = (Vec::new(), 0);
    loop {
        if body.is_done() {
            if let Some(server) = &attempts.server {
                server.endpoint().record_whole_body();
            }
            return true;
        }
        let read = poll_fn(|cx| match state.expired_deadline() {
            Some(_) => Poll::Ready(None),
            None => body.poll_body(cx, BodyEncoder::Plain, &mut bytes).map(Some),
        });
        match read.await {
            Some(Ok(count)) => length += count,
            Some(Err(_)) => {
                balancer.record_broken_body(attempts);
                return false;
            }
            None => return false,
        }
        bytes.clear();
        if length > MAX_RESPONSE {
            return true;
        }
    }
}

/// The outcome of a copy. Dropping it counts the outcome.
struct CountedOutcome {
    counters: Arc<CachePadded<RouteCounters>>,
    outcome: Option<MirrorOutcome>,
}

impl CountedOutcome {
    fn new(route: &WorkerRoute) -> Self {
        Self { counters: Arc::clone(&route.counters), outcome: Some(MirrorOutcome::Incomplete) }
    }

    fn set(&mut self, outcome: MirrorOutcome) {
        self.outcome = Some(outcome);
    }

    /// Drops the outcome without counting it.
    fn forget(&mut self) {
        self.outcome = None;
    }
}

impl Drop for CountedOutcome {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome {
            self.counters.mirrored[outcome as usize].add(1);
        }
    }
}

/// The client's side of a copy: the body that was copied.
struct CopiedBody {
    state: StateCell,
    length: BodyLength,
    body: RefCell<Vec<u8>>,
}

impl ClientStream for CopiedBody {
    fn state(&self) -> &StateCell {
        &self.state
    }

    fn length(&self) -> BodyLength {
        self.length
    }

    fn poll_body(
        &self,
        _: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        let body = self.body.take();
        encoder.write(out, |out| out.extend_from_slice(&body));
        Poll::Ready(Ok(body.len()))
    }

    fn abandon_body(&self) {}

    fn take_trailers(&self) -> Option<Box<Fields>> {
        None
    }

    fn send_interim(&self, _: u16, _: &Fields) {}
}

/// A client's stream whose body is copied while it is read.
struct CopyingStream {
    client: Rc<dyn ClientStream>,
    /// The copy; `None` once its body is complete or can no longer be copied.
    copy: RefCell<Option<(RequestCopy, IncompleteCopy)>>,
}

impl ClientStreamLayer for CopyingStream {
    fn client(&self) -> &dyn ClientStream {
        &*self.client
    }

    fn poll_layer(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        let mut copying = self.copy.borrow_mut();
        let Some((copy, held)) = &mut *copying else {
            return self.client.poll_body(cx, encoder, out);
        };
        let mut body = copy.copied.body.borrow_mut();
        let before = body.len();
        let count = ready!(self.client.poll_body(cx, BodyEncoder::Plain, &mut body))?;
        encoder.write(out, |out| out.extend_from_slice(&body[before..]));
        if count == 0 {
            drop(body);
            if let Some((copy, held)) = copying.take() {
                held.mirrors.send(copy);
            }
        } else if body.len() > MAX_BODY {
            drop(body);
            copy.outcome.set(MirrorOutcome::TooLong);
            *copying = None;
        } else if !held.grow(count) {
            drop(body);
            copy.outcome.set(MirrorOutcome::Dropped);
            *copying = None;
        }
        Poll::Ready(Ok(count))
    }
}
