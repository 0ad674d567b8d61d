//! Abuse of Tidegate: what it costs another client in latency, and the gateway in memory.
//!
//! The gateway has CPU 0 to itself. The other client, the attacker and both upstreams share CPU 1,
//! where the attacker has the lowest priority (nice 19). So the other client waits for the gateway,
//! and hardly for the attacker. The other client sends 500 requests a second over HTTP/1.1 and as
//! many over HTTP/2, on kept connections in clear; a latency counts from the time at which its
//! request was due. Rounds with and without the attack alternate.
//!
//! The configuration is the default one with one worker, except for its timeouts, which are short.
//! Attackers have other addresses than the other client (127.0.0.2 to 127.0.0.5).

mod client;
mod flood;
mod frames;
mod slow;
mod target;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use socket2::{Domain, Socket, Type};

use self::{
    client::Latencies,
    flood::{Flood, Intensity, Pace, Tally},
    slow::Slow,
    target::{TIMEOUT, Target, as_attacker},
};
use crate::{contestant::Program, undisturbed::undisturbed};

/// Rounds of a flood, each with every intensity.
const ROUNDS: usize = 2;
/// Duration of a round of a flood, and of its quiet one.
const FLOOD_ROUND: Duration = Duration::from_millis(700);
/// Duration of the quiet rounds before and after slow connections.
const QUIET_ROUND: Duration = Duration::from_secs(2);
/// Time in which the slow connections are opened, which is not measured.
const OPENING: Duration = Duration::from_millis(2_200);
/// From then on: their timeout, and their close.
const SLOW_ROUND: Duration = Duration::from_secs(TIMEOUT.as_secs() + 3);
/// Most attempts of one round.
const MAX_ATTEMPTS: u32 = 60;
/// Pause in which the gateway can finish the work of a round.
const SETTLE_TIME: Duration = Duration::from_millis(200);

/// The intensities of a flood, with their names.
const INTENSITIES: [(&str, Intensity); 3] = [
    ("1 connection", Intensity { connections: 1, pace: None }),
    ("8 connections", Intensity { connections: 8, pace: None }),
    (
        "8 connections of 1 MiB/s",
        Intensity {
            connections: 8,
            pace: Some(Pace { rate: 1 << 20, reopen: Duration::from_millis(100) }),
        },
    ),
];

/// A row of the table.
struct Row {
    name: String,
    quiet: Latencies,
    attacked: Latencies,
    /// Memory that the gateway gained, in KiB.
    growth: u64,
    /// What the attack amounted to, and how its connections ended.
    course: String,
}

/// Runs every attack on `program` whose name contains `filter`, and returns the table.
///
/// # Errors
///
/// The other client was not served, or connections stay open.
pub(crate) fn table(program: &Program, filter: &str) -> Result<String> {
    let mut text = format!(
        "Abuse; timeouts of {} s. Latencies in ms, of HTTP/1.1, HTTP/2.\n\n\
         | attack | quiet p50 | quiet p99 | p50 | p99 | p99 / quiet | more memory | connections |\n\
         |---|---:|---:|---:|---:|---:|---:|---|\n",
        TIMEOUT.as_secs()
    );
    for kind in slow::kinds()?.iter().filter(|kind| kind.name.contains(filter)) {
        let row = measure_slow(program, kind)?;
        row.append(&mut text);
    }
    for kind in flood::kinds().iter().filter(|kind| kind.name.contains(filter)) {
        for row in measure_flood(program, kind)? {
            row.append(&mut text);
        }
    }
    Ok(text)
}

fn measure_slow(program: &Program, kind: &Slow) -> Result<Row> {
    let target = Target::start(program)?;
    let mut quiet = quiet_round(&target, QUIET_ROUND)?;
    thread::sleep(SETTLE_TIME);
    let before = target.memory()?;
    let attack = || {
        thread::scope(|scope| {
            let attack = scope.spawn(|| kind.run(&target));
            thread::sleep(OPENING);
            let attacked = client::run(target.clear, SLOW_ROUND);
            let closed = attack.join().map_err(|_| anyhow!("the attacker panicked"))??;
            anyhow::Ok((attacked?, closed))
        })
        .with_context(|| format!("{}{}", kind.name, target.logs()))
    };
    let (attacked, closed) = alone(&target, attack)?;
    quiet.extend(quiet_round(&target, QUIET_ROUND)?);
    let course = format!(
        "{} closed within {:.1} s: {}",
        slow::CONNECTIONS,
        closed.took.as_secs_f64(),
        list(&closed.ends)
    );
    let name = kind.name.to_owned();
    Ok(Row { name, quiet, attacked, growth: closed.memory.saturating_sub(before), course })
}

/// Runs a round, and again if other processes used the machine meanwhile.
fn alone<T>(target: &Target, round: impl Fn() -> Result<T>) -> Result<T> {
    undisturbed(&[target.pid()], MAX_ATTEMPTS, round)?.context("other processes use the machine")
}

/// A round of the other client alone.
fn quiet_round(target: &Target, duration: Duration) -> Result<Latencies> {
    alone(target, || client::run(target.clear, duration))
}

/// One row for each intensity.
fn measure_flood(program: &Program, kind: &Flood) -> Result<Vec<Row>> {
    let target = Target::start(program)?;
    client::run(target.clear, FLOOD_ROUND)?;
    let before = target.memory()?;
    let mut rows = Vec::new();
    for (name, intensity) in INTENSITIES {
        let (mut quiet, mut attacked) = (Latencies::default(), Latencies::default());
        let (mut tally, mut memory) = (Tally::default(), before);
        for _ in 0..ROUNDS {
            quiet.extend(quiet_round(&target, FLOOD_ROUND)?);
            let attack = || {
                attack(&target, kind, intensity)
                    .with_context(|| format!("{}, {name}{}", kind.name, target.logs()))
            };
            let (latencies, by, largest) = alone(&target, attack)?;
            attacked.extend(latencies);
            tally.extend(by);
            memory = memory.max(largest);
            thread::sleep(SETTLE_TIME);
        }
        let seconds = (FLOOD_ROUND * ROUNDS as u32).as_secs_f64();
        let course = format!(
            "{:.0}/s, {:.1} MiB/s: {}",
            tally.connections as f64 / seconds,
            tally.bytes as f64 / seconds / f64::from(1 << 20),
            list(&tally.ends)
        );
        let name = format!("{}, {name}", kind.name);
        rows.push(Row { name, quiet, attacked, growth: memory - before, course });
    }
    Ok(rows)
}

/// A round of the other client while a flood goes on. Also returns the gateway's largest memory, in
/// KiB.
fn attack(target: &Target, kind: &Flood, intensity: Intensity) -> Result<(Latencies, Tally, u64)> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let attackers: Vec<_> = (0..intensity.connections)
            .map(|_| scope.spawn(|| kind.run(target.clear, intensity.pace, &stop)))
            .collect();
        let memory = scope.spawn(|| {
            as_attacker();
            let mut largest = 0;
            while !stop.load(Ordering::Relaxed) {
                largest = target.memory()?.max(largest);
                thread::sleep(Duration::from_millis(50));
            }
            anyhow::Ok(largest)
        });
        let latencies = client::run(target.clear, FLOOD_ROUND);
        stop.store(true, Ordering::Relaxed);
        let mut tally = Tally::default();
        for attacker in attackers {
            tally.extend(attacker.join().map_err(|_| anyhow!("an attacker panicked"))??);
        }
        let memory = memory.join().map_err(|_| anyhow!("the memory's reader panicked"))??;
        Ok((latencies?, tally, memory))
    })
}

/// Connects from 127.0.0.`host`. `buffer` bounds what the connection receives, in bytes.
fn connect_from(host: u8, target: SocketAddr, buffer: Option<usize>) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0)).into())?;
    socket.connect(&target.into()).context("the gateway does not accept")?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// The ends of connections, each with its count.
fn list(ends: &BTreeMap<String, u64>) -> String {
    let each: Vec<_> = ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
    each.join("; ")
}

impl Row {
    fn append(&self, text: &mut String) {
        let both = |values: [f64; 2]| format!("{:.2}, {:.2}", values[0], values[1]);
        let (quiet, attacked) = (self.quiet.quantile(0.99), self.attacked.quantile(0.99));
        let row = format!(
            "| {} | {} | {} | {} | {} | **{:.2}, {:.2}** | {:.1} MiB | {} |",
            self.name,
            both(self.quiet.quantile(0.5)),
            both(quiet),
            both(self.attacked.quantile(0.5)),
            both(attacked),
            attacked[0] / quiet[0],
            attacked[1] / quiet[1],
            self.growth as f64 / 1024.0,
            self.course
        );
        eprintln!("{row}");
        // Writing to a string does not fail.
        let _ = writeln!(text, "{row}");
    }
}
