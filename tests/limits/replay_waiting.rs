//! `tidegate replay` of a rush, with a waiting room.

use std::{collections::BTreeSet, fmt::Write, fs};

use serde_json::Value;
use tempfile::TempDir;

use testkit::commands::run;

/// The throttle of [`RULES`].
pub(crate) const THROTTLE: &str =
    "max_active: 10, resume_below: 9, memory: 1m, capacity: 20000, waiting_room: {ticket_ttl: 20s}";

const RULES: &str = "upstreams: {hello: {respond: {}}}
throttle: {}
limits: {few: {quota: 1, window: 1h, key: [token]}}
routes:
  - {name: free, match: {path: /free}, upstream: hello, throttle: false}
  - {name: limited, match: {path: /limited}, upstream: hello, limits: [few]}
  - {name: all, match: {path: '/{*rest}'}, upstream: hello}
";

/// The time in which no more than `max_active` users may enter, in seconds.
const MEMORY: u64 = 60;

/// The longest time after which a user of the room asks again, in seconds.
pub(crate) const MAX_RETRY: u64 = 6;

/// A log that is being written. Its times are in seconds after 1,700,000,000.
#[derive(Default)]
pub(crate) struct RushLog(String);

impl RushLog {
    /// Twelve active users, then a newcomer each second from the tenth second on.
    fn rush(newcomers: u64) -> Self {
        let mut log = Self::default();
        for user in 0..12 {
            log.request(0, &format!("user-{user}"), "/a", 200);
        }
        for newcomer in 0..newcomers {
            log.request(10 + newcomer, &format!("new-{newcomer}"), "/a", 200);
        }
        log
    }

    pub(crate) fn request(
        &mut self,
        second: u64,
        token: &str,
        path: &str,
        status: u16,
    ) -> &mut Self {
        let time = humantime::format_rfc3339_millis(
            std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000 + second),
        );
        writeln!(
            self.0,
            "{{\"time\":\"{time}\",\"client\":\"192.0.2.1\",\"token\":\"{token}\",\"method\":\"GET\",\
             \"host\":\"a\",\"path\":\"{path}\",\"status\":{status}}}"
        )
        .expect("memory");
        self
    }

    /// The report of a replay.
    pub(crate) fn replay(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.output(&[arguments, &["--json"]].concat())).expect("JSON")
    }

    fn output(&self, arguments: &[&str]) -> String {
        let directory = TempDir::new().expect("a directory");
        let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
        let (config, log) = (path("rules.yaml"), path("log"));
        fs::write(&config, rules(THROTTLE)).expect("a file");
        fs::write(&log, &self.0).expect("a log");
        run(&[&["replay", "-c", &config, "--top", "100", &log], arguments].concat())
            .replace(directory.path().to_str().expect("a path"), "")
    }
}

/// [`RULES`] with this throttle.
fn rules(throttle: &str) -> String {
    RULES.replace("throttle: {}", &format!("throttle: {{{throttle}}}"))
}

fn room(report: &Value) -> &Value {
    &report["results"][0]["waiting_room"]
}

/// The second of a time of the report, since the start of the log.
fn second(time: &Value) -> u64 {
    let time = humantime::parse_rfc3339(time.as_str().expect("a time")).expect("a time");
    let since = time.duration_since(std::time::UNIX_EPOCH).expect("a later time");
    since.as_secs() - 1_700_000_000
}

/// Arrival and admission of each user that waited, in seconds, in the order of arrival.
pub(crate) fn admissions(report: &Value) -> Vec<(u64, u64)> {
    let rows = room(report)["longest_waits"].as_array().expect("rows").iter();
    let mut admissions: Vec<_> = rows
        .filter(|row| row["end"] == "admitted")
        .map(|row| {
            let since = second(&row["since"]);
            (since, since + row["waited"].as_u64().expect("a number"))
        })
        .collect();
    admissions.sort_unstable();
    admissions
}

#[test]
fn newcomers_of_a_rush_wait_in_their_order() {
    let mut log = RushLog::rush(40);
    log.request(900, "later", "/a", 200);
    let report = log.replay(&[]);
    let room = room(&report);
    assert_eq!((&room["waited"], &room["admitted"]), (&40.into(), &40.into()), "{room}");
    assert_eq!((&room["gave_up"], &room["still_waiting"]), (&0.into(), &0.into()), "{room}");
    // The twelve came before the throttle could begin.
    assert_eq!(room["most_active"], 12);
    let admissions = admissions(&report);
    assert_eq!(admissions.len(), 40);
    for (index, (_, admitted)) in admissions.iter().enumerate() {
        for (_, later) in &admissions[index..] {
            assert!(later + MAX_RETRY >= *admitted, "{admissions:?}");
        }
        let entered =
            admissions.iter().filter(|own| (*admitted..admitted + MEMORY).contains(&own.1));
        assert!(entered.count() <= 10, "{admissions:?}");
    }
    let waits: BTreeSet<u64> =
        admissions.iter().map(|(since, admitted)| admitted - since).collect();
    assert_eq!(room["wait_max"].as_u64().as_ref(), waits.last());
    let quantiles = ["wait_p50", "wait_p90", "wait_p99", "wait_max"].map(|key| room[key].as_u64());
    assert!(quantiles.is_sorted() && quantiles[0] > Some(60), "{room}");
    // The first places are free when the twelve are forgotten, one to two minutes after their
    // requests.
    let queue = &room["longest_queue"];
    assert_eq!(queue["users"], 40, "{room}");
    assert!((49..130).contains(&second(&queue["time"])), "{room}");
    assert!((180..900).contains(&room["throttled_seconds"].as_u64().expect("a number")), "{room}");
    assert_eq!(report, log.replay(&[]), "a second replay has the same result");
}

#[test]
fn impatient_users_give_up_and_others_enter_sooner() {
    let mut log = RushLog::rush(40);
    log.request(900, "later", "/a", 200);
    let patient = log.replay(&[]);
    let report = log.replay(&["--patience", "200s"]);
    let (patient, room) = (room(&patient), room(&report));
    let number = |key: &str| room[key].as_u64().expect("a number");
    assert_eq!(number("waited"), 40);
    assert_eq!(number("admitted") + number("gave_up"), 40, "{room}");
    assert!((10..30).contains(&number("gave_up")), "{room}");
    assert!(number("wait_max") < 200 + MAX_RETRY, "{room}");
    assert!(number("throttled_seconds") < patient["throttled_seconds"].as_u64().expect("a number"));
    assert!(report["notes"].to_string().contains("gives up after 3m 20s"), "{}", report["notes"]);
}

#[test]
fn the_log_may_end_before_the_queue() {
    let report = RushLog::rush(30).replay(&[]);
    let room = room(&report);
    assert_eq!((&room["waited"], &room["still_waiting"]), (&30.into(), &30.into()), "{room}");
    assert_eq!((&room["wait_p50"], &room["wait_max"]), (&Value::Null, &Value::Null));
    // The first of them has waited since the tenth second, until the log ended 29 s later.
    let first = &room["longest_waits"][0];
    assert_eq!((&first["caller"], &first["waited"]), (&"token:new-0".into(), &29.into()), "{room}");
    assert_eq!(first["end"], "still_waiting");
}

#[test]
fn only_requests_that_the_throttle_sees_and_the_upstream_accepts_count() {
    let mut log = RushLog::default();
    for user in 0..30 {
        // Only `limited` becomes active, by its first request: routes and responses forbid it to
        // the others.
        log.request(0, &format!("free-{user}"), "/free", 200);
        log.request(0, &format!("bad-{user}"), "/a", 401);
        log.request(1, "limited", "/limited", 200);
    }
    for user in 0..9 {
        log.request(2, &format!("user-{user}"), "/a", 200);
    }
    // The ten active users are no more than may be active.
    log.request(30, "new", "/a", 200).request(31, "", "/a", 200);
    let report = log.replay(&[]);
    assert_eq!(room(&report)["waited"], 0, "{report}");
    assert_eq!(
        (&room(&report)["most_active"], &room(&report)["without_place"]),
        (&11.into(), &0.into())
    );
    // The eleventh is; later newcomers wait, once, and requests without a token have no place.
    for second in 40..50 {
        log.request(second, "newer", "/a", 200).request(second, "", "/a", 200);
        log.request(second, "user-3", "/a", 200).request(second, "", "/free", 200);
    }
    let report = log.replay(&[]);
    assert_eq!(room(&report)["waited"], 1, "{report}");
    assert_eq!(room(&report)["without_place"], 10, "{report}");
    let text = log.output(&[]);
    assert!(
        text.contains("waiting room: 1 user waited; only active users admitted for 17s; at most 11 active; 10 requests"),
        "{text}"
    );
}

#[test]
fn a_log_with_gaps_of_millennia_ends() {
    let mut log = RushLog::rush(20);
    let line = log.0.lines().last().expect("a line").replace("2023-11-14", "9999-11-14");
    log.0 += &line;
    let report = log.replay(&[]);
    assert_eq!(room(&report)["admitted"], 20, "{report}");
    assert_eq!(report["to"].as_str().map(|time| &time[..4]), Some("9999"));
}

#[test]
fn without_a_room_the_throttle_is_not_replayed() {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let throttle = THROTTLE.replace(", waiting_room: {ticket_ttl: 20s}", "");
    fs::write(path("a.yaml"), rules(&throttle)).expect("a file");
    fs::write(path("log"), RushLog::rush(3).0).expect("a log");
    let text = run(&["replay", "-c", &path("a.yaml"), "--json", &path("log")]);
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(room(&report), &Value::Null);
    assert!(text.contains("the throttle is not replayed"), "{text}");
}
