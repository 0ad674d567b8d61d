//! The requests that wait at this gateway for the slots of leaky buckets, in their order.
//!
//! A bucket's queue is two rows, side by side: the requests that wait, and the slots that they were given,
//! soonest first. The request at a place has the slot at that place. So if one leaves, all behind it move
//! up by one place at once, and the last slot is free.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::limit::{Decider, Millis};

/// One slot of a bucket, given to a request of this gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Slot {
    /// When it begins, by this process' monotonic clock.
    pub(super) due: Instant,
    /// The same by the clock that decided, in ms: the name that the store knows it by.
    pub(super) at: Millis,
    /// How long it is. Only slots as long are passed on.
    pub(super) size: Size,
}

/// How long a slot is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Size {
    /// What the request costs.
    pub(super) cost: u32,
    /// The quota that it was decided by.
    pub(super) quota: u32,
    /// Where it was decided.
    pub(super) by: Decider,
}

/// The queues of a process, over all of its workers. Bounded by the requests that wait.
#[derive(Default)]
pub struct DelayQueues(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    next: u64,
    queues: HashMap<u128, DelayQueue, RandomState>,
}

#[derive(Default)]
struct DelayQueue {
    waiting: VecDeque<Waiter>,
    /// As many, sorted by [`Slot::due`].
    slots: VecDeque<Slot>,
}

struct Waiter {
    id: u64,
    /// When it will look at its slot by itself: never before the slot, and after it if it moved up.
    looks_at: Instant,
    called: Arc<Notify>,
}

impl DelayQueues {
    /// Puts a request into the queue of `bucket`, at the place of `slot`; returns the name to ask by.
    /// `called` is notified when [`Self::take`] should be asked again, sooner than it said.
    pub(super) fn enter(&self, bucket: u128, slot: Slot, called: &Arc<Notify>) -> u64 {
        let mut inner = self.0.lock();
        let id = inner.next;
        inner.next += 1;
        let queue = inner.queues.entry(bucket).or_default();
        let at = queue.slots.partition_point(|other| other.due <= slot.due);
        let called = Arc::clone(called);
        queue.waiting.insert(at, Waiter { id, looks_at: slot.due, called });
        queue.slots.insert(at, slot);
        id
    }

    /// Takes the slot of `id` if it has begun at `now`, and leaves; else says when it begins. `None`:
    /// no request of this name waits.
    pub(super) fn take(
        &self,
        bucket: u128,
        id: u64,
        now: Instant,
    ) -> Option<Result<Slot, Instant>> {
        self.with(bucket, |queue| {
            let at = queue.place(id)?;
            let slot = *queue.slots.get(at)?;
            if now < slot.due {
                queue.waiting[at].looks_at = slot.due;
                return Some(Err(slot.due));
            }
            queue.waiting.remove(at);
            queue.slots.remove(at);
            Some(Ok(slot))
        })
    }

    /// Lets `id` go without its slot: those behind move up, as far as their slots are as long, and the
    /// slot that is free then is given back, before another can leave: the last one first.
    pub(super) fn leave(&self, bucket: u128, id: u64, give_back: impl FnOnce(Slot)) {
        let _left: Option<()> = self.with(bucket, |queue| {
            let at = queue.place(id)?;
            let size = queue.slots.get(at)?.size;
            let behind = queue.slots.range(at + 1..);
            let as_long = behind.take_while(|slot| slot.size == size).count();
            queue.waiting.remove(at);
            queue.slots.remove(at + as_long).map(give_back)
        });
    }

    /// How many queues there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().queues.len()
    }

    /// Changes a queue; then calls the first, if the change brought its slot forward.
    fn with<T>(
        &self,
        bucket: u128,
        change: impl FnOnce(&mut DelayQueue) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.0.lock();
        let queue = inner.queues.get_mut(&bucket)?;
        let changed = change(queue);
        match (queue.waiting.front(), queue.slots.front()) {
            (Some(first), Some(slot)) if first.looks_at > slot.due => first.called.notify_one(),
            (None, _) => drop(inner.queues.remove(&bucket)),
            _ => {}
        }
        changed
    }
}

impl DelayQueue {
    fn place(&self, id: u64) -> Option<usize> {
        self.waiting.iter().position(|waiting| waiting.id == id)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::clock;

    const SIZE: Size = Size { cost: 1, quota: 4, by: Decider::Store };

    fn leave(lines: &DelayQueues, id: u64) -> Option<Slot> {
        let mut freed = None;
        lines.leave(7, id, |slot| freed = Some(slot));
        freed
    }

    fn slot(start: Instant, ms: u64) -> Slot {
        Slot { due: start + Duration::from_millis(ms), at: ms, size: SIZE }
    }

    #[test]
    fn who_leaves_frees_the_last_slot_and_the_first_is_called() {
        let (lines, start) = (DelayQueues::default(), clock::instant());
        let called: Vec<_> = (0..3).map(|_| Arc::new(Notify::new())).collect();
        let ids: Vec<_> =
            (1..4).zip(&called).map(|(n, called)| lines.enter(7, slot(start, n), called)).collect();
        assert_eq!(leave(&lines, ids[0]), Some(slot(start, 3)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(called[1].notified());
        let due = start + Duration::from_millis(1);
        assert_eq!(lines.take(7, ids[1], start), Some(Err(due)));
        assert_eq!(lines.take(7, ids[1], due), Some(Ok(slot(start, 1))));
        // The next one still looks at its old time: it is called now that it is the first.
        runtime.block_on(called[2].notified());
        assert_eq!(lines.take(7, ids[2], due), Some(Err(start + Duration::from_millis(2))));
        assert_eq!(leave(&lines, ids[2]), Some(slot(start, 2)));
        assert_eq!((lines.len(), leave(&lines, ids[2])), (0, None));
    }

    #[test]
    fn a_slot_of_another_size_is_not_passed_on() {
        let (lines, start) = (DelayQueues::default(), clock::instant());
        let called = Arc::new(Notify::new());
        let large = Slot { size: Size { cost: 2, ..SIZE }, ..slot(start, 3) };
        let first = lines.enter(7, slot(start, 1), &called);
        lines.enter(7, slot(start, 2), &called);
        let third = lines.enter(7, large, &called);
        assert_eq!(leave(&lines, first), Some(slot(start, 2)));
        assert_eq!(lines.take(7, third, start), Some(Err(large.due)));
    }

    proptest! {
        /// Slots are given as they are in a store: no slot is had twice, none is lost, no request waits
        /// longer than for the slot that it came with, and none overtakes.
        #[test]
        fn slots_are_had_once(steps in prop::collection::vec((0_u8..3, 0_usize..20), 1..200)) {
            let (lines, start) = (DelayQueues::default(), clock::instant());
            let called = Arc::new(Notify::new());
            let (mut waiting, mut next, mut now) = (Vec::<(u64, u64)>::new(), 0_u64, 0_u64);
            let mut released = 0_u64;
            for (kind, which) in steps {
                match kind {
                    0 => {
                        next = next.max(now) + 1;
                        waiting.push((lines.enter(7, slot(start, next), &called), next));
                    }
                    1 if !waiting.is_empty() => {
                        let (id, _) = waiting.remove(which % waiting.len());
                        let freed = leave(&lines, id).unwrap();
                        // With one gateway it is the last, and the store takes it back.
                        prop_assert_eq!(freed.at, next);
                        next -= 1;
                    }
                    _ => {
                        now += 1;
                        let at = start + Duration::from_millis(now);
                        if let Some(&(id, had)) = waiting.first()
                            && let Some(Ok(slot)) = lines.take(7, id, at)
                        {
                            prop_assert!(slot.at <= had && slot.at == now && slot.at > released);
                            released = slot.at;
                            waiting.remove(0);
                        }
                    }
                }
            }
        }
    }
}
