use proptest::prelude::*;

use super::*;
use crate::{Algorithm, ms};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// A block of 15 min after 3 refusals within 1 min.
const QUOTA: Quota =
    Quota::new(3, Millis::from_secs(60), Algorithm::Block { duration: Millis::from_secs(900) });

#[test]
fn a_block_begins_with_the_last_refusal_and_ends_exactly() {
    let mut state = BlockState::default();
    for (index, at) in [0, 20_000].into_iter().enumerate() {
        let counted = count_refusals(&mut state, &QUOTA, NOW + ms(at), 1);
        assert_eq!((counted.used, counted.remaining), (index as u64 + 1, 2 - index as u64));
        assert_eq!(counted.reset_at, NOW + ms(60_000), "the window begins with the first refusal");
        assert!(decide(&mut state, &QUOTA, NOW + ms(at), 1).admitted);
    }
    let begins = NOW + ms(59_999);
    assert_eq!(count_refusals(&mut state, &QUOTA, begins, 1).remaining, 0);
    let end = begins + ms(900_000);
    for at in [begins, begins + ms(1), end - ms(1)] {
        let refused = decide(&mut state, &QUOTA, at, 1);
        assert_eq!((refused.admitted, refused.retry_at), (false, Some(end)));
        assert_eq!((refused.remaining, refused.reset_at), (0, end));
    }
    let after = decide(&mut state, &QUOTA, end, 1);
    assert_eq!((after.admitted, after.used, after.remaining), (true, 0, 3));
}

#[test]
fn refusals_in_two_windows_begin_no_block() {
    let mut state = BlockState::default();
    count_refusals(&mut state, &QUOTA, NOW, 2);
    let counted = count_refusals(&mut state, &QUOTA, NOW + ms(60_000), 2);
    assert_eq!((counted.used, counted.remaining), (2, 1));
    assert!(decide(&mut state, &QUOTA, NOW + ms(60_000), 1).admitted);
}

#[test]
fn refusals_during_a_block_do_not_prolong_it() {
    let mut state = BlockState::default();
    let began = count_refusals(&mut state, &QUOTA, NOW, 5);
    assert_eq!((began.used, began.reset_at), (5, NOW + ms(900_000)));
    let late = count_refusals(&mut state, &QUOTA, NOW + ms(899_999), 7);
    assert_eq!(
        (late.used, late.reset_at),
        (12, NOW + ms(900_000)),
        "counted, but without an effect"
    );
    assert!(decide(&mut state, &QUOTA, NOW + ms(900_000), 1).admitted);
}

#[test]
fn a_shorter_block_applies_to_blocks_that_have_begun() {
    let mut state = BlockState::default();
    count_refusals(&mut state, &QUOTA, NOW, 3);
    let shorter =
        Quota::new(3, Millis::from_secs(60), Algorithm::Block { duration: Millis::from_secs(30) });
    assert_eq!(decide(&mut state, &shorter, NOW + ms(10), 1).retry_at, Some(NOW + ms(30_010)));
}

/// The definition: the refusals since the window began, and the end of the block.
#[derive(Default)]
struct Model {
    window: Option<(u64, u64)>,
    blocked_until: u64,
}

impl Model {
    fn count(&mut self, now: u64, refusals: u64) {
        if now < self.blocked_until {
            return;
        }
        let (began, count) =
            self.window.filter(|(began, _)| now < began + 60_000).unwrap_or((now, 0));
        self.window = Some((began, count + refusals));
        if count + refusals >= 3 {
            (self.window, self.blocked_until) = (None, now + 900_000);
        }
    }
}

proptest! {
    #[test]
    fn a_caller_is_blocked_as_defined(
        events in prop::collection::vec((0_u64..70_000, prop::option::weighted(0.6, 1_u64..3)), 1..80),
    ) {
        let (mut state, mut model, mut at) = (BlockState::default(), Model::default(), 0);
        for (pause, refusals) in events {
            at += pause;
            let now = NOW + ms(at);
            let decided = decide(&mut state, &QUOTA, now, 1);
            let is_blocked = at < model.blocked_until;
            prop_assert_eq!(decided.admitted, !is_blocked);
            let end = is_blocked.then(|| NOW + ms(model.blocked_until));
            prop_assert_eq!(decided.retry_at, end);
            if let Some(refusals) = refusals {
                let before = decided.used;
                let counted = count_refusals(&mut state, &QUOTA, now, refusals);
                prop_assert_eq!(counted.used, before + refusals);
                model.count(at, refusals);
                prop_assert_eq!(counted.remaining == 0, at < model.blocked_until);
            }
            // A charge changes nothing.
            let before = state.clone();
            charge(&mut state, &QUOTA, now);
            prop_assert_eq!(&state, &before);
            prop_assert!(expires_at(&state) <= now + ms(900_000));
        }
    }
}
