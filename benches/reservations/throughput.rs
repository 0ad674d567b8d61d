//! Requests per second through a gateway with one worker, with its limit in memory and in Redis.
//!
//! The gateway runs on CPU 0; the load generator, the upstream and Redis on CPU 1.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::{
    bench::median,
    load::{Load, Origin, cpu},
    redis_server::RedisServer,
};
use tidegate::clock::instant;

const CONNECTIONS: usize = 64;

const REQUESTS: u64 = 60_000;

/// Requests before the measurement, during which connections are made and chunks grow.
const WARM_UP: u64 = 5_000;

/// The cases and their `reserve`; `None`: counters in memory.
const CASES: [(&str, Option<&str>); 4] = [
    ("in memory", None),
    ("in Redis, `reserve: off`", Some("off")),
    ("in Redis, `reserve: auto`", Some("auto")),
    ("in Redis, `reserve: 1000`", Some("1000")),
];

/// The result of a run.
struct Measurement {
    /// Requests per second.
    rate: f64,
    /// CPU time of the gateway for each request, in us.
    cpu: f64,
}

/// Measures all cases alternately, and returns a Markdown table of the medians.
pub(crate) fn table(rounds: usize) -> Result<String> {
    let redis = thread::spawn(|| {
        // The server inherits the CPU affinity.
        cpu::pin(cpu::LOAD_CPU);
        RedisServer::start()
    });
    let redis = redis.join().ok().context("Redis cannot be started")?;
    let origin = Origin::start()?;
    cpu::pin(cpu::TESTED_CPU);
    let mut samples: Vec<Vec<Measurement>> = CASES.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..CASES.len() {
            let case = (round + turn) % CASES.len();
            samples[case].push(measure(&redis, &origin, CASES[case].1)?);
        }
    }
    let mut text = format!(
        "{CONNECTIONS} connections, one worker, proxied\n\n\
         | the limit is | requests a second | / in memory | us of CPU a request | / in memory |\n\
         |---|---|---|---|---|\n"
    );
    let median_ratio = |case: usize, of: fn(&Measurement) -> f64| {
        let ratios =
            samples[case].iter().zip(&samples[0]).map(|(one, memory)| of(one) / of(memory));
        median(ratios.collect())
    };
    for (case, (name, _)) in CASES.iter().enumerate() {
        let median = |of: fn(&Measurement) -> f64| median(samples[case].iter().map(of).collect());
        writeln!(
            text,
            "| {name} | {:.0} | {:.2} | {:.1} | {:.2} |",
            median(|sample| sample.rate),
            median_ratio(case, |sample| sample.rate),
            median(|sample| sample.cpu),
            median_ratio(case, |sample| sample.cpu),
        )?;
    }
    Ok(text)
}

fn measure(redis: &RedisServer, origin: &Origin, reserve: Option<&str>) -> Result<Measurement> {
    let _: String = redis.command(&["FLUSHALL"]);
    let gateway = Gateway::start(&configuration(redis, origin.address(), reserve))?;
    let load = |requests| Load {
        target: gateway.address,
        connections: CONNECTIONS,
        requests,
        within: Duration::from_mins(1),
    };
    load(WARM_UP).run()?;
    let (before, answered) = (gateway.cpu()?, origin.answered());
    let tally = load(REQUESTS).run()?;
    let cpu = gateway.cpu()? - before;
    ensure!(
        origin.answered() - answered == REQUESTS,
        "{} requests reached the upstream, expected {REQUESTS}",
        origin.answered() - answered
    );
    ensure!(
        tally.statuses.get(&200) == Some(&REQUESTS),
        "expected only status 200, got {:?}",
        tally.statuses
    );
    let rate = REQUESTS as f64 / tally.took.as_secs_f64();
    Ok(Measurement { rate, cpu: cpu * 1e6 / REQUESTS as f64 })
}

fn configuration(redis: &RedisServer, origin: SocketAddr, reserve: Option<&str>) -> String {
    let store = reserve.map_or_else(String::new, |_| {
        format!(
            "store: {{redis: {{shards: [{{primary: '{}'}}], response_timeout: 5s}}}}\n",
            redis.url()
        )
    });
    let reserve = reserve.map_or_else(String::new, |reserve| format!(", reserve: {reserve}"));
    format!(
        "listen: [{{address: ADDRESS}}]
workers: 1
access_log: 'off'
upstreams: {{origin: {{targets: ['http://{origin}']}}}}
limits: {{many: {{quota: 1000000000, window: 1h{reserve}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin, limits: [many]}}]
{store}"
    )
}

/// A running gateway. Dropping it ends it.
struct Gateway {
    child: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl Gateway {
    fn start(yaml: &str) -> Result<Self> {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let directory = TempDir::with_prefix("reservations-")?;
        let file = directory.path().join("tidegate.yaml");
        fs::write(&file, yaml.replace("ADDRESS", &address.to_string()))?;
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("serve")
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut gateway = Self { child, address, _directory: directory };
        let start = instant();
        while TcpStream::connect(address).is_err() {
            ensure!(gateway.child.try_wait()?.is_none(), "the gateway exited at its start");
            ensure!(
                start.elapsed() < Duration::from_secs(10),
                "the gateway does not listen after 10 s"
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(gateway)
    }

    /// The process's CPU time (user and system), in seconds.
    fn cpu(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // Fields 14 and 15 of proc_pid_stat(5), counted after the command's name.
        let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has no command name")?;
        let ticks: Vec<u64> = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .map_while(|field| field.parse().ok())
            .collect();
        let second = rustix::param::clock_ticks_per_second();
        Ok(ticks.iter().sum::<u64>() as f64 / second as f64)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            // Fails only if the process has exited.
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
