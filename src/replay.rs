//! Runs a recorded access log through the same decisions as live requests, on a virtual clock.
//!
//! Each line is planned as a request is (`plan`), put into the order of the lines' times, and charged
//! in a memory store of its own at the time that it tells. Nothing is read from a clock, and nothing is
//! kept but counters, so that a log may be longer than memory.

mod candidate;
mod combined;
mod input;
mod json;
mod line;
mod notes;
pub mod report;
mod tally;
mod window;

use std::io::{self, Read};

use http::{HeaderName, Method};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use smallvec::SmallVec;

use self::{
    candidate::{Asks, Outcome, Request},
    tally::Callers,
    window::Window,
};
pub use self::{
    candidate::{Candidate, Fate},
    input::{Lines, Piece, open},
    line::{Format, Line, LineFault, MAX_LINE},
    tally::{Caller, CallerCounts, Counts, Moment, Place},
};
use crate::{
    framing::Fields,
    identity::{TokenSource, client::counted},
    limit::Millis,
};

/// How many lines the order of times reaches over. What is later than that is replayed at the time of
/// the line before it.
pub const WINDOW: u32 = 1 << 16;

/// How many malformed lines are kept to be shown.
const SHOWN_FAULTS: usize = 5;

/// Where the log's token is put for the keys to find it: no configuration can name this header.
const TOKEN: HeaderName = HeaderName::from_static("tidegate-logged-token");

/// What one log, or one file of it, consisted of.
#[derive(Clone, Debug, Default)]
pub struct FileReport {
    /// Its name.
    pub name: String,
    /// Its format; none where no line could be read.
    pub format: Option<Format>,
    /// Its lines, those that are empty included.
    pub lines: u64,
    /// Why it could not be read to its end, if so.
    pub broken: Option<String>,
}

/// One line's decision, as it is made.
pub struct Decided<'d> {
    /// The virtual time and the line.
    pub at: Moment,
    /// One a configuration.
    pub fates: &'d [Fate],
    /// The configurations, for the names of what the fates tell.
    pub candidates: &'d [Candidate],
}

/// Told of each decision, in the order in which they are made.
pub type Observer<'o> = &'o mut dyn FnMut(&Decided<'_>);

/// A replay under way.
pub struct Replay {
    /// One configuration, or two that are compared.
    pub candidates: SmallVec<[Candidate; 2]>,
    /// The files, as far as they were read.
    pub files: Vec<FileReport>,
    /// Lines that no request could be read from.
    pub malformed: u64,
    /// The first of them.
    pub faults: Vec<(Place, LineFault)>,
    /// Lines with nothing in them.
    pub empty: u64,
    /// Lines that came too late to be put into their order.
    pub late: u64,
    /// Requests that ended before any limit was asked, in the gateway that wrote the log.
    pub unasked: u64,
    /// Requests from addresses that may say who the client is, in a log that does not tell what they
    /// said.
    pub from_proxies: u64,
    /// Requests that only the second configuration refuses.
    pub newly_refused: u64,
    /// Requests that only the first configuration refuses.
    pub newly_admitted: u64,
    /// The virtual time of the first request and of the last, in ms since the epoch.
    pub span: Option<(Millis, Millis)>,
    /// The host of logs that have none.
    host: String,
    callers: Callers,
    waiting: Window<Waiting>,
    /// Holds the line's token.
    headers: Fields,
    sources: [TokenSource; 1],
    /// The virtual clock.
    now: Millis,
}

/// A request that waits for its turn.
struct Waiting {
    place: Place,
    caller: Caller,
    outcomes: SmallVec<[Outcome; 2]>,
    asks: Asks,
}

impl Replay {
    /// Replays under these configurations: the first, and the second if it is compared. `host` is what
    /// requests of a log without hosts ask for.
    pub fn new(candidates: SmallVec<[Candidate; 2]>, host: &str) -> Self {
        Self {
            candidates,
            files: Vec::new(),
            malformed: 0,
            faults: Vec::new(),
            empty: 0,
            late: 0,
            unasked: 0,
            from_proxies: 0,
            newly_refused: 0,
            newly_admitted: 0,
            span: None,
            host: host.to_ascii_lowercase(),
            callers: Callers::default(),
            waiting: Window::new(WINDOW),
            headers: Fields::default(),
            sources: [TokenSource::Header(TOKEN)],
            now: 0,
        }
    }

    /// Takes all lines of a log in. What breaks off is told in the file's report.
    pub fn read(
        &mut self,
        name: &str,
        reader: impl Read,
        format: Option<Format>,
        mut observer: Option<Observer<'_>>,
    ) {
        let mut report = FileReport { name: name.to_owned(), format, ..FileReport::default() };
        let ended = self.lines(reader, &mut report, &mut observer);
        report.broken = ended.err().map(|error| error.to_string());
        self.files.push(report);
    }

    fn lines(
        &mut self,
        reader: impl Read,
        report: &mut FileReport,
        observer: &mut Option<Observer<'_>>,
    ) -> io::Result<()> {
        let mut lines = open(reader)?;
        while let Some(piece) = lines.next_line()? {
            report.lines += 1;
            let place = Place { file: self.files.len() as u32, line: report.lines };
            let parsed = match piece {
                Piece::TooLong => Err(LineFault::TooLong),
                Piece::Line(line) if line.trim_ascii().is_empty() => {
                    self.empty += 1;
                    continue;
                }
                Piece::Line(line) => {
                    report.format = report.format.or_else(|| Format::of(line));
                    match report.format {
                        Some(format) => format.parse(line).map(|line| (line, format)),
                        None => Err(LineFault::Unknown(line::shown(line))),
                    }
                }
            };
            match parsed {
                Ok((line, format)) => self.request(&line, format, place, observer),
                Err(fault) => {
                    self.malformed += 1;
                    if self.faults.len() < SHOWN_FAULTS {
                        self.faults.push((place, fault));
                    }
                }
            }
        }
        Ok(())
    }

    /// Plans one request, and decides the one whose turn it is.
    fn request(
        &mut self,
        line: &Line<'_>,
        format: Format,
        place: Place,
        observer: &mut Option<Observer<'_>>,
    ) {
        self.set_token(&line.token);
        let foreign = format == Format::Combined;
        let first = &self.candidates[0].snapshot.identity;
        if foreign && first.trusted_proxies.contains(line.client) {
            self.from_proxies += 1;
        }
        let token = || SmallVec::from_slice(line.token.as_bytes());
        let caller = match format {
            _ if line.token.is_empty() => Caller::Address(counted(line.client, first.ipv6_prefix)),
            Format::Json => Caller::Token(token()),
            Format::Combined => Caller::User(token()),
        };
        let method = Method::from_bytes(line.method.as_bytes()).ok();
        let request = Request {
            line,
            method: method.as_ref(),
            host: if foreign { &self.host } else { &line.host },
            headers: &self.headers,
            sources: &self.sources,
        };
        let mut asks = Asks::new();
        let plans = self.candidates.iter().map(|candidate| candidate.plan(&request, &mut asks));
        let waiting = Waiting { place, caller, outcomes: plans.collect(), asks };
        self.unasked += u64::from(line.unasked);
        if let Some((time, waiting)) = self.waiting.push(line.time, waiting) {
            self.decide(time, waiting, observer);
        }
    }

    /// Puts the line's token where keys look for it.
    fn set_token(&mut self, token: &str) {
        self.headers.clear();
        if token.is_empty() {
            return;
        }
        // A user's name may hold what no header does; the name with its bytes spelled out is a name too.
        let plain = token.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
        if plain {
            self.headers.push(TOKEN.as_str(), token);
        } else {
            let spelled = utf8_percent_encode(token, NON_ALPHANUMERIC).to_string();
            self.headers.push(TOKEN.as_str(), spelled);
        }
    }

    /// Decides what still waits. To be called once, after the last file.
    pub fn finish(&mut self, mut observer: Option<Observer<'_>>) {
        while let Some((time, waiting)) = self.waiting.pop() {
            self.decide(time, waiting, &mut observer);
        }
    }

    fn decide(&mut self, time: Millis, waiting: Waiting, observer: &mut Option<Observer<'_>>) {
        let Waiting { place, caller, outcomes, asks } = waiting;
        let mut asks = &asks[..];
        self.late += u64::from(time < self.now);
        self.now = self.now.max(time);
        let at = Moment { time: self.now, place };
        self.span = Some((self.span.map_or(self.now, |(first, _)| first), self.now));
        let counts = self.callers.of(caller);
        counts.requests += 1;
        let mut fates: SmallVec<[Fate; 2]> = SmallVec::new();
        for (which, (candidate, outcome)) in self.candidates.iter_mut().zip(outcomes).enumerate() {
            let fate = candidate.decide(outcome, &mut asks, at);
            counts.refused[which] += u64::from(fate.is_refused());
            for limit in fate.refusing() {
                counts.refused_by(which, *limit);
            }
            fates.push(fate);
        }
        if let [old, new] = &fates[..] {
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
                for (candidate, fate) in self.candidates.iter_mut().zip(&fates) {
                    fate.refusing()
                        .iter()
                        .for_each(|limit| candidate.changed[*limit as usize] += 1);
                }
            }
        }
        if let Some(observer) = observer {
            observer(&Decided { at, fates: &fates, candidates: &self.candidates });
        }
    }

    /// The callers with the most of `weight`, at most `count` of them.
    pub fn top_callers(
        &self,
        count: usize,
        weight: impl Fn(&CallerCounts) -> (u64, u64),
    ) -> Vec<(&Caller, &CallerCounts)> {
        self.callers.top(count, weight)
    }

    /// How often a caller was forgotten because there were too many: what is told of others may be too
    /// little.
    pub fn forgotten_callers(&self) -> u64 {
        self.callers.forgotten()
    }

    /// Requests that were read.
    pub fn requests(&self) -> u64 {
        self.files.iter().map(|file| file.lines).sum::<u64>() - self.malformed - self.empty
    }
}
