use tidegate_system::clock::CoarseClock;

use super::*;

const TIMEOUTS: ClientTimeouts =
    ClientTimeouts { head: Some(length(100)), idle: Some(length(200)), body: Some(length(50)) };

fn at(ms: u64) -> CoarseTime {
    CoarseTime::from_ms(ms)
}

const fn length(ms: u64) -> Millis {
    Millis::from_ms(ms)
}

fn cell(now_ms: u64) -> (StateCell, CoarseClock) {
    let clock = CoarseClock::new(at(now_ms));
    (StateCell::new(clock.clone()), clock)
}

fn due(cell: &StateCell, now_ms: u64) -> Option<ExpiredDeadline> {
    cell.get().overdue(at(now_ms), &TIMEOUTS)
}

// Each deadline passes one tick late, because the coarse time may be a tick behind when a wait
// begins.

#[test]
fn head_and_idle_connections_have_their_own_timeouts() {
    let (cell, _) = cell(1000);
    assert_eq!((due(&cell, 1199), due(&cell, 1200)), (None, Some(ExpiredDeadline::Head)));
    cell.begin_request();
    cell.enter(ConnectionState::Idle { since: at(1000) });
    assert_eq!((due(&cell, 1299), due(&cell, 1300)), (None, Some(ExpiredDeadline::Idle)));
}

#[test]
fn request_timeout_applies_whatever_the_request_waits_for() {
    let (cell, _) = cell(1000);
    cell.begin_request();
    assert_eq!(due(&cell, 1 << 40), None);
    cell.set_request_timeout(Some(length(1000)));
    assert_eq!((due(&cell, 2099), due(&cell, 2100)), (None, Some(ExpiredDeadline::Request)));
    cell.begin_upstream_wait(None);
    assert_eq!(due(&cell, 2101), Some(ExpiredDeadline::Request));
    cell.set_request_timeout(None);
    assert_eq!(due(&cell, 1 << 40), None);
}

#[test]
fn a_body_that_flows_moves_the_deadline_by_the_time_that_it_takes() {
    let (cell, clock) = cell(1000);
    cell.begin_request();
    cell.set_request_timeout(Some(length(1000)));
    cell.begin_client_body_wait();
    clock.set(at(1500));
    cell.note_body(4096).unwrap();
    cell.begin_upstream_wait(None);
    assert_eq!((due(&cell, 2599), due(&cell, 2600)), (None, Some(ExpiredDeadline::Request)));
    clock.set(at(2000));
    cell.note_body(51).unwrap();
    assert_eq!(
        (due(&cell, 2698), due(&cell, 2699)),
        (None, Some(ExpiredDeadline::Request)),
        "51 bytes pay for 99 ms"
    );
    cell.set_request_timeout(None);
    cell.note_body(4096).unwrap();
    assert_eq!(due(&cell, 1 << 40), None);
}

#[test]
fn timeout_names_the_side_that_was_waited_for() {
    let (cell, clock) = cell(1000);
    cell.begin_request();
    cell.set_request_timeout(Some(length(40)));
    cell.begin_client_body_wait();
    assert_eq!(
        due(&cell, 1141),
        Some(ExpiredDeadline::ClientBody),
        "the upstream is not waited for"
    );
    cell.set_request_timeout(Some(length(10_000)));
    clock.set(at(1040));
    cell.begin_client_body_wait();
    assert_eq!(due(&cell, 1151), Some(ExpiredDeadline::ClientBody), "no progress since 1000");
    cell.begin_upstream_wait(Some(length(30)));
    assert_eq!((due(&cell, 1169), due(&cell, 1170)), (None, Some(ExpiredDeadline::Upstream)));
}

#[test]
fn response_is_bounded_by_its_gaps_and_its_own_deadline() {
    let (cell, clock) = cell(1000);
    cell.begin_request();
    cell.set_request_timeout(Some(length(100)));
    cell.begin_response(Some(length(300)), None);
    cell.begin_upstream_wait(None);
    assert_eq!((due(&cell, 1399), due(&cell, 1400)), (None, Some(ExpiredDeadline::ResponseIdle)));
    clock.set(at(1300));
    cell.begin_client_read_wait();
    assert_eq!((due(&cell, 1449), due(&cell, 1450)), (None, Some(ExpiredDeadline::ClientRead)));
    cell.enter(ConnectionState::Idle { since: at(1300) });
    cell.begin_request();
    cell.begin_response(None, Some(length(70)));
    cell.begin_upstream_wait(None);
    assert_eq!((due(&cell, 1469), due(&cell, 1470)), (None, Some(ExpiredDeadline::Response)));
}

#[test]
fn lingering_ends_without_progress_and_at_its_deadline() {
    let (cell, _) = cell(29_900);
    cell.enter(ConnectionState::Linger { since: at(500), deadline: at(30_000) });
    assert_eq!((due(&cell, 2599), due(&cell, 2600)), (None, Some(ExpiredDeadline::Close)));
    cell.enter(ConnectionState::Linger { since: at(29_900), deadline: at(30_000) });
    assert_eq!(due(&cell, 30_001), Some(ExpiredDeadline::Close));
}

#[test]
fn tunnel_ends_when_it_is_idle() {
    let (cell, clock) = cell(1000);
    cell.begin_request();
    cell.begin_tunnel(Some(length(300)));
    assert_eq!((due(&cell, 1399), due(&cell, 1400)), (None, Some(ExpiredDeadline::Tunnel)));
    clock.set(at(1300));
    cell.mark_tunnel_progress();
    assert_eq!((due(&cell, 1699), due(&cell, 1700)), (None, Some(ExpiredDeadline::Tunnel)));
    cell.begin_tunnel(None);
    assert_eq!(due(&cell, 1 << 40), None);
}

#[test]
fn next_state_clears_the_timeout() {
    let (cell, _) = cell(0);
    cell.begin_request();
    cell.expire(ExpiredDeadline::ClientBody);
    assert_eq!(cell.expired_deadline(), Some(ExpiredDeadline::ClientBody));
    cell.begin_response(None, None);
    assert_eq!(cell.expired_deadline(), None);
}

#[test]
fn a_body_is_bounded_for_its_request_alone() {
    let cell = StateCell::new(CoarseClock::new(CoarseTime::ZERO));
    cell.begin_request();
    cell.set_max_body(10);
    assert_eq!(cell.note_body(10), Ok(()));
    assert_eq!(cell.note_body(1), Err(crate::BodyError::TooLong));
    cell.begin_response(None, None);
    cell.enter(ConnectionState::Idle { since: cell.now() });
    cell.enter(ConnectionState::Head { since: cell.now() });
    cell.begin_request();
    assert_eq!(cell.note_body(usize::MAX), Ok(()));
}
