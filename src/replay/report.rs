//! The report of a replay, printed as tables or as JSON. Its field names are the JSON's: a stable
//! interface.

mod waiting;

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

pub use self::waiting::WaitingReport;
use super::{
    CallerCounts, ConfigReplay, DecisionCounts, LogEvent, LogPosition, LoggedCaller, Replay,
    line::excerpt, notes,
};
use crate::clock::StoreTime;

/// The report of a replay.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The files of the log.
    pub files: Vec<ReportFile>,
    /// Number of lines.
    pub lines: u64,
    /// Number of lines with a request.
    pub requests: u64,
    /// Number of malformed lines.
    pub malformed: u64,
    /// The first malformed lines.
    pub first_malformed: Vec<MalformedLine>,
    /// Number of lines of the process log, which are skipped.
    pub process_lines: u64,
    /// Number of requests that the logging gateway ended before any limit was charged.
    pub not_checked: u64,
    /// Number of requests that were replayed after their own time, because their lines were too far
    /// out of order to be sorted.
    pub late: u64,
    /// Time of the first request (RFC 3339).
    pub from: Option<String>,
    /// Time of the last request (RFC 3339).
    pub to: Option<String>,
    /// Results of the one configuration, or of the two that are compared.
    pub results: Vec<ConfigResult>,
    /// The second configuration compared with the first; `None` without a second one.
    pub difference: Option<Difference>,
    /// Limitations of this replay, one sentence each.
    pub notes: Vec<String>,
}

/// One file of the log.
#[derive(Debug, Serialize)]
pub struct ReportFile {
    /// Its name.
    pub name: String,
    /// `json`, `combined`, or `None` if no line could be read.
    pub format: Option<&'static str>,
    /// Number of lines.
    pub lines: u64,
    /// The error that ended the reading before the end of the file, if any.
    pub broken: Option<String>,
}

/// A malformed line.
#[derive(Debug, Serialize)]
pub struct MalformedLine {
    /// `file:line`.
    pub at: String,
    /// What was found, and what was expected.
    pub fault: String,
}

/// Results of one configuration.
#[derive(Debug, Serialize)]
pub struct ConfigResult {
    /// The configuration's file.
    pub config: String,
    /// Number of requests with a route that admits their clients.
    pub matched: u64,
    /// Number of requests that the gateway itself would have answered before any limit, by status.
    pub unmatched: BTreeMap<u16, u64>,
    /// Number of requests whose route depends on data that the log lacks: a header, a query, a
    /// weight. They are not replayed.
    pub undecided: u64,
    /// Number of requests that were charged an estimate, because their line lacks the cost of a
    /// limit.
    pub without_cost: u64,
    /// Number of requests of routes without limits.
    pub unlimited: u64,
    /// Number of requests that `allow` or `deny` would have refused, by route. Routes without any
    /// are left out.
    pub denied: BTreeMap<String, u64>,
    /// Number of requests that all limits of their routes would have admitted.
    pub admitted: u64,
    /// Number of requests that a limit would have refused.
    pub refused: u64,
    /// Results by limit.
    pub limits: Vec<ReportRow>,
    /// Results by route.
    pub routes: Vec<ReportRow>,
    /// The callers with the most refusals, then those with the most requests.
    pub callers: Vec<CallerRow>,
    /// What the waiting room of the throttle would have done; `None` without one.
    pub waiting_room: Option<WaitingReport>,
}

/// Decisions of one limit or route.
#[derive(Debug, Serialize)]
pub struct ReportRow {
    /// Name of the limit or route.
    pub name: String,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that the limit or route would have admitted.
    pub admitted: u64,
    /// Number of requests that the limit or route would have refused.
    pub refused: u64,
    /// The first refused request.
    pub first_refusal: Option<Refusal>,
    /// The minute with the most refusals.
    pub worst_minute: Option<WorstMinute>,
}

/// A refused request.
#[derive(Debug, Serialize)]
pub struct Refusal {
    /// Its time (RFC 3339).
    pub time: String,
    /// `file:line`.
    pub at: String,
}

/// A minute with refusals.
#[derive(Debug, Serialize)]
pub struct WorstMinute {
    /// Its start (RFC 3339).
    pub time: String,
    /// Number of requests refused in this minute.
    pub refused: u64,
}

/// Decisions on one caller's requests.
#[derive(Debug, Serialize)]
pub struct CallerRow {
    /// `consumer:NAME`, `token:HASH`, `user:NAME`, or an address.
    pub caller: String,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that would have been refused.
    pub refused: u64,
    /// The limit that would have refused the most of these requests.
    pub limit: Option<String>,
    /// The parts of that limit's key, by which it counted the requests; empty without one.
    pub key: Vec<String>,
}

/// The second configuration compared with the first.
#[derive(Debug, Serialize)]
pub struct Difference {
    /// Number of requests that only the second would have refused.
    pub newly_refused: u64,
    /// Number of requests that only the first would have refused.
    pub newly_admitted: u64,
    /// Differences by limit: new refusals of the second configuration, dropped refusals of the
    /// first.
    pub limits: Vec<ChangedLimit>,
    /// The callers with the largest differences.
    pub callers: Vec<ChangedCaller>,
}

/// The differences of one limit.
#[derive(Debug, Default, Serialize)]
pub struct ChangedLimit {
    /// Name of the limit.
    pub name: String,
    /// Number of requests that it newly refuses.
    pub newly_refused: u64,
    /// Number of requests that it no longer refuses and that are now admitted.
    pub newly_admitted: u64,
}

/// The differences of one caller's requests.
#[derive(Debug, Serialize)]
pub struct ChangedCaller {
    /// As in [`CallerRow`].
    pub caller: String,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests that only the second would have refused.
    pub newly_refused: u64,
    /// Number of requests that only the first would have refused.
    pub newly_admitted: u64,
}

/// A time in ms since the epoch as RFC 3339 in UTC.
pub fn rfc3339(time: StoreTime) -> String {
    // Never overflows, because logs have years of four digits.
    let time =
        UNIX_EPOCH.checked_add(Duration::from_millis(time.as_unix_ms())).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_millis(time).to_string()
}

impl Report {
    /// The report of a finished replay, with at most `top` callers in each list of callers.
    pub fn new(replay: &Replay, top: usize) -> Self {
        let results = replay.configs.iter().enumerate();
        Self {
            files: replay.files.iter().map(ReportFile::new).collect(),
            lines: replay.files.iter().map(|file| file.lines).sum(),
            requests: replay.requests(),
            malformed: replay.malformed,
            process_lines: replay.process_lines,
            first_malformed: replay
                .first_malformed
                .iter()
                .map(|(position, fault)| MalformedLine {
                    at: file_and_line(replay, *position),
                    fault: fault.to_string(),
                })
                .collect(),
            not_checked: replay.not_checked,
            late: replay.late,
            from: replay.span.map(|(from, _)| rfc3339(from)),
            to: replay.span.map(|(_, to)| rfc3339(to)),
            results: results
                .map(|(config_index, of)| ConfigResult::new(replay, config_index, of, top))
                .collect(),
            difference: match &replay.configs[..] {
                [old, new] => Some(Difference::new(replay, old, new, top)),
                _ => None,
            },
            notes: notes::notes(replay),
        }
    }
}

impl ReportFile {
    fn new(file: &super::FileReport) -> Self {
        let format = file.format.map(super::Format::name);
        Self { name: file.name.clone(), format, lines: file.lines, broken: file.read_error.clone() }
    }
}

impl ConfigResult {
    fn new(replay: &Replay, config_index: usize, config: &ConfigReplay, top: usize) -> Self {
        let rules = &config.snapshot;
        let limits = rules.limits.iter().zip(&config.limits);
        let routes = rules.routes.iter().zip(&config.routes);
        let denied = rules.routes.iter().zip(&config.denied).filter(|(_, count)| **count > 0);
        let weight = |counts: &CallerCounts| (counts.refused[config_index], counts.requests);
        let callers = replay.top_callers(top, weight).into_iter().map(|(caller, counts)| {
            let most = counts.by_limit[config_index].iter().max_by_key(|(_, count)| *count);
            let most = most.map(|(limit, _)| &rules.limits[*limit as usize]);
            let parts = most.iter().flat_map(|policy| &policy.key.0);
            CallerRow {
                caller: caller_name(caller),
                requests: counts.requests,
                refused: counts.refused[config_index],
                limit: most.map(|policy| policy.limit.name().to_string()),
                key: parts.map(ToString::to_string).collect(),
            }
        });
        Self {
            config: config.name.clone(),
            matched: config.routes.iter().map(|counts| counts.requests).sum(),
            unmatched: config.unmatched.clone(),
            undecided: config.undecided,
            without_cost: config.without_cost,
            unlimited: config.unlimited,
            denied: denied.map(|(route, count)| (route.name.to_string(), *count)).collect(),
            admitted: config.admitted,
            refused: config.refused,
            limits: limits
                .map(|(limit, counts)| ReportRow::new(replay, limit.limit.name(), counts))
                .collect(),
            routes: routes
                .map(|(route, counts)| ReportRow::new(replay, &route.name, counts))
                .collect(),
            callers: callers.collect(),
            waiting_room: config.waiting().map(|counts| WaitingReport::new(counts, top)),
        }
    }
}

impl ReportRow {
    fn new(replay: &Replay, name: &str, counts: &DecisionCounts) -> Self {
        let minute = |(time, refused)| WorstMinute { time: rfc3339(time), refused };
        Self {
            name: name.to_owned(),
            requests: counts.requests,
            admitted: counts.admitted,
            refused: counts.refused,
            first_refusal: counts.first_refusal.map(|LogEvent { time, position }| Refusal {
                time: rfc3339(time),
                at: file_and_line(replay, position),
            }),
            worst_minute: counts.worst_minute.map(minute),
        }
    }
}

impl Difference {
    fn new(replay: &Replay, old: &ConfigReplay, new: &ConfigReplay, top: usize) -> Self {
        let mut limits = BTreeMap::<&str, (u64, u64)>::new();
        for (limit, refusals) in new.snapshot.limits.iter().zip(&new.differing_refusals) {
            limits.entry(limit.limit.name()).or_default().0 += refusals;
        }
        for (limit, refusals) in old.snapshot.limits.iter().zip(&old.differing_refusals) {
            limits.entry(limit.limit.name()).or_default().1 += refusals;
        }
        let weight = |counts: &CallerCounts| (counts.newly_refused + counts.newly_admitted, 0);
        let callers = replay.top_callers(top, weight).into_iter();
        Self {
            newly_refused: replay.newly_refused,
            newly_admitted: replay.newly_admitted,
            limits: limits
                .into_iter()
                .map(|(name, (newly_refused, newly_admitted))| ChangedLimit {
                    name: name.to_owned(),
                    newly_refused,
                    newly_admitted,
                })
                .collect(),
            callers: callers
                .map(|(caller, counts)| ChangedCaller {
                    caller: caller_name(caller),
                    requests: counts.requests,
                    newly_refused: counts.newly_refused,
                    newly_admitted: counts.newly_admitted,
                })
                .collect(),
        }
    }
}

/// `file:line`.
fn file_and_line(replay: &Replay, position: LogPosition) -> String {
    let file = replay.files.get(position.file as usize).map_or("", |file| &file.name);
    format!("{file}:{}", position.line)
}

/// The caller as the report has it.
fn caller_name(caller: &LoggedCaller) -> String {
    match caller {
        LoggedCaller::Address(address) => address.to_string(),
        LoggedCaller::Consumer(name) => format!("consumer:{}", excerpt(name)),
        LoggedCaller::Token(token) => format!("token:{}", excerpt(token)),
        LoggedCaller::User(user) => format!("user:{}", excerpt(user)),
    }
}
