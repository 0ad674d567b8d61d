//! Tests of the health of targets, event by event. `clients` has the failures of
//! one client's requests, `schedules` simulates targets that fail and recover.

mod clients;
mod schedules;

use proptest::prelude::*;

use super::*;

const NOW: CoarseTime = CoarseTime::from_ms(1_700_000_000_000);

pub(super) const SETTINGS: HealthSettings = HealthSettings {
    failures: 5,
    duration: Millis::from_secs(10),
    max_duration: Millis::from_secs(300),
    max_share: 50,
    unhealthy_after: 3,
    healthy_after: 2,
    check_interval: Millis::from_secs(5),
    slow_start: Millis::from_secs(30),
};

const fn ms(ms: u64) -> Millis {
    Millis::from_ms(ms)
}

fn health(size: usize) -> UpstreamHealth {
    UpstreamHealth::new(SETTINGS, vec![TargetHealth::new(); size], NOW)
}

fn client(number: u32) -> IpAddr {
    IpAddr::from([10, 0, 0, number as u8])
}

fn failed(kind: AttemptKind, failure: Failure, number: u32, sent: CoarseTime) -> FailedAttempt {
    FailedAttempt { kind, failure, client: client(number), sent }
}

/// Fails `count` attempts of different clients; returns the changes of all.
fn fail(
    health: &mut UpstreamHealth,
    index: usize,
    failure: Failure,
    count: u32,
    now: CoarseTime,
) -> Vec<HealthEvent> {
    let mut events = Vec::new();
    for number in 0..count {
        let failed = failed(AttemptKind::Regular, failure, number, now);
        let changes = health.record_failure(index, failed, now);
        events.extend(changes.iter().map(|change| change.event));
    }
    events
}

fn statuses(health: &UpstreamHealth, now: CoarseTime) -> Vec<&'static str> {
    let views = (0..health.targets().len()).map(|index| health.view(index));
    views.map(|view| view.status(now, SETTINGS.slow_start).as_str()).collect()
}

#[test]
fn failures_in_a_row_eject() {
    let mut health = health(2);
    assert!(fail(&mut health, 0, Failure::Timeout, 4, NOW).is_empty());
    assert!(health.view(0).has_failures());
    health.record_success(0, AttemptKind::Regular, NOW);
    assert!(!health.view(0).has_failures());
    assert!(fail(&mut health, 0, Failure::Timeout, 4, NOW).is_empty());
    let events = fail(&mut health, 0, Failure::Status(503), 1, NOW);
    assert_eq!(
        events[0].to_string(),
        "ejected for 10 s: 5 failures in a row, the last: status 503"
    );
    assert_eq!(statuses(&health, NOW), ["ejected", "up"]);
    assert_eq!(health.state(NOW), ServiceLevel::Serving);
    assert_eq!(health.view(0).availability(NOW + ms(9_999)), Availability::Unavailable);
    assert_eq!(health.view(0).availability(NOW + ms(10_000)), Availability::Trial);
}

#[test]
fn a_failed_connect_ejects_at_once() {
    let mut health = health(2);
    let events = fail(&mut health, 0, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    assert_eq!(events[0].to_string(), "ejected for 10 s: connect failed: refused");
    // The last target stays until it has failed the full number of times.
    assert!(fail(&mut health, 1, Failure::Connect(ConnectFailure::Refused), 4, NOW).is_empty());
    assert_eq!(statuses(&health, NOW), ["ejected", "up"]);
    let events = fail(&mut health, 1, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    assert_eq!(events.last(), Some(&HealthEvent::AllDown));
    assert_eq!(health.state(NOW), ServiceLevel::AllDown { retry_after: ms(1_000) });
}

#[test]
fn at_most_the_share_is_ejected_unless_all_fail() {
    let mut health = health(5);
    fail(&mut health, 0, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    fail(&mut health, 1, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    let events = fail(&mut health, 2, Failure::Reset(LostConnection::Closed), 9, NOW);
    assert_eq!(events.len(), 1, "logged once: {events:?}");
    assert_eq!(
        events[0].to_string(),
        "not ejected, because the maximum share of targets is already ejected: \
         5 failures in a row, the last: connection lost: closed by the server"
    );
    fail(&mut health, 3, Failure::Reset(LostConnection::Closed), 9, NOW);
    assert_eq!(statuses(&health, NOW), ["ejected", "ejected", "up", "up", "up"]);
    fail(&mut health, 4, Failure::Reset(LostConnection::Closed), 4, NOW);
    assert_eq!(health.state(NOW), ServiceLevel::Serving);
    fail(&mut health, 4, Failure::Reset(LostConnection::Closed), 1, NOW);
    assert_eq!(statuses(&health, NOW), ["ejected"; 5]);
    assert_eq!(statuses(&health, NOW + ms(1_000)), ["half_open"; 5]);
    // One works again, so at most two stay ejected.
    assert!(health.begin_trial(4, client(9), NOW + ms(1_000)));
    let changes = health.record_success(4, AttemptKind::Trial, NOW + ms(1_010));
    assert_eq!(changes.len(), 3, "{changes:?}");
    let ejected = health.targets().iter().filter(|target| target.counts_as_ejected()).count();
    assert_eq!(ejected, 2);
}

#[test]
fn a_single_target_is_down_after_the_full_count_and_tried_once_a_second() {
    let mut health = health(1);
    fail(&mut health, 0, Failure::Connect(ConnectFailure::Refused), 5, NOW);
    assert_eq!(health.state(NOW + ms(400)), ServiceLevel::AllDown { retry_after: ms(600) });
    for second in 1..100 {
        let now = NOW + Millis::from_secs(second);
        assert!(!health.begin_trial(0, client(second as u32 % 2), now - ms(1)));
        assert!(health.begin_trial(0, client(second as u32 % 2), now));
        assert!(!health.begin_trial(0, client(second as u32 % 2), now));
        let changes = health.record_failure(
            0,
            failed(
                AttemptKind::Trial,
                Failure::Connect(ConnectFailure::Refused),
                second as u32 % 2,
                now,
            ),
            now,
        );
        assert!(changes.is_empty(), "no line a second");
    }
    let now = NOW + ms(100_000);
    assert!(health.begin_trial(0, client(9), now));
    let changes = health.record_success(0, AttemptKind::Trial, now);
    assert_eq!(changes[0].to_string(), "in service again: the trial request succeeded");
    assert_eq!(statuses(&health, now), ["slow_start"]);
}

#[test]
fn a_failed_trial_doubles_the_ejection_up_to_its_maximum() {
    let mut health = health(2);
    fail(&mut health, 0, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    let (mut now, mut duration) = (NOW, ms(10_000));
    for round in 0..10 {
        now += duration;
        assert!(!health.begin_trial(0, client(round % 2), now - ms(1)));
        assert!(health.begin_trial(0, client(round % 2), now));
        let changes = health.record_failure(
            0,
            failed(AttemptKind::Trial, Failure::Timeout, round % 2, now),
            now,
        );
        duration = (duration * 2).min(ms(300_000));
        let cause = EjectionCause::Trial(Failure::Timeout);
        assert_eq!(changes[0].event, HealthEvent::Ejected { cause, duration });
    }
    assert_eq!(duration, ms(300_000));
}

#[test]
fn a_target_that_fails_soon_after_its_return_is_ejected_twice_as_long() {
    let mut health = health(2);
    let ejection = |health: &mut UpstreamHealth, now: CoarseTime| match fail(
        health,
        0,
        Failure::Connect(ConnectFailure::Refused),
        1,
        now,
    )[0]
    {
        HealthEvent::Ejected { duration, .. } => duration.as_ms(),
        event => panic!("{event:?}"),
    };
    let return_at = |health: &mut UpstreamHealth, now: CoarseTime| {
        assert!(health.begin_trial(0, client(9), now));
        health.record_success(0, AttemptKind::Trial, now);
    };
    assert_eq!(ejection(&mut health, NOW), 10_000);
    return_at(&mut health, NOW + ms(10_000));
    assert_eq!(ejection(&mut health, NOW + ms(15_000)), 20_000);
    return_at(&mut health, NOW + ms(35_000));
    assert_eq!(ejection(&mut health, NOW + ms(50_000)), 40_000);
    return_at(&mut health, NOW + ms(90_000));
    assert_eq!(ejection(&mut health, NOW + ms(130_001)), 10_000);
}

#[test]
fn one_attempt_has_the_trial_until_it_lapses() {
    let mut health = health(2);
    fail(&mut health, 0, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    let due = NOW + ms(10_000);
    assert!(health.begin_trial(0, client(9), due));
    assert_eq!(health.view(0).availability(due), Availability::Unavailable);
    assert!(!health.begin_trial(0, client(8), due + ms(9_999)));
    assert!(
        health.begin_trial(0, client(8), due + ms(10_000)),
        "the first trial's result was never recorded"
    );
}

/// Attempts sent before the ejection end after it, and change nothing.
#[test]
fn late_results_neither_end_nor_prolong_an_ejection() {
    let mut health = health(2);
    fail(&mut health, 0, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    fail(&mut health, 0, Failure::Timeout, 9, NOW + ms(10_000));
    assert_eq!(health.view(0).availability(NOW + ms(10_000)), Availability::Trial);
    health.record_success(0, AttemptKind::Regular, NOW + ms(10_000));
    assert_eq!(statuses(&health, NOW + ms(10_000)), ["half_open", "up"]);
}

#[test]
fn slow_start_rises_from_a_tenth() {
    let health = UpstreamHealth::new(SETTINGS, vec![TargetHealth::appearing(NOW)], NOW);
    let ramp = |passed: u64| health.view(0).ramp(NOW + ms(passed), SETTINGS.slow_start);
    assert_eq!([ramp(0), ramp(15_000), ramp(30_000), ramp(99_000)], [103, 563, 1_024, 1_024]);
    assert_eq!(health.view(0).ramp(NOW, Millis::ZERO), 1_024, "off");
    assert_eq!(health.view(0).ramp(NOW - ms(5_000), SETTINGS.slow_start), 103);
    assert_eq!(HealthView::default().ramp(NOW, SETTINGS.slow_start), 1_024);
}

#[test]
fn health_checks_rise_and_fall() {
    let mut health = health(2);
    let failed = Err(CheckFailure::Status(500));
    for _ in 0..2 {
        assert!(health.record_check(0, failed, NOW).is_empty());
        assert!(health.record_check(0, failed, NOW).is_empty());
        assert!(health.record_check(0, Ok(()), NOW).is_empty());
    }
    assert!(health.record_check(0, failed, NOW).is_empty());
    assert!(health.record_check(0, failed, NOW).is_empty());
    let changes = health.record_check(0, failed, NOW);
    assert_eq!(changes[0].to_string(), "3 failed health checks in a row, the last: status 500");
    assert_eq!(statuses(&health, NOW), ["down", "up"]);
    assert!(health.record_check(0, failed, NOW).is_empty());
    // Attempts do not change its state.
    health.record_success(0, AttemptKind::Regular, NOW);
    assert!(!health.begin_trial(0, client(9), NOW));
    assert!(health.record_check(0, Ok(()), NOW).is_empty());
    let changes = health.record_check(0, Ok(()), NOW);
    assert_eq!(changes[0].to_string(), "2 passed health checks in a row");
    assert_eq!(statuses(&health, NOW), ["slow_start", "up"]);
}

#[test]
fn targets_that_are_down_are_outside_of_the_share() {
    let mut health = health(4);
    for _ in 0..3 {
        health.record_check(0, Err(CheckFailure::Connect(ConnectFailure::Refused)), NOW);
        health.record_check(1, Err(CheckFailure::Connect(ConnectFailure::Refused)), NOW);
    }
    fail(&mut health, 2, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    assert_eq!(statuses(&health, NOW), ["down", "down", "ejected", "up"]);
    // Health checks find the last one down, so the suspected one is tried at once.
    health.record_check(3, Err(CheckFailure::Connect(ConnectFailure::Refused)), NOW + ms(5_000));
    health.record_check(3, Err(CheckFailure::Connect(ConnectFailure::Refused)), NOW + ms(5_000));
    let changes = health.record_check(
        3,
        Err(CheckFailure::Connect(ConnectFailure::Refused)),
        NOW + ms(5_000),
    );
    assert_eq!(changes[1].event, HealthEvent::AllDown);
    assert_eq!(statuses(&health, NOW + ms(5_000)), ["down", "down", "half_open", "down"]);
    assert_eq!(health.state(NOW + ms(5_000)), ServiceLevel::AllDown { retry_after: ms(0) });
}

#[test]
fn passed_health_checks_bring_the_trial_forward() {
    let mut health = health(2);
    health.record_check(0, Ok(()), NOW);
    fail(&mut health, 0, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    health.record_check(0, Ok(()), NOW + ms(100));
    assert_eq!(statuses(&health, NOW + ms(100)), ["ejected", "up"]);
    health.record_check(0, Ok(()), NOW + ms(200));
    assert_eq!(statuses(&health, NOW + ms(200)), ["half_open", "up"]);
}

#[test]
fn all_down_by_health_checks_waits_for_the_next_check() {
    let mut health = health(1);
    for _ in 0..3 {
        health.record_check(0, Err(CheckFailure::Timeout), NOW);
    }
    assert_eq!(health.state(NOW), ServiceLevel::AllDown { retry_after: ms(5_000) });
}

#[test]
fn drained_targets_do_not_count() {
    let targets = vec![TargetHealth::new().with_weight(0), TargetHealth::new()];
    let mut health = UpstreamHealth::new(SETTINGS, targets, NOW);
    assert_eq!(health.view(0).availability(NOW), Availability::Unavailable);
    fail(&mut health, 1, Failure::Timeout, 4, NOW);
    assert_eq!(health.state(NOW), ServiceLevel::Serving);
    fail(&mut health, 1, Failure::Timeout, 1, NOW);
    assert_eq!(health.state(NOW), ServiceLevel::AllDown { retry_after: ms(1_000) });
}

#[test]
fn a_share_of_zero_ejects_none() {
    let settings = HealthSettings { max_share: 0, ..SETTINGS };
    let mut health = UpstreamHealth::new(settings, vec![TargetHealth::new(); 2], NOW);
    fail(&mut health, 0, Failure::Connect(ConnectFailure::Refused), 100, NOW);
    fail(&mut health, 1, Failure::Connect(ConnectFailure::Refused), 100, NOW);
    assert_eq!(statuses(&health, NOW), ["up", "up"]);
}

/// After targets are removed from the configuration or the DNS, the share applies to the remaining
/// ones.
#[test]
fn a_rebuild_keeps_the_share() {
    let mut health = health(4);
    fail(&mut health, 0, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    fail(&mut health, 1, Failure::Connect(ConnectFailure::Refused), 1, NOW + ms(1));
    let targets = health.targets()[..3].to_vec();
    let rebuilt = UpstreamHealth::new(SETTINGS, targets, NOW + ms(2));
    assert_eq!(statuses(&rebuilt, NOW + ms(2)), ["slow_start", "ejected", "up"]);
}

#[test]
fn a_target_is_small() {
    assert!(size_of::<TargetHealth>() <= 128, "{}", size_of::<TargetHealth>());
}

/// An event of any kind.
#[derive(Clone, Debug)]
struct Event {
    /// The time since the last event.
    pause: Millis,
    index: usize,
    kind: u8,
    /// The client's number.
    number: u32,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pause = prop_oneof![4 => 0_u64..100, 2 => 0_u64..3_000, 1 => 0_u64..400_000];
    let event = (pause, 0_usize..8, 0_u8..10, 0_u32..3)
        .prop_map(|(pause, index, kind, number)| Event { pause: ms(pause), index, kind, number });
    prop::collection::vec(event, 1..300)
}

proptest! {
    /// In any history, at most the share is ejected unless all are; the views show the state; and
    /// an ejected target is due for a trial within the maximum ejection.
    #[test]
    fn the_bound_holds_in_any_history(
        size in 1_usize..8,
        max_share in 1_u32..=100,
        failures in 1_u32..4,
        events in events(),
    ) {
        let settings = HealthSettings { failures, max_share, ..SETTINGS };
        let mut health = UpstreamHealth::new(settings, vec![TargetHealth::new(); size], NOW);
        let mut now = NOW;
        for Event { pause, index, kind, number } in events {
            now += pause;
            let index = index % size;
            let trial = health.view(index).availability(now) == Availability::Trial;
            let attempt = if trial && health.begin_trial(index, client(number), now) {
                AttemptKind::Trial
            } else {
                AttemptKind::Regular
            };
            match kind {
                0..=2 => health.record_success(index, attempt, now),
                3..=4 => {
                    health.record_failure(index, failed(attempt, Failure::Connect(ConnectFailure::Refused), number, now), now)
                }
                5..=7 => {
                    let failed = failed(attempt, Failure::Status(503), number, now - pause);
                    health.record_failure(index, failed, now)
                }
                8 => health.record_check(index, Ok(()), now),
                _ => health.record_check(index, Err(CheckFailure::Timeout), now),
            };
            let views: Vec<_> = (0..size).map(|one| health.view(one)).collect();
            let status = |view: &HealthView| view.status(now, settings.slow_start);
            let suspects = views.iter().filter(|view| {
                matches!(status(view), TargetStatus::Ejected | TargetStatus::HalfOpen)
            });
            let suspects = suspects.count();
            let serving = health.state(now) == ServiceLevel::Serving;
            prop_assert!(!serving || suspects <= size * max_share as usize / 100);
            for view in views {
                let later = view.availability(now + settings.max_duration);
                let is_down = status(&view) == TargetStatus::Down;
                prop_assert_eq!(later == Availability::Unavailable, is_down);
                prop_assert_eq!(HealthView::from_bits(view.to_bits()), view);
            }
        }
    }
}

#[test]
fn each_target_has_an_event_when_all_are_ejected() {
    let mut health = health(4);
    let mut ejected = Vec::new();
    let mut events = Vec::new();
    for index in 0..4 {
        for number in 0..5 {
            let failed =
                failed(AttemptKind::Regular, Failure::Reset(LostConnection::Closed), number, NOW);
            for change in health.record_failure(index, failed, NOW) {
                if matches!(change.event, HealthEvent::Ejected { .. }) {
                    ejected.push(change.index);
                }
                events.push(change.event);
            }
        }
    }
    ejected.sort_unstable();
    assert_eq!(ejected, [0, 1, 2, 3]);
    assert_eq!(events.last(), Some(&HealthEvent::AllDown));
}
