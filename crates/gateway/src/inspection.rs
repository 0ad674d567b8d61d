//! Reads the JSON body of a request whose limits need it, before they are charged.
//!
//! At most `max_inspect` bytes are read ahead and kept until they are forwarded, unchanged. The
//! bytes are counted for the client's address and for the process. The rest of a longer body is
//! looked at while it is forwarded: a member that limits have read must not come a second time.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tidegate_http1::{BodyEncoder, BodyLength};
use tidegate_rules::error::GatewayError;
use tidegate_rules::plan::{DeferredDecision, RouteDecision, check_consumer};
use tidegate_rules::snapshot::Inspection;
use tidegate_system::client_usage::{ClientHandle, UsageCount};
use tidegate_transport::connection_state::Wait;
use tidegate_transport::{
    BodyError, ClientStream, ClientStreamLayer, KeptBytes, socket::yield_turn,
};
use tidegate_usage::{RequestMembers, RequestScanner, UnreadableBody};

use super::{
    Gateway, Peer, completion::Completion, context::RequestContext, forward::body_error,
    rules::WorkerRoute,
};

/// Most bytes of bodies that are kept for one client address, over all workers: those of some
/// requests with the default `max_inspect`, and one request with the largest.
const MAX_BYTES_OF_CLIENT: u64 = 32 << 20;
/// Most bytes of bodies that are kept in the process.
const MAX_BYTES: u64 = 512 << 20;
/// Maximum number of reads in one poll. Then the task yields.
const MAX_READS_PER_POLL: usize = 8;

impl Gateway {
    /// Reads the members of the request's body that the limits of its route need, and completes the
    /// decision with them. The body is then forwarded from `request.client`.
    ///
    /// # Errors
    ///
    /// The consumer may not use the route; the body is no JSON, is ambiguous, is too long, or did
    /// not arrive; or a limit's key or cost cannot be read.
    pub(super) async fn inspect_body<'d>(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        route: &WorkerRoute,
        inspection: &Inspection,
        deferred: DeferredDecision<'d>,
    ) -> Result<&'d RouteDecision, GatewayError> {
        // Before the body of a consumer that may not use the route is read.
        check_consumer(&route.settings, request.ledger.consumer())?;
        let held = HeldBytes::new(&self.shared.inspected_bytes, &request.usage);
        let members = read_members(request, route, inspection, held).await?;
        if let Some(path) = &inspection.call_id {
            request.call_id = members.get(path).as_json().map(Into::into);
        }
        let completion = Completion { route: &route.settings, body: Some(&members), deferred };
        self.complete(peer, request, completion)
    }
}

/// Reads the body up to `max_inspect`, and replaces the request's stream by one that begins with
/// what was read.
async fn read_members(
    request: &mut RequestContext,
    route: &WorkerRoute,
    inspection: &Inspection,
    held: HeldBytes,
) -> Result<RequestMembers, GatewayError> {
    if request.client.length() == BodyLength::Known(0) {
        return Ok(RequestMembers::default());
    }
    if let Err(error) = Inspection::check_type(&request.head.fields) {
        return inspection.or_none(Err(error)).map_err(GatewayError::UnreadableBody);
    }
    let stream = InspectedStream::new(request, inspection, held);
    let read = stream.fill(inspection.max).await;
    read.map_err(|error| match error {
        FillError::Body(error) => body_error(route, request, error),
        FillError::NoRoom => GatewayError::ClientOverloaded,
    })?;
    let members = stream.members(inspection).map_err(GatewayError::UnreadableBody)?;
    request.client = Rc::new(stream);
    Ok(members)
}

/// Why the first bytes of a body could not be read.
enum FillError {
    /// The body failed.
    Body(BodyError),
    /// The client or the process holds too many bytes.
    NoRoom,
}

/// The body of a request whose first bytes were read ahead.
struct InspectedStream {
    client: Rc<dyn ClientStream>,
    body: RefCell<InspectedBody>,
}

struct InspectedBody {
    kept: KeptBytes,
    /// Number of bytes that have arrived.
    received: u64,
    /// True once the end has arrived.
    has_ended: bool,
    scanner: RequestScanner,
    /// The members that the decision has read, as bits of their paths.
    decided: u32,
    /// The members of estimates, likewise.
    estimates: u32,
    rest: RestOfBody,
    held: HeldBytes,
}

/// What happens to the rest of a body whose first bytes were read.
#[derive(Clone, Copy, Eq, PartialEq)]
enum RestOfBody {
    /// It is checked while it passes.
    Checked,
    /// It passes: no member was found in the first bytes, and what is charged without one does not
    /// depend on the rest.
    Unread,
}

/// Counts the bytes that a client's request holds until this is dropped.
struct HeldBytes {
    /// The bytes of the process.
    all: Arc<UsageCount>,
    client: ClientHandle,
    bytes: u64,
}

impl HeldBytes {
    fn new(all: &Arc<UsageCount>, client: &ClientHandle) -> Self {
        Self { all: Arc::clone(all), client: client.clone(), bytes: 0 }
    }

    /// Counts a body of `bytes` bytes; false if the client or the process would then hold too many.
    fn grow_to(&mut self, bytes: u64) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if !self.client.inspected_bytes.try_add(more, MAX_BYTES_OF_CLIENT) {
            return false;
        }
        let is_counted = self.all.try_add(more, MAX_BYTES);
        if is_counted {
            self.bytes += more;
        } else {
            self.client.inspected_bytes.subtract(more);
        }
        is_counted
    }

    fn release(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.client.inspected_bytes.subtract(bytes);
        self.all.subtract(bytes);
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.release();
    }
}

impl InspectedStream {
    fn new(request: &RequestContext, inspection: &Inspection, held: HeldBytes) -> Self {
        Self {
            client: Rc::clone(&request.client),
            body: RefCell::new(InspectedBody {
                kept: KeptBytes::default(),
                received: 0,
                has_ended: false,
                scanner: RequestScanner::new(Arc::clone(&inspection.paths)),
                decided: 0,
                estimates: inspection.estimates,
                rest: RestOfBody::Checked,
                held,
            }),
        }
    }

    /// Reads until the body is complete, or `max` bytes of it have arrived.
    async fn fill(&self, max: usize) -> Result<(), FillError> {
        let state = self.client.state();
        let filled = std::future::poll_fn(|cx| {
            if state.expired_deadline().is_some() {
                return Poll::Ready(Err(FillError::Body(BodyError::TimedOut)));
            }
            let read = self.poll_fill(cx, max);
            if read.is_pending() {
                state.begin_client_body_wait();
            }
            read
        });
        let filled = filled.await;
        state.set_wait(Wait::Internal);
        filled
    }

    fn poll_fill(&self, cx: &mut Context<'_>, max: usize) -> Poll<Result<(), FillError>> {
        let body = &mut *self.body.borrow_mut();
        for _ in 0..MAX_READS_PER_POLL {
            if body.kept.bytes.len() >= max {
                return Poll::Ready(Ok(()));
            }
            let before = body.kept.bytes.len();
            let read = ready!(self.client.poll_body(cx, BodyEncoder::Plain, &mut body.kept.bytes));
            let count = read.map_err(FillError::Body)?;
            self.client.state().set_wait(Wait::Internal);
            body.received += count as u64;
            if count == 0 {
                body.has_ended = true;
                return Poll::Ready(Ok(()));
            }
            body.scanner.push(&body.kept.bytes[before..body.kept.bytes.len().min(max)]);
            if !body.held.grow_to(body.kept.bytes.len() as u64) {
                return Poll::Ready(Err(FillError::NoRoom));
            }
        }
        yield_turn(cx);
        Poll::Pending
    }

    /// The members in the bytes that were read.
    fn members(&self, inspection: &Inspection) -> Result<RequestMembers, UnreadableBody> {
        let body = &mut *self.body.borrow_mut();
        let has_arrived =
            body.has_ended || self.client.length() == BodyLength::Known(body.received);
        let read = body.read(inspection, has_arrived);
        if read.is_err() || body.decided == 0 {
            body.rest = RestOfBody::Unread;
        }
        inspection.or_none(read)
    }
}

impl InspectedBody {
    fn read(
        &mut self,
        inspection: &Inspection,
        has_arrived: bool,
    ) -> Result<RequestMembers, UnreadableBody> {
        let is_complete = has_arrived && self.kept.bytes.len() <= inspection.max;
        let members = inspection.members(&self.scanner, &self.kept.bytes, is_complete)?;
        self.decided = self.scanner.found();
        // The last read may have brought more than `max`.
        if let Some(more) = self.kept.bytes.get(inspection.max..) {
            self.scanner.push(more);
            self.check_rest()?;
            if has_arrived {
                self.scanner.check_end()?;
            }
        }
        Ok(members)
    }

    /// Checks what has arrived after the decision.
    fn check_rest(&self) -> Result<(), UnreadableBody> {
        Inspection::check_rest(&self.scanner, self.decided, self.estimates)
    }
}

impl ClientStreamLayer for InspectedStream {
    fn client(&self) -> &dyn ClientStream {
        &*self.client
    }

    fn poll_layer(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        let body = &mut *self.body.borrow_mut();
        if let Some(count) = body.kept.forward(encoder, out) {
            if body.kept.is_forwarded() {
                body.held.release();
            }
            return Poll::Ready(Ok(count));
        }
        if body.has_ended {
            return Poll::Ready(Ok(0));
        }
        let (client, scanner) = (&self.client, &mut body.scanner);
        let read = encoder.write(out, |out| {
            let before = out.len();
            let read = client.poll_body(cx, BodyEncoder::Plain, out);
            if let Poll::Ready(Ok(_)) = read {
                scanner.push(&out[before..]);
            }
            read
        });
        let count = ready!(read)?;
        body.received += count as u64;
        body.has_ended = count == 0;
        if body.rest == RestOfBody::Unread {
            return Poll::Ready(Ok(count));
        }
        let is_end = body.has_ended || self.client.length() == BodyLength::Known(body.received);
        let checked = if is_end { body.scanner.check_end() } else { Ok(()) };
        let checked = checked.and_then(|()| body.check_rest());
        if checked.is_err() {
            return Poll::Ready(Err(BodyError::Unreadable));
        }
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_system::client_usage::ClientTable;

    use super::*;

    #[test]
    fn bytes_are_bounded_for_a_client_and_for_the_process() {
        let (all, table) = (Arc::new(UsageCount::default()), Arc::new(ClientTable::default()));
        let held = |client: u8| {
            let client = ClientHandle::from(table.usage([192, 0, 2, client].into()));
            HeldBytes::new(&all, &client)
        };
        let (mut first, mut second) = (held(1), held(1));
        assert!(first.grow_to(MAX_BYTES_OF_CLIENT - 1) && first.grow_to(MAX_BYTES_OF_CLIENT));
        assert!(!second.grow_to(1), "the client has its share");
        let mut others: Vec<_> =
            (2..).take((MAX_BYTES / MAX_BYTES_OF_CLIENT) as usize).map(held).collect();
        let last = others.len() - 1;
        for other in &mut others[..last] {
            assert!(other.grow_to(MAX_BYTES_OF_CLIENT));
        }
        assert!(!others[last].grow_to(1), "the process has its share");
        first.release();
        assert!(others[last].grow_to(1) && second.grow_to(1), "the bytes are free again");
        drop((first, second, others));
        assert_eq!(all.get(), 0);
    }
}
