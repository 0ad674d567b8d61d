//! Repeats a measurement during which other processes used the machine.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// Clock ticks a second, the unit of CPU times in `/proc`.
const TICKS: f64 = 100.0;
/// Most of a CPU that other processes may use during a round.
const MAX_OTHERS: f64 = 0.1;
/// Pause before the next attempt.
const PAUSE: Duration = Duration::from_secs(2);

/// CPU time so far, in ticks.
struct CpuTimes {
    /// Of all processes, and of other virtual machines on these CPUs.
    all: u64,
    /// Of this process and the gateway. Ticks of interrupts that they handled are theirs.
    own: u64,
    at: Instant,
}

impl CpuTimes {
    fn now(gateway: &[u32]) -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let all: Vec<_> = numbers(&stat, 1)?.collect();
        // User, nice, system; hard and soft interrupts, stolen time.
        let all = [0, 1, 2, 5, 6, 7].iter().filter_map(|&index| all.get(index)).sum();
        let mut own = 0;
        for process in gateway.iter().map(u32::to_string).chain(["self".to_owned()]) {
            let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
            let (_, after_name) = stat.rsplit_once(')').context("an unknown form of stat")?;
            own += numbers(after_name, 11)?.take(2).sum::<u64>();
        }
        Ok(Self { all, own, at: Instant::now() })
    }
}

/// The numbers of a line from the word at `skipped`, counted from 0.
fn numbers(line: &str, skipped: usize) -> Result<impl Iterator<Item = u64>> {
    let words = line.lines().next().context("no line")?.split_whitespace().skip(skipped);
    let words = words.map_while(|word| word.parse().ok());
    Ok(words)
}

/// Runs a round, and again if other processes used the machine meanwhile: `None` if they did in
/// each of `attempts`. `gateway` has the processes under test.
///
/// # Errors
///
/// The round failed.
pub(crate) fn undisturbed<T>(
    gateway: &[u32],
    attempts: u32,
    round: impl Fn() -> Result<T>,
) -> Result<Option<T>> {
    for _ in 0..attempts {
        let before = CpuTimes::now(gateway)?;
        let result = round()?;
        let after = CpuTimes::now(gateway)?;
        let others = (after.all - before.all).saturating_sub(after.own - before.own);
        let share = others as f64 / TICKS / (after.at - before.at).as_secs_f64();
        if share <= MAX_OTHERS {
            return Ok(Some(result));
        }
        eprintln!("discarded: other processes used {:.0}% of a CPU", share * 100.0);
        thread::sleep(PAUSE);
    }
    Ok(None)
}
