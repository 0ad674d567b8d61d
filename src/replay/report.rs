//! What a replay tells: one value, printed as tables or as JSON. Names of fields are promises.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::{Caller, CallerCounts, Candidate, Counts, Moment, Replay, line::shown, notes};
use crate::limit::Millis;

/// What a replay tells.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The log's files.
    pub files: Vec<File>,
    /// Lines read.
    pub lines: u64,
    /// Lines that hold a request.
    pub requests: u64,
    /// Lines that could not be read.
    pub malformed: u64,
    /// The first of them.
    pub first_malformed: Vec<Malformed>,
    /// Requests that the gateway which wrote the log ended before any limit was asked.
    pub unasked: u64,
    /// Requests replayed later than their time, because their line came too late.
    pub late: u64,
    /// The time of the first request.
    pub from: Option<String>,
    /// The time of the last request.
    pub to: Option<String>,
    /// What each configuration would have done: one, or two that are compared.
    pub results: Vec<Outcome>,
    /// How the second differs from the first.
    pub difference: Option<Difference>,
    /// What the reader should know.
    pub notes: Vec<String>,
}

/// One file of the log.
#[derive(Debug, Serialize)]
pub struct File {
    /// Its name.
    pub name: String,
    /// `json`, `combined`, or none where no line could be read.
    pub format: Option<&'static str>,
    /// Its lines.
    pub lines: u64,
    /// Why it could not be read to its end, if so.
    pub broken: Option<String>,
}

/// A line that could not be read.
#[derive(Debug, Serialize)]
pub struct Malformed {
    /// `file:line`.
    pub at: String,
    /// What is wrong, and what was expected.
    pub fault: String,
}

/// What one configuration would have done.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The configuration's file.
    pub config: String,
    /// Requests that a route was found for.
    pub matched: u64,
    /// Requests that the gateway would have answered with an error of its own, by status.
    pub unmatched: BTreeMap<u16, u64>,
    /// Requests of routes without limits.
    pub unlimited: u64,
    /// Requests that all limits of their routes would have admitted.
    pub admitted: u64,
    /// Requests that a limit would have refused.
    pub refused: u64,
    /// The limits.
    pub limits: Vec<Row>,
    /// The routes.
    pub routes: Vec<Row>,
    /// The callers refused most, then those that asked most.
    pub callers: Vec<CallerRow>,
}

/// What became of the requests of one limit or route.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The limit's or the route's name.
    pub name: String,
    /// Requests that it was asked about.
    pub requests: u64,
    /// Those that it would have admitted.
    pub admitted: u64,
    /// Those that it would have refused.
    pub refused: u64,
    /// The first of those.
    pub first_refusal: Option<Place>,
    /// The minute with the most of them.
    pub worst_minute: Option<Minute>,
}

/// A request of the log.
#[derive(Debug, Serialize)]
pub struct Place {
    /// Its time.
    pub time: String,
    /// `file:line`.
    pub at: String,
}

/// A minute.
#[derive(Debug, Serialize)]
pub struct Minute {
    /// When it began.
    pub time: String,
    /// Requests refused in it.
    pub refused: u64,
}

/// One caller.
#[derive(Debug, Serialize)]
pub struct CallerRow {
    /// `token:HASH`, `user:NAME`, or an address.
    pub caller: String,
    /// Its requests.
    pub requests: u64,
    /// Those that would have been refused.
    pub refused: u64,
    /// The limit that would have refused it most.
    pub limit: Option<String>,
}

/// How the second configuration differs from the first.
#[derive(Debug, Serialize)]
pub struct Difference {
    /// Requests that only the second would have refused.
    pub newly_refused: u64,
    /// Requests that only the first would have refused.
    pub newly_admitted: u64,
    /// By limit: of the second those that newly refuse, of the first those that no longer do.
    pub limits: Vec<ChangedLimit>,
    /// The callers that differ most.
    pub callers: Vec<ChangedCaller>,
}

/// How one limit differs.
#[derive(Debug, Default, Serialize)]
pub struct ChangedLimit {
    /// Its name.
    pub name: String,
    /// Requests that it newly refuses.
    pub newly_refused: u64,
    /// Requests that it no longer refuses, and nothing else does.
    pub newly_admitted: u64,
}

/// How one caller's requests differ.
#[derive(Debug, Serialize)]
pub struct ChangedCaller {
    /// As in [`CallerRow`].
    pub caller: String,
    /// Its requests.
    pub requests: u64,
    /// Those that only the second would have refused.
    pub newly_refused: u64,
    /// Those that only the first would have refused.
    pub newly_admitted: u64,
}

/// RFC 3339 in UTC.
pub fn rfc3339(time: Millis) -> String {
    // Lines name years of four digits, so it always fits.
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(time)).unwrap_or(UNIX_EPOCH);
    humantime::format_rfc3339_millis(time).to_string()
}

impl Report {
    /// Tells of a replay that is finished. `top`: how many callers.
    pub fn new(replay: &Replay, top: usize) -> Self {
        let results = replay.candidates.iter().enumerate();
        Self {
            files: replay.files.iter().map(File::new).collect(),
            lines: replay.files.iter().map(|file| file.lines).sum(),
            requests: replay.requests(),
            malformed: replay.malformed,
            first_malformed: replay
                .faults
                .iter()
                .map(|(place, fault)| Malformed {
                    at: at(replay, *place),
                    fault: fault.to_string(),
                })
                .collect(),
            unasked: replay.unasked,
            late: replay.late,
            from: replay.span.map(|(from, _)| rfc3339(from)),
            to: replay.span.map(|(_, to)| rfc3339(to)),
            results: results.map(|(which, of)| Outcome::new(replay, which, of, top)).collect(),
            difference: match &replay.candidates[..] {
                [old, new] => Some(Difference::new(replay, old, new, top)),
                _ => None,
            },
            notes: notes::notes(replay),
        }
    }
}

impl File {
    fn new(file: &super::FileReport) -> Self {
        let format = file.format.map(super::Format::name);
        Self { name: file.name.clone(), format, lines: file.lines, broken: file.broken.clone() }
    }
}

impl Outcome {
    fn new(replay: &Replay, which: usize, candidate: &Candidate, top: usize) -> Self {
        let rules = &candidate.snapshot;
        let limits = rules.limits.iter().zip(&candidate.limits);
        let routes = rules.routes.iter().zip(&candidate.routes);
        let weight = |counts: &CallerCounts| (counts.refused[which], counts.requests);
        let callers = replay.top_callers(top, weight).into_iter().map(|(caller, counts)| {
            let most = counts.by_limit[which].iter().max_by_key(|(_, count)| *count);
            CallerRow {
                caller: name(caller),
                requests: counts.requests,
                refused: counts.refused[which],
                limit: most.map(|(limit, _)| rules.limits[*limit as usize].limit.name.to_string()),
            }
        });
        Self {
            config: candidate.name.clone(),
            matched: candidate.routes.iter().map(|counts| counts.requests).sum(),
            unmatched: candidate.unserved.clone(),
            unlimited: candidate.unlimited,
            admitted: candidate.admitted,
            refused: candidate.refused,
            limits: limits
                .map(|(limit, counts)| Row::new(replay, &limit.limit.name, counts))
                .collect(),
            routes: routes.map(|(route, counts)| Row::new(replay, &route.name, counts)).collect(),
            callers: callers.collect(),
        }
    }
}

impl Row {
    fn new(replay: &Replay, name: &str, counts: &Counts) -> Self {
        let minute = |(time, refused)| Minute { time: rfc3339(time), refused };
        Self {
            name: name.to_owned(),
            requests: counts.requests,
            admitted: counts.admitted,
            refused: counts.refused,
            first_refusal: counts
                .first_refusal
                .map(|Moment { time, place }| Place { time: rfc3339(time), at: at(replay, place) }),
            worst_minute: counts.worst_minute.map(minute),
        }
    }
}

impl Difference {
    fn new(replay: &Replay, old: &Candidate, new: &Candidate, top: usize) -> Self {
        let mut limits = BTreeMap::<&str, (u64, u64)>::new();
        for (limit, changed) in new.snapshot.limits.iter().zip(&new.changed) {
            limits.entry(&limit.limit.name).or_default().0 += changed;
        }
        for (limit, changed) in old.snapshot.limits.iter().zip(&old.changed) {
            limits.entry(&limit.limit.name).or_default().1 += changed;
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
                    caller: name(caller),
                    requests: counts.requests,
                    newly_refused: counts.newly_refused,
                    newly_admitted: counts.newly_admitted,
                })
                .collect(),
        }
    }
}

/// `file:line`.
fn at(replay: &Replay, place: super::Place) -> String {
    let file = replay.files.get(place.file as usize).map_or("", |file| &file.name);
    format!("{file}:{}", place.line)
}

fn name(caller: &Caller) -> String {
    match caller {
        Caller::Address(address) => address.to_string(),
        Caller::Token(token) => format!("token:{}", shown(token)),
        Caller::User(user) => format!("user:{}", shown(user)),
    }
}
