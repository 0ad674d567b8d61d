//! Replays a recorded access log through the limits of one or two configurations.
//!
//! The decisions are those of live requests: each line is planned like a request
//! ([`plan`](crate::plan)) and charged in a memory store, on a virtual clock that follows the times
//! of the lines. The result does not depend on the machine's clock, and only counters are kept, so
//! a log may be larger than memory.
//!
//! | file | content |
//! |---|---|
//! | `reader` | splits a log into lines |
//! | `format`, `json`, `combined` | detect a line's format, and parse the line |
//! | `line`, `logged_costs` | a parsed line; what its limits charged |
//! | `reorder` | sorts lines by time |
//! | `config_replay` | [`ConfigReplay`]: decides the requests under one configuration |
//! | `waiting` | who would have waited in the waiting room |
//! | `counts`, `report` | counts of decisions; the report of a replay |
//! | `notes` | notes on data that a log lacks |
//!
//! ```
//! use tidegate::{config, identity::KeySecret, replay::{ConfigReplay, Replay}, snapshot::{SecretReading, Snapshot}};
//!
//! let rules = "
//! upstreams: {app: {targets: [http://127.0.0.1:9000]}}
//! limits: {per-caller: {quota: 1, window: 1m}}
//! routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, limits: [per-caller]}]
//! ";
//! let snapshot = Snapshot::compile(&config::parse("api.yaml", rules).unwrap(), SecretReading::Unread).unwrap();
//! let configs = [ConfigReplay::new("api.yaml", snapshot, 1_000, KeySecret(1, 2))];
//! let mut replay = Replay::new(configs.into_iter().collect(), "");
//!
//! let line = "192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5\n";
//! replay.read("access.log", line.repeat(2).as_bytes(), None, None);
//! replay.finish(None);
//! assert_eq!((replay.configs[0].admitted, replay.configs[0].refused), (1, 1));
//! ```

mod combined;
mod config_replay;
mod counts;
mod format;
mod json;
mod line;
mod logged_costs;
mod notes;
mod reader;
mod reorder;
pub mod report;
mod waiting;

use std::io::{self, Read};

use http::Method;
use smallvec::SmallVec;

pub use self::{
    config_replay::{ConfigReplay, RequestOutcome},
    counts::{CallerCounts, DecisionCounts, LogEvent, LogPosition, LoggedCaller},
    format::Format,
    line::{LineError, LogLine, MAX_LINE},
    logged_costs::LoggedCosts,
    reader::{LineReader, RawLine, open},
    waiting::{UserWait, WaitEnd, WaitingCounts},
};
use self::{
    config_replay::{LoggedRequest, PlannedRequest},
    counts::CallerTable,
    reorder::ReorderBuffer,
};
use crate::{
    clock::StoreTime,
    http1::Fields,
    identity::{CredentialSource, client::mask_address},
    snapshot::PlannedCharges,
};

/// Number of lines in the buffer that sorts them by time. A line that is further out of order is
/// replayed at the time of the line before it.
pub const REORDER_LINES: u32 = 1 << 16;

/// Number of malformed lines kept for the report.
const MAX_REPORTED_LINES: usize = 5;

/// One file of the log.
#[derive(Clone, Debug, Default)]
pub struct FileReport {
    /// Its name.
    pub name: String,
    /// Its format; `None` if no line could be read.
    pub format: Option<Format>,
    /// Number of lines, including empty ones.
    pub lines: u64,
    /// The error that ended the reading before the end of the file, if any.
    pub read_error: Option<String>,
}

/// The decision on one line.
pub struct DecisionEvent<'d> {
    /// The virtual time and the position of the line.
    pub at: LogEvent,
    /// One outcome per configuration.
    pub outcomes: &'d [RequestOutcome],
    /// The configurations, in the same order, to resolve the indices in the outcomes.
    pub configs: &'d [ConfigReplay],
}

/// Called with each decision, in the order of decisions.
pub type Observer<'o> = &'o mut dyn FnMut(&DecisionEvent<'_>);

/// A replay in progress.
pub struct Replay {
    /// One configuration, or two to compare.
    pub configs: SmallVec<[ConfigReplay; 2]>,
    /// The files that were read.
    pub files: Vec<FileReport>,
    /// Number of malformed lines.
    pub malformed: u64,
    /// The first malformed lines.
    pub first_malformed: Vec<(LogPosition, LineError)>,
    /// Number of empty lines.
    pub empty: u64,
    /// Number of process-log lines among the access log's lines.
    pub process_lines: u64,
    /// Number of lines that were too far out of order to be sorted.
    pub late: u64,
    /// Number of requests that the logging gateway ended before any limit was charged.
    pub not_checked: u64,
    /// Number of requests from trusted proxies in logs without `X-Forwarded-For`.
    pub from_proxies: u64,
    /// Number of requests that only the second configuration refuses.
    pub newly_refused: u64,
    /// Number of requests that only the first configuration refuses.
    pub newly_admitted: u64,
    /// Virtual times of the first and the last request, in ms since the epoch.
    pub span: Option<(StoreTime, StoreTime)>,
    /// The host for logs without hosts.
    host: String,
    callers: CallerTable,
    pending: ReorderBuffer<PendingRequest>,
    /// Empty: a log has no headers.
    headers: Fields,
    /// The current line's token.
    sources: [CredentialSource; 1],
    /// The virtual clock, in ms since the epoch.
    now: StoreTime,
}

/// A planned request that is waiting to be decided in order.
struct PendingRequest {
    position: LogPosition,
    caller: LoggedCaller,
    /// One per configuration.
    plans: SmallVec<[PlannedRequest; 2]>,
    /// The charges of all plans, in their order.
    limit_requests: PlannedCharges,
}

impl Replay {
    /// A replay under one configuration, or two to compare. `host` stands for the host in logs
    /// without hosts.
    pub fn new(configs: SmallVec<[ConfigReplay; 2]>, host: &str) -> Self {
        Self {
            configs,
            files: Vec::new(),
            malformed: 0,
            first_malformed: Vec::new(),
            empty: 0,
            process_lines: 0,
            late: 0,
            not_checked: 0,
            from_proxies: 0,
            newly_refused: 0,
            newly_admitted: 0,
            span: None,
            host: host.to_ascii_lowercase(),
            callers: CallerTable::default(),
            pending: ReorderBuffer::new(REORDER_LINES),
            headers: Fields::default(),
            sources: [CredentialSource::Recorded(String::new())],
            now: StoreTime::ZERO,
        }
    }

    /// Reads a log. `format` is detected if it is `None`. A read error ends the file and is
    /// recorded in its [`FileReport`].
    pub fn read(
        &mut self,
        name: &str,
        reader: impl Read,
        format: Option<Format>,
        mut observer: Option<Observer<'_>>,
    ) {
        let mut report = FileReport { name: name.to_owned(), format, ..FileReport::default() };
        let result = self.read_lines(reader, &mut report, &mut observer);
        report.read_error = result.err().map(|error| error.to_string());
        self.files.push(report);
    }

    fn read_lines(
        &mut self,
        reader: impl Read,
        report: &mut FileReport,
        observer: &mut Option<Observer<'_>>,
    ) -> io::Result<()> {
        let mut lines = open(reader)?;
        while let Some(raw) = lines.next_line()? {
            report.lines += 1;
            let position = LogPosition { file: self.files.len() as u32, line: report.lines };
            let mut is_process_line = false;
            let parsed = match raw {
                RawLine::TooLong => Err(LineError::TooLong),
                RawLine::Line(line) if line.trim_ascii().is_empty() => {
                    self.empty += 1;
                    continue;
                }
                RawLine::Line(line) => {
                    report.format = report.format.or_else(|| Format::detect(line));
                    match report.format {
                        Some(format) => {
                            let parsed = format.parse(line).map(|line| (line, format));
                            is_process_line = parsed.is_err()
                                && format == Format::Json
                                && json::is_process_log(line);
                            parsed
                        }
                        None => Err(LineError::Unknown(line::excerpt(line))),
                    }
                }
            };
            match parsed {
                Ok((line, format)) => self.add(&line, format, position, observer),
                Err(_) if is_process_line => self.process_lines += 1,
                Err(fault) => {
                    self.malformed += 1;
                    if self.first_malformed.len() < MAX_REPORTED_LINES {
                        self.first_malformed.push((position, fault));
                    }
                }
            }
        }
        Ok(())
    }

    /// Plans a request, and decides the earliest pending one if the buffer is full.
    fn add(
        &mut self,
        line: &LogLine<'_>,
        format: Format,
        position: LogPosition,
        observer: &mut Option<Observer<'_>>,
    ) {
        self.sources = [CredentialSource::Recorded(line.token.to_string())];
        let is_combined = format == Format::Combined;
        let identity = &self.configs[0].snapshot.identity;
        if is_combined && identity.trusted_proxies.contains(line.client) {
            self.from_proxies += 1;
        }
        let token = || SmallVec::from_slice(line.token.as_bytes());
        let caller = match format {
            _ if !line.consumer.is_empty() => {
                LoggedCaller::Consumer(SmallVec::from_slice(line.consumer.as_bytes()))
            }
            _ if line.token.is_empty() => {
                LoggedCaller::Address(mask_address(line.client, identity.ipv6_prefix))
            }
            Format::Json => LoggedCaller::Token(token()),
            Format::Combined => LoggedCaller::User(token()),
        };
        let method = Method::from_bytes(line.method.as_bytes()).ok();
        let request = LoggedRequest {
            line,
            method: method.as_ref(),
            host: if is_combined { &self.host } else { &line.host },
            has_query: is_combined,
            headers: &self.headers,
            sources: &self.sources,
        };
        let mut limit_requests = PlannedCharges::new();
        let plans =
            self.configs.iter().map(|config| config.plan(&request, &mut limit_requests)).collect();
        let pending = PendingRequest { position, caller, plans, limit_requests };
        self.not_checked += u64::from(line.not_checked);
        if let Some((time, pending)) = self.pending.push(line.time, pending) {
            self.decide(time, pending, observer);
        }
    }

    /// Decides the requests that are still buffered. Call it once, after the last file.
    pub fn finish(&mut self, mut observer: Option<Observer<'_>>) {
        while let Some((time, pending)) = self.pending.pop() {
            self.decide(time, pending, &mut observer);
        }
        for config in &mut self.configs {
            config.finish(self.now);
        }
    }

    fn decide(
        &mut self,
        time: StoreTime,
        pending: PendingRequest,
        observer: &mut Option<Observer<'_>>,
    ) {
        let PendingRequest { position, caller, plans, limit_requests } = pending;
        let mut limit_requests = &limit_requests[..];
        self.late += u64::from(time < self.now);
        self.now = self.now.max(time);
        let at = LogEvent { time: self.now, position };
        self.span = Some((self.span.map_or(self.now, |(first, _)| first), self.now));
        let has_room = self.configs.iter().any(|config| config.waiting().is_some());
        let name = has_room.then(|| caller.clone());
        let counts = self.callers.entry(caller);
        counts.requests += 1;
        let mut outcomes: SmallVec<[RequestOutcome; 2]> = SmallVec::new();
        for (config_index, (config, plan)) in self.configs.iter_mut().zip(plans).enumerate() {
            let outcome = config.decide(plan, &mut limit_requests, at);
            if let Some(name) = &name {
                config.wait(plan, &outcome, name, at.time);
            }
            counts.refused[config_index] += u64::from(outcome.is_refused());
            for limit in outcome.refusing() {
                counts.add_refusal(config_index, *limit);
            }
            outcomes.push(outcome);
        }
        if let [old, new] = &outcomes[..] {
            let (refused, admitted) = match (old.is_refused(), new.is_refused()) {
                (false, true) => (1, 0),
                (true, false) => (0, 1),
                _ => (0, 0),
            };
            counts.newly_refused += refused;
            counts.newly_admitted += admitted;
            self.newly_refused += refused;
            self.newly_admitted += admitted;
            if refused + admitted > 0 {
                for (config, outcome) in self.configs.iter_mut().zip(&outcomes) {
                    for limit in outcome.refusing() {
                        config.differing_refusals[*limit as usize] += 1;
                    }
                }
            }
        }
        if let Some(observer) = observer {
            observer(&DecisionEvent { at, outcomes: &outcomes, configs: &self.configs });
        }
    }

    /// The callers with the highest `weight`, at most `count`; callers of weight zero are left out.
    pub fn top_callers(
        &self,
        count: usize,
        weight: impl Fn(&CallerCounts) -> (u64, u64),
    ) -> Vec<(&LoggedCaller, &CallerCounts)> {
        self.callers.top(count, weight)
    }

    /// Number of callers evicted from the full table. If it is above 0, counts by caller may be too
    /// low.
    pub fn evicted_callers(&self) -> u64 {
        self.callers.evicted()
    }

    /// Number of requests that were read.
    pub fn requests(&self) -> u64 {
        let lines = self.files.iter().map(|file| file.lines).sum::<u64>();
        lines - self.malformed - self.empty - self.process_lines
    }
}
