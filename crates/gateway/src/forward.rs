//! Forwards a request to its upstream, and turns a failure into a [`GatewayError`].

use std::rc::Rc;

use tidegate_balance::TargetKey;
use tidegate_base::time::Millis;
use tidegate_envoy::grpc;
use tidegate_http1::{BodyLength, Fields, upgrade::requested_protocol};
use tidegate_rules::error::GatewayError;
use tidegate_rules::plan::{QUIET_VIA, RoutedRequest};
use tidegate_rules::respond;
use tidegate_trace::TraceHeader;
use tidegate_transport::{BodyError, ClientStream};
use tidegate_upstream::{
    BufferedUpload, ForwardError, ForwardInput, LoadBalancer, OutgoingHead, OutgoingRequest,
    PlaceOwner, ProtectedHeaders, RequestHeaderChanges, Servers, UploadSettings, Upstream,
    UpstreamError, UpstreamKind, ViaField,
};
use tidegate_usage::UnreadableBody;

use super::{
    Gateway, Peer,
    checks::AdmittedRequest,
    context::{Forwarding, RequestContext},
    draft_response::DraftResponse,
    rules::{WorkerRoute, WorkerUpstream},
};
use crate::metrics::UpstreamCounters;

/// Minimum interval between two warnings of a worker about requests.
const WARNING_INTERVAL: Millis = Millis::from_secs(1);

impl Gateway {
    /// Forwards the request; returns the upstream's response, with its body unread.
    ///
    /// # Errors
    ///
    /// The upstream failed, or the client's body is malformed, too long, late or incomplete.
    pub(super) async fn forward(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        admitted: &AdmittedRequest<'_>,
        upstream: &Upstream,
    ) -> Result<DraftResponse, GatewayError> {
        let AdmittedRequest { route, decision, .. } = admitted;
        let servers = match &upstream.kind {
            UpstreamKind::Fixed(fixed) => {
                return Ok(DraftResponse::Local(respond::fixed_reply(fixed)));
            }
            UpstreamKind::Servers(servers) => servers,
        };
        let Some(WorkerUpstream { counters, balancer: Some(balancer) }) = &route.upstream else {
            return Err(GatewayError::Upstream(UpstreamError::Down { retry_after: Millis::ZERO }));
        };
        let ForwardedBody { client, upload } =
            self.forwarded_body(peer, request, admitted, servers)?;
        if let Some(upload) = &upload {
            // Boxed, so that requests to upstreams without bounds do not carry its state.
            let filled = Box::pin(upload.fill(balancer)).await;
            filled.map_err(|error| body_error(route, request, error))?;
        }
        let client_address = request.usage.address();
        let holder = servers.bounds.is_bounded().then(|| PlaceOwner {
            client: client_address,
            priority: request.priority(route),
            upload: upload.as_deref(),
        });
        let Forwarding { routed, attempts, tracing } = request.forwarding(route);
        let trace = tracing.header();
        let head = self.outgoing_head(routed, servers, &route.protected_headers, peer, trace)?;
        let outgoing = OutgoingRequest::new(&head, &client);
        let input = ForwardInput {
            head: &head,
            client: &*client,
            client_address,
            proxied: peer.proxied,
            target_key: decision.target_key.map(TargetKey),
            trace: tracing.sampled(),
            holder,
        };
        let result = balancer.forward(outgoing, input, attempts).await;
        let ledger = &mut request.ledger;
        ledger.upstream_time = ledger.attempts.time.filter(|_| result.is_ok());
        let retries = ledger.attempts.count.saturating_sub(1);
        if retries > 0 {
            counters.retries.add(u64::from(retries));
        }
        match result {
            Ok((head, content)) => Ok(DraftResponse::Upstream(head, content)),
            Err(ForwardError::Upstream(mut error)) => {
                error.name_request_timeout(route.settings.timeouts.request);
                count_failure(counters, &error);
                self.warn_of_upstream(upstream, request, balancer, &error);
                Err(GatewayError::Upstream(error))
            }
            Err(ForwardError::Request(error)) => Err(GatewayError::Framing(error)),
            Err(ForwardError::Body(error)) => Err(body_error(route, request, error)),
        }
    }

    /// The layers of the request's body, from the client to the upstream: what inspection has read
    /// ahead is in `request.client`; then the body is copied for a mirror; then it is buffered.
    ///
    /// # Errors
    ///
    /// The request cannot be forwarded at all.
    fn forwarded_body(
        &self,
        peer: &Peer,
        request: &RequestContext,
        admitted: &AdmittedRequest<'_>,
        servers: &Servers,
    ) -> Result<ForwardedBody, GatewayError> {
        let copying = match &admitted.route.settings.mirror {
            Some(mirror) => self.mirror(peer, request, admitted, mirror)?,
            None => None,
        };
        let client = copying.unwrap_or_else(|| Rc::clone(&request.client));
        Ok(match buffered_upload(servers, request, &client) {
            Some(upload) => ForwardedBody { client: Rc::clone(&upload) as _, upload: Some(upload) },
            None => ForwardedBody { client, upload: None },
        })
    }

    /// The head of the request to an upstream.
    ///
    /// # Errors
    ///
    /// The route's `rewrite` gives no valid path: an inserted value adds a `.` or `..` segment, or
    /// breaks a percent escape.
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
        let mut own_urls = routed.own_url_fields();
        if let Some(rules) = &edits.request_headers {
            own_urls.retain(|field| !rules.replaces_in(field.name, &routed.head.fields));
        }
        Ok(OutgoingHead {
            client: routed.head,
            path: routed.forwarded_path()?,
            peer: &peer.forwarding,
            is_trusted: routed.from_trusted_proxy,
            request_id: routed.request_id,
            fallback_host: servers.fallback_host(),
            via: ViaField {
                name: if servers.sends_via { "via" } else { QUIET_VIA },
                entry: self.shared.via.entry(routed.head.version),
            },
            prefix: routed.stripped_prefix(),
            own_urls,
            host: &edits.host,
            trace,
            changes,
            consumer: routed.consumer,
            asks_for_identity: routed.route.settles,
            removed_credentials: routed.route.auth.as_ref().map(|auth| auth.removed_credentials()),
            protected,
        })
    }

    /// Logs an upstream's failure; see [`Warnings`](tidegate_upstream::warnings::Warnings).
    #[cold]
    fn warn_of_upstream(
        &self,
        upstream: &Upstream,
        request: &RequestContext,
        balancer: &LoadBalancer,
        error: &UpstreamError,
    ) {
        let now = self.coarse_clock.now();
        let Some(failures) = balancer.warnings().due(error.reason(), now) else { return };
        let ledger = &request.ledger;
        let (upstream, attempts) = (&upstream.name, ledger.attempts.count);
        if let UpstreamError::Shortage(error) = error {
            tracing::warn!(
                %upstream, failures, %error,
                "no connection to the upstream: the gateway lacks a file descriptor, a port or memory"
            );
        } else {
            let server = ledger.server();
            tracing::warn!(%upstream, server, attempts, failures, %error, "the upstream failed");
        }
    }

    /// Calls `warn`, at most once per [`WARNING_INTERVAL`].
    pub(super) fn warn(&self, warn: impl FnOnce()) {
        let now = self.coarse_clock.now();
        if now.since(self.warned_at.get()) >= WARNING_INTERVAL {
            self.warned_at.set(now);
            warn();
        }
    }
}

#[cold]
fn count_failure(counters: &UpstreamCounters, error: &UpstreamError) {
    match error {
        UpstreamError::Connect(_) => counters.connect.add(1),
        UpstreamError::Timeout(_) => counters.timeout.add(1),
        UpstreamError::Failed(_) => counters.broken.add(1),
        // Not failures of a server: it lacks a feature, or the request was never sent.
        UpstreamError::UpgradeUnsupported
        | UpstreamError::Down { .. }
        | UpstreamError::Overloaded(_)
        | UpstreamError::Shortage(_) => {}
    }
}

/// A request's body, from which the upstream's request is written.
struct ForwardedBody {
    client: Rc<dyn ClientStream>,
    /// Its outermost layer, if that is to be filled before the request takes a place.
    upload: Option<Rc<BufferedUpload>>,
}

/// A buffer for the request's body, to be filled before the request takes a place at an upstream
/// with bounds. `None` if the upstream has no bounds, or the request has no body or is an upgrade.
fn buffered_upload(
    servers: &Servers,
    request: &RequestContext,
    client: &Rc<dyn ClientStream>,
) -> Option<Rc<BufferedUpload>> {
    let head = &request.head;
    let is_bounded = servers.bounds.is_bounded();
    if !is_bounded || client.length() == BodyLength::Known(0) || requested_protocol(head).is_some()
    {
        return None;
    }
    let settings = UploadSettings {
        client: request.usage.address(),
        pacing: servers.bounds.pacing,
        is_streaming: grpc::is_grpc(&head.fields),
    };
    Some(BufferedUpload::new(Rc::clone(client), settings))
}

/// The error for a failed client body. Abandons the rest of the body.
#[cold]
pub(super) fn body_error(
    route: &WorkerRoute,
    request: &RequestContext,
    error: BodyError,
) -> GatewayError {
    request.client.abandon_body();
    match error {
        BodyError::TooLong => GatewayError::BodyTooLong(route.settings.max_body),
        BodyError::TimedOut | BodyError::TooSlow => GatewayError::BodyTimeout,
        BodyError::Unreadable => GatewayError::UnreadableBody(UnreadableBody::Rest),
        BodyError::Malformed(error) => GatewayError::Framing(error),
        BodyError::ClientClosed => GatewayError::BodyIncomplete,
    }
}
