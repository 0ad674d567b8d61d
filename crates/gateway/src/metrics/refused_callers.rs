//! The callers that limits refuse most, counted in bounded space: the space-saving algorithm
//! (Metwally et al., 2005), over two windows, so that a caller that has stopped is forgotten.

use tidegate_base::time::{Millis, StoreTime};

/// The most callers that a worker counts in one window.
const MAX_CALLERS: usize = 64;

/// The length of a window. Counts cover the current window and the one before it.
pub const WINDOW: Millis = Millis::from_mins(5);

/// A caller and its refusals.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RefusedCaller {
    /// The limit's name.
    pub limit: String,
    /// The keyed hash by which the limit counts the caller.
    pub key: u128,
    /// The consumer's name, if the limit counts consumers.
    pub consumer: Option<Box<str>>,
    /// The number of refusals. It is too large by at most `error`.
    pub refusals: u64,
    /// The maximum part of `refusals` that belongs to callers that had this place before.
    pub error: u64,
}

/// The callers that one worker refuses most.
#[derive(Debug, Default)]
pub(super) struct RefusedCallers {
    /// When the current window began.
    since: StoreTime,
    current: Vec<RefusedCaller>,
    previous: Vec<RefusedCaller>,
}

impl RefusedCallers {
    /// Counts a refusal at `now`.
    pub(super) fn count(&mut self, now: StoreTime, limit: &str, key: u128, consumer: Option<&str>) {
        self.rotate(now);
        let callers = &mut self.current;
        let known = callers.iter_mut().find(|own| own.key == key && own.limit == limit);
        if let Some(caller) = known {
            caller.refusals += 1;
        } else if callers.len() < MAX_CALLERS {
            let (limit, consumer) = (limit.to_owned(), consumer.map(Into::into));
            callers.push(RefusedCaller { limit, key, consumer, refusals: 1, error: 0 });
        } else if let Some(caller) = callers.iter_mut().min_by_key(|own| own.refusals) {
            // Reuses the allocation.
            limit.clone_into(&mut caller.limit);
            caller.key = key;
            caller.consumer = consumer.map(Into::into);
            caller.error = caller.refusals;
            caller.refusals += 1;
        }
    }

    /// The callers of both windows at `now`; a caller in both windows occurs twice.
    pub(super) fn callers(&mut self, now: StoreTime) -> impl Iterator<Item = &RefusedCaller> {
        self.rotate(now);
        self.current.iter().chain(&self.previous)
    }

    /// Begins a new window if the current one is over.
    fn rotate(&mut self, now: StoreTime) {
        // A clock that was set back also begins a new window.
        let age = now.checked_since(self.since).unwrap_or(WINDOW);
        if age < WINDOW {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        if age >= WINDOW * 2 {
            self.previous.clear();
        }
        self.since = now;
    }
}

/// The `count` callers with the most refusals. A caller may occur several times in `callers`.
pub(super) fn most_refused(callers: Vec<RefusedCaller>, count: usize) -> Vec<RefusedCaller> {
    let mut callers = callers;
    callers.sort_by(|a, b| (a.key, &a.limit).cmp(&(b.key, &b.limit)));
    callers.dedup_by(|other, kept| {
        let is_same = other.key == kept.key && other.limit == kept.limit;
        if is_same {
            kept.refusals += other.refusals;
            kept.error += other.error;
        }
        is_same
    });
    callers.sort_by_key(|caller| std::cmp::Reverse(caller.refusals));
    callers.truncate(count);
    callers
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

    fn top(callers: &mut RefusedCallers, now: StoreTime, count: usize) -> Vec<(u128, u64, u64)> {
        let all = most_refused(callers.callers(now).cloned().collect(), count);
        all.into_iter().map(|caller| (caller.key, caller.refusals, caller.error)).collect()
    }

    #[test]
    fn counts_are_exact_while_there_is_room_and_frequent_callers_stay_when_there_is_none() {
        let mut callers = RefusedCallers::default();
        for _ in 0..100 {
            callers.count(T0, "few", 1, None);
        }
        callers.count(T0, "few", 2, None);
        callers.count(T0, "other", 1, None);
        assert_eq!(top(&mut callers, T0, 9), [(1, 100, 0), (1, 1, 0), (2, 1, 0)]);

        for key in 0..10_000 {
            callers.count(T0, "few", 1_000 + key, None);
            if key % 50 == 0 {
                callers.count(T0, "few", 1, None);
            }
        }
        assert_eq!(callers.current.len(), MAX_CALLERS);
        assert_eq!(top(&mut callers, T0, 1), [(1, 300, 0)], "never the least refused");
        let total: u64 = callers.current.iter().map(|caller| caller.refusals).sum();
        assert_eq!(total, 10_302, "each refusal is counted once");
        let is_bounded = |own: &RefusedCaller| own.refusals - own.error <= 300;
        assert!(callers.current.iter().all(is_bounded));
    }

    #[test]
    fn callers_are_forgotten_after_two_windows() {
        let mut callers = RefusedCallers::default();
        callers.count(T0, "few", 1, None);
        callers.count(T0 + WINDOW, "few", 1, None);
        callers.count(T0 + WINDOW, "few", 2, None);
        assert_eq!(top(&mut callers, T0 + WINDOW, 9), [(1, 2, 0), (2, 1, 0)]);
        assert_eq!(top(&mut callers, T0 + WINDOW * 2, 9), [(1, 1, 0), (2, 1, 0)]);
        assert_eq!(top(&mut callers, T0 + WINDOW * 3, 9), []);
        callers.count(T0 + WINDOW * 9, "few", 3, None);
        assert_eq!(top(&mut callers, T0 + WINDOW * 9, 9), [(3, 1, 0)]);
        assert_eq!(top(&mut callers, T0, 9), [(3, 1, 0)], "a clock that was set back");
    }
}
