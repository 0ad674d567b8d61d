//! Sends the spans to the collector: OTLP over HTTP, in protobuf. Runs on the control thread.
//!
//! A batch that the collector cannot accept now is sent again, at growing intervals; meanwhile the
//! queue fills. So a lost collector costs at most the memory of one batch and of the queue.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use prost::Message;
use reqwest::Client;
use rustls::ClientConfig;
use tidegate_system::clock::Clock;
use tidegate_tls::http_client::{causes, client_builder};
use tokio_util::sync::CancellationToken;

use super::{TraceQueue, encode::encode, messages::ExportResponse};

/// Longest time that a span waits for others of its batch.
const INTERVAL: Duration = Duration::from_secs(1);
/// The most requests of a batch.
const MAX_BATCH: usize = 512;
/// The first and the longest pause after a failure.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Longest time to send the remaining spans when the gateway stops.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest reply that is read, in bytes.
const MAX_REPLY: usize = 16 * 1024;

/// Where and how spans are sent.
#[derive(Clone)]
pub struct ExportSettings {
    /// The collector's URL.
    pub endpoint: Box<str>,
    /// The name of the service in all spans.
    pub service_name: Box<str>,
    /// Header fields of requests to the collector, marked as sensitive.
    pub headers: HeaderMap,
    /// The rules of the handshake with the collector.
    pub tls: Arc<ClientConfig>,
    /// Longest time for one request to the collector.
    pub timeout: Duration,
    /// The maximum number of queued requests.
    pub max_queue: usize,
}

impl fmt::Debug for ExportSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("ExportSettings");
        debug.field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Sends the spans in `queue` until `stop`, and then the remaining ones.
pub async fn export(queue: Arc<TraceQueue>, clock: Clock, stop: CancellationToken) {
    let mut exporter =
        Exporter { queue, clock, connection: None, batch: None, backoff: None, is_failing: false };
    while stop.run_until_cancelled(exporter.wait_and_flush()).await.is_some() {}
    let clock = exporter.clock.clone();
    let is_flushed =
        clock.timeout(FLUSH_TIMEOUT, exporter.flush()).await.is_ok_and(|flushed| flushed);
    if !is_flushed {
        exporter.abandon();
    }
}

struct Exporter {
    queue: Arc<TraceQueue>,
    clock: Clock,
    connection: Option<CollectorConnection>,
    /// The batch that is being sent.
    batch: Option<Batch>,
    /// The pause before the next request, after a failure.
    backoff: Option<Duration>,
    /// True if the last request failed. Only a change is logged.
    is_failing: bool,
}

/// A client and its settings.
struct CollectorConnection {
    settings: Arc<ExportSettings>,
    client: Client,
}

/// An encoded batch.
#[derive(Clone)]
struct Batch {
    body: Bytes,
    spans: u64,
}

/// Why the collector did not accept a batch.
enum ExportError {
    /// The batch is sent again, after this pause if the collector named one.
    Retry(String, Option<Duration>),
    /// The batch is not sent again.
    Refused(String),
}

impl Exporter {
    /// Waits for spans, and sends them until the queue is empty or the collector fails.
    async fn wait_and_flush(&mut self) {
        tokio::select! {
            () = self.clock.sleep(self.backoff.unwrap_or(INTERVAL)) => {}
            () = self.queue.half_full(), if self.backoff.is_none() => {}
            () = self.queue.configured() => self.backoff = None,
        }
        self.flush().await;
    }

    /// Sends the queued spans. Returns false if a batch must be sent again.
    async fn flush(&mut self) -> bool {
        while let Some(settings) = self.queue.settings() {
            if !self.fill_batch(&settings) {
                return true;
            }
            let Some(batch) = self.batch.clone() else { return true };
            let sent = self.send(&settings, batch.body).await;
            if let Err(ExportError::Retry(reason, pause)) = &sent {
                let (first, longest) = BACKOFF;
                let next = self.backoff.map_or(first, |last| last * 2);
                let next = next.max(pause.unwrap_or_default()).min(longest);
                self.backoff = Some(next);
                self.record_failure(&settings, reason);
                return false;
            }
            self.backoff = None;
            self.batch = None;
            self.record(&settings, batch.spans, sent);
        }
        self.abandon();
        true
    }

    /// Records the final result of a batch.
    fn record(
        &mut self,
        settings: &ExportSettings,
        spans: u64,
        sent: Result<CollectorReply, ExportError>,
    ) {
        let counts = &self.queue.counts;
        let rejected = match &sent {
            Ok(reply) => reply.rejected.min(spans),
            Err(_) => spans,
        };
        counts.rejected.fetch_add(rejected, Relaxed);
        counts.sent.fetch_add(spans - rejected, Relaxed);
        match sent {
            Ok(reply) if reply.rejected > 0 => {
                self.record_failure(settings, &format!("it rejected spans: {}", reply.message));
            }
            Ok(_) if self.is_failing => {
                self.is_failing = false;
                let dropped = self.queue.counts.dropped.load(Relaxed);
                tracing::info!(endpoint = %settings.endpoint, dropped, "the trace collector accepts spans again");
            }
            Ok(_) => {}
            Err(ExportError::Retry(reason, _) | ExportError::Refused(reason)) => {
                self.record_failure(settings, &reason);
            }
        }
    }

    /// Encodes the next batch unless one is pending. Returns false if there is nothing to send.
    fn fill_batch(&mut self, settings: &ExportSettings) -> bool {
        if self.batch.is_none() {
            let traces = self.queue.take(MAX_BATCH);
            if !traces.is_empty() {
                let spans = traces.iter().map(|trace| trace.span_count()).sum();
                let body = encode(&settings.service_name, traces.iter().map(|trace| &**trace));
                self.batch = Some(Batch { body: body.into(), spans });
            }
        }
        self.batch.is_some()
    }

    /// Drops the remaining spans, which no collector accepted.
    fn abandon(&mut self) {
        let batch = self.batch.take().map_or(0, |batch| batch.spans);
        let traces = self.queue.take(usize::MAX);
        let spans = batch + traces.iter().map(|trace| trace.span_count()).sum::<u64>();
        if spans > 0 {
            self.queue.counts.rejected.fetch_add(spans, Relaxed);
            tracing::warn!(spans, "spans were dropped: no trace collector accepted them");
        }
    }

    fn record_failure(&mut self, settings: &ExportSettings, reason: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(endpoint = %settings.endpoint, reason, "the trace collector does not accept spans");
        }
    }

    /// Sends `body` once.
    async fn send(
        &mut self,
        settings: &Arc<ExportSettings>,
        body: Bytes,
    ) -> Result<CollectorReply, ExportError> {
        let retry = |reason: String| ExportError::Retry(reason, None);
        let client = self.client(settings).map_err(|error| retry(causes(&error)))?;
        let request = client.post(&*settings.endpoint).headers(settings.headers.clone()).body(body);
        let exchange = async {
            let mut response = request.send().await.map_err(|error| retry(causes(&error)))?;
            let status = response.status();
            if !status.is_success() {
                return Err(status_error(status, response.headers()));
            }
            let mut reply = Vec::new();
            while let Ok(Some(chunk)) = response.chunk().await {
                reply.extend_from_slice(&chunk);
                if reply.len() > MAX_REPLY {
                    return Ok(CollectorReply::default());
                }
            }
            Ok(CollectorReply::read(&reply))
        };
        let exchanged = self.clock.timeout(settings.timeout, exchange).await;
        exchanged.unwrap_or_else(|_| Err(retry("no response in time".to_owned())))
    }

    /// The client for these settings.
    fn client(&mut self, settings: &Arc<ExportSettings>) -> reqwest::Result<Client> {
        if let Some(connection) = &self.connection
            && Arc::ptr_eq(&connection.settings, settings)
        {
            return Ok(connection.client.clone());
        }
        let client = client(settings)?;
        let settings = Arc::clone(settings);
        self.connection = Some(CollectorConnection { settings, client: client.clone() });
        Ok(client)
    }
}

/// A client for these settings.
fn client(settings: &ExportSettings) -> reqwest::Result<Client> {
    let mut headers = HeaderMap::new();
    let kind = HeaderValue::from_static("application/x-protobuf");
    headers.insert(header::CONTENT_TYPE, kind);
    client_builder(&settings.tls).default_headers(headers).build()
}

/// The error for this status. OTLP defines which statuses are retried.
fn status_error(status: StatusCode, headers: &HeaderMap) -> ExportError {
    let reason = format!("it answered {}", status.as_u16());
    match status.as_u16() {
        429 | 502 | 503 | 504 => {
            let pause = headers.get(header::RETRY_AFTER).and_then(|after| after.to_str().ok());
            let seconds = pause.and_then(|after| after.parse().ok());
            ExportError::Retry(reason, seconds.map(Duration::from_secs))
        }
        _ => ExportError::Refused(reason),
    }
}

/// The collector's reply to an accepted request.
#[derive(Default)]
struct CollectorReply {
    rejected: u64,
    message: String,
}

impl CollectorReply {
    /// Decodes a reply. A malformed one counts as a success, because its status is one.
    fn read(bytes: &[u8]) -> Self {
        let partial = ExportResponse::decode(bytes).ok().and_then(|reply| reply.partial_success);
        let Some(partial) = partial else { return Self::default() };
        let rejected = u64::try_from(partial.rejected_spans).unwrap_or_default();
        Self { rejected, message: partial.error_message.chars().take(200).collect() }
    }
}
