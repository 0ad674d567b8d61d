//! What happens to a batch by its outcome, and how it is counted.

use super::*;
use crate::limit::{LeaseSize, OnFailure, Quota};

fn pending(reason: CorrectionReason, key: u128) -> PendingCorrection {
    let limit = Limit {
        name: "corrected".into(),
        fingerprint: 7,
        algorithm: Algorithm::FixedWindow,
        quota: Quota::new(100, 60_000, 1),
        cost: 1,
        on_failure: OnFailure::Local,
        lease_size: LeaseSize::Off,
        enforce: true,
        index: 0,
    };
    let change = match reason {
        CorrectionReason::Outage => Change::Overdraw { cost: 5 },
        CorrectionReason::Request | CorrectionReason::Tokens => {
            Change::Refund { charged_at: 1, cost: 5 }
        }
    };
    PendingCorrection {
        limit: Arc::new(limit),
        key: Key(key),
        change,
        reason,
        pushed_at: 0,
        is_retry: false,
    }
}

fn queue() -> CorrectionQueue {
    let queue = CorrectionQueue::new(Arc::default(), Clock::manual(0));
    for (key, reason) in
        (0..).zip([CorrectionReason::Request, CorrectionReason::Tokens, CorrectionReason::Outage])
    {
        queue.push(ShardId::ONLY, pending(reason, key));
    }
    queue
}

/// Ends a batch with this outcome. Returns how many corrections were in it.
fn send(queue: &CorrectionQueue, outcome: Result<(), Failure>) -> usize {
    queue.shards.lock().resume(|_| true);
    if !queue.shards.lock().start_sender() {
        return 0;
    }
    let (shard, batch) = queue.take_batch().expect("a batch waits");
    let count = batch.len();
    let outcomes = std::iter::repeat_n(Outcome::Unknown, count).collect();
    queue.finish(shard, batch, outcome.map(|()| Verdict { admitted: true, outcomes }));
    assert!(queue.shards.lock().take_batch(0, &mut Vec::new()).is_none());
    count
}

#[test]
fn applied_corrections_are_counted() {
    let queue = queue();
    assert_eq!(queue.stats().unmerged, 1);
    assert_eq!((send(&queue, Ok(())), send(&queue, Ok(()))), (3, 0));
    assert_eq!(queue.stats(), QueueStats { merged: 1, ..QueueStats::default() });
}

#[test]
fn unsent_corrections_stay() {
    let queue = queue();
    for _ in 0..10 {
        assert_eq!(send(&queue, Err(Failure::Open)), 3);
    }
    assert_eq!(queue.stats(), QueueStats { unmerged: 1, ..QueueStats::default() });
}

const LOST: QueueStats = QueueStats { merged: 0, dropped: 2, lost_tokens: 5, unmerged: 0 };

#[test]
fn refused_corrections_are_sent_once_more() {
    let queue = queue();
    assert_eq!(send(&queue, Err(Failure::Server)), 3);
    assert_eq!(queue.stats(), QueueStats { unmerged: 1, ..QueueStats::default() });
    queue.push(ShardId::ONLY, pending(CorrectionReason::Outage, 9));
    assert_eq!((send(&queue, Err(Failure::Server)), queue.stats().dropped), (4, 2));
    assert_eq!((send(&queue, Ok(())), send(&queue, Ok(()))), (1, 0));
    assert_eq!(queue.stats(), QueueStats { merged: 1, ..LOST });
}

#[test]
fn corrections_of_unknown_outcome_are_lost_and_later_ones_are_sent() {
    for failure in [Failure::Timeout, Failure::Io, Failure::Reply] {
        let queue = queue();
        assert!(queue.shards.lock().start_sender());
        let (shard, batch) = queue.take_batch().expect("three corrections wait");
        queue.push(ShardId::ONLY, pending(CorrectionReason::Outage, 9));
        queue.finish(shard, batch, Err(failure));
        assert_eq!(queue.stats(), QueueStats { unmerged: 1, ..LOST });
        assert!(
            queue.shards.lock().take_batch(0, &mut Vec::new()).is_none(),
            "the queue is parked"
        );
        assert_eq!(send(&queue, Ok(())), 1);
        assert_eq!(queue.stats(), QueueStats { merged: 1, ..LOST });
    }
}
