//! Forwards a request to its upstream, and turns a failure into a [`GatewayError`].

use std::rc::Rc;

use super::{
    Gateway, Peer,
    context::{Forwarding, RequestContext},
    draft_response::DraftResponse,
    rules::WorkerRules,
};
use crate::{
    error::GatewayError,
    http1::{BodyLength, Fields, upgrade::requested_protocol},
    plan::RoutedRequest,
    respond,
    trace::TraceHeader,
    transport::{BodyError, ClientStream},
    upstream::{
        BufferedUpload, ForwardError, ForwardInput, OutgoingHead, OutgoingRequest, PlaceHolder,
        ProtectedHeaders, RequestHeaderChanges, Servers, UploadSettings, Upstream, UpstreamError,
        UpstreamKind,
    },
};

/// Least time between two warnings of a worker about requests, in ms.
const WARNING_INTERVAL: u64 = 1000;

impl Gateway {
    /// Forwards the request; returns the upstream's response, with its body unread.
    ///
    /// # Errors
    ///
    /// The upstream failed, or the client's body is malformed, too long, late or incomplete.
    pub(super) async fn forward(
        &self,
        rules: &Rc<WorkerRules>,
        route: usize,
        upstream: &Upstream,
        peer: &Peer,
        context: &mut RequestContext,
    ) -> Result<DraftResponse, GatewayError> {
        let servers = match &upstream.kind {
            UpstreamKind::Fixed(fixed) => {
                return Ok(DraftResponse::Local(respond::fixed_reply(fixed)));
            }
            UpstreamKind::Servers(servers) => servers,
        };
        let copying = match &rules.snapshot.routes[route].mirror {
            Some(mirror) => self.mirror(rules, route, mirror, peer, context)?,
            None => None,
        };
        let Some(balancer) = &rules.load_balancers[upstream.index] else {
            return Err(GatewayError::Upstream(UpstreamError::Down { retry_after: 0 }));
        };
        let client = copying.unwrap_or_else(|| Rc::clone(&context.client));
        let upload = if servers.bounds.is_bounded() {
            buffered_upload(rules, route, servers, context, &client)
        } else {
            None
        };
        if let Some(upload) = &upload {
            // Boxed, so that requests to upstreams without bounds do not carry its state.
            let filled = Box::pin(upload.fill(balancer)).await;
            filled.map_err(|error| body_error(rules, route, context, error))?;
        }
        let client = upload.clone().map_or(client, |upload| upload);
        let hash_key = context.hash_key;
        let holder = PlaceHolder { client: context.usage.address(), upload: upload.as_deref() };
        let Some(Forwarding { routed, attempts, tracing }) = context.forwarding() else {
            return Err(GatewayError::MalformedTarget);
        };
        let protected = &rules.routes[route].protected_headers;
        let head = self.outgoing_head(routed, servers, protected, peer, tracing.trace.header())?;
        let outgoing = OutgoingRequest::new(&head, &client, routed.route.max_body);
        let input = ForwardInput {
            head: &head,
            client: &*client,
            proxied: peer.proxied,
            hash_key,
            trace: tracing.sampled(),
            holder: servers.bounds.is_bounded().then_some(holder),
        };
        let result = balancer.forward(outgoing, input, attempts).await;
        let upstream_time = attempts.time.filter(|_| result.is_ok());
        context.upstream_time = upstream_time;
        if let Some(counters) = &rules.routes[route].upstream {
            let retries = context.attempts.count.saturating_sub(1);
            if retries > 0 {
                counters.retries.add(u64::from(retries));
            }
        }
        match result {
            Ok((head, content)) => Ok(DraftResponse::Upstream(head, content)),
            Err(ForwardError::Upstream(error)) => {
                Err(self.upstream_error(rules, route, upstream, context, error))
            }
            Err(ForwardError::Request(error)) => Err(GatewayError::Framing(error)),
            Err(ForwardError::Body(error)) => Err(body_error(rules, route, context, error)),
        }
    }

    /// The head of the request to an upstream.
    ///
    /// # Errors
    ///
    /// A part of the path would change the shape of the rewritten path.
    pub(super) fn outgoing_head<'r>(
        &'r self,
        routed: RoutedRequest<'r>,
        servers: &'r Servers,
        protected: &'r ProtectedHeaders,
        peer: &'r Peer,
        trace: Option<TraceHeader>,
    ) -> Result<OutgoingHead<'r>, GatewayError> {
        let edits = &routed.route.edits;
        let changes = edits.request_headers.as_ref().map(|rules| {
            let mut written = Fields::new();
            routed.with_values(|values| rules.write(values, &mut written));
            RequestHeaderChanges { rules, written }
        });
        Ok(OutgoingHead {
            client: routed.head,
            path: routed.forwarded_path()?,
            peer: &peer.forwarding,
            is_trusted: routed.from_trusted_proxy,
            request_id: routed.request_id,
            fallback_host: servers.fallback_host(),
            via: self.shared.via.entry(routed.head.version),
            prefix: routed.stripped_prefix(),
            host: &edits.host,
            trace,
            changes,
            protected,
        })
    }

    /// Counts an upstream's failure, and logs it at most once per [`WARNING_INTERVAL`].
    #[cold]
    fn upstream_error(
        &self,
        rules: &WorkerRules,
        route: usize,
        upstream: &Upstream,
        context: &RequestContext,
        error: UpstreamError,
    ) -> GatewayError {
        if let Some(counters) = &rules.routes[route].upstream {
            match &error {
                UpstreamError::Connect(_) => counters.connect.add(1),
                UpstreamError::Timeout => counters.timeout.add(1),
                UpstreamError::Failed(_) => counters.broken.add(1),
                // The server works and lacks a feature; or nothing was sent, which the upstream counts.
                UpstreamError::UpgradeUnsupported
                | UpstreamError::Down { .. }
                | UpstreamError::Overloaded
                | UpstreamError::Shortage(_) => {}
            }
        }
        self.warn(|| {
            let server = context.attempts.server.as_ref().map_or("", |server| server.name());
            let (upstream, attempts) = (&upstream.name, context.attempts.count);
            if let UpstreamError::Shortage(error) = &error {
                tracing::warn!(
                    %upstream, %error,
                    "no connection to the upstream could be opened: raise the limit of open files"
                );
            } else {
                tracing::warn!(%upstream, server, attempts, %error, "the upstream failed");
            }
        });
        GatewayError::Upstream(error)
    }

    /// Calls `warn`, at most once per [`WARNING_INTERVAL`].
    pub(super) fn warn(&self, warn: impl FnOnce()) {
        let now = self.coarse_clock.now();
        if now.saturating_sub(self.warned_at.get()) >= WARNING_INTERVAL {
            self.warned_at.set(now);
            warn();
        }
    }
}

/// The request's body, which is read before the request takes a place at an upstream with bounds; `None` without a
/// body.
fn buffered_upload(
    rules: &WorkerRules,
    route: usize,
    servers: &Servers,
    context: &RequestContext,
    client: &Rc<dyn ClientStream>,
) -> Option<Rc<BufferedUpload>> {
    let head = context.head()?;
    if client.length() == BodyLength::Known(0) || requested_protocol(head).is_some() {
        return None;
    }
    let settings = UploadSettings {
        client: context.usage.address(),
        max_body: rules.snapshot.routes[route].max_body,
        pacing: servers.bounds.pacing,
        is_streaming: respond::is_grpc(&head.fields),
    };
    Some(BufferedUpload::new(Rc::clone(client), settings))
}

/// The client's body failed: what is left of it is not read.
#[cold]
fn body_error(
    rules: &WorkerRules,
    route: usize,
    context: &RequestContext,
    error: BodyError,
) -> GatewayError {
    context.client.abandon_body();
    match error {
        BodyError::TooLong => GatewayError::BodyTooLong(rules.snapshot.routes[route].max_body),
        BodyError::TimedOut | BodyError::TooSlow => GatewayError::BodyTimeout,
        BodyError::Malformed(error) => GatewayError::Framing(error),
        BodyError::ClientClosed => GatewayError::BodyIncomplete,
    }
}
