//! What it costs to watch Tidegate: the dashboard, a scraper and traces, each beside the same
//! gateway unwatched; and the gateway at rest.
//!
//! The gateway has CPU 0 to itself, and its figure includes the control thread, which answers the
//! watchers. They, the collector of traces, the upstream and the load generator share CPU 1.

use std::{
    fmt::{self, Write as _},
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;
use testkit::{bench::median, port::free_address};

use crate::{
    configuration::{self, ConfigParams},
    contestant::{Contestant, Program},
    measure::Bench,
    scenario::Scenario,
};

/// Requests of a measurement for each of the run's: it has to last for some seconds, since scrapers
/// come once a second.
const LENGTH: u64 = 4;
/// Starts that are timed.
const STARTS: usize = 15;
/// Pause after a start, in which the gateway finishes it.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// How the gateway is watched.
#[derive(Clone, Copy, PartialEq)]
enum Watch {
    /// The admin API listens, and is not asked.
    Unwatched,
    /// The dashboard is open in one browser.
    Dashboard,
    /// `/metrics` is read once a second.
    Scraped,
    /// This share of the requests is traced.
    Traced(f64),
}

const WATCHES: [Watch; 6] = [
    Watch::Unwatched,
    Watch::Dashboard,
    Watch::Scraped,
    Watch::Traced(0.0),
    Watch::Traced(0.01),
    Watch::Traced(1.0),
];

impl fmt::Display for Watch {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwatched => to.write_str("unwatched"),
            Self::Dashboard => to.write_str("dashboard open"),
            Self::Scraped => to.write_str("metrics scraped once a second"),
            Self::Traced(share) => write!(to, "traces, {} % sampled", share * 100.0),
        }
    }
}

/// Measures every watch in rounds of rotating order, and the gateway at rest; returns the tables.
///
/// # Errors
///
/// The gateway does not start, or does not do its work.
pub(crate) fn tables(
    bench: &Bench,
    program: &Program,
    rounds: usize,
    requests: u64,
) -> Result<String> {
    let collector = Collector::start()?;
    let mut figures: [Vec<f64>; WATCHES.len()] = Default::default();
    for round in 0..rounds {
        for index in (0..WATCHES.len()).map(|index| (index + round) % WATCHES.len()) {
            let watch = WATCHES[index];
            let cost = cpu(bench, program, watch, collector.address, requests * LENGTH)?;
            eprintln!("round {}/{rounds}, {watch}: {cost:.2} us", round + 1);
            figures[index].push(cost);
        }
    }
    let mut text = "| Tidegate, default configuration | CPU a request, µs | ratio to unwatched |\n\
                    |---|---:|---:|\n"
        .to_owned();
    for (watch, costs) in WATCHES.iter().zip(&figures) {
        let ratios: Vec<f64> = costs.iter().zip(&figures[0]).map(|(a, b)| a / b).collect();
        let (low, high) = ratios
            .iter()
            .fold((f64::MAX, 0.0_f64), |(low, high), ratio| (low.min(*ratio), high.max(*ratio)));
        let (cost, ratio) = (median(costs.clone()), median(ratios));
        writeln!(text, "| {watch} | {cost:.2} | **{ratio:.2}** ({low:.2} to {high:.2}) |")?;
    }
    text.push('\n');
    text.push_str(&at_rest(program)?);
    Ok(text)
}

/// CPU time per request, in µs.
fn cpu(
    bench: &Bench,
    program: &Program,
    watch: Watch,
    collector: SocketAddr,
    requests: u64,
) -> Result<f64> {
    let (listen, admin) = (free_address(), free_address());
    let scenario = Scenario::DEFAULT;
    let (origin, peers) = (bench.origin.address(), program.peers);
    let mut yaml = configuration::tidegate(&ConfigParams { scenario, listen, origin, peers });
    writeln!(yaml, "admin: {{address: '{admin}'}}")?;
    if let Watch::Traced(share) = watch {
        writeln!(yaml, "traces: {{endpoint: 'http://{collector}/v1/traces', sample: {share}}}")?;
    }
    let contestant = start(program, listen, &yaml)?;
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| match watch {
            Watch::Dashboard => listen_to_events(admin, &ends),
            Watch::Scraped => scrape(admin, &ends),
            Watch::Unwatched | Watch::Traced(_) => Ok(()),
        });
        let cost = bench.cpu_of(&contestant, scenario, requests);
        ends.store(true, Ordering::Relaxed);
        watcher.join().expect("no panic")?;
        Ok(cost?.total)
    })
}

fn start(program: &Program, listen: SocketAddr, yaml: &str) -> Result<Contestant> {
    program.start_configured(TempDir::with_prefix("watched-")?, listen, yaml)
}

/// Reads the events of the dashboard, as its page does.
fn listen_to_events(admin: SocketAddr, ends: &AtomicBool) -> Result<()> {
    let mut events = ask(admin, "/api/events")?;
    let mut buffer = vec![0; 64 << 10];
    while !ends.load(Ordering::Relaxed) {
        ensure!(events.read(&mut buffer)? > 0, "the events end");
    }
    Ok(())
}

/// Reads the metrics once a second.
fn scrape(admin: SocketAddr, ends: &AtomicBool) -> Result<()> {
    let mut due = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        if Instant::now() < due {
            thread::sleep(Duration::from_millis(10));
            continue;
        }
        due += Duration::from_secs(1);
        let mut text = String::new();
        ask(admin, "/metrics")?.read_to_string(&mut text)?;
        ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
    }
    Ok(())
}

/// A connection on which `path` was requested.
fn ask(address: SocketAddr, path: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    Ok(stream)
}

/// Takes spans and discards them. Its threads end with the process.
struct Collector {
    address: SocketAddr,
}

impl Collector {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A connection that breaks off is the sender's concern.
                thread::spawn(move || drop(take_spans(stream)));
            }
        });
        Ok(Self { address })
    }
}

/// Answers each request on `stream` with 200, without reading what its body says.
fn take_spans(stream: TcpStream) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut writer, mut line) = (stream, String::new());
    loop {
        let mut length = 0;
        loop {
            line.clear();
            ensure!(reader.read_line(&mut line)? > 0, "closed");
            let field = line.trim_end().to_ascii_lowercase();
            if let Some(value) = field.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
            if field.is_empty() {
                break;
            }
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
    }
}

/// The gateway without requests: its binary, its start and its memory, with one worker for each of
/// two CPUs.
fn at_rest(program: &Program) -> Result<String> {
    let rules =
        "upstreams: {hello: {respond: {body: hello}}}\nroutes: [{name: all, upstream: hello}]\n";
    let (mut starts, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let listen = free_address();
        let yaml = format!(
            "listen: [{{address: '{listen}'}}]\nworkers: 2\naccess_log: ./access.log\n{rules}"
        );
        let began = Instant::now();
        let contestant = start(program, listen, &yaml)?;
        let mut answer = String::new();
        ask(listen, "/")?.read_to_string(&mut answer)?;
        starts.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        thread::sleep(SETTLE_TIME);
        memory.push(contestant.memory()? as f64 / 1024.0);
    }
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let stripped = stripped_size(program)?;
    Ok(format!(
        "| at rest, two workers | |\n|---|---:|\n\
         | binary, stripped | {:.1} MiB |\n\
         | start to the first answer | {:.0} ms |\n\
         | memory (PSS) | {:.1} MiB |\n",
        mebibytes(stripped),
        median(starts),
        median(memory),
    ))
}

/// The size of the binary without symbols, in bytes.
fn stripped_size(program: &Program) -> Result<u64> {
    let directory = TempDir::with_prefix("stripped-")?;
    let copy = directory.path().join("tidegate");
    let status = Command::new("strip").arg("-o").arg(&copy).arg(&program.path).status();
    ensure!(status.context("strip, of binutils, does not start")?.success(), "strip failed");
    Ok(fs::metadata(copy)?.len())
}
