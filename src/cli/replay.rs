//! `tidegate replay`: runs access logs through the limits of a configuration.

mod plan_change;
mod tables;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use smallvec::SmallVec;

use self::plan_change::{PlanChange, load_changed};
use super::config_file::{ConfigOption, default_exists, is_config};
use super::duration::parse_duration;
use super::{Exit, exit_after_write, load, print_error, usage_error};
use crate::config::EnvLookup;
use crate::identity::KeySecret;
use crate::replay::report::{Report, rfc3339};
use crate::replay::{self, ConfigReplay, DecisionEvent, Format, RequestOutcome};
use crate::time::Millis;

/// Arguments of `replay`.
#[derive(clap::Args, Debug)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    option: ConfigOption,
    /// The configuration (a name that ends in .yaml or .yml, unless `--config` names it), and
    /// access logs, the oldest first, plain or gzip; `-` for standard input.
    #[arg(value_name = "[FILE] ACCESS_LOG", required = true)]
    files: Vec<PathBuf>,
    /// Replay under this configuration as well, and print the difference.
    #[arg(long, value_name = "OTHER")]
    compare: Option<PathBuf>,
    /// Replay under another quota of a plan as well, and print the difference: with --compare under
    /// that configuration. QUOTA is a number, `unlimited`, or 0, which blocks. May be given several
    /// times.
    #[arg(long, value_name = "NAME=LIMIT:QUOTA", value_parser = PlanChange::parse)]
    plan: Vec<PlanChange>,
    /// Format of the logs; detected by default.
    #[arg(long, value_enum)]
    format: Option<LogFormat>,
    /// Host of the requests in a log that has no hosts, such as one in the combined format.
    #[arg(long, value_name = "HOST", default_value = "")]
    host: String,
    /// Print the report as one JSON object.
    #[arg(long)]
    json: bool,
    /// How long a user of the waiting room waits before it gives up, such as 20m.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = parse_duration)]
    patience: Duration,
    /// Number of callers to print.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print one decision per line instead, with tab-separated fields: position, time, and for each
    /// configuration the route, the decision, and the limits that refuse or the gateway's own
    /// status.
    #[arg(long, conflicts_with = "json")]
    decisions: bool,
}

/// Format of a log.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum LogFormat {
    /// Tidegate's own access log.
    Json,
    /// The combined or common format of nginx and Apache.
    Combined,
}

/// An open log.
struct Log {
    name: String,
    reader: Box<dyn Read>,
    /// Its size; `None` if it is not a regular file.
    bytes: Option<u64>,
}

/// Replays the logs and prints the report or the decisions.
pub(super) fn run(arguments: &ReplayArgs, env: EnvLookup<'_>, out: &mut dyn Write) -> Exit {
    match prepare(arguments, env) {
        Ok((replay, logs)) => replay_logs(arguments, replay, logs, out),
        Err(exit) => exit,
    }
}

/// Splits the arguments into the configuration and the logs.
fn files(arguments: &ReplayArgs) -> Result<(&Path, &[PathBuf]), Exit> {
    let named = arguments.files.split_first().filter(|(first, _)| is_config(first));
    let option = arguments.option.config.as_ref();
    match (named, option) {
        (None, None) if arguments.files.iter().skip(1).any(|file| is_config(file)) => {
            Err(usage_error("replay", "the configuration comes before the access logs"))
        }
        (None, None) if arguments.files.len() > 1 && !default_exists() => {
            let first = arguments.files[0].display();
            let what = format!(
                "'{first}' is taken as an access log, because its name does not end in .yaml or .yml; name the \
                 configuration with --config"
            );
            Err(usage_error("replay", what))
        }
        (None, _) => Ok((arguments.option.path()?, &arguments.files)),
        (Some((file, _)), Some(option)) => Err(usage_error(
            "replay",
            format!("two configurations: '{}' and '--config {}'", file.display(), option.display()),
        )),
        (Some((_, [])), None) => Err(usage_error("replay", "an access log is missing")),
        (Some((file, logs)), None) => Ok((file, logs)),
    }
}

fn prepare(arguments: &ReplayArgs, env: EnvLookup<'_>) -> Result<(replay::Replay, Vec<Log>), Exit> {
    let mut configs = SmallVec::new();
    let (file, logs) = files(arguments)?;
    let changed = (!arguments.plan.is_empty()).then_some(file);
    let other = arguments.compare.as_deref().or(changed);
    for (index, path) in iter::once(file).chain(other).enumerate() {
        let (config, snapshot) = if index == 1 && !arguments.plan.is_empty() {
            load_changed(path, env, &arguments.plan)?
        } else {
            load(path, env)?
        };
        let consumers = snapshot.consumers.load().map_err(|faults| print_error(&faults))?;
        let secret = || getrandom::u64().map_err(|_| Exit::Internal);
        let max_keys = config.store.memory.max_keys;
        let changes = arguments.plan.iter().filter(|_| index == 1).map(PlanChange::to_string);
        let name =
            iter::once(path.display().to_string()).chain(changes).collect::<Vec<_>>().join(" ");
        let secret = KeySecret(secret()?, secret()?);
        let config = ConfigReplay::new(&name, snapshot, max_keys as usize, secret);
        let patience = Millis::from_duration(arguments.patience);
        configs.push(config.with_consumers(consumers).with_patience(patience));
    }
    let logs = logs.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
    Ok((replay::Replay::new(configs, &arguments.host), logs))
}

fn open(path: &Path) -> Result<Log, Exit> {
    if path == Path::new("-") {
        return Ok(Log { name: "-".to_owned(), reader: Box::new(io::stdin()), bytes: None });
    }
    let name = path.display().to_string();
    let file = File::open(path);
    let file =
        file.map_err(|error| print_error(&format!("tidegate: cannot open {name}: {error}")))?;
    let bytes = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
    Ok(Log { name, reader: Box::new(file), bytes })
}

fn replay_logs(
    arguments: &ReplayArgs,
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
    let mut result = Ok(());
    let mut text = String::new();
    let mut print_decision = |event: &DecisionEvent<'_>| {
        if result.is_ok() {
            text.clear();
            write_decision(&mut text, &names, event);
            result = out.write_all(text.as_bytes());
        }
    };
    for log in logs {
        let reader = progress.wrap_read(log.reader);
        replay.read(&log.name, reader, format, arguments.decisions.then_some(&mut print_decision));
    }
    replay.finish(arguments.decisions.then_some(&mut print_decision));
    progress.finish_and_clear();
    let report = Report::new(&replay, arguments.top);
    let printed = result.and_then(|()| match (arguments.decisions, arguments.json) {
        (true, _) => Ok(()),
        (_, true) => serde_json::to_writer_pretty(&mut out, &report)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(out)),
        _ => tables::print(&report, &mut out),
    });
    if arguments.decisions {
        // Without `--decisions`, the report has them.
        print_malformed(&report);
    }
    let exit = print_read_errors(&report);
    exit_after_write(printed.and_then(|()| out.flush()), exit)
}

/// Prints the first malformed lines.
fn print_malformed(report: &Report) {
    for malformed in &report.first_malformed {
        print_error(&format!("{}: {}", malformed.at, malformed.fault));
    }
}

/// Prints the read errors of the files, and an error if every line is malformed.
fn print_read_errors(report: &Report) -> Exit {
    let mut exit = Exit::Ok;
    for file in &report.files {
        if let Some(broken) = &file.broken {
            let (name, lines) = (&file.name, file.lines);
            exit = print_error(&format!(
                "tidegate: reading {name} failed after {lines} lines: {broken}"
            ));
        }
    }
    let all_malformed = report.requests == 0 && report.malformed > 0;
    if all_malformed { print_error(&"tidegate: every line of the log is malformed") } else { exit }
}

/// A progress bar by bytes read, on standard error; hidden if that is not a terminal.
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

/// Appends one line of `--decisions`. Writing to a string cannot fail.
fn write_decision(text: &mut String, names: &[String], event: &DecisionEvent<'_>) {
    let position = event.at.position;
    let name = names.get(position.file as usize).map_or("", String::as_str);
    let _ = write!(text, "{name}:{}\t{}", position.line, rfc3339(event.at.time));
    for (config, outcome) in event.configs.iter().zip(event.outcomes) {
        let route = |route: &usize| &*config.snapshot.routes[*route].name;
        let _ = match outcome {
            RequestOutcome::NotChecked => write!(text, "\t-\tnot_checked\t-"),
            RequestOutcome::AnsweredByGateway(status) => write!(text, "\t-\tnone\t{status}"),
            RequestOutcome::Undecided => write!(text, "\t-\tundecided\t-"),
            RequestOutcome::Denied { route: index } => {
                write!(text, "\t{}\tdenied\t-", route(index))
            }
            RequestOutcome::Unlimited { route: index } => {
                write!(text, "\t{}\tnone\t-", route(index))
            }
            RequestOutcome::Admitted { route: index } => {
                write!(text, "\t{}\tadmitted\t-", route(index))
            }
            RequestOutcome::Refused { route: index, limits, admission } => {
                let limits = limits.iter().map(|limit| &config.snapshot.limits[*limit as usize]);
                let limits: Vec<&str> = limits.map(|limit| limit.limit.name()).collect();
                let (label, limits) = (admission.label(), limits.join(","));
                write!(text, "\t{}\t{label}\t{limits}", route(index))
            }
        };
    }
    text.push('\n');
}
