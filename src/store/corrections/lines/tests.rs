//! Order, bounds and what becomes of a batch.

use super::*;
use crate::limit::{Millis, OnFailure, Quota, Reserve};

fn limit(algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit {
        name: "corrected".into(),
        fingerprint: 7,
        algorithm,
        quota: Quota { max_wait: 5_000, ..Quota::new(100, 1_000, 1) },
        cost: 1,
        on_failure: OnFailure::Local,
        reserve: Reserve::Off,
        enforce: true,
        index: 0,
    })
}

fn pending(limit: &Arc<Limit>, key: u128, change: Change) -> Pending {
    let (limit, key) = (Arc::clone(limit), Key(key));
    Pending { limit, key, change, source: Source::Request, pushed: 0, refused: false }
}

fn refund(charged_at: Millis) -> Change {
    Change::Refund { charged_at, cost: 1 }
}

/// Pushes refunds of charges at these times to a place.
fn push_all(
    lines: &mut Lines<u8>,
    place: u8,
    limit: &Arc<Limit>,
    times: impl Iterator<Item = u64>,
) {
    for at in times {
        assert!(matches!(lines.push(place, pending(limit, 1, refund(at))), Pushed::Queued));
    }
}

/// Takes a batch as a new sender: its place, and when its charges were made.
fn take(lines: &mut Lines<u8>) -> Option<(u8, Vec<u64>)> {
    assert!(lines.begin());
    let (place, batch) = lines.take(0, &mut Vec::new())?;
    Some((place, times(&batch)))
}

fn times(batch: &[Pending]) -> Vec<u64> {
    let time = |pending: &Pending| match pending.change {
        Change::Refund { charged_at, .. } => charged_at,
        Change::Overdraw { .. } => u64::MAX,
    };
    batch.iter().map(time).collect()
}

#[test]
fn a_place_has_one_sender_and_keeps_its_order() {
    let (mut lines, of) = (Lines::default(), limit(Algorithm::FixedWindow));
    assert!(!lines.begin(), "nothing waits");
    push_all(&mut lines, 1, &of, 0..100);
    assert_eq!(take(&mut lines), Some((1, (0..64).collect())));
    assert!(!lines.begin(), "its batch is on its way");
    push_all(&mut lines, 2, &of, 0..2);
    assert_eq!(take(&mut lines), Some((2, vec![0, 1])));
    lines.go_on(1);
    lines.end();
    assert_eq!(take(&mut lines), Some((1, (64..100).collect())));
    for place in [1, 2] {
        lines.go_on(place);
        assert!(lines.take(0, &mut Vec::new()).is_none(), "it has ended");
    }
    assert_eq!((lines.senders, lines.sending, lines.waiting, lines.all.len()), (0, 0, 0, 0));
    assert!(!lines.is_busy());
}

#[test]
fn what_was_not_sent_comes_first_when_its_place_is_there_again() {
    let (mut lines, of) = (Lines::default(), limit(Algorithm::FixedWindow));
    push_all(&mut lines, 1, &of, 0..70);
    assert!(lines.begin());
    let (place, batch) = lines.take(0, &mut Vec::new()).unwrap();
    push_all(&mut lines, 1, &of, 70..80);
    lines.park(place, batch);
    assert!(lines.take(0, &mut Vec::new()).is_none() && !lines.begin() && !lines.is_busy());
    lines.resume(|place| place == 2);
    assert!(!lines.begin());
    lines.resume(|place| place == 1);
    assert_eq!(take(&mut lines), Some((1, (0..64).collect())));
    lines.go_on(1);
    let (_, rest) = lines.take(0, &mut Vec::new()).unwrap();
    assert_eq!(times(&rest), (64..80).collect::<Vec<_>>());
    lines.park(1, Vec::new());
    assert!(lines.all.is_empty(), "what may have been made is not kept");
}

#[test]
fn slots_of_a_bucket_leave_last_first() {
    let (mut lines, of) = (Lines::default(), limit(Algorithm::LeakyBucket));
    let other = limit(Algorithm::FixedWindow);
    for at in [3, 9, 5] {
        lines.push(1, pending(&of, 7, refund(at)));
        lines.push(1, pending(&other, 7, refund(at)));
    }
    assert_eq!(take(&mut lines), Some((1, vec![9, 3, 5, 9, 3, 5])));
}

#[test]
fn corrections_of_one_record_and_time_are_one() {
    let mut lines = Lines::default();
    let (window, bucket) = (limit(Algorithm::FixedWindow), limit(Algorithm::LeakyBucket));
    let mut push =
        |of, key, change| matches!(lines.push(1, pending(of, key, change)), Pushed::Merged);
    let most = Change::Refund { charged_at: 5, cost: u32::MAX - 1 };
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
    assert!(lines.begin());
    let (_, batch) = lines.take(0, &mut Vec::new()).unwrap();
    let costs: Vec<u32> = batch.iter().map(|pending| pending.change.cost()).collect();
    assert_eq!(costs, [2, u32::MAX, 1, 1, 3, 1, 1]);
}

#[test]
fn it_is_bounded_and_the_longest_line_loses_its_oldest() {
    let (mut lines, of) = (Lines::default(), limit(Algorithm::FixedWindow));
    push_all(&mut lines, 1, &of, 0..10);
    push_all(&mut lines, 2, &of, 0..ROOM as u64 - 10);
    for at in 0..3 {
        let pushed = lines.push(1, pending(&of, 1, refund(1_000 + at)));
        let Pushed::Replaced(oldest) = pushed else { panic!("{pushed:?}") };
        assert_eq!(times(&[oldest]), [at]);
    }
    assert_eq!((lines.waiting, lines.all[&1].waiting.len()), (ROOM, 13));
}

#[test]
fn what_no_longer_matters_is_not_sent() {
    let mut lines = Lines::default();
    let (window, bucket) = (limit(Algorithm::FixedWindow), limit(Algorithm::LeakyBucket));
    push_all(&mut lines, 1, &window, 0..100);
    push_all(&mut lines, 1, &bucket, 0..1);
    let mut past = Vec::new();
    assert!(lines.begin());
    let (_, batch) = lines.take(1_000, &mut past).unwrap();
    assert_eq!((past.len(), times(&batch)), (100, vec![0]));
    lines.park(1, batch);
    lines.resume(|_| true);
    assert!(lines.take(6_000, &mut past).is_none());
    assert_eq!((past.len(), lines.waiting, lines.all.len()), (101, 0, 0));
}

#[test]
fn a_record_that_was_reset_is_not_corrected() {
    let (mut lines, of) = (Lines::default(), limit(Algorithm::FixedWindow));
    for key in [1, 2, 1] {
        lines.push(1, pending(&of, key, refund(1)));
    }
    assert_eq!(lines.forget(1, record(&of, Key(1))).len(), 2);
    assert_eq!((lines.waiting, lines.forget(2, 1).len()), (1, 0));
    assert_eq!(take(&mut lines), Some((1, vec![1])));
}

#[test]
fn as_many_senders_begin_as_there_are_places_up_to_a_bound() {
    let (mut lines, of) = (Lines::default(), limit(Algorithm::FixedWindow));
    for place in 0..100 {
        push_all(&mut lines, place, &of, 0..1);
    }
    assert_eq!((0..100).filter(|_| lines.begin()).count(), SENDERS);
    let taken = (0..SENDERS).map(|_| lines.take(0, &mut Vec::new()).unwrap().0);
    assert!(taken.eq(0..16));
    lines.go_on(0);
    assert_eq!(lines.take(0, &mut Vec::new()).unwrap().0, 16);
}
