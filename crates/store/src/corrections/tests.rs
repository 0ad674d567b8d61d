//! The effect of each outcome on a batch, and on the counts.

use tidegate_base::time::{Millis, MonotonicTime, StoreTime};
use tidegate_charge::LimitIdentity;
use tidegate_limit::{Algorithm, Quota};

use super::*;

fn pending(reason: CorrectionReason, key: u128) -> PendingCorrection {
    let limit = Limit::new(
        LimitIdentity::new("corrected", 7),
        Quota::new(100, Millis::from_secs(60), Algorithm::FixedWindow),
    );
    PendingCorrection {
        limit: Arc::new(limit),
        key: Key(key),
        change: Change::Refund { charged_at: StoreTime::from_unix_ms(1), cost: 5 },
        reason,
        pushed_at: MonotonicTime::ZERO,
        was_refused: false,
    }
}

/// A queue with a correction for a request, and one of leased units.
fn queue() -> CorrectionQueue {
    let blocks = Arc::new(BlockTracker::new(Arc::default()));
    let queue = CorrectionQueue::new(Arc::default(), blocks, Clock::manual(StoreTime::ZERO));
    for (key, reason) in (0..).zip([CorrectionReason::Request, CorrectionReason::UnspentUnits]) {
        queue.push(ShardId::ONLY, pending(reason, key));
    }
    queue
}

/// Ends a batch with this outcome. Returns how many corrections were in it.
fn send(queue: &CorrectionQueue, outcome: Result<(), RedisFailure>) -> usize {
    queue.shards.lock().resume(|_| true);
    if !queue.shards.lock().start_sender() {
        return 0;
    }
    let (shard, batch) = queue.take_batch().expect("a batch waits");
    let count = batch.len();
    queue.finish(shard, batch, outcome);
    assert!(queue.shards.lock().take_batch(MonotonicTime::ZERO).is_none());
    count
}

#[test]
fn applied_corrections_are_done() {
    let queue = queue();
    assert_eq!((send(&queue, Ok(())), send(&queue, Ok(()))), (2, 0));
    assert_eq!(queue.stats(), QueueStats::default());
}

#[test]
fn unsent_corrections_stay() {
    let queue = queue();
    for _ in 0..10 {
        assert_eq!(send(&queue, Err(RedisFailure::Unsent)), 2);
    }
    assert_eq!(queue.stats(), QueueStats::default());
}

const LOST: QueueStats = QueueStats { dropped: 1, lost_units: 5 };

#[test]
fn refused_corrections_are_sent_once_more() {
    let queue = queue();
    assert_eq!(send(&queue, Err(RedisFailure::Server)), 2);
    assert_eq!(queue.stats(), QueueStats::default());
    queue.push(ShardId::ONLY, pending(CorrectionReason::Request, 9));
    assert_eq!((send(&queue, Err(RedisFailure::Server)), queue.stats()), (3, LOST));
    assert_eq!((send(&queue, Ok(())), send(&queue, Ok(()))), (1, 0));
    assert_eq!(queue.stats(), LOST);
}

#[test]
fn corrections_of_unknown_outcome_are_lost_and_later_ones_are_sent() {
    for failure in [RedisFailure::Timeout, RedisFailure::Io, RedisFailure::Reply] {
        let queue = queue();
        assert!(queue.shards.lock().start_sender());
        let (shard, batch) = queue.take_batch().expect("two corrections wait");
        queue.push(ShardId::ONLY, pending(CorrectionReason::Request, 9));
        queue.finish(shard, batch, Err(failure));
        assert_eq!(queue.stats(), LOST);
        assert!(
            queue.shards.lock().take_batch(MonotonicTime::ZERO).is_none(),
            "the queue is parked"
        );
        assert_eq!((send(&queue, Ok(())), queue.stats()), (1, LOST));
    }
}
