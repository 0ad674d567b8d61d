//! Failures of one client's requests, which must not take the targets from the other clients.

use super::*;

/// Only two clients, or failed connects, show that the target fails and not just one client's
/// requests.
#[test]
fn one_client_does_not_eject_the_last_target() {
    for size in [1, 2, 5] {
        let mut health = health(size);
        let mut fail_all = |number: u32, now: CoarseTime| -> Vec<HealthEvent> {
            let attempt =
                failed(AttemptKind::Regular, Failure::Reset(LostConnection::Closed), number, now);
            let attempts = (0..10 * size).map(|turn| turn % size);
            let changes = attempts.flat_map(|index| health.record_failure(index, attempt, now));
            changes.map(|change| change.event).collect()
        };
        let events = fail_all(1, NOW);
        assert!(!events.contains(&HealthEvent::AllDown), "{events:?}");
        let is_kept = |event: &&HealthEvent| {
            matches!(event, HealthEvent::KeptInService { reason: KeptReason::OneClient, .. })
        };
        let kept = events.iter().find(is_kept);
        if size < 5 {
            let expected = "not ejected, because it is the last target and all failed requests came \
                            from one client: 5 failures in a row, the last: connection lost: \
                            closed by the server";
            assert_eq!(kept.unwrap().to_string(), expected);
        }
        // The next line follows after the duration of an ejection.
        assert_eq!(fail_all(1, NOW + ms(9_999)).iter().find(is_kept), None);
        let events = fail_all(2, NOW + ms(9_999));
        assert!(events.contains(&HealthEvent::AllDown), "{size} targets: {events:?}");
    }
}

#[test]
fn failed_connects_of_one_client_eject_the_last_target() {
    let mut health = health(1);
    let connect = failed(AttemptKind::Regular, Failure::Connect(ConnectFailure::Refused), 1, NOW);
    let reset = failed(AttemptKind::Regular, Failure::Reset(LostConnection::Closed), 1, NOW);
    for _ in 0..4 {
        assert!(health.record_failure(0, connect, NOW).is_empty());
    }
    health.record_failure(0, reset, NOW);
    assert_eq!(health.state(NOW), ServiceLevel::Serving);
    health.record_failure(0, connect, NOW);
    assert_eq!(health.state(NOW), ServiceLevel::AllDown { retry_after: ms(1_000) });
}

/// Slow requests that time out together say nothing about the target if others succeeded in the
/// meantime.
#[test]
fn a_request_sent_before_the_last_success_does_not_count() {
    let mut health = health(2);
    let timeout = |sent: CoarseTime, number: u32| {
        failed(AttemptKind::Regular, Failure::Timeout, number, sent)
    };
    health.note_success(0, NOW + ms(29_000));
    for number in 0..9 {
        assert!(health.record_failure(0, timeout(NOW, number), NOW + ms(30_000)).is_empty());
    }
    assert!(!health.view(0).has_failures());
    for number in 0..4 {
        health.record_failure(0, timeout(NOW + ms(29_001), number), NOW + ms(59_001));
    }
    assert_eq!(statuses(&health, NOW), ["up", "up"]);
    health.record_failure(0, timeout(NOW + ms(29_001), 4), NOW + ms(59_001));
    assert_eq!(statuses(&health, NOW + ms(59_001)), ["ejected", "up"]);
}

/// One client's requests may fail at any target, so they must not be the only trials.
#[test]
fn a_trial_of_another_client_comes_first() {
    let mut health = health(1);
    fail(&mut health, 0, Failure::Reset(LostConnection::Closed), 5, NOW);
    let now = NOW + ms(1_000);
    assert!(health.begin_trial(0, client(1), now));
    health.record_failure(
        0,
        failed(AttemptKind::Trial, Failure::Reset(LostConnection::Closed), 1, now),
        now,
    );
    let due = now + ms(1_000);
    assert!(!health.begin_trial(0, client(1), due + ms(999)));
    assert!(health.clone().begin_trial(0, client(1), due + ms(1_000)), "the only client");
    assert!(health.begin_trial(0, client(2), due));
    health.record_success(0, AttemptKind::Trial, due);
    assert_eq!(statuses(&health, due), ["slow_start"]);
}

proptest! {
    /// While the requests of all other clients succeed, one client's failures leave a target in
    /// service.
    #[test]
    fn one_client_never_takes_all_targets(
        size in 1_usize..6,
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
            let fails = kind < 7;
            let number = if fails { 9 } else { number };
            let trial = health.view(index).availability(now) == Availability::Trial;
            let attempt = if trial && health.begin_trial(index, client(number), now) {
                AttemptKind::Trial
            } else {
                AttemptKind::Regular
            };
            if fails {
                let failed = failed(attempt, Failure::Status(503), number, now - pause);
                health.record_failure(index, failed, now);
            } else {
                health.record_success(index, attempt, now);
            }
            prop_assert_eq!(health.state(now), ServiceLevel::Serving);
        }
    }
}
