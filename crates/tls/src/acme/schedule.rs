//! When a certificate is ordered: at once without one, at a time that the authority suggests (ARI,
//! RFC 9773), or when a third of its lifetime is left. Failed orders are repeated with growing
//! pauses.

use std::time::Duration;

use tidegate_base::time::UnixSeconds;

use crate::Validity;

/// The pause after the first failed order. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_mins(1);
/// The shortest pause after an order, however short the certificate lives.
const SHORTEST_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause after a failed order, before its random part.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// The shortest and the longest time between two questions for a suggestion.
const QUESTION_PAUSE: [Duration; 2] = [Duration::from_mins(1), Duration::from_hours(24)];
/// The time until the next question if the authority did not answer (RFC 9773, 4.3.3).
const FAILED_QUESTION_PAUSE: Duration = Duration::from_hours(6);

/// What to do next with a certificate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AcmeStep {
    /// Order a certificate now.
    Order,
    /// Ask the authority when the certificate should be renewed.
    AskRenewalTime,
    /// Do nothing until this time.
    Wait(UnixSeconds),
}

/// The time in which the authority wants a certificate renewed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RenewalWindow {
    /// The first second.
    pub start: UnixSeconds,
    /// The last second.
    pub end: UnixSeconds,
}

/// The schedule of one certificate.
#[derive(Clone, Debug, Default)]
pub struct RenewalSchedule {
    /// The current certificate's.
    validity: Option<Validity>,
    /// The suggestion for the current certificate, and the time in it that was drawn.
    suggested: Option<(RenewalWindow, UnixSeconds)>,
    /// The time of the next question for a suggestion.
    ask_at: UnixSeconds,
    /// The number of failed orders since the last successful one.
    failures: u32,
    /// No order before this time.
    retry_at: UnixSeconds,
    /// True if an operator wants a new certificate now.
    is_forced: bool,
}

impl RenewalSchedule {
    /// What to do at `now`.
    pub fn next(&self, now: UnixSeconds) -> AcmeStep {
        let Some(renewal) = self.renewal_at() else { return self.order_at(UnixSeconds::ZERO, now) };
        if self.is_forced || renewal <= now {
            return self.order_at(UnixSeconds::ZERO, now);
        }
        if self.ask_at <= now {
            return AcmeStep::AskRenewalTime;
        }
        AcmeStep::Wait(renewal.max(self.retry_at).min(self.ask_at))
    }

    fn order_at(&self, due: UnixSeconds, now: UnixSeconds) -> AcmeStep {
        let at = due.max(self.retry_at);
        if at <= now { AcmeStep::Order } else { AcmeStep::Wait(at) }
    }

    /// The time of the renewal; `None` without a certificate.
    pub fn renewal_at(&self) -> Option<UnixSeconds> {
        let Validity { not_before, not_after } = self.validity?;
        let last_third = not_after.before(not_after.since(not_before) / 3);
        Some(self.suggested.map_or(last_third, |(_, drawn)| drawn.min(not_after)))
    }

    /// The time before which a failed order is not repeated; `None` if the last one succeeded.
    pub fn retry_at(&self) -> Option<UnixSeconds> {
        // An operator has ended the pause if it is zero.
        (self.failures > 0 && self.retry_at > UnixSeconds::ZERO).then_some(self.retry_at)
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
    pub fn succeed(&mut self, validity: Validity, now: UnixSeconds) {
        self.restore(validity);
        let lifetime = validity.not_after.since(validity.not_before);
        self.retry_at = now.after((lifetime / 3).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }

    /// An order has failed, and is repeated after a pause, also one that an operator wanted.
    /// `random` spreads the orders of several gateways. The pause is at least `asked`, which the
    /// authority asks for.
    pub fn fail(&mut self, asked: Duration, now: UnixSeconds, random: u64) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16));
        let pause = pause.min(LONGEST_PAUSE).max(asked);
        self.failures = self.failures.saturating_add(1).min(32);
        let spread = Duration::from_secs(random % (pause.as_secs() / 4 + 1));
        self.retry_at = now.after(pause).after(spread);
    }

    /// The authority has suggested `window`, and wants to be asked again in `again`. The
    /// renewal is at a random time in it, which stays while the window stays (RFC 9773, 4.2).
    pub fn suggest(
        &mut self,
        window: RenewalWindow,
        again: Duration,
        now: UnixSeconds,
        random: u64,
    ) {
        let [shortest, longest] = QUESTION_PAUSE;
        self.ask_at = now.after(again.clamp(shortest, longest));
        if self.suggested.is_some_and(|(known, _)| known == window) {
            return;
        }
        let length = window.end.since(window.start).as_secs();
        let drawn = window.start.after(Duration::from_secs(random % length.saturating_add(1)));
        self.suggested = (window.start <= window.end).then_some((window, drawn));
    }

    /// The authority makes no suggestions, or did not answer.
    pub fn suggest_nothing(&mut self, now: UnixSeconds) {
        self.ask_at = now.after(FAILED_QUESTION_PAUSE);
    }

    /// Gateways share the order, of which `failures` have failed since the last successful one: no
    /// order before `retry_at`, unless an operator wants one.
    pub fn hold(&mut self, failures: u32, retry_at: UnixSeconds) {
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
        self.retry_at = UnixSeconds::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = 24 * 60 * 60;
    const NOW: UnixSeconds = UnixSeconds::from_secs(1_700_000_000);
    const MINUTE: Duration = Duration::from_mins(1);
    /// Valid for 90 days.
    const VALIDITY: Validity = Validity { not_before: NOW, not_after: at(90 * DAY) };

    /// This number of seconds after [`NOW`].
    const fn at(seconds: u64) -> UnixSeconds {
        NOW.after(Duration::from_secs(seconds))
    }

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
        assert_eq!(schedule.renewal_at(), Some(at(60 * DAY)));
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(at(6 * 60 * 60)));
        schedule.suggest_nothing(at(59 * DAY + 20 * 60 * 60));
        assert_eq!(schedule.next(at(60 * DAY - 1)), AcmeStep::Wait(at(60 * DAY)));
        assert_eq!(schedule.next(at(60 * DAY)), AcmeStep::Order);
    }

    #[test]
    fn a_suggested_time_is_drawn_once() {
        let mut schedule = issued();
        let window = RenewalWindow { start: at(DAY), end: at(2 * DAY) };
        schedule.suggest(window, MINUTE, NOW, 1000);
        assert_eq!(schedule.renewal_at(), Some(at(DAY + 1000)));
        assert!(schedule.names_replaced());
        schedule.suggest(window, MINUTE, NOW, 5000);
        assert_eq!(schedule.renewal_at(), Some(at(DAY + 1000)), "the same window");
        let ago = |days: u64| NOW.before(Duration::from_hours(24 * days));
        let earlier = RenewalWindow { start: ago(2), end: ago(1) };
        schedule.suggest(earlier, MINUTE, NOW, 7);
        assert_eq!(schedule.next(NOW), AcmeStep::Order, "the certificate will be revoked");
        // A window that ends before it begins, or after the certificate.
        let mut schedule = issued();
        schedule.suggest(RenewalWindow { start: at(2), end: at(1) }, MINUTE, NOW, 7);
        assert_eq!(schedule.renewal_at(), Some(at(60 * DAY)));
        schedule.suggest(
            RenewalWindow { start: at(99 * DAY), end: UnixSeconds::MAX },
            MINUTE,
            NOW,
            7,
        );
        assert_eq!(schedule.renewal_at(), Some(VALIDITY.not_after));
    }

    #[test]
    fn pauses_after_failures_double_up_to_an_hour() {
        let mut schedule = RenewalSchedule::default();
        let mut pauses = Vec::new();
        for _ in 0..40 {
            schedule.fail(Duration::ZERO, NOW, 0);
            pauses.push(schedule.retry_at().unwrap().since(NOW).as_secs());
        }
        assert_eq!(pauses[..7], [60, 120, 240, 480, 960, 1920, 3600]);
        assert!(pauses[7..].iter().all(|pause| *pause == 3600), "{pauses:?}");
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(at(3600)));
        assert_eq!(schedule.next(at(3600)), AcmeStep::Order);
        schedule.force();
        assert_eq!(schedule.next(NOW), AcmeStep::Order);
        schedule.succeed(VALIDITY, NOW);
        assert_eq!(schedule.retry_at(), None);
    }

    #[test]
    fn a_pause_that_the_authority_asks_for_is_kept() {
        let mut schedule = RenewalSchedule::default();
        schedule.fail(Duration::from_hours(2), NOW, 0);
        assert_eq!(schedule.next(at(7199)), AcmeStep::Wait(at(7200)));
        schedule.fail(Duration::from_secs(10), NOW, 0);
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(at(120)), "it is no reason to hurry");
    }

    #[test]
    fn a_certificate_that_is_due_at_once_is_renewed_after_a_pause() {
        let late = at(80 * DAY);
        let mut schedule = RenewalSchedule::default();
        schedule.succeed(VALIDITY, late);
        assert_eq!(schedule.next(late), AcmeStep::Wait(at(80 * DAY + 3600)));
        assert_eq!(schedule.next(at(80 * DAY + 3600)), AcmeStep::Order);
        let short = Validity { not_before: NOW, not_after: at(300) };
        schedule.succeed(short, NOW);
        schedule.suggest(
            RenewalWindow { start: UnixSeconds::ZERO, end: UnixSeconds::ZERO },
            MINUTE,
            NOW,
            0,
        );
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(at(100)));
    }

    #[test]
    fn an_operator_can_force_a_renewal() {
        let mut schedule = issued();
        schedule.force();
        assert_eq!(schedule.next(NOW), AcmeStep::Order);
        schedule.fail(Duration::ZERO, NOW, 0);
        assert_eq!(schedule.next(NOW), AcmeStep::Wait(at(60)));
        assert_eq!(schedule.next(at(60)), AcmeStep::Order, "until it succeeds");
        schedule.force();
        assert_eq!(schedule.retry_at(), None, "at once");
        schedule.succeed(VALIDITY, at(60));
        assert_eq!(schedule.next(at(60)), AcmeStep::AskRenewalTime, "once");
    }

    #[test]
    fn certificates_that_end_at_once_are_not_ordered_without_a_pause() {
        for lifetime in [0, 1, 29] {
            let mut schedule = RenewalSchedule::default();
            schedule.succeed(Validity { not_before: NOW, not_after: at(lifetime) }, NOW);
            let order = (0..100).find(|passed| schedule.next(at(*passed)) == AcmeStep::Order);
            assert!(order.is_some_and(|passed| passed >= 10), "{lifetime}: {order:?}");
        }
    }

    proptest! {
        /// What an authority sends is a number of any size.
        #[test]
        fn any_window_gives_a_renewal_before_the_expiry(
            start: u64, end: u64, again: u64, random: u64, now in 0..NOW.as_secs() * 2,
        ) {
            let mut schedule = issued();
            let now = UnixSeconds::from_secs(now);
            let [start, end] = [start, end].map(UnixSeconds::from_secs);
            let again = Duration::from_secs(again);
            schedule.suggest(RenewalWindow { start, end }, again, now, random);
            prop_assert!(schedule.renewal_at().unwrap() <= VALIDITY.not_after);
            if let AcmeStep::Wait(until) = schedule.next(now) {
                prop_assert!(until > now && until.since(now) <= Duration::from_hours(24));
            }
        }

        #[test]
        fn a_pause_is_at_most_an_hour_and_a_quarter(failures in 1..100, random: u64) {
            let mut schedule = RenewalSchedule::default();
            for _ in 0..failures {
                schedule.fail(Duration::ZERO, NOW, random);
            }
            let pause = schedule.retry_at().unwrap().since(NOW).as_secs();
            prop_assert!((60..=3600 + 900).contains(&pause));
        }
    }
}
