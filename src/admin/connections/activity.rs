//! [`Activity`]: the activity of an admin connection, which decides if it is closed to make room
//! for another.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};

/// A connection's activity. An extension of its requests.
#[derive(Debug)]
pub(in crate::admin) struct Activity {
    /// The number of accepts, requests and responses so far, which orders them.
    sequence: Arc<AtomicU64>,
    /// The sequence number of the accept, or of the last begin or end of a request.
    last_change: AtomicU64,
    has_sent_request: AtomicBool,
    /// Requests whose responses have not ended, such as event streams.
    in_progress: AtomicU32,
    /// True if the last request had the token, or none is needed.
    is_authenticated: AtomicBool,
}

/// The reason to keep a connection, the weakest first: the connection with the weakest reason is
/// closed.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum KeepReason {
    /// It has sent no request.
    Silent,
    /// It is idle.
    Idle,
    /// A request without the token is in progress.
    InProgress,
    /// A request with the token is in progress.
    Authenticated,
}

/// A request in progress until this is dropped.
struct InProgress(Arc<Activity>);

/// The body of a response. The request is in progress until the body is dropped.
struct TrackedBody {
    body: Body,
    _progress: InProgress,
}

impl Activity {
    /// The activity of a connection that was just accepted.
    pub(super) fn accepted(sequence: &Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self {
            last_change: AtomicU64::new(sequence.fetch_add(1, Relaxed)),
            sequence: Arc::clone(sequence),
            has_sent_request: AtomicBool::new(false),
            in_progress: AtomicU32::new(0),
            is_authenticated: AtomicBool::new(false),
        })
    }

    /// Records whether the request has the token, or needs none.
    pub(in crate::admin) fn set_authenticated(&self, is_authenticated: bool) {
        self.is_authenticated.store(is_authenticated, Relaxed);
    }

    /// Orders connections: the first is closed first.
    pub(super) fn eviction_order(&self) -> impl Ord + use<> {
        let reason = match (self.in_progress.load(Relaxed), self.is_authenticated.load(Relaxed)) {
            (0, _) if !self.has_sent_request.load(Relaxed) => KeepReason::Silent,
            (0, _) => KeepReason::Idle,
            (_, false) => KeepReason::InProgress,
            (_, true) => KeepReason::Authenticated,
        };
        (reason, self.last_change.load(Relaxed))
    }

    /// Drives `response`, and counts its request as in progress to the end of the response's body.
    pub(super) async fn track<E>(
        self: Arc<Self>,
        response: impl Future<Output = Result<axum::response::Response, E>>,
    ) -> Result<axum::response::Response, E> {
        let progress = InProgress::begin(self);
        let response = response.await?;
        Ok(response.map(|body| Body::new(TrackedBody { body, _progress: progress })))
    }

    fn change(&self) {
        self.last_change.store(self.sequence.fetch_add(1, Relaxed), Relaxed);
    }
}

impl InProgress {
    fn begin(activity: Arc<Activity>) -> Self {
        activity.has_sent_request.store(true, Relaxed);
        activity.set_authenticated(false);
        activity.in_progress.fetch_add(1, Relaxed);
        activity.change();
        Self(activity)
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.fetch_sub(1, Relaxed);
        self.0.change();
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
