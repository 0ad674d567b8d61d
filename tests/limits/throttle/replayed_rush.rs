//! A replay predicts how long the users of a rush wait.

use testkit::client::get;

use super::{START, ThrottleFleet};
use crate::replay_waiting::{MAX_RETRY, RushLog, THROTTLE, admissions};

const NEWCOMERS: usize = 25;

/// Seconds between two ticks of the live gateway.
const STEP: u64 = 2;

/// The seconds of a log begin here.
const LOG_START: u64 = 1_700_000_000;

/// A user of the rush, and when it asks next, in seconds of the log.
struct RushUser {
    ticket: String,
    arrives: u64,
    due: u64,
    admitted: Option<u64>,
}

impl RushUser {
    fn ask(&mut self, fleet: &ThrottleFleet, name: &str, now: u64) {
        if self.admitted.is_some() || self.due > now {
            return;
        }
        let ticket = match &*self.ticket {
            "" => String::new(),
            ticket => format!("X-Tidegate-Ticket: {ticket}\r\n"),
        };
        let headers = format!("Authorization: Bearer {name}\r\n{ticket}");
        let response = get(fleet.gateways[0].address(), "/free", &headers);
        if response.status == 200 {
            self.admitted = Some(now);
        } else {
            let ticket = response.header("X-Tidegate-Ticket").unwrap_or_default();
            ticket.clone_into(&mut self.ticket);
            self.due = now + response.number("Retry-After");
        }
    }
}

#[test]
fn a_replay_predicts_the_waits_of_a_live_gateway() {
    let fleet = ThrottleFleet::in_memory(THROTTLE);
    let now = || fleet.clock.store_time().as_unix_ms() / 1_000 - LOG_START;
    let mut log = RushLog::default();
    for user in 0..12 {
        assert_eq!(fleet.ask(0, &format!("user-{user}"), "/free").status, 200);
        log.request(now(), &format!("user-{user}"), "/a", 200);
    }
    assert_eq!(fleet.clock.store_time(), START);
    let first = now() + 10;
    let mut users: Vec<_> = (0..NEWCOMERS as u64)
        .map(|index| {
            let arrives = first + index * STEP;
            log.request(arrives, &format!("new-{index}"), "/a", 200);
            RushUser { ticket: String::new(), arrives, due: arrives, admitted: None }
        })
        .collect();
    log.request(3_600, "later", "/a", 200);
    for _ in 0..400 {
        fleet.tick();
        for (index, user) in users.iter_mut().enumerate() {
            user.ask(&fleet, &format!("new-{index}"), now());
        }
        if users.iter().all(|user| user.admitted.is_some()) {
            break;
        }
    }
    let live: Vec<_> =
        users.iter().map(|user| (user.arrives, user.admitted.expect("admitted"))).collect();
    let replayed = admissions(&log.replay(&[]));
    assert_eq!(replayed.len(), NEWCOMERS, "{replayed:?}");
    // The users come back at other times, because tokens are hashed with another secret.
    let tolerance = MAX_RETRY + 2 * STEP;
    for (live, replayed) in live.iter().zip(&replayed) {
        assert_eq!(live.0, replayed.0);
        assert!(live.1.abs_diff(replayed.1) <= tolerance, "{live:?}, replayed {replayed:?}");
    }
    let longest = live.iter().map(|(arrives, admitted)| admitted - arrives).max();
    assert!(longest > Some(120), "{live:?}");
}
