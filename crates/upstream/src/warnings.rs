//! [`Warnings`]: which failures of a subject are logged, when there are many.

use std::cell::RefCell;

use smallvec::SmallVec;
use tidegate_base::time::{CoarseTime, Millis};

/// Minimum interval between two lines for one reason.
const INTERVAL: Millis = Millis::from_secs(1);

/// A worker's warnings about one subject, such as an upstream: a line a second for each reason,
/// with the number of failures since the line before. One subject or reason hides no other.
#[derive(Debug, Default)]
pub struct Warnings(RefCell<SmallVec<[LoggedReason; 2]>>);

#[derive(Debug)]
struct LoggedReason {
    reason: &'static str,
    logged_at: CoarseTime,
    /// Failures since then that were not logged.
    left_out: u64,
}

impl Warnings {
    /// Counts a failure for `reason`. The number of failures since the last line, with this one, if
    /// a line is due. Reasons are few: each is a variant of an error.
    pub fn due(&self, reason: &'static str, now: CoarseTime) -> Option<u64> {
        let mut reasons = self.0.borrow_mut();
        let Some(known) = reasons.iter_mut().find(|known| known.reason == reason) else {
            reasons.push(LoggedReason { reason, logged_at: now, left_out: 0 });
            return Some(1);
        };
        if now.since(known.logged_at) < INTERVAL {
            known.left_out += 1;
            return None;
        }
        known.logged_at = now;
        Some(std::mem::take(&mut known.left_out) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_line_a_second_with_its_count() {
        let (warnings, at) = (Warnings::default(), CoarseTime::from_ms);
        assert_eq!(warnings.due("connect", at(0)), Some(1), "also in the first second");
        assert_eq!(warnings.due("connect", at(10)), None);
        assert_eq!(warnings.due("timeout", at(10)), Some(1), "another reason is not hidden");
        assert_eq!(warnings.due("connect", at(999)), None);
        assert_eq!(warnings.due("connect", at(1_000)), Some(3));
        assert_eq!(warnings.due("connect", at(2_000)), Some(1));
    }
}
