//! Whether other processes used the machine during a round.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// Clock ticks a second, in which Linux tells CPU times.
const TICKS: f64 = 100.0;
/// Most of a CPU that other processes may use during a round.
const MAX_OTHERS: f64 = 0.1;
/// Most attempts of one round.
const MAX_ATTEMPTS: u32 = 60;
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_secs(2);

/// CPU time so far, in ticks.
struct CpuTimes {
    /// Of all processes.
    all: u64,
    /// Of this process and the gateway.
    own: u64,
    at: Instant,
}

impl CpuTimes {
    fn now(gateway: u32) -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        // User, nice, system.
        let all = numbers(&stat, 1)?.take(3).sum();
        let own = ["self".to_owned(), gateway.to_string()].map(|process| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
            let (_, after_name) = stat.rsplit_once(')').context("an unknown form of stat")?;
            anyhow::Ok(numbers(after_name, 11)?.take(2).sum::<u64>())
        });
        let [this, gateway] = own;
        Ok(Self { all, own: this? + gateway?, at: Instant::now() })
    }
}

/// The numbers of a line from the word at `skipped`, counted from 0.
fn numbers(line: &str, skipped: usize) -> Result<impl Iterator<Item = u64>> {
    let words = line.lines().next().context("no line")?.split_whitespace().skip(skipped);
    let words = words.map_while(|word| word.parse().ok());
    Ok(words)
}

/// Runs a round, and again if other processes used the machine meanwhile. `gateway` is its process.
///
/// # Errors
///
/// The round failed, or the machine is busy all the time.
pub(super) fn undisturbed<T>(gateway: u32, round: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 0..MAX_ATTEMPTS {
        let before = CpuTimes::now(gateway)?;
        let result = round()?;
        let after = CpuTimes::now(gateway)?;
        let others = (after.all - before.all).saturating_sub(after.own - before.own);
        let share = others as f64 / TICKS / (after.at - before.at).as_secs_f64();
        if share <= MAX_OTHERS {
            return Ok(result);
        }
        eprintln!("repeated: other processes used {:.0}% of a CPU", share * 100.0);
        thread::sleep(PAUSE);
    }
    bail!("other processes use the machine")
}
