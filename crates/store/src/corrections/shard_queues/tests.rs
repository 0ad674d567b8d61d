//! Order, capacity, and the ends of batches.

use tidegate_base::time::{Millis, MonotonicTime, StoreTime};
use tidegate_charge::LimitIdentity;
use tidegate_limit::{Algorithm, Quota};

use super::*;

const LEAKY_BUCKET: Algorithm = Algorithm::LeakyBucket { max_wait: Millis::from_secs(5) };

fn limit(algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit::new(
        LimitIdentity::new("corrected", 7),
        Quota::new(100, Millis::from_secs(1), algorithm),
    ))
}

fn pending(limit: &Arc<Limit>, key: u128, change: Change) -> PendingCorrection {
    let (limit, key) = (Arc::clone(limit), Key(key));
    PendingCorrection {
        limit,
        key,
        change,
        reason: CorrectionReason::Request,
        pushed_at: MonotonicTime::ZERO,
        was_refused: false,
    }
}

fn refund(charged_at: u64) -> Change {
    Change::Refund { charged_at: StoreTime::from_unix_ms(charged_at), cost: 1 }
}

/// Pushes refunds of charges at these times.
fn push_all(
    queues: &mut ShardQueues<u8>,
    shard: u8,
    limit: &Arc<Limit>,
    times: impl Iterator<Item = u64>,
) {
    for at in times {
        assert!(queues.push(shard, pending(limit, 1, refund(at))).is_none());
    }
}

/// Takes a batch as a new sender: its shard, and the times of its charges.
fn take(queues: &mut ShardQueues<u8>) -> Option<(u8, Vec<u64>)> {
    assert!(queues.start_sender());
    let (shard, batch) = queues.take_batch(MonotonicTime::ZERO)?;
    Some((shard, times(&batch)))
}

fn times(batch: &[PendingCorrection]) -> Vec<u64> {
    let time = |pending: &PendingCorrection| match pending.change {
        Change::Refund { charged_at, .. } => charged_at.as_unix_ms(),
        Change::Release { .. } | Change::Overdraw { .. } => u64::MAX,
    };
    batch.iter().map(time).collect()
}

#[test]
fn a_shard_has_one_sender_and_keeps_its_order() {
    let (mut queues, limit) = (ShardQueues::default(), limit(Algorithm::FixedWindow));
    assert!(!queues.start_sender(), "no correction waits");
    push_all(&mut queues, 1, &limit, 0..100);
    assert_eq!(take(&mut queues), Some((1, (0..64).collect())));
    assert!(!queues.start_sender(), "its batch is in flight");
    push_all(&mut queues, 2, &limit, 0..2);
    assert_eq!(take(&mut queues), Some((2, vec![0, 1])));
    queues.complete(1);
    queues.end_sender();
    assert_eq!(take(&mut queues), Some((1, (64..100).collect())));
    for shard in [1, 2] {
        queues.complete(shard);
        assert!(queues.take_batch(MonotonicTime::ZERO).is_none(), "the sender has ended");
    }
    assert_eq!((queues.senders, queues.sending, queues.waiting, queues.queues.len()), (0, 0, 0, 0));
    assert!(!queues.is_busy());
}

#[test]
fn an_unsent_batch_is_sent_first_when_its_shard_is_live_again() {
    let (mut queues, limit) = (ShardQueues::default(), limit(Algorithm::FixedWindow));
    push_all(&mut queues, 1, &limit, 0..70);
    assert!(queues.start_sender());
    let (shard, batch) = queues.take_batch(MonotonicTime::ZERO).unwrap();
    push_all(&mut queues, 1, &limit, 70..80);
    queues.park(shard, batch);
    assert!(
        queues.take_batch(MonotonicTime::ZERO).is_none()
            && !queues.start_sender()
            && !queues.is_busy()
    );
    queues.resume(|shard| shard == 2);
    assert!(!queues.start_sender());
    queues.resume(|shard| shard == 1);
    assert_eq!(take(&mut queues), Some((1, (0..64).collect())));
    queues.complete(1);
    let (_, rest) = queues.take_batch(MonotonicTime::ZERO).unwrap();
    assert_eq!(times(&rest), (64..80).collect::<Vec<_>>());
    queues.park(1, Vec::new());
    assert!(queues.queues.is_empty(), "an empty queue is removed");
}

#[test]
fn leaky_bucket_slots_are_refunded_latest_first() {
    let (mut queues, bucket) = (ShardQueues::default(), limit(LEAKY_BUCKET));
    let window = limit(Algorithm::FixedWindow);
    for at in [3, 9, 5] {
        queues.push(1, pending(&bucket, 7, refund(at)));
        queues.push(1, pending(&window, 7, refund(at)));
    }
    assert_eq!(take(&mut queues), Some((1, vec![9, 3, 5, 9, 3, 5])));
}

#[test]
fn corrections_of_one_record_and_time_are_merged() {
    let mut queues = ShardQueues::default();
    let (window, bucket) = (limit(Algorithm::FixedWindow), limit(LEAKY_BUCKET));
    let mut push = |limit, key, change| {
        let before = queues.waiting;
        assert!(queues.push(1, pending(limit, key, change)).is_none());
        queues.waiting == before
    };
    let most = Change::Refund { charged_at: StoreTime::from_unix_ms(5), cost: MAX_UNITS - 1 };
    let pushed = [
        push(&window, 1, refund(5)),
        push(&window, 1, refund(5)),
        push(&window, 1, most),
        push(&window, 1, refund(5)),
        push(&window, 1, refund(6)),
        push(&window, 2, refund(6)),
        push(&window, 2, Change::Overdraw { cost: 1 }),
        push(&window, 2, Change::Overdraw { cost: 2 }),
        push(&bucket, 2, refund(6)),
        push(&bucket, 2, refund(6)),
    ];
    let merged = [false, true, false, true, false, false, false, true, false, false];
    assert_eq!(pushed, merged);
    assert!(queues.start_sender());
    let (_, batch) = queues.take_batch(MonotonicTime::ZERO).unwrap();
    let costs: Vec<u64> = batch.iter().map(|pending| pending.change.cost()).collect();
    assert_eq!(costs, [2, MAX_UNITS, 1, 1, 3, 1, 1]);
}

#[test]
fn at_capacity_the_longest_queue_drops_its_oldest() {
    let (mut queues, limit) = (ShardQueues::default(), limit(Algorithm::FixedWindow));
    push_all(&mut queues, 1, &limit, 0..10);
    push_all(&mut queues, 2, &limit, 0..CAPACITY as u64 - 10);
    for at in 0..3 {
        let pushed = queues.push(1, pending(&limit, 1, refund(1_000 + at)));
        assert_eq!(pushed.map(|oldest| times(&[oldest])), Some(vec![at]));
    }
    assert_eq!((queues.waiting, queues.queues[&1].waiting.len()), (CAPACITY, 13));
}

#[test]
fn expired_corrections_are_not_sent() {
    let mut queues = ShardQueues::default();
    let (window, bucket) = (limit(Algorithm::FixedWindow), limit(LEAKY_BUCKET));
    push_all(&mut queues, 1, &window, 0..100);
    push_all(&mut queues, 1, &bucket, 0..1);
    assert!(queues.start_sender());
    let (_, batch) = queues.take_batch(MonotonicTime::from_ms(1_000)).unwrap();
    assert_eq!((queues.waiting, times(&batch)), (0, vec![0]));
    queues.park(1, batch);
    queues.resume(|_| true);
    assert!(queues.take_batch(MonotonicTime::from_ms(6_000)).is_none());
    assert_eq!((queues.waiting, queues.queues.len()), (0, 0));
}

#[test]
fn corrections_of_a_deleted_record_are_removed() {
    let (mut queues, limit) = (ShardQueues::default(), limit(Algorithm::FixedWindow));
    for key in [1, 2, 1] {
        queues.push(1, pending(&limit, key, refund(1)));
    }
    queues.remove(1, record_id(&limit, Key(1)));
    assert_eq!(queues.waiting, 1);
    queues.remove(2, 1);
    assert_eq!(queues.waiting, 1);
    assert_eq!(take(&mut queues), Some((1, vec![1])));
}

#[test]
fn there_is_one_sender_a_shard_up_to_the_maximum() {
    let (mut queues, limit) = (ShardQueues::default(), limit(Algorithm::FixedWindow));
    for shard in 0..100 {
        push_all(&mut queues, shard, &limit, 0..1);
    }
    assert_eq!((0..100).filter(|_| queues.start_sender()).count(), MAX_SENDERS);
    let taken = (0..MAX_SENDERS).map(|_| queues.take_batch(MonotonicTime::ZERO).unwrap().0);
    assert!(taken.eq(0..16));
    queues.complete(0);
    assert_eq!(queues.take_batch(MonotonicTime::ZERO).unwrap().0, 16);
}
