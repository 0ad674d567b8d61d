//! [`DelayQueues`]: the requests that this process delays, in the order of their leaky bucket
//! slots.
//!
//! A bucket's queue is two parallel sequences: the delayed requests, and the slots that they were
//! granted, soonest first. The request at an index has the slot at that index. If a request leaves,
//! the requests directly behind it that have slots of the same class each move up by one slot. The
//! last of these slots becomes free.

use std::{collections::VecDeque, sync::Arc};

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tidegate_charge::DecisionSource;
use tidegate_system::clock::{StoreTime, Uptime};
use tokio::sync::Notify;

/// A slot of a bucket that was granted to a request of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Slot {
    /// Its start, by [`Clock::uptime`](tidegate_system::clock::Clock::uptime).
    pub(super) due: Uptime,
    /// Its start in ms, by the clock of the store that decided. A refund identifies the slot by
    /// this time.
    pub(super) charged_at: StoreTime,
    /// Its class. A slot is passed on only to a request whose own slot has the same class.
    pub(super) class: SlotClass,
}

/// What determines a slot's length, and the store that granted it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SlotClass {
    /// The request's cost.
    pub(super) cost: u64,
    /// The quota of the decision.
    pub(super) quota: u64,
    /// The store that decided.
    pub(super) source: DecisionSource,
}

/// A slot that has begun, and the cost of the requests behind it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct BegunSlot {
    pub(super) slot: Slot,
    /// The total cost of this process's requests that still wait in the bucket for slots of the
    /// same store.
    pub(super) waiting: u64,
}

/// The queues of a process, for all of its workers, by bucket id. No queue is empty.
#[derive(Default)]
pub struct DelayQueues(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    next_id: u64,
    queues: HashMap<u128, DelayQueue, RandomState>,
}

#[derive(Default)]
struct DelayQueue {
    requests: VecDeque<DelayedRequest>,
    /// As many as `requests`, sorted by [`Slot::due`].
    slots: VecDeque<Slot>,
}

struct DelayedRequest {
    id: u64,
    /// When its timer wakes it: at its slot, or later if it has moved up since.
    wakes_at: Uptime,
    wake: Arc<Notify>,
}

impl DelayQueues {
    /// Inserts a request into the queue of `bucket` by its `slot`; returns its id. `wake` is
    /// notified when the request is the first of the queue and its slot begins before its timer:
    /// call [`Self::take_due`] then.
    pub(super) fn insert(&self, bucket: u128, slot: Slot, wake: &Arc<Notify>) -> u64 {
        let mut inner = self.0.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        let queue = inner.queues.entry(bucket).or_default();
        let index = queue.slots.partition_point(|other| other.due <= slot.due);
        let wake = Arc::clone(wake);
        queue.requests.insert(index, DelayedRequest { id, wakes_at: slot.due, wake });
        queue.slots.insert(index, slot);
        id
    }

    /// Removes request `id` and returns its slot, if the slot has begun at `now`; else `Err` with
    /// the time when it begins. `None` if there is no such request. Takes time in proportion to the
    /// length of the queue.
    pub(super) fn take_due(
        &self,
        bucket: u128,
        id: u64,
        now: Uptime,
    ) -> Option<Result<BegunSlot, Uptime>> {
        self.update(bucket, |queue| {
            let index = queue.index_of(id)?;
            let slot = *queue.slots.get(index)?;
            if now < slot.due {
                queue.requests[index].wakes_at = slot.due;
                return Some(Err(slot.due));
            }
            queue.requests.remove(index);
            queue.slots.remove(index);
            let waiting =
                queue.slots.iter().filter(|other| other.class.source == slot.class.source);
            let waiting = waiting.map(|other| other.class.cost).sum();
            Some(Ok(BegunSlot { slot, waiting }))
        })
    }

    /// Removes request `id` before its slot. The requests directly behind it with slots of the same
    /// class move up, and `refund` gets the slot that becomes free. `refund` runs under the lock:
    /// when several requests leave, the last slot must be refunded first.
    pub(super) fn remove(&self, bucket: u128, id: u64, refund: impl FnOnce(Slot)) {
        let _: Option<()> = self.update(bucket, |queue| {
            let index = queue.index_of(id)?;
            let class = queue.slots.get(index)?.class;
            let behind = queue.slots.range(index + 1..);
            let moved_up = behind.take_while(|slot| slot.class == class).count();
            queue.requests.remove(index);
            queue.slots.remove(index + moved_up).map(refund)
        });
    }

    /// The number of queues.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.lock().queues.len()
    }

    /// Changes a queue; then wakes the first request if its slot begins before its timer, or
    /// removes the queue if it is empty.
    fn update<T>(
        &self,
        bucket: u128,
        change: impl FnOnce(&mut DelayQueue) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.0.lock();
        let queue = inner.queues.get_mut(&bucket)?;
        let changed = change(queue);
        match (queue.requests.front(), queue.slots.front()) {
            (Some(first), Some(slot)) if first.wakes_at > slot.due => first.wake.notify_one(),
            (None, _) => drop(inner.queues.remove(&bucket)),
            _ => {}
        }
        changed
    }
}

impl DelayQueue {
    fn index_of(&self, id: u64) -> Option<usize> {
        self.requests.iter().position(|request| request.id == id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLASS: SlotClass = SlotClass { cost: 1, quota: 4, source: DecisionSource::Store };

    fn remove(queues: &DelayQueues, id: u64) -> Option<Slot> {
        let mut freed = None;
        queues.remove(7, id, |slot| freed = Some(slot));
        freed
    }

    fn uptime(ms: u64) -> Uptime {
        Uptime::from_duration(std::time::Duration::from_millis(ms))
    }

    fn slot(ms: u64) -> Slot {
        Slot { due: uptime(ms), charged_at: StoreTime::from_unix_ms(ms), class: CLASS }
    }

    #[test]
    fn removing_a_request_frees_the_last_slot_and_wakes_the_first() {
        let queues = DelayQueues::default();
        let wake: Vec<_> = (0..3).map(|_| Arc::new(Notify::new())).collect();
        let ids: Vec<_> =
            (1..4).zip(&wake).map(|(n, wake)| queues.insert(7, slot(n), wake)).collect();
        assert_eq!(remove(&queues, ids[0]), Some(slot(3)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(wake[1].notified());
        let due = uptime(1);
        assert_eq!(queues.take_due(7, ids[1], Uptime::ZERO), Some(Err(due)));
        let begun = BegunSlot { slot: slot(1), waiting: 1 };
        assert_eq!(queues.take_due(7, ids[1], due), Some(Ok(begun)));
        // The next request's timer is still set to its old slot: it is woken now that it is first.
        runtime.block_on(wake[2].notified());
        assert_eq!(queues.take_due(7, ids[2], due), Some(Err(uptime(2))));
        assert_eq!(remove(&queues, ids[2]), Some(slot(2)));
        assert_eq!((queues.len(), remove(&queues, ids[2])), (0, None));
    }

    #[test]
    fn a_slot_of_another_class_is_not_passed_on() {
        let queues = DelayQueues::default();
        let wake = Arc::new(Notify::new());
        let large = Slot { class: SlotClass { cost: 2, ..CLASS }, ..slot(3) };
        let first = queues.insert(7, slot(1), &wake);
        queues.insert(7, slot(2), &wake);
        let third = queues.insert(7, large, &wake);
        assert_eq!(remove(&queues, first), Some(slot(2)));
        assert_eq!(queues.take_due(7, third, Uptime::ZERO), Some(Err(large.due)));
    }

    proptest! {
        /// No slot is taken twice or lost, no request waits longer than for the slot that it was
        /// first granted, and none overtakes another.
        #[test]
        fn each_slot_is_taken_once_and_in_order(
            steps in prop::collection::vec((0_u8..3, 0_usize..20), 1..200),
        ) {
            let queues = DelayQueues::default();
            let wake = Arc::new(Notify::new());
            let (mut waiting, mut next, mut now) = (Vec::<(u64, u64)>::new(), 0_u64, 0_u64);
            let mut released = 0_u64;
            for (kind, which) in steps {
                match kind {
                    0 => {
                        next = next.max(now) + 1;
                        waiting.push((queues.insert(7, slot(next), &wake), next));
                    }
                    1 if !waiting.is_empty() => {
                        let (id, _) = waiting.remove(which % waiting.len());
                        let freed = remove(&queues, id).unwrap();
                        // With one gateway the freed slot is the bucket's last one, which the
                        // store can refund.
                        prop_assert_eq!(freed.charged_at.as_unix_ms(), next);
                        next -= 1;
                    }
                    _ => {
                        now += 1;
                        let at = uptime(now);
                        if let Some(&(id, granted)) = waiting.first()
                            && let Some(Ok(BegunSlot { slot, waiting: behind })) =
                                queues.take_due(7, id, at)
                        {
                            prop_assert_eq!(behind, waiting.len() as u64 - 1);
                            let charged_at = slot.charged_at.as_unix_ms();
                            prop_assert!(charged_at <= granted && charged_at > released);
                            prop_assert_eq!(charged_at, now);
                            released = charged_at;
                            waiting.remove(0);
                        }
                    }
                }
            }
        }
    }
}
