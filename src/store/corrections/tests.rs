//! What becomes of a batch by its outcome, and how it is counted.

use super::*;
use crate::limit::{OnFailure, Quota, Reserve};

fn pending(source: Source, key: u128) -> Pending {
    let limit = Limit {
        name: "corrected".into(),
        fingerprint: 7,
        algorithm: Algorithm::FixedWindow,
        quota: Quota::new(100, 60_000, 1),
        cost: 1,
        on_failure: OnFailure::Local,
        reserve: Reserve::Off,
        enforce: true,
        index: 0,
    };
    let change = match source {
        Source::Outage => Change::Overdraw { cost: 5 },
        Source::Request | Source::Tokens => Change::Refund { charged_at: 1, cost: 5 },
    };
    Pending { limit: Arc::new(limit), key: Key(key), change, source, pushed: 0, refused: false }
}

fn queue() -> CorrectionQueue {
    let queue = CorrectionQueue::new(Arc::default(), Clock::manual(0));
    for (key, source) in (0..).zip([Source::Request, Source::Tokens, Source::Outage]) {
        queue.push(Place::ONLY, pending(source, key));
    }
    queue
}

/// Sends a batch with this outcome; how many corrections were in it.
fn send(queue: &CorrectionQueue, outcome: Result<(), Failure>) -> usize {
    queue.lines.lock().resume(|_| true);
    if !queue.lines.lock().begin() {
        return 0;
    }
    let (place, batch) = queue.take().expect("begun for it");
    let count = batch.len();
    let outcomes = std::iter::repeat_n(Outcome::Unknown, count).collect();
    queue.finish(place, batch, outcome.map(|()| Verdict { admitted: true, outcomes }));
    assert!(queue.lines.lock().take(0, &mut Vec::new()).is_none());
    count
}

#[test]
fn what_is_made_is_counted() {
    let queue = queue();
    assert_eq!(queue.stats().unmerged, 1);
    assert_eq!((send(&queue, Ok(())), send(&queue, Ok(()))), (3, 0));
    assert_eq!(queue.stats(), QueueStats { merged: 1, ..QueueStats::default() });
}

#[test]
fn what_was_not_sent_stays() {
    let queue = queue();
    for _ in 0..10 {
        assert_eq!(send(&queue, Err(Failure::Open)), 3);
    }
    assert_eq!(queue.stats(), QueueStats { unmerged: 1, ..QueueStats::default() });
}

const LOST: QueueStats = QueueStats { merged: 0, dropped: 2, lost_tokens: 5, unmerged: 0 };

#[test]
fn what_was_refused_is_sent_once_more() {
    let queue = queue();
    assert_eq!(send(&queue, Err(Failure::Server)), 3);
    assert_eq!(queue.stats(), QueueStats { unmerged: 1, ..QueueStats::default() });
    queue.push(Place::ONLY, pending(Source::Outage, 9));
    assert_eq!((send(&queue, Err(Failure::Server)), queue.stats().dropped), (4, 2));
    assert_eq!((send(&queue, Ok(())), send(&queue, Ok(()))), (1, 0));
    assert_eq!(queue.stats(), QueueStats { merged: 1, ..LOST });
}

#[test]
fn what_may_have_been_made_is_lost_and_the_rest_goes_on() {
    for failure in [Failure::Timeout, Failure::Io, Failure::Reply] {
        let queue = queue();
        assert!(queue.lines.lock().begin());
        let (place, batch) = queue.take().expect("three wait");
        queue.push(Place::ONLY, pending(Source::Outage, 9));
        queue.finish(place, batch, Err(failure));
        assert_eq!(queue.stats(), QueueStats { unmerged: 1, ..LOST });
        assert!(queue.lines.lock().take(0, &mut Vec::new()).is_none(), "it waits for its place");
        assert_eq!(send(&queue, Ok(())), 1);
        assert_eq!(queue.stats(), QueueStats { merged: 1, ..LOST });
    }
}
