//! `GET /api/events`: the state of the gateway once a second, as server-sent events. It is computed
//! once for all subscribers, and only while there are any.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{AdminContext, guard::is_cross_origin, problem::problem, state};

/// The interval between two events.
const INTERVAL: Duration = Duration::from_secs(1);
/// The most subscribers at a time.
const MAX_SUBSCRIBERS: usize = 16;

/// The subscribers and the latest event.
#[derive(Clone)]
pub(super) struct Events {
    permits: Arc<Semaphore>,
    /// The latest event, encoded.
    latest: watch::Sender<Bytes>,
    /// True if a task computes events.
    is_running: Arc<Mutex<bool>>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_SUBSCRIBERS)),
            latest: watch::Sender::new(Bytes::new()),
            is_running: Arc::default(),
        }
    }
}

/// A subscriber.
struct EventSubscriber {
    events: watch::Receiver<Bytes>,
    _permit: OwnedSemaphorePermit,
}

/// Streams events until the client disconnects. A slow client misses events: none are queued for
/// it.
pub(super) async fn stream(State(context): State<AdminContext>, headers: HeaderMap) -> Response {
    if is_cross_origin(&headers) {
        let detail = "a web page of another origin must not read events; expected no Origin header";
        return problem(StatusCode::FORBIDDEN, detail, &[]);
    }
    let Some(subscriber) = subscribe(&context) else {
        let detail =
            format!("all {MAX_SUBSCRIBERS} subscribers are connected; try again when one has left");
        return problem(StatusCode::SERVICE_UNAVAILABLE, &detail, &[]);
    };
    let events = stream::unfold(subscriber, |mut subscriber| async move {
        // The sender lives as long as the router.
        subscriber.events.changed().await.ok()?;
        let event = subscriber.events.borrow_and_update().clone();
        Some((Ok::<_, Infallible>(event), subscriber))
    });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(events)).into_response()
}

/// A new subscriber; `None` if there are too many. The first one starts the task that computes
/// events.
fn subscribe(context: &AdminContext) -> Option<EventSubscriber> {
    let own = &context.events;
    let permit = Arc::clone(&own.permits).try_acquire_owned().ok()?;
    let mut is_running = own.is_running.lock();
    let mut events = own.latest.subscribe();
    if *is_running {
        // The latest event is sent at once.
        events.mark_changed();
    } else {
        *is_running = true;
        tokio::spawn(compute(context.clone()));
    }
    drop(is_running);
    Some(EventSubscriber { events, _permit: permit })
}

/// Computes events until there is no subscriber.
async fn compute(context: AdminContext) {
    loop {
        let state = state::read(&context.shared, &context.reloader);
        if let Ok(json) = serde_json::to_string(&state) {
            context.events.latest.send_replace(format!("data: {json}\n\n").into());
        }
        context.shared.clock.sleep(INTERVAL).await;
        let mut is_running = context.events.is_running.lock();
        if context.events.latest.receiver_count() == 0 {
            *is_running = false;
            return;
        }
    }
}
