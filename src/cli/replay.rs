mod tables;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use smallvec::SmallVec;

use super::{Exit, complain, rules, written};
use crate::identity::Secret;
use crate::replay::report::{Report, rfc3339};
use crate::replay::{self, Candidate, Decided, Fate, Format};

/// What `replay` is asked for.
#[derive(clap::Args, Debug)]
pub(super) struct Replay {
    #[command(flatten)]
    file: super::File,
    /// Access logs, the oldest first, plain or gzip; `-`: standard input.
    #[arg(value_name = "ACCESS_LOG", required = true)]
    logs: Vec<PathBuf>,
    /// Replay under this configuration too, and tell what would change.
    #[arg(long, value_name = "OTHER")]
    compare: Option<PathBuf>,
    /// How the logs are written, where it is not to be found out.
    #[arg(long, value_enum)]
    format: Option<LogFormat>,
    /// The host that is asked for where the log has none, as in the format combined.
    #[arg(long, value_name = "HOST", default_value = "")]
    host: String,
    /// Print all of it as one JSON object.
    #[arg(long)]
    json: bool,
    /// How many callers are told.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print one decision a line instead, with tabs between: place, time, and for each configuration
    /// route, decision, and the limits that refuse or the gateway's status.
    #[arg(long, conflicts_with = "json")]
    decisions: bool,
}

/// How a log is written.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum LogFormat {
    /// Tidegate's own.
    Json,
    /// nginx' and Apache's combined or common.
    Combined,
}

/// One log, opened.
struct Log {
    name: String,
    reader: Box<dyn Read>,
    /// None for what is no file.
    bytes: Option<u64>,
}

/// Replays the logs, and tells what would have become of their requests.
pub(super) fn run(arguments: &Replay, out: &mut dyn Write) -> Exit {
    match prepare(arguments) {
        Ok((replay, logs)) => replayed(arguments, replay, logs, out),
        Err(exit) => exit,
    }
}

fn prepare(arguments: &Replay) -> Result<(replay::Replay, Vec<Log>), Exit> {
    let mut candidates = SmallVec::new();
    for path in std::iter::once(&arguments.file.config).chain(&arguments.compare) {
        let (config, snapshot) = rules(path)?;
        let secret = || getrandom::u64().map_err(|_| Exit::Internal);
        let (name, max_keys) = (path.display().to_string(), config.store.memory.max_keys);
        let secret = Secret(secret()?, secret()?);
        candidates.push(Candidate::new(&name, snapshot, max_keys as usize, secret));
    }
    let logs = arguments.logs.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
    Ok((replay::Replay::new(candidates, &arguments.host), logs))
}

fn open(path: &Path) -> Result<Log, Exit> {
    if path == Path::new("-") {
        return Ok(Log { name: "-".to_owned(), reader: Box::new(io::stdin()), bytes: None });
    }
    let name = path.display().to_string();
    let file = File::open(path);
    let file = file.map_err(|error| complain(&format!("tidegate: cannot open {name}: {error}")))?;
    let bytes = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
    Ok(Log { name, reader: Box::new(file), bytes })
}

fn replayed(
    arguments: &Replay,
    mut replay: replay::Replay,
    logs: Vec<Log>,
    out: &mut dyn Write,
) -> Exit {
    let format = arguments.format.map(|format| match format {
        LogFormat::Json => Format::Json,
        LogFormat::Combined => Format::Combined,
    });
    let names: Vec<_> = logs.iter().map(|log| log.name.clone()).collect();
    let progress = progress(&logs);
    let mut out = BufWriter::new(out);
    let mut told = Ok(());
    let mut text = String::new();
    let mut tell = |decided: &Decided<'_>| {
        if told.is_ok() {
            text.clear();
            decision(&mut text, &names, decided);
            told = out.write_all(text.as_bytes());
        }
    };
    for log in logs {
        let reader = progress.wrap_read(log.reader);
        replay.read(&log.name, reader, format, arguments.decisions.then_some(&mut tell));
    }
    replay.finish(arguments.decisions.then_some(&mut tell));
    progress.finish_and_clear();
    let report = Report::new(&replay, arguments.top);
    let printed = told.and_then(|()| match (arguments.decisions, arguments.json) {
        (true, _) => Ok(()),
        (_, true) => serde_json::to_writer_pretty(&mut out, &report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
        _ => tables::print(&report, &mut out),
    });
    let exit = complaint(&report, arguments.decisions);
    written(printed.and_then(|()| out.flush()), exit)
}

/// Whether the logs could be read at all; tells what could not, where the report is not printed too.
fn complaint(report: &Report, untold: bool) -> Exit {
    let mut exit = Exit::Ok;
    for file in &report.files {
        if let Some(broken) = &file.broken {
            let (name, lines) = (&file.name, file.lines);
            exit = complain(&format!("tidegate: {name} breaks off after {lines} lines: {broken}"));
        }
    }
    let nothing = report.requests == 0 && report.malformed > 0;
    if untold {
        for malformed in &report.first_malformed {
            complain(&format!("{}: {}", malformed.at, malformed.fault));
        }
    }
    if nothing { complain(&"tidegate: no line of the log could be read") } else { exit }
}

/// Shown on standard error by bytes read; nothing is, where that is no terminal.
fn progress(logs: &[Log]) -> ProgressBar {
    let bytes = logs.iter().map(|log| log.bytes).sum::<Option<u64>>();
    let (bar, template) = match bytes {
        Some(bytes) => (
            ProgressBar::new(bytes),
            "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {bytes_per_sec}"),
    };
    bar.with_style(ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()))
}

/// One line of `--decisions`. Writing to a string does not fail.
fn decision(text: &mut String, names: &[String], decided: &Decided<'_>) {
    let place = decided.at.place;
    let name = names.get(place.file as usize).map_or("", String::as_str);
    let _ = write!(text, "{name}:{}\t{}", place.line, rfc3339(decided.at.time));
    for (candidate, fate) in decided.candidates.iter().zip(decided.fates) {
        let route = |route: &usize| &*candidate.snapshot.routes[*route].name;
        let _ = match fate {
            Fate::Unasked => write!(text, "\t-\tunasked\t-"),
            Fate::Unserved(status) => write!(text, "\t-\tnone\t{status}"),
            Fate::Unlimited { route: at } => write!(text, "\t{}\tnone\t-", route(at)),
            Fate::Admitted { route: at } => write!(text, "\t{}\tadmitted\t-", route(at)),
            Fate::Refused { route: at, limits } => {
                let limits = limits.iter().map(|limit| &candidate.snapshot.limits[*limit as usize]);
                let limits: Vec<&str> = limits.map(|limit| &*limit.limit.name).collect();
                write!(text, "\t{}\trefused\t{}", route(at), limits.join(","))
            }
        };
    }
    text.push('\n');
}
