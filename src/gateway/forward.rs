//! Forwards a request to its upstream, and turns a failure into a [`GatewayError`].

use std::rc::Rc;

use super::{
    Gateway, Peer, context::RequestContext, draft_response::DraftResponse, rules::WorkerRules,
};
use crate::{
    error::GatewayError,
    http1::{BodyLength, upgrade::requested_protocol},
    respond,
    transport::{BodyError, ClientStream},
    upstream::{
        AddedHeaders, BufferedUpload, ForwardError, ForwardInput, OutgoingRequest, PlaceHolder,
        Servers, UploadSettings, Upstream, UpstreamError, UpstreamKind,
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
        let outgoing = self.outgoing(rules, route, servers, peer, context, &client)?;
        let holder = PlaceHolder { client: context.usage.address(), upload: upload.as_deref() };
        let RequestContext { head: Some(head), attempts, hash_key, tracing, .. } = context else {
            return Err(GatewayError::MalformedTarget);
        };
        let input = ForwardInput {
            method: &head.method,
            client: &*client,
            proxied: peer.proxied,
            hash_key: *hash_key,
            trace: tracing.sampled(),
            holder: servers.bounds.is_bounded().then_some(holder),
        };
        let result = balancer.forward(outgoing, input, attempts).await;
        context.upstream_time = attempts.time.filter(|_| result.is_ok());
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

    /// The request for an upstream, with its body from `client`.
    pub(super) fn outgoing(
        &self,
        rules: &WorkerRules,
        route: usize,
        servers: &Servers,
        peer: &Peer,
        context: &RequestContext,
        client: &Rc<dyn ClientStream>,
    ) -> Result<OutgoingRequest, GatewayError> {
        let routed = context.routed().ok_or(GatewayError::MalformedTarget)?;
        let (head, edits) = (routed.head, &routed.route.edits);
        let protected = &rules.routes[route].protected_headers;
        let path = routed.forwarded_path()?;
        let added = AddedHeaders {
            peer: &peer.forwarding,
            trusted: context.from_trusted_proxy,
            request_id: context.request_id.as_bytes(),
            server: &servers.targets[0].target.address,
            via: self.shared.via.entry(head.version),
            prefix: routed.stripped_prefix(),
            host: &edits.host,
            trace: context.tracing.trace.header(),
            changes: None,
        };
        let max_body = routed.route.max_body;
        let outgoing = |added: &AddedHeaders<'_>| {
            OutgoingRequest::new(head, &path, added, protected, client, max_body)
        };
        Ok(match &edits.request_headers {
            None => outgoing(&added),
            Some(rules) => routed.with_values(|values| {
                outgoing(&AddedHeaders { changes: Some((rules, values)), ..added })
            }),
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
        let now = self.coarse_clock.get();
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
