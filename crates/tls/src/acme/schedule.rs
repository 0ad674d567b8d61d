//! When a certificate is ordered: at once without one, at a time that the authority suggests (ARI,
//! RFC 9773), or when a third of its lifetime is left. Failed orders are repeated with growing
//! pauses. All times are in seconds since the epoch.

use crate::Validity;

/// The pause after the first failed order, in seconds. It doubles with each further failure.
const FIRST_PAUSE: u64 = 60;
/// The shortest pause after an order, in seconds, however short the certificate lives.
const SHORTEST_PAUSE: u64 = 10;
/// The longest pause after a failed order, in seconds, before its random part.
const LONGEST_PAUSE: u64 = 60 * 60;
/// The shortest and the longest time, in seconds, between two questions for a suggestion.
const QUESTION_PAUSE: [u64; 2] = [60, 24 * 60 * 60];
/// The time until the next question if the authority did not answer, in seconds (RFC 9773, 4.3.3).
const FAILED_QUESTION_PAUSE: u64 = 6 * 60 * 60;

/// What to do next with a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AcmeStep {
    /// Order a certificate now.
    Order,
    /// Ask the authority when the certificate should be renewed.
    AskRenewalTime,
    /// Do nothing until this time.
    Wait(u64),
}

/// The time in which the authority wants a certificate renewed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RenewalWindow {
    /// The first second.
    pub start: u64,
    /// The last second.
    pub end: u64,
}

/// The schedule of one certificate.
#[derive(Clone, Debug, Default)]
pub struct RenewalSchedule {
    /// The current certificate's.
    validity: Option<Validity>,
    /// The suggestion for the current certificate, and the time in it that was drawn.
    suggested: Option<(RenewalWindow, u64)>,
    /// The time of the next question for a suggestion.
    ask_at: u64,
    /// The number of failed orders since the last successful one.
    failures: u32,
    /// No order before this time.
    retry_at: u64,
    /// True if an operator wants a new certificate now.
    is_forced: bool,
}

impl RenewalSchedule {
    /// What to do at `now`.
    pub fn next(&self, now: u64) -> AcmeStep {
        let Some(renewal) = self.renewal_at() else { return self.order_at(0, now) };
        if self.is_forced || renewal <= now {
            return self.order_at(0, now);
        }
        if self.ask_at <= now {
            return AcmeStep::AskRenewalTime;
        }
        AcmeStep::Wait(renewal.max(self.retry_at).min(self.ask_at))
    }

    fn order_at(&self, due: u64, now: u64) -> AcmeStep {
        let at = due.max(self.retry_at);
        if at <= now { AcmeStep::Order } else { AcmeStep::Wait(at) }
    }

    /// The time of the renewal; `None` without a certificate.
    pub fn renewal_at(&self) -> Option<u64> {
        let Validity { not_before, not_after } = self.validity?;
        let last_third = not_after - not_after.saturating_sub(not_before) / 3;
        Some(self.suggested.map_or(last_third, |(_, drawn)| drawn.min(not_after)))
    }

    /// The time before which a failed order is not repeated; `None` if the last one succeeded.
    pub fn retry_at(&self) -> Option<u64> {
        // An operator has ended the pause if it is 0.
        (self.failures > 0 && self.retry_at > 0).then_some(self.retry_at)
    }

    /// The number of failed orders since the last successful one.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// True if an order may name the certificate that it replaces: the authority makes suggestions,
    /// and has not refused such an order.
    pub fn names_replaced(&self) -> bool {
        self.suggested.is_some() && self.failures == 0
    }

    /// A certificate is in the storage.
    pub fn restore(&mut self, validity: Validity) {
        *self = Self { validity: Some(validity), ..Self::default() };
    }

    /// A certificate was issued. If it is due at once, because of a wrong clock or an odd
    /// suggestion, it is renewed only after a pause: an authority issues few certificates a week.
    pub fn succeed(&mut self, validity: Validity, now: u64) {
        self.restore(validity);
        let lifetime = validity.not_after.saturating_sub(validity.not_before);
        self.retry_at = now + (lifetime / 3).clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    }

    /// An order has failed, and is repeated after a pause, also one that an operator wanted.
    /// `random` spreads the orders of several gateways. The pause is at least `asked`, which the
    /// authority asks for, in seconds.
    pub fn fail(&mut self, asked: u64, [now, random]: [u64; 2]) {
        let pause = FIRST_PAUSE.checked_shl(self.failures).unwrap_or(LONGEST_PAUSE);
        let pause = pause.min(LONGEST_PAUSE).max(asked);
        self.failures = self.failures.saturating_add(1).min(32);
        self.retry_at = now + pause + random % (pause / 4 + 1);
    }

    /// The authority has suggested `window`, and wants to be asked again in `again` seconds. The
    /// renewal is at a random time in it, which stays while the window stays (RFC 9773, 4.2).
    pub fn suggest(&mut self, window: RenewalWindow, again: u64, [now, random]: [u64; 2]) {
        let [shortest, longest] = QUESTION_PAUSE;
        self.ask_at = now + again.clamp(shortest, longest);
        if self.suggested.is_some_and(|(known, _)| known == window) {
            return;
        }
        let length = window.end.saturating_sub(window.start);
        let drawn = window.start + random % length.saturating_add(1).max(1);
        self.suggested = (window.start <= window.end).then_some((window, drawn));
    }

    /// The authority makes no suggestions, or did not answer.
    pub fn suggest_nothing(&mut self, now: u64) {
        self.ask_at = now + FAILED_QUESTION_PAUSE;
    }

    /// Gateways share the order, of which `failures` have failed since the last successful one: no
    /// order before `retry_at`, unless an operator wants one.
    pub fn hold(&mut self, failures: u32, retry_at: u64) {
        if !self.is_forced {
            self.failures = failures.min(32);
            self.retry_at = retry_at;
        }
    }

    /// This number of orders have failed since the last successful one, at all gateways.
    pub fn count_failures(&mut self, failures: u32) {
        self.failures = failures.min(32);
    }

    /// True if an operator wants a new certificate.
    pub fn is_forced(&self) -> bool {
        self.is_forced
    }

    /// An operator wants a new certificate now.
    pub fn force(&mut self) {
        self.is_forced = true;
        self.retry_at = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = 24 * 60 * 60;
    const NOW: u64 = 1_700_000_000;
    /// Valid for 90 days.
    const VALIDITY: Validity = Validity { not_before: NOW, not_after: NOW + 90 * DAY };

    fn issued() -> RenewalSchedule {
        let mut schedule = RenewalSchedule::default();
        schedule.restore(VALIDITY);
        schedule.suggest_nothing(NOW);
        schedule
    }

    #[test]
    fn without_a_certificate_one_is_ordered_at_once() {
        let mut schedule = RenewalSchedule::default();
        assert_eq!(schedule.next(NOW), AcmeStep::Order);
        assert_eq!(schedule.renewal_at(), None);
        schedule.succeed(VALIDITY, NOW);
        assert_eq!(schedule.next(NOW), AcmeStep::AskRenewalTime);
    }

    #[test]
    fn a_certificate_is_renewed_when_a_third_is_left() {
        let mut schedule = issued();
        assert_eq!(schedule.renewal_at(), Some(NOW + 60 * DAY));
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(NOW + 6 * 60 * 60));
        schedule.suggest_nothing(NOW + 59 * DAY + 20 * 60 * 60);
        assert_eq!(schedule.next(NOW + 60 * DAY - 1), AcmeStep::Wait(NOW + 60 * DAY));
        assert_eq!(schedule.next(NOW + 60 * DAY), AcmeStep::Order);
    }

    #[test]
    fn a_suggested_time_is_drawn_once() {
        let mut schedule = issued();
        let window = RenewalWindow { start: NOW + DAY, end: NOW + 2 * DAY };
        schedule.suggest(window, 60, [NOW, 1000]);
        assert_eq!(schedule.renewal_at(), Some(NOW + DAY + 1000));
        assert!(schedule.names_replaced());
        schedule.suggest(window, 60, [NOW, 5000]);
        assert_eq!(schedule.renewal_at(), Some(NOW + DAY + 1000), "the same window");
        let earlier = RenewalWindow { start: NOW - 2 * DAY, end: NOW - DAY };
        schedule.suggest(earlier, 60, [NOW, 7]);
        assert_eq!(schedule.next(NOW), AcmeStep::Order, "the certificate will be revoked");
        // A window that ends before it begins, or after the certificate.
        let mut schedule = issued();
        schedule.suggest(RenewalWindow { start: NOW + 2, end: NOW + 1 }, 60, [NOW, 7]);
        assert_eq!(schedule.renewal_at(), Some(NOW + 60 * DAY));
        schedule.suggest(RenewalWindow { start: NOW + 99 * DAY, end: u64::MAX }, 60, [NOW, 7]);
        assert_eq!(schedule.renewal_at(), Some(VALIDITY.not_after));
    }

    #[test]
    fn pauses_after_failures_double_up_to_an_hour() {
        let mut schedule = RenewalSchedule::default();
        let mut pauses = Vec::new();
        for _ in 0..40 {
            schedule.fail(0, [NOW, 0]);
            pauses.push(schedule.retry_at().unwrap() - NOW);
        }
        assert_eq!(pauses[..7], [60, 120, 240, 480, 960, 1920, 3600]);
        assert!(pauses[7..].iter().all(|pause| *pause == 3600), "{pauses:?}");
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(NOW + 3600));
        assert_eq!(schedule.next(NOW + 3600), AcmeStep::Order);
        schedule.force();
        assert_eq!(schedule.next(NOW), AcmeStep::Order);
        schedule.succeed(VALIDITY, NOW);
        assert_eq!(schedule.retry_at(), None);
    }

    #[test]
    fn a_pause_that_the_authority_asks_for_is_kept() {
        let mut schedule = RenewalSchedule::default();
        schedule.fail(7200, [NOW, 0]);
        assert_eq!(schedule.next(NOW + 7199), AcmeStep::Wait(NOW + 7200));
        schedule.fail(10, [NOW, 0]);
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(NOW + 120), "it is no reason to hurry");
    }

    #[test]
    fn a_certificate_that_is_due_at_once_is_renewed_after_a_pause() {
        let late = NOW + 80 * DAY;
        let mut schedule = RenewalSchedule::default();
        schedule.succeed(VALIDITY, late);
        assert_eq!(schedule.next(late), AcmeStep::Wait(late + 3600));
        assert_eq!(schedule.next(late + 3600), AcmeStep::Order);
        let short = Validity { not_before: NOW, not_after: NOW + 300 };
        schedule.succeed(short, NOW);
        schedule.suggest(RenewalWindow { start: 0, end: 0 }, 60, [NOW, 0]);
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(NOW + 100));
    }

    #[test]
    fn an_operator_can_force_a_renewal() {
        let mut schedule = issued();
        schedule.force();
        assert_eq!(schedule.next(NOW), AcmeStep::Order);
        schedule.fail(0, [NOW, 0]);
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(NOW + 60));
        assert_eq!(schedule.next(NOW + 60), AcmeStep::Order, "until it succeeds");
        schedule.force();
        assert_eq!(schedule.retry_at(), None, "at once");
        schedule.succeed(VALIDITY, NOW + 60);
        assert_eq!(schedule.next(NOW + 60), AcmeStep::AskRenewalTime, "once");
    }

    #[test]
    fn certificates_that_end_at_once_are_not_ordered_without_a_pause() {
        for lifetime in [0, 1, 29] {
            let mut schedule = RenewalSchedule::default();
            schedule.succeed(Validity { not_before: NOW, not_after: NOW + lifetime }, NOW);
            let order = (NOW..NOW + 100).find(|now| schedule.next(*now) == AcmeStep::Order);
            assert!(order.is_some_and(|order| order >= NOW + 10), "{lifetime}: {order:?}");
        }
    }

    proptest! {
        /// What an authority sends is a number of any size.
        #[test]
        fn any_window_gives_a_renewal_before_the_expiry(
            start: u64, end: u64, again: u64, random: u64, now in 0..NOW * 2,
        ) {
            let mut schedule = issued();
            schedule.suggest(RenewalWindow { start, end }, again, [now, random]);
            prop_assert!(schedule.renewal_at().unwrap() <= VALIDITY.not_after);
            if let AcmeStep::Wait(until) = schedule.next(now) {
                prop_assert!(until > now && until <= now + DAY);
            }
        }

        #[test]
        fn a_pause_is_at_most_an_hour_and_a_quarter(failures in 1..100, random: u64) {
            let mut schedule = RenewalSchedule::default();
            for _ in 0..failures {
                schedule.fail(0, [NOW, random]);
            }
            let pause = schedule.retry_at().unwrap() - NOW;
            prop_assert!((60..=3600 + 900).contains(&pause));
        }
    }
}
